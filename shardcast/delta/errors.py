"""Errors of deltas.

InvalidInput
└── BadDelta          malformed, or for another base or size
TooLarge
└── DeltaTooLarge     larger than allowed: send the whole file
"""

from __future__ import annotations

from protocol.errors import Conflict, InvalidInput, TooLarge


class BadDelta(InvalidInput):
    """The bytes are not a delta from the given base to a file of the expected size."""

    code = "bad-delta"
    default_hint = "fetch the whole version instead"


class DeltaTooLarge(TooLarge):
    """The delta is larger than allowed."""

    code = "delta-too-large"
    default_hint = "publish the whole file"


class WrongBase(Conflict):
    """The base on this disk differs from the one that a version's deltas were made on."""

    code = "wrong-base"
    default_hint = "delete the base's folder, and fetch again"


class BaseNeeded(Conflict):
    """A version has files that exist as deltas only, and its base is not on this disk."""

    code = "base-needed"
    default_hint = "fetch the base first"
