"""docs/gateway.md: the commands and the program on the page work in order."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.command_line import run_muster
from tests.kit.gateway import POOL, RUN, running_gateway

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gateway.md").read_text()
BLOCKS = dict(re.findall(r"^```(\w+ [\w.]+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def test_the_pages_commands_work_in_order(redis_url: str, tmp_path: Path) -> None:
    command = tmp_path / "bin" / "muster"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m cli "$@"\n')
    command.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    reader = kept | {"PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    settings = BLOCKS["toml gateway.toml"].replace("pool_id = 1", f"pool_id = {POOL}")
    settings = re.sub(r'redis_url = ".*"', f'redis_url = "{redis_url}"', settings)
    (tmp_path / "gateway.toml").write_text(settings)
    with running_gateway(redis_url) as gateway:
        gateway.task().start()

        def run(block: str, program: list[str]) -> str:
            done = subprocess.run(
                program,
                input=BLOCKS[block].replace("http://127.0.0.1:8005", gateway.url),
                cwd=tmp_path,
                env=reader,
                text=True,
                capture_output=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, done.stderr + done.stdout
            said: str = done.stdout
            return said

        assert "app" in run("sh token", ["bash", "-e"])
        assert RUN in run("sh client", ["bash", "-e"])
        assert "muster" in json.loads((tmp_path / "answer.json").read_text())
        assert run("python client", [sys.executable, "-"])


def test_the_operators_commands_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = "\n".join(BLOCKS[name].strip() for name in ("sh operator", "sh verifier"))
    commands = [*blocks.splitlines(), *re.findall(r"`(muster gateway [^`]+)`", PAGE)]
    assert len(commands) > 5
    for line in commands:
        assert run_muster(monkeypatch, *line.split()[1:], "--help") == 0, line
