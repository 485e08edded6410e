"""Draw of the rows to recompute. It follows from seed, share and number of rows, so that others can repeat it.

The seed is unknown before the submission: it combines the hash of a later block, which the validator can't choose, with
a secret to which the validator has committed and which block producers don't know.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from protocol.errors import InvalidInput
from protocol.identifiers import Digest
from rollouts.seeds import draw_places

ROWS_TAG = b"muster-audit-rows-v1"
"""Domain separation tag. With another tag, old audits could not be recomputed."""

BASIS_POINTS = 10_000


def row_seed(secret: bytes, key: Digest, block_hash: Digest) -> bytes:
    """Returns HMAC-SHA256 with the epoch's secret over work key (32 bytes) and hash (32) of the block after the work's.

    Raises:
        InvalidInput: The secret is not 32 bytes.
    """
    if len(secret) != 32:
        raise InvalidInput(f"an epoch's secret of {len(secret)} bytes", hint="it has 32")
    return hmac.digest(secret, bytes.fromhex(key[2:]) + bytes.fromhex(block_hash[2:]), hashlib.sha256)


def rows_drawn(share: float, rows: int) -> int:
    """Returns the number of drawn rows at a share: at least one, rounded up to the basis point.

    Raises:
        InvalidInput: The share is not within (0, 1].
    """
    if not 0 < share <= 1:
        raise InvalidInput(f"a share of {share} of the rows", hint="more than 0, at most 1")
    # In integers: 0.07 · 100 is 7.000000000000001 in floats, which would draw eight rows.
    return min(rows, max(1, -(-max(1, round(share * BASIS_POINTS)) * rows // BASIS_POINTS)))


def draw_rows(draw: RowDraw, rows: int) -> tuple[int, ...]:
    """Returns the rows to recompute, ascending; all sets of that size are equally likely.

    Raises:
        InvalidInput: The share is not within (0, 1], or below 1 without a seed.
    """
    wanted = rows_drawn(draw.share, rows)
    if wanted >= rows:
        return tuple(range(rows))
    if draw.seed is None:
        raise InvalidInput(f"{draw.share} of the rows are to be drawn without a seed", hint="without one, draw all")
    return tuple(sorted(draw_places(ROWS_TAG, draw.seed, rows, wanted)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDraw:
    """Selection of the rows to recompute.

    Args:
        seed: 32 bytes that were unknown before the submission; None only if the share is 1.
        share: Share of the rows, 0 < share <= 1.
    """

    seed: bytes | None
    share: float
