"""Classifies errors by their scope: all validators, a service, this validator, or unknown. No I/O."""

from __future__ import annotations

from enum import StrEnum


class ErrorClass(StrEnum):
    """Class of an error, which determines who retries the item and which failures are counted."""

    ALL_VALIDATORS = "all-validators"
    """Error that every validator would get now, such as a missing file. The item waits; no failure is counted."""
    SERVICE = "service"
    """A service does not answer this validator, but may answer other validators.

    The failure counts only for the health of this validator, not for the item.
    """
    REQUIREMENT = "requirement"
    """This validator does not meet a requirement that another validator may meet, so it leaves the item to others."""
    UNKNOWN = "unknown"
    """Error that either the item or this validator causes.

    If the self-test passes, the failure counts for both the item and the health of the validator.
    """


_OF_ALL_VALIDATORS = frozenset({"file-absent", "block-not-there", "transaction-not-mined"})
"""Codes of errors that every validator would get now."""

_OF_SERVICES = frozenset(
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
"""Codes of errors of services; such errors end without an action of this validator."""

ENDS_EXAMINERS = frozenset({"examiner-died", "decoder-failed"})
"""Codes of errors that have the class `UNKNOWN` even if they are not retryable, because the item may have caused them.

Such an error means that an examiner or decoder process ended while it handled the item's file.
"""


def classify_error(code: str, *, retryable: bool) -> ErrorClass:
    """Returns the class of an error.

    Args:
        code: Code of the error.
        retryable: True if a retry by this validator may succeed.
    """
    if code in _OF_ALL_VALIDATORS:
        return ErrorClass.ALL_VALIDATORS
    if code in _OF_SERVICES:
        return ErrorClass.SERVICE
    if not retryable and code not in ENDS_EXAMINERS:
        return ErrorClass.REQUIREMENT
    return ErrorClass.UNKNOWN
