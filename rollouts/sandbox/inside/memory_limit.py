"""Ends a job that reached its memory limit, before its program can go on after the error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from .program import OUT_OF_MEMORY

_EARLIER: list[Callable[[BaseException], BaseException | None]] = [
    vars(BaseException)[name].__get__ for name in ("__context__", "__cause__")
]
_GROUPED: Callable[[BaseException], tuple[BaseException, ...]] = vars(BaseExceptionGroup)["exceptions"].__get__


def check_memory() -> None:
    """Ends the job if its memory limit was reached.

    The program must not go on after that, because another machine may have had the memory.
    """
    _end_without_memory(sys.exc_info()[1])


def check_ignored(ignored: sys.UnraisableHookArgs) -> None:
    """Checks an error that the interpreter reports but does not raise, such as an error in a destructor."""
    _end_without_memory(ignored.exc_value)


def _end_without_memory(error: BaseException | None) -> None:
    """Ends the job if an error, one of its group or one before it says that there is no memory."""
    left, seen = [error], set()
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        if isinstance(each, MemoryError):
            os._exit(OUT_OF_MEMORY)
        seen.add(id(each))
        # The class of an error may define attributes of the same names, so the descriptors read them.
        left += [read(each) for read in _EARLIER]
        if isinstance(each, BaseExceptionGroup):
            left += _GROUPED(each)
