"""Job that runs a whole program, from its standard input to its standard output."""

from __future__ import annotations

import random
import sys
import threading
import types
from collections.abc import Mapping
from typing import TextIO

OUT_OF_MEMORY = 77
"""Exit code of a job that reports running out of memory. A false report only makes the job's failure undecided."""


def run(payload: dict[str, str]) -> int:
    """Runs `source` as a Python script; returns its exit code."""
    open_standard_streams()
    code = 0
    try:
        execute(payload["source"], name="__main__")
        _await_threads()
    except SystemExit as end:
        code = _exit_code(end)
    except MemoryError:
        return OUT_OF_MEMORY
    except BaseException as error:  # noqa: BLE001 - an untrusted program may raise anything
        sys.stderr.write(f"{type(error).__name__}\n")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def open_standard_streams() -> None:
    """Opens new streams on descriptors 0 to 2; the streams that the server opened at its start refer to other files."""
    sys.stdin = _stream(0, "r")
    sys.stdout = _stream(1, "w")
    sys.stderr = _stream(2, "w")


def execute(source: str, *, name: str, given: Mapping[str, object] = types.MappingProxyType({})) -> dict[str, object]:
    """Runs a source as a fresh module with the given names predefined; returns the module's names.

    The function seeds Python's global random numbers, because scores must be reproducible.
    """
    random.seed(0)
    sys.argv = ["solution.py"]
    module = types.ModuleType(name)
    module.__dict__.update(given)
    sys.modules[name] = module
    exec(compile(source, "solution.py", "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - this process's purpose
    return module.__dict__


def _stream(descriptor: int, mode: str) -> TextIO:
    return open(descriptor, mode, encoding="utf-8", errors="replace", closefd=False)  # type: ignore[return-value]  # of text


def _await_threads() -> None:
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _exit_code(end: SystemExit) -> int:
    if end.code is None:
        return 0
    return end.code & 0xFF if isinstance(end.code, int) else 1
