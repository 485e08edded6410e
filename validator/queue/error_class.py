"""Classifies an error as global, network, local or unknown. No I/O."""

from __future__ import annotations

from enum import StrEnum


class ErrorClass(StrEnum):
    """Class of an error: what it implies for the work, this validator and other validators."""

    EVERYBODYS = "everybodys"
    """It is so whoever asks, and ends by itself or with the work's deadline: the work waits, and counts no failure."""
    OUTSIDE = "outside"
    """A service does not answer us; perhaps it answers others. Counts no failure of the work."""
    LACKED = "lacked"
    """This validator has not what it takes, and may never have; another one may. It gives the work up, not its turn."""
    UNSURE = "unsure"
    """The work or this validator: a self-test says which, and if that passes it counts for the two of them together."""


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
"""Troubles that end by themselves, or with the work's deadline: no person could do anything about this one item."""

ENDS_EXAMINERS = frozenset({"examiner-died", "decoder-failed"})
"""Troubles that the work made, as far as this validator can tell: it has tried often enough, in fresh processes."""


def whose(code: str, *, retryable: bool) -> ErrorClass:
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
