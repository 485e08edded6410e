"""Errors of building and applying deltas.

InvalidInput
└── BadDelta          the delta is malformed, or is for another base or another size
TooLarge
└── DeltaTooLarge     the delta is larger than allowed, so the publisher sends the whole file
Conflict
├── WrongBase         the base on this disk differs from the one that the deltas were built on
└── BaseNeeded        some files of the version exist as deltas only, and the base is not on this disk
"""

from __future__ import annotations

from protocol.errors import Conflict, InvalidInput, TooLarge


class BadDelta(InvalidInput):
    """The bytes are not a delta from the given base to a file of the expected size."""

    code = "bad-delta"
    default_hint = "fetch the whole version instead"


class DeltaTooLarge(TooLarge):
    """The delta is larger than the limit that the publisher set."""

    code = "delta-too-large"
    default_hint = "publish the whole file"


class WrongBase(Conflict):
    """The base on this disk differs from the one that a version's deltas were built on."""

    code = "wrong-base"
    default_hint = "delete the base's folder, and fetch the version again"


class BaseNeeded(Conflict):
    """Some files of a version exist as deltas only, and the base is not on this disk."""

    code = "base-needed"
    default_hint = "fetch the base first"
