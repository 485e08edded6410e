"""Runs tests of the web pages in Chromium, driven by Playwright in Node.js."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ledger.build import tools_directory
from protocol.errors import Unavailable

SCRIPTS = Path(__file__).parents[1] / "orchestrator" / "page" / "browser"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def in_browser(script: str, world: Mapping[str, object]) -> int:
    """Runs a file of browser tests, and returns the number of passed tests; a failed one fails this test.

    Args:
        script: Name of a file in `tests/orchestrator/page/browser`.
        world: Values that the tests read as `world` in `browser.mjs`, such as the URL of the orchestrator.
    """
    done = _run(["--test", "--test-reporter=tap", str(SCRIPTS / script)], world)
    assert done.returncode == 0, done.stdout[-12_000:] + done.stderr[-2000:]
    assert re.search(r"^# (?:fail|cancelled|skipped|todo) [1-9]", done.stdout, re.MULTILINE) is None, done.stdout
    return int(re.findall(r"^# pass (\d+)", done.stdout, re.MULTILINE)[0])


def measure_in_browser(world: Mapping[str, object]) -> list[dict[str, Any]]:
    """Runs `benchmarks/pages.mjs`; returns the figures of each page."""
    done = _run([str(Path(__file__).parents[2] / "benchmarks" / "pages.mjs")], world)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def _run(arguments: Sequence[str], world: Mapping[str, object]) -> subprocess.CompletedProcess[str]:
    settings = {
        "MUSTER_WORLD": json.dumps(world),
        "MUSTER_NODE_MODULES": str(_modules()),
        "MUSTER_CHROMIUM": _chromium(),
    }
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "MUSTER_SCREENSHOTS") if name in os.environ}
    return subprocess.run(
        ["node", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**kept, **settings, "TZ": "UTC"},
    )


def _chromium() -> str:
    """Returns the path of Chromium: `MUSTER_CHROMIUM`, or the one that is installed."""
    given = os.environ.get("MUSTER_CHROMIUM")
    found = given or next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if found is None:
        if "browser" in os.environ.get("MUSTER_REQUIRE", "").split(","):
            pytest.fail("Chromium is required and was not found")
        pytest.skip("there is no Chromium (Debian: apt install chromium), and MUSTER_CHROMIUM names none")
    return found


def _modules() -> Path:
    """Returns the folder of the npm packages that deploy/npm pins."""
    try:
        modules = tools_directory() / "node_modules"
    except Unavailable as missing:
        pytest.skip(f"{missing.detail}: {missing.hint}")
    if shutil.which("node") is None or not all((modules / name).is_dir() for name in ("playwright-core", "axe-core")):
        pytest.skip("there is no node, or its packages are missing: `make tools` installs them")
    return modules
