"""The vLLM process ends with the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from protocol.errors import NotFound
from rollouts.recompute.place import VllmPlace

ROOT = Path(__file__).parents[3]
PARENT = """
import subprocess, sys, time
command = [sys.executable, "-m", "rollouts.recompute.program"]
child = subprocess.Popen(command, stdin=int(sys.argv[1]), stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_killed_parent_takes_the_process_along_although_its_input_stays_open() -> None:
    reading, writing = os.pipe()
    command = [sys.executable, "-c", PARENT, str(reading)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, pass_fds=[reading]) as parent:
        assert parent.stdout is not None
        try:
            child = psutil.Process(int(parent.stdout.readline()))
            until = time.monotonic() + 120
            while time.monotonic() < until and not _is_set_up(child):
                time.sleep(0.05)
        finally:
            parent.send_signal(signal.SIGKILL)
        gone, _ = psutil.wait_procs([child], timeout=30)
    os.close(reading)
    os.close(writing)
    assert gone or child.status() == psutil.STATUS_ZOMBIE


def _is_set_up(process: psutil.Process) -> bool:
    """Returns True once the program has duplicated its standard input, which it does after its set-up."""
    links: list[str] = []
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            links.append(str(link.readlink()))
    pipes = [link for link in links if link.startswith("pipe:")]
    return any(pipes.count(link) > 1 for link in pipes)


def test_an_interpreter_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no Python interpreter"):
        VllmPlace(python=tmp_path / "python").interpreter()


def test_without_vllm_the_error_says_what_to_install() -> None:
    with pytest.raises(NotFound, match="vLLM is not installed in this environment") as refused:
        VllmPlace().interpreter()
    assert "name the interpreter of an environment that has vLLM" in refused.value.hint
