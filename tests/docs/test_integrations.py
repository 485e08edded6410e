"""docs/verifiers.md and docs/openenv.md: the commands on the pages work in order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.kit.integrations import install
from tests.kit.verifiers_client import PYTHON, ROOT

pytestmark = pytest.mark.needs_verifiers

EXPECTED = {
    "verifiers": ["facts_lookup", "reward looked_up", "reproducible"],
    "openenv": ["Find the exit", "current_position", "steps", "reproducible"],
}
MODULES = {"muster": "cli", "muster-verifiers": "muster_verifiers.export", "muster-openenv": "muster_openenv.code"}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", EXPECTED)
def test_the_commands_of_the_page_work_in_order(name: str, tmp_path: Path) -> None:
    variables = install(name, tmp_path / "site")
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for command, module in MODULES.items():
        (binaries / command).write_text(f'#!/bin/sh\nexec {shlex.quote(str(PYTHON))} -m {module} "$@"\n')
        (binaries / command).chmod(0o755)
    page = (ROOT / "docs" / f"{name}.md").read_text()
    script = "".join(re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    variables |= {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-e"],
        input=script,
        cwd=tmp_path,
        env=variables,
        text=True,
        capture_output=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for expected in EXPECTED[name]:
        assert expected in done.stdout
