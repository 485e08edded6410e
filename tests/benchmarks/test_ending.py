"""A benchmark that is ended early leaves no process and no file behind."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks

SCRIPTS = sorted(Path(benchmarks.__path__[0]).glob("*.py"))

MEASURES_FOR_LONG = """
import subprocess, sys, tempfile, time
from benchmarks.ending import end_in_order
end_in_order()
with tempfile.TemporaryDirectory(dir=sys.argv[1]), subprocess.Popen(["sleep", "60"]) as child:
    try:
        print(child.pid, flush=True)
        {body}
    finally:
        child.terminate()
"""


@pytest.mark.parametrize("body", ["time.sleep(60)", "import asyncio; asyncio.run(asyncio.sleep(60))"])
def test_sigterm_ends_child_processes_and_removes_temporary_files(tmp_path: Path, body: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MEASURES_FOR_LONG.format(body=body), str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())
    assert not Path(f"/proc/{child}").exists()


def test_every_standalone_benchmark_handles_sigterm() -> None:
    ended = {path.name: first for path in SCRIPTS if (first := _first_of_main(path)) is not None}
    assert len(ended) > 20
    assert set(ended.values()) == {"end_in_order()"}, ended


def _first_of_main(script: Path) -> str | None:
    """Returns the first statement of a script's main function; None if it is no script."""
    for statement in ast.parse(script.read_text()).body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'":
            return ast.unparse(statement.body[0])
    return None
