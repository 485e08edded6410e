"""Noise words are equal on all machines, and the noise is finite, exact to the last bit and Gumbel-distributed."""

from __future__ import annotations

import hashlib
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from protocol.errors import InvalidInput
from rollouts.sampling.noise import (
    gumbel_numpy,
    gumbel_torch,
    noise,
    noise_numpy,
    noise_torch,
    row_keys,
    stream,
    words,
)
from rollouts.sampling.philox import philox_numpy, philox_torch

SEED = bytes(range(32))
CPU = torch.device("cpu")

ULP_BOUND = 1
ULP_FLOOR = 2.0**-20
"""Near g = 0 units in the last place become arbitrarily small, so the bound is relative to at least this value
(1e-6).
"""

# (counter, key, words) from Random123's kat_vectors, "philox4x32 10".
KNOWN_ANSWERS = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_reproduces_the_published_words(
    counter: tuple[int, int, int, int], key: tuple[int, int], answer: tuple[int, ...]
) -> None:
    zero, one, two, three = (np.array([word], dtype=np.uint64) for word in counter)
    left, right = (np.array([word], dtype=np.uint64) for word in key)
    assert tuple(int(word[0]) for word in philox_numpy((zero, one, two, three), (left, right))) == answer
    t_zero, t_one, t_two, t_three = (torch.tensor([word]) for word in counter)
    t_left, t_right = (torch.tensor([word]) for word in key)
    assert tuple(int(word) for word in philox_torch((t_zero, t_one, t_two, t_three), (t_left, t_right))) == answer


def test_a_stream_is_the_prefix_of_a_hash_of_seed_and_sample() -> None:
    hashed = hashlib.sha256(b"muster-sampling-v1" + SEED + (258).to_bytes(4, "big")).digest()
    assert b"".join(word.to_bytes(4, "big") for word in stream(SEED, 258)) == hashed[:16]
    assert len({stream(SEED, 0), stream(SEED, 1), stream(b"\0" * 32, 0)}) == 3


@pytest.mark.parametrize(("seed", "sample"), [(SEED[1:], 0), (SEED, -1), (SEED, 1 << 32)])
def test_a_stream_has_a_whole_seed_and_a_number_of_four_bytes(seed: bytes, sample: int) -> None:
    with pytest.raises(InvalidInput, match="can't key noise"):
        stream(seed, sample)


# (sample, position, token, word): the seed is the bytes 00 01 … 1f.
VECTORS = [
    (0, 0, 0, 0xF8E35DF5),
    (0, 0, 1, 0x6159FD7D),
    (0, 0, 2, 0x1D1457E3),
    (0, 0, 3, 0x848C04D1),
    (0, 0, 4, 0x34EAD66B),
    (0, 1, 0, 0x684936DE),
    (1, 0, 0, 0x7CDE5326),
    (4095, 1023, 151935, 0xAFF442AC),
    (4294967295, 4294967295, 70000, 0xCEC4B57E),
]


@pytest.mark.parametrize(("sample", "position", "token", "word"), VECTORS)
def test_the_noise_word_of_a_known_seed_sample_position_and_token(
    sample: int, position: int, token: int, word: int
) -> None:
    assert words(row_keys([stream(SEED, sample)], [position]), token + 1)[0, token] == word


def test_a_noise_word_does_not_depend_on_the_vocabulary_or_the_batch() -> None:
    keys = row_keys([stream(SEED, sample) for sample in (3, 4, 5)], [7, 0, 9000])
    together = words(keys, 70_001)
    assert together.shape == (3, 70_001)
    for row in range(3):
        alone = words(keys[row : row + 1], 1 << 16)
        assert np.array_equal(alone[0], together[row, : 1 << 16])


def test_numpy_and_torch_compute_the_same_noise() -> None:
    keys = row_keys([stream(SEED, sample) for sample in range(6)], [0, 1, 2, 3, 4, 1 << 31])
    for vocabulary in (1, 63, 64, 33_001):
        ours, theirs = noise_numpy(keys, vocabulary), noise_torch(keys, vocabulary, device=CPU)
        assert ours.shape == tuple(theirs.shape) == (6, vocabulary)
        assert ulps(ours, theirs.numpy()).max() <= ULP_BOUND
    assert torch.equal(noise(keys, 64), torch.from_numpy(noise_numpy(keys, 64)))


