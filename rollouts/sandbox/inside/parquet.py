"""Job that reads an untrusted rollout file and writes it to descriptor 3 in the packed format.

The decoder is a library of a few hundred thousand lines of C++ that processes hostile bytes. In the sandbox it can
open no files or connections, and its memory and time are limited.
"""

from __future__ import annotations

import json
import os

from rollouts.errors import BadRolloutFile, TooLargeHere
from rollouts.files.limits import ReadLimits
from rollouts.files.packed_format import pack
from rollouts.files.schema import read_rollout_bytes
from rollouts.files.self_test_file import trial_file

from .program import OUT_OF_MEMORY

_FILE, _ANSWER = 0, 3
_READ_BYTES = 1 << 20
FILE, REFUSED, TOO_LARGE = b"F", b"R", b"L"
"""First byte of an answer: a packed file, a refusal (JSON), or a limit of this machine that was exceeded (JSON)."""


def run(payload: dict[str, dict[str, int]]) -> int:
    """Reads the file on descriptor 0, within the limits of its lease (`limits`) and of this machine (`here`)."""
    try:
        answer = _answer(_all_of(_FILE), ReadLimits(**payload["limits"]), ReadLimits(**payload["here"]))
        _write(answer)
    except MemoryError:
        return OUT_OF_MEMORY
    return 0


def _answer(content: bytes, limits: ReadLimits, here: ReadLimits) -> bytes:
    kind = REFUSED
    try:
        return FILE + pack(read_rollout_bytes(content, limits=limits, here=here))
    except BadRolloutFile as error:
        code, detail = error.code, error.detail[:1000]
    except TooLargeHere as error:
        kind, code, detail = TOO_LARGE, error.code, error.detail
    except (ValueError, TypeError, ArithmeticError, LookupError) as error:  # no honest file has values that raise these
        code, detail = "bad-value", f"its values can't be read: {type(error).__name__}"
    return kind + json.dumps({"code": code, "detail": detail}).encode()


def _all_of(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, _READ_BYTES):
        parts.append(part)
    return b"".join(parts)


def _write(answer: bytes) -> None:
    view = memoryview(answer)
    while view:
        view = view[os.write(_ANSWER, view) :]


def _warm_up() -> None:
    """Reads a valid and an invalid file, so that the library loads its lazily imported modules before the fork."""
    for content in (trial_file(), b"no such file"):
        _answer(content, ReadLimits(), ReadLimits())


_warm_up()
