"""Classifies an error as global, network, local or unknown. No I/O."""

from __future__ import annotations

from enum import StrEnum


class ErrorClass(StrEnum):
    """Class of an error: what it implies for the work, this validator and other validators."""

    EVERYBODYS = "everybodys"
    """The same for all validators, until it ends or the deadline passes: the item waits; no failure is counted."""
    OUTSIDE = "outside"
    """A service does not answer this validator, but may answer others. No failure is counted."""
    LACKED = "lacked"
    """This validator lacks a requirement that another may have. It leaves the item to the others."""
    UNSURE = "unsure"
    """Caused by the item or by this validator; the self-test decides. If it passes, a failure of both is counted."""


_EVERYBODYS = frozenset({"file-absent", "block-not-there", "transaction-not-mined"})

_OUTSIDE = frozenset(
    {
        "chain-unavailable",
        "store-unavailable",
        "unreachable",
        "no-answer",
        "transfer-failed",
        "rate-limited",
        "http-502",
        "http-503",
        "http-504",
    }
)

WAITED_FOR = _EVERYBODYS | _OUTSIDE
"""Errors that end by themselves or with the item's deadline; an operator can do nothing about the item."""

ENDS_EXAMINERS = frozenset({"examiner-died", "decoder-failed"})
"""Errors that the item seems to cause: they repeat in fresh processes."""


def classify_error(code: str, *, retryable: bool) -> ErrorClass:
    """Classifies an error.

    Args:
        code: Code of the error.
        retryable: Whether a retry by this validator may succeed.
    """
    if code in _EVERYBODYS:
        return ErrorClass.EVERYBODYS
    if code in _OUTSIDE:
        return ErrorClass.OUTSIDE
    if not retryable and code not in ENDS_EXAMINERS:
        return ErrorClass.LACKED
    return ErrorClass.UNSURE
