"""Helpers for jobs of a package: answers, scores and error texts that are equal on every machine.

A sandbox shows this module to every package's jobs, so it imports only the standard library.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

LONGEST_REPLY = 64 * 1024
"""Maximum characters of a reply; the caller cuts it to fewer bytes."""
_ANSWER = 3
_OUT_OF_MEMORY = 77
"""Exit code that a sandbox understands as running out of memory."""
_DECIMALS = 6
"""Decimals of scores; the last bits of `math.exp` and others depend on the machine's C library."""
_LONGEST_ERROR = 500
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
"""Addresses of objects in error messages, which differ from process to process."""


class NotReproducibleError(Exception):
    """The environment can't be used, because results could differ from machine to machine."""


def answer(compute: Callable[[], object]) -> int:
    """Computes the job's answer, and writes it as JSON to descriptor 3; returns the job's exit code."""
    try:
        found = compute()
    except MemoryError:
        return _OUT_OF_MEMORY
    with open(_ANSWER, "w", encoding="utf-8") as file:
        json.dump(found, file)
    return 0


def figure(value: float) -> float:
    """Returns a score rounded to the decimals that all machines agree on; 0 for a value that is no number."""
    return round(value, _DECIMALS) if math.isfinite(value) else 0.0


def error_reply(error: Exception) -> str:
    """Returns the reply to a message on which the environment's code raised an exception."""
    reason = _ADDRESS.sub("0x", str(error))[:_LONGEST_ERROR]
    return f"error: {type(error).__name__}: {reason}" if reason else f"error: {type(error).__name__}"
