"""Philox4x32-10 for rows of consecutive counters, as a vocabulary has them: the words of `philox`, in half the time.

Between two rounds the four words stand as two pairs, Q = (x0, x1) and R = (x2, x3), the even one in the upper half of
64 bits. Then a round is

    Q' = M1·(R >> 32) ^ (Q ^ k0) << 32        R' = M0·(Q >> 32) ^ (R ^ k1) << 32

and needs no masks: what is not wanted is shifted out. Both pairs lie one behind the other, so each step is one call. In
the first three rounds most of it is the same throughout a row or throughout a column, and is computed once for it; in
the others it is five passes over arrays that stay in the second cache.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollouts.sampling.philox import MULTIPLIERS, ROUNDS, WEYL

Pairs = NDArray[np.uint64]

PAIRS = np.dtype("<u8")
"""What is written: two words, which so stand in memory in their order on any machine."""

_HALF = np.uint64(32)
_BY_LEFT, _BY_RIGHT = (np.uint64(multiplier) for multiplier in MULTIPLIERS)
_BY = np.array([[[_BY_LEFT]], [[_BY_RIGHT]]])
_LOW = np.uint64(0xFFFFFFFF)
_EVERY_BIT = np.uint64(0xFFFFFFFFFFFFFFFF)
_STEPS = np.array([[number * weyl << 32 & (1 << 64) - 1 for weyl in WEYL] for number in range(ROUNDS)], np.uint64)
"""What is added to a key in each round, [rounds, 2]; in the upper halves, where sums need no mask either."""


def scratch(rows: int, counters: int) -> Pairs:
    """What `fill_pairs` works in, to be used again: new pages cost as much as several rounds."""
    return np.empty((2, 2, rows, counters), np.uint64)


def fill_pairs(rows: NDArray[np.uint64], start: int, room: Pairs, *, inverted: bool = False) -> Pairs:
    """Computes four words for each of some consecutive counters of each row.

    Args:
        rows: uint64 [R, 5], of each row the key's two words, the counter's third and fourth, and its second.
        start: The first word of the first counter; the others follow.
        room: `scratch` of R and counters.
        inverted: Whether every bit of the words is turned over, which here costs nothing.

    Returns:
        The first half of the room, [2, R, counters]: of each counter its first and second word, then its third and
        fourth; the earlier one in the upper half of 64 bits.
    """
    alike = rows[:1] if bool((rows[:, :4] == rows[0, :4]).all()) else rows
    keys = (alike[:, :2].T << _HALF)[None] + _STEPS[:, :, None]
    keys = keys[..., None]  # [rounds, 2, R, 1]
    pairs: Pairs = room[0]
    products = room[1]
    _three_rounds(rows, start, keys, room)
    for number in range(3, ROUNDS):
        np.multiply(np.right_shift(pairs, _HALF, products), _BY, products)
        turned = _EVERY_BIT if inverted and number == ROUNDS - 1 else np.uint64(0)
        np.bitwise_xor(np.left_shift(pairs, _HALF, pairs), keys[number] ^ turned, pairs)
        np.bitwise_xor(pairs, products[::-1], pairs)
    return pairs


def fill_words(rows: NDArray[np.uint64], start: int, out: Pairs, room: Pairs) -> None:
    """Writes the same words in their order, those of each counter together; `out` is `PAIRS` [R, counters, 2]."""
    pairs = fill_pairs(rows, start, room)
    lower = np.right_shift(pairs, _HALF, room[1])
    np.bitwise_or(np.left_shift(pairs, _HALF, pairs), lower, np.moveaxis(out, 2, 0))


def _three_rounds(rows: NDArray[np.uint64], start: int, keys: Pairs, room: Pairs) -> None:
    """Leaves both pairs after three rounds in the first half of `room`.

    [1, counters] are the counters' first words and what comes of these alone, [R, 1] their second ones; what all rows
    share is [1, 1].
    """
    (lefts, rights), (out_left, out_right) = np.moveaxis(keys, 1, 0), room[0]
    first = np.arange(start, start + room.shape[3], dtype=np.uint64)[None, :]
    alike = rows[: lefts.shape[1]]
    product_two = alike[:, 2:3] * _BY_RIGHT
    product_zero = ((product_two ^ lefts[0]) >> _HALF ^ rows[:, 4:5]) * _BY_LEFT
    right = (first * _BY_LEFT) ^ ((alike[:, 3:4] << _HALF) ^ rights[0])
    left = ((right >> _HALF) * _BY_RIGHT) ^ ((product_two << _HALF) ^ lefts[1])
    upper_right = np.bitwise_xor(right & _LOW, (product_zero ^ rights[1]) >> _HALF, out_left)
    np.bitwise_xor(np.multiply(upper_right, _BY_RIGHT, out_left), (left << _HALF) ^ lefts[2], out_left)
    np.bitwise_xor((left >> _HALF) * _BY_LEFT, (product_zero << _HALF) ^ rights[2], out_right)