def ulps(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns the distance in units in the last place of max(|g|, floor)."""
    size = np.maximum(np.abs(one), np.float32(ULP_FLOOR))
    return np.abs(one.astype(np.float64) - other) / np.spacing(size)


TAIL = 1 << 20
LOWEST = np.arange(TAIL, dtype=np.uint64)
HIGHEST = np.uint64((1 << 32) - 1) - LOWEST
MIDDLE = np.random.default_rng(7).integers(0, 1 << 32, TAIL, dtype=np.uint64)
AT_ZERO = np.uint64(int((1 << 32) / math.e)) + LOWEST[: 1 << 14] - np.uint64(1 << 13)


@pytest.mark.parametrize("some_words", [LOWEST, HIGHEST, MIDDLE, AT_ZERO], ids=["lowest", "highest", "middle", "zero"])
def test_the_noise_of_a_word_is_within_the_error_bound_in_numpy_and_torch(some_words: NDArray[np.uint64]) -> None:
    """Both tails to the last word of 2^20, and the words around the sign change of g."""
    ours = gumbel_numpy(some_words.astype(np.float64))
    theirs = gumbel_torch(torch.from_numpy(some_words.astype(np.int64))).numpy()
    assert np.isfinite(ours).all()
    assert ulps(ours, theirs).max() <= ULP_BOUND
    some = slice(0, None, len(some_words) // 128)
    assert ulps(exact(some_words[some]), ours[some]).max() <= ULP_BOUND


def exact(some_words: NDArray[np.uint64]) -> NDArray[np.float32]:
    with localcontext(prec=40):
        values = [-(-((int(word) + Decimal("0.5")) / 2**32).ln()).ln() for word in some_words]
    return np.array([float(value) for value in values], dtype=np.float32)


def test_extreme_words_do_not_overflow_and_noise_increases_with_the_word() -> None:
    ends = gumbel_numpy(np.array([0.0, 2.0**32 - 1]))
    assert ends.tolist() == pytest.approx([-3.12999, 22.87386], abs=1e-3)
    for tail in (LOWEST, HIGHEST[::-1], np.sort(MIDDLE)):
        assert (np.diff(gumbel_numpy(tail.astype(np.float64))) >= 0).all()


def test_the_naive_single_precision_form_overflows() -> None:
    v = (np.float32(2**32 - 1) + np.float32(0.5)) * np.float32(2.0**-32)
    with np.errstate(divide="ignore"):
        assert np.isposinf(-np.log(-np.log(v)))


def test_noise_has_the_mean_variance_and_tails_of_the_gumbel_distribution() -> None:
    """A million fixed values; each bound is about five standard errors."""
    keys = row_keys([stream(SEED, sample) for sample in range(64)], [5] * 64)
    values = noise_numpy(keys, 16_384).astype(np.float64).ravel()
    assert values.mean() == pytest.approx(0.57721566, abs=0.0064)
    assert values.var() == pytest.approx(math.pi**2 / 6, abs=0.018)
    for level in (-2.0, -1.0, 0.0, 1.0, 3.0, 6.0):
        share = math.exp(-math.exp(-level))
        error = 5 * math.sqrt(share * (1 - share) / values.size)
        assert np.mean(values <= level) == pytest.approx(share, abs=error)


def test_neighbouring_tokens_positions_and_samples_have_uncorrelated_noise() -> None:
    """Correlations of 2^18 fixed pairs; 5 standard errors are 0.0098."""
    keys = row_keys([stream(SEED, sample) for sample in (0, 0, 1)], [0, 1, 0])
    uniform = words(keys, 1 << 18).astype(np.float64)
    first, next_position, next_sample = uniform
    pairs = [(first[:-1], first[1:]), (first[:-4], first[4:]), (first, next_position), (first, next_sample)]
    for one, other in pairs:
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.0098
