"""Draw of the rows to recompute: a function of seed, share and number of rows, so that others can repeat it.

Nobody knows the seed before the submission: it combines the hash of a later block with an audit secret of the
validator. The validator can't choose the block hash. Block producers don't know the secret, and the validator can't
change the secret, because its commitment is on the ledger.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from protocol.errors import InvalidInput
from protocol.identifiers import Digest
from rollouts.seeds import draw_places

ROWS_TAG = b"muster-audit-rows-v1"
"""Domain separation tag of the draw. The tag must never change, or draws of old audits could not be repeated."""

BASIS_POINTS = 10_000
"""Number of basis points in 100 %; the ledger stores shares in basis points."""


def row_seed(secret: bytes, key: Digest, block_hash: Digest) -> bytes:
    """Returns the seed of a draw: HMAC-SHA256 with the secret over work key (32 bytes) and block hash (32 bytes).

    Args:
        secret: Audit secret of the epoch, 32 bytes.
        key: The work key.
        block_hash: Hash of the block after the submission's block.

    Raises:
        InvalidInput: The secret is not 32 bytes long.
    """
    if len(secret) != 32:
        raise InvalidInput(f"an epoch's secret has {len(secret)} bytes", hint="it must have 32")
    return hmac.digest(secret, bytes.fromhex(key[2:]) + bytes.fromhex(block_hash[2:]), hashlib.sha256)


def rows_drawn(share: float, rows: int) -> int:
    """Returns the number of rows to draw: the share in basis points of all rows, rounded up.

    At least one row is drawn.

    Args:
        share: Share of the rows, 0 < share <= 1.
        rows: Number of all rows.

    Raises:
        InvalidInput: The share is not within (0, 1].
    """
    if not 0 < share <= 1:
        raise InvalidInput(f"the share of drawn rows is {share}", hint="it must be more than 0 and at most 1")
    # Computed in integers: in floats 0.07 * 100 is 7.000000000000001, which would draw eight rows.
    return min(rows, max(1, -(-max(1, round(share * BASIS_POINTS)) * rows // BASIS_POINTS)))


def draw_rows(draw: RowDraw, rows: int) -> tuple[int, ...]:
    """Returns the numbers of the rows to recompute, ascending; all sets of this number of rows are equally likely.

    Args:
        draw: Seed and share.
        rows: Number of all rows; they are numbered from 0.

    Raises:
        InvalidInput: The share is not within (0, 1], or the share is below 1 and `draw` has no seed.
    """
    wanted = rows_drawn(draw.share, rows)
    if wanted >= rows:
        return tuple(range(rows))
    if draw.seed is None:
        raise InvalidInput(
            f"a share of {draw.share} of the rows can't be drawn without a seed", hint="use a share of 1"
        )
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
