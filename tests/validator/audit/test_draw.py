"""The draw of rows: reproducible by any party afterwards, and unpredictable beforehand."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidInput
from protocol.identifiers import Digest
from validator.audit.draw import RowDraw, draw_rows, row_seed, rows_drawn

KEY, BLOCK = Digest("0x" + "01" * 32), Digest("0x" + "02" * 32)
SECRET = b"\x03" * 32
shares = st.integers(1, 10_000).map(lambda basis_points: basis_points / 10_000)
seeds = st.binary(min_size=32, max_size=32)


def test_the_row_seed_is_the_documented_hmac() -> None:
    expected = hmac.new(SECRET, b"\x01" * 32 + b"\x02" * 32, hashlib.sha256).digest()
    assert row_seed(SECRET, KEY, BLOCK) == expected


def test_the_rows_of_a_known_seed_never_change() -> None:
    """Otherwise past audits could not be recomputed."""
    seed = row_seed(SECRET, KEY, BLOCK)
    assert draw_rows(RowDraw(seed=seed, share=0.1), 64) == VECTOR


@given(seed=seeds, share=shares, rows=st.integers(0, 300))
def test_the_draw_has_the_requested_size_and_is_deterministic(seed: bytes, share: float, rows: int) -> None:
    drawn = draw_rows(RowDraw(seed=seed, share=share), rows)
    assert drawn == draw_rows(RowDraw(seed=seed, share=share), rows)
    assert list(drawn) == sorted(set(drawn))
    assert all(0 <= row < rows for row in drawn)
    assert len(drawn) == min(rows, max(1, -(-round(share * 10_000) * rows // 10_000)))
    assert len(drawn) >= share * rows - 1e-6


@given(seed=seeds, share=shares)
def test_another_secret_work_key_or_block_draws_other_rows(seed: bytes, share: float) -> None:
    seeds = {
        row_seed(seed, KEY, BLOCK),
        row_seed(bytes(32) if seed != bytes(32) else SECRET, KEY, BLOCK),
        row_seed(seed, BLOCK, BLOCK),
        row_seed(seed, KEY, KEY),
    }
    assert len(seeds) == 4


def test_every_row_is_equally_likely_to_be_drawn() -> None:
    """In 10,000 draws of 2 rows out of 20, each row is drawn 1,000 times on average (standard deviation 30)."""
    counts: Counter[int] = Counter()
    pairs: Counter[tuple[int, ...]] = Counter()
    for number in range(10_000):
        seed = row_seed(SECRET, Digest("0x" + number.to_bytes(32, "big").hex()), BLOCK)
        rows = draw_rows(RowDraw(seed=seed, share=0.1), 20)
        counts.update(rows)
        pairs[rows] += 1
    assert len(counts) == 20
    # five standard deviations, and the draws are deterministic
    assert all(850 < count < 1150 for count in counts.values())
    assert len(pairs) == 190


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01])
def test_a_share_outside_of_0_and_1_is_refused(share: float) -> None:
    with pytest.raises(InvalidInput, match="the share of drawn rows"):
        rows_drawn(share, 10)


def test_drawing_a_part_of_the_rows_needs_a_seed() -> None:
    assert draw_rows(RowDraw(seed=None, share=1), 3) == (0, 1, 2)
    assert draw_rows(RowDraw(seed=None, share=0.5), 1) == (0,)
    with pytest.raises(InvalidInput, match="without a seed"):
        draw_rows(RowDraw(seed=None, share=0.5), 10)
    with pytest.raises(InvalidInput, match="secret has 3 bytes"):
        row_seed(b"abc", KEY, BLOCK)


VECTOR = (1, 4, 6, 23, 24, 29, 59)
