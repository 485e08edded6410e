"""Job that attempts forbidden actions and reports successes. A sandbox is used only if all attempts fail."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import socket
from collections.abc import Callable

_ANSWER = 3


def run(payload: dict[str, list[str]]) -> int:
    """Writes the names of the attempts that succeeded to descriptor 3, one per line."""
    attempts: dict[str, Callable[[], object]] = {
        "make a process": _fork,
        "become a program": lambda: os.execv("/bin/true", ["true"]),  # noqa: S606 - must fail
        "open a socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "open a local socket": lambda: socket.socket(socket.AF_UNIX),
        "signal its parent": lambda: os.kill(os.getppid(), 0),
        "signal everybody": lambda: os.kill(-1, 0),
        "trace its parent": lambda: _must_be_zero(ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)),
        "write a file": lambda: os.open("/tmp/muster-probe", os.O_WRONLY | os.O_CREAT, 0o600),  # noqa: S108 - must fail
        "write to a device": lambda: os.open("/dev/null", os.O_WRONLY),
        "keep memory": lambda: os.memfd_create("probe"),
        "enter a namespace": lambda: _must_be_zero(ctypes.CDLL(None).unshare(0x10000000)),
        "be traced less": lambda: _must_be_zero(ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)),
    }
    for path in payload["hidden"]:
        attempts[f"read {path}"] = functools.partial(os.open, path, os.O_RDONLY)
    could = [name for name, attempt in attempts.items() if _succeeds(attempt)]
    os.write(_ANSWER, "\n".join(could).encode())
    return 0


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def _fork() -> None:
    if os.fork() == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def _must_be_zero(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), "refused")
