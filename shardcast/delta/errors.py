"""What can be wrong with a delta.

InvalidInput
└── BadDelta          its bytes are no delta, or one of another base or to another size
TooLarge
└── DeltaTooLarge     what changed takes more bytes than was allowed: send the whole file
"""

from __future__ import annotations

from protocol.errors import InvalidInput, TooLarge


class BadDelta(InvalidInput):
    """The bytes are no delta between the base at hand and a file of the expected size."""

    code = "bad-delta"
    default_hint = "fetch the whole version instead"


class DeltaTooLarge(TooLarge):
    """What changed takes more bytes than was allowed."""

    code = "delta-too-large"
    default_hint = "publish the whole file"
