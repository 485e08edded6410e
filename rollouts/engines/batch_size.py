"""Reduces the batch size after an out-of-memory error."""

from __future__ import annotations

import torch

from protocol.runtime.logs import get_logger
from rollouts.errors import EngineFailed, OutOfMemory
from rollouts.precision import EngineName

_log = get_logger(__name__)

_NOT_ENOUGH = ("not enough memory", "can't allocate memory", "out of memory")


def is_of_memory(error: BaseException) -> bool:
    """Returns whether an error means that memory ran out."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(
        words in first_line_of(error).lower() for words in _NOT_ENOUGH
    )


def first_line_of(error: BaseException) -> str:
    """Returns the first line of an error's message, without the lines that libraries append."""
    return str(error).strip().split("\n", maxsplit=1)[0]


def fewer(rows: int, error: Exception, *, engine: EngineName) -> int:
    """Returns the batch size to use after a batch failed with this error.

    Raises:
        OutOfMemory: A single answer did not fit.
        EngineFailed: The error has a cause other than memory.
    """
    first_line = first_line_of(error)
    if not is_of_memory(error):
        raise EngineFailed(f"the {engine.value} engine crashed: {type(error).__name__}: {first_line}") from error
    if rows == 1:
        raise OutOfMemory(f"not even one answer fits: {first_line}") from error
    _log.warning("smaller batch", engine=engine.value, rows=rows // 2, reason=first_line)
    return rows // 2
