"""Philox4x32-10 for rows of consecutive counters, as a vocabulary has them: the words of `philox`, in half the time.

Between two rounds the four words stand as two pairs, Q = (x0, x1) and R = (x2, x3), the even one in the upper half of
64 bits. Then a round is

    Q' = M1·(R >> 32) ^ (Q ^ k0) << 32        R' = M0·(Q >> 32) ^ (R ^ k1) << 32

and needs no masks: what is not wanted is shifted out. In the first three rounds most of it is the same throughout a row
or throughout a column, and is computed once for it; in the others it is ten passes over arrays that stay in the second
cache.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollouts.sampling.philox import MULTIPLIERS, ROUNDS, WEYL

Pairs = NDArray[np.uint64]

PAIRS = np.dtype("<u8")
"""What is written: two words, which so stand in memory in their order on any machine."""

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_BY_LEFT, _BY_RIGHT = (np.uint64(multiplier) for multiplier in MULTIPLIERS)
_STEPS = np.array([[number * weyl << 32 & (1 << 64) - 1 for number in range(ROUNDS)] for weyl in WEYL], np.uint64)
"""What is added to a key in each round, [2, rounds]; in the upper halves, where sums need no mask either."""


def scratch(rows: int, counters: int) -> Pairs:
    """What `fill_words` needs beside its output, to be used again: new pages cost as much as several rounds."""
    return np.empty((5, rows, counters), np.uint64)


def fill_words(rows: NDArray[np.uint64], start: int, out: Pairs, room: Pairs, *, inverted: bool = False) -> None:
    """Writes four words for each of some consecutive counters of each row.

    Args:
        rows: uint64 [R, 5], of each row the key's two words, the counter's third and fourth, and its second.
        start: The first word of the first counter; the others follow.
        out: `PAIRS` [R, counters, 2].
        room: `scratch` of R and counters.
        inverted: Whether every bit of the words is turned over, which here costs nothing.
    """
    alike = rows[:1] if bool((rows[:, :4] == rows[0, :4]).all()) else rows
    lefts, rights = ((alike[:, :2].T << _HALF)[:, None, :] + _STEPS[:, :, None])[..., None]  # [rounds, R, 1] each
    _three_rounds(rows, start, lefts, rights, room)
    left, right, by_left, by_right, spare = room
    for number in range(3, ROUNDS):
        np.multiply(np.right_shift(left, _HALF, by_left), _BY_LEFT, by_left)
        np.multiply(np.right_shift(right, _HALF, by_right), _BY_RIGHT, by_right)
        if number == ROUNDS - 1:
            break
        np.bitwise_xor(np.bitwise_xor(np.left_shift(left, _HALF, left), lefts[number], left), by_right, left)
        np.bitwise_xor(np.bitwise_xor(np.left_shift(right, _HALF, right), rights[number], right), by_left, right)
    turned = np.uint64(0xFFFFFFFFFFFFFFFF if inverted else 0)
    for at, pair, product, key in ((0, left, by_right, lefts[-1]), (1, right, by_left, rights[-1])):
        # The even word goes to the lower half, where it is the first of the two.
        np.bitwise_xor(np.bitwise_and(pair, _LOW, pair), (key >> _HALF) ^ turned, pair)
        np.bitwise_xor(pair, np.right_shift(product, _HALF, spare), pair)
        np.bitwise_xor(pair, np.left_shift(product, _HALF, product), out[:, :, at])


def _three_rounds(rows: NDArray[np.uint64], start: int, lefts: Pairs, rights: Pairs, room: Pairs) -> None:
    """Leaves both pairs after three rounds in the first two places of `room`.

    [1, counters] are the counters' first words and what comes of these alone, [R, 1] their second ones; what all rows
    share is [1, 1].
    """
    first = np.arange(start, start + room.shape[2], dtype=np.uint64)[None, :]
    alike = rows[: lefts.shape[1]]
    product_two = alike[:, 2:3] * _BY_RIGHT
    product_zero = ((product_two ^ lefts[0]) >> _HALF ^ rows[:, 4:5]) * _BY_LEFT
    right = (first * _BY_LEFT) ^ ((alike[:, 3:4] << _HALF) ^ rights[0])
    left = ((right >> _HALF) * _BY_RIGHT) ^ ((product_two << _HALF) ^ lefts[1])
    upper_right = np.bitwise_xor(right & _LOW, (product_zero ^ rights[1]) >> _HALF, room[0])
    np.bitwise_xor(np.multiply(upper_right, _BY_RIGHT, room[0]), (left << _HALF) ^ lefts[2], room[0])
    np.bitwise_xor((left >> _HALF) * _BY_LEFT, (product_zero << _HALF) ^ rights[2], room[1])
