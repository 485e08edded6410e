"""A proof contains the largest magnitudes of an interval, for any values, shapes and types."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidInput
from rollouts import toploc
from rollouts.toploc.comparison import LARGEST_MODULUS, SMALLEST_MODULUS
from rollouts.toploc.selection import select
from tests.rollouts.toploc.states import evaluated, normal_states, states_from_bits

NAN, NEGATIVE_NAN, INFINITY, ONE, ZERO, NEGATIVE_ZERO = 0x7FC1, 0xFFFF, 0x7F80, 0x3F80, 0x0000, 0x8000


def largest(bits: list[int], k: int) -> list[int]:
    """Returns the indices of the k largest magnitudes, one value at a time."""
    magnitudes = [min(bit & 0x7FFF, 0x7F81) for bit in bits]  # all NaNs compare equal
    return sorted(range(len(bits)), key=lambda index: (-magnitudes[index], index))[:k]


def canonical(bit: int) -> int:
    """Returns NaNs in one form, which is an element of the field."""
    return 0x7FC0 if bit & 0x7FFF > INFINITY else bit


any_bits = st.one_of(
    st.integers(0, 0xFFFF),
    st.sampled_from([NAN, NEGATIVE_NAN, INFINITY, 0xFF80, ONE, 0xBF80, ZERO, NEGATIVE_ZERO, 1, 0x8001]),
)


@given(
    bits=st.lists(any_bits, min_size=1, max_size=96),
    hidden=st.integers(1, 12),
    interval=st.integers(1, 5),
    top_k=st.integers(1, 40),
)
def test_any_states_are_proved_by_their_largest_values(bits: list[int], hidden: int, interval: int, top_k: int) -> None:
    bits = (bits * hidden)[: max(1, len(bits) // hidden) * hidden]
    proofs = toploc.build(states_from_bits(bits, hidden), interval=interval, top_k=top_k)
    size = interval * hidden
    chunks = [bits[start : start + size] for start in range(0, len(bits), size)]
    assert [len(proof) for proof in proofs] == [2 + 2 * top_k] * len(chunks)
    for proof, chunk in zip(proofs, chunks, strict=True):
        for index in largest(chunk, top_k):
            assert evaluated(proof, index) == canonical(chunk[index])
        assert not any(proof[2 + 2 * len(chunk) :])
    results = toploc.verify(states_from_bits(bits, hidden), proofs, interval=interval, top_k=top_k)
    assert all(result.malformed is None and result.distance_total == 0 for result in results)


@given(
    seed=st.integers(0, 2**32 - 1),
    chunks=st.integers(1, 5),
    size=st.one_of(st.integers(1, 9000), st.integers(16_000, 50_000)),  # by sorting keys, and by folding
    k=st.one_of(st.integers(1, 130), st.integers(500, 2000)),
    levels=st.sampled_from([1, 2, 5, 100, 30_000, 0x8000]),  # the last ones are NaNs
)
def test_ties_at_the_edge_go_to_the_lowest_index(seed: int, chunks: int, size: int, k: int, levels: int) -> None:
    bits = np.random.default_rng(seed).integers(0, levels, (chunks, size)).astype(np.int16)
    bits[:, ::3] |= np.int16(-0x8000)
    indices, values = select([torch.from_numpy(bits).view(torch.bfloat16)], min(k, size))
    for row in range(chunks):
        expected = np.argsort(-np.minimum(bits[row] & 0x7FFF, INFINITY + 1).astype(int), kind="stable")[:k]
        assert (indices[row] == expected).all()
        assert values[row].tolist() == [canonical(bit) for bit in bits[row][expected].view(np.uint16).tolist()]


def test_an_interval_beyond_the_modulus_is_proved_at_every_point() -> None:
    states = normal_states(32, 4096)
    bits = states.view(torch.int16).flatten().numpy().view(np.uint16).tolist()
    (proof,) = toploc.build(states)
    chosen = largest(bits, 128)
    assert max(chosen) > 65497
    assert all(evaluated(proof, index) == bits[index] for index in chosen)


@pytest.mark.parametrize(("first", "second"), [(0, 65497), (3, 3 + 65497), (60_000, 125_497)])
def test_indices_that_collide_modulo_the_prime_get_a_smaller_modulus_and_verify(first: int, second: int) -> None:
    states = normal_states(32, 4096).clamp(-6, 6)
    states.view(-1)[[first, second]] = torch.tensor([100.0, -90.0], dtype=torch.bfloat16)
    proofs = toploc.build(states)
    assert int.from_bytes(proofs[0][:2], "big") < 65497
    (result,) = toploc.verify(states, proofs)
    assert (result.malformed, result.points, result.distance_total) == (None, 128, 0)


def test_a_sequence_has_one_proof_per_started_interval() -> None:
    for rows in (0, 1, 31, 32, 33, 64, 95):
        assert len(toploc.proofs_of(normal_states(rows, 16))) == 258 * -(-rows // 32)


def test_the_last_interval_is_proved_from_its_own_rows() -> None:
    states = normal_states(70, 64)
    assert toploc.build(states) == toploc.build(states[:64]) + toploc.build(states[64:])


def test_sequences_proved_together_give_the_same_proofs_as_alone() -> None:
    codec = toploc.TOPLOC
    sequences = [normal_states(rows, 64, seed=rows) for rows in (1, 40, 64, 7, 40, 300)]
    stretches = [stretch for states in sequences for stretch in toploc.stretches_of(states, codec.interval)]
    assert b"".join(codec.build(stretches)) == b"".join(toploc.proofs_of(states) for states in sequences)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_wider_types_are_rounded_to_bfloat16_first(dtype: torch.dtype) -> None:
    states = normal_states(32, 256, dtype=dtype)
    assert toploc.build(states) == toploc.build(states.to(torch.bfloat16))


def test_the_layout_in_memory_does_not_matter() -> None:
    states = normal_states(64, 96)
    assert toploc.build(states.T.contiguous().T) == toploc.build(states)
    assert toploc.build(torch.cat([states, states], dim=1)[:, :96]) == toploc.build(states)


@pytest.mark.parametrize(
    "states",
    [torch.zeros(4), torch.zeros(2, 2, 2), torch.zeros(4, 0), torch.zeros(4, 8, dtype=torch.int16),
     torch.zeros(4, 8, dtype=torch.float64)],
    ids=["one dimension", "three dimensions", "no channels", "integers", "float64"],
)  # fmt: skip
def test_invalid_states_are_refused_with_their_shape(states: torch.Tensor) -> None:
    with pytest.raises(InvalidInput, match="states of shape"):
        toploc.build(states)


@pytest.mark.parametrize(("interval", "top_k"), [(0, 128), (-1, 128), (32, 0), (32, 4097)])
def test_an_invalid_interval_or_top_k_is_refused(interval: int, top_k: int) -> None:
    with pytest.raises(InvalidInput, match="top_k"):
        toploc.build(normal_states(2, 8), interval=interval, top_k=top_k)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
def test_indices_of_any_integer_width_encode_the_same(dtype: type) -> None:
    x, y = [3, 70_000, 131_071], [1, 65_496, 40_000]
    assert toploc.encode(np.array(x, dtype), np.array(y, dtype)) == toploc.encode(x, y)


def test_indices_far_above_the_modulus_encode() -> None:
    x = [2**31, 2**40 + 5, 2**62]
    proof = toploc.encode(x, [7, 8, 9])
    assert [evaluated(proof, index) for index in x] == [7, 8, 9]


@pytest.mark.parametrize(
    ("indices", "bits"),
    [([], []), ([1, 1], [2, 3]), ([1, 2], [3]), ([-1], [3]), ([2**63], [3]), ([1], [65497]), ([1], [-1]), ([1.5], [3]),
     ([[1]], [[3]])],
)  # fmt: skip
def test_invalid_points_are_refused(indices: list[int], bits: list[int]) -> None:
    with pytest.raises(InvalidInput):
        toploc.encode(indices, bits)


def test_indices_that_no_modulus_separates_are_unprovable() -> None:
    x = [0, *range(SMALLEST_MODULUS, LARGEST_MODULUS + 1)]
    with pytest.raises(toploc.Unprovable, match="no modulus"):
        toploc.encode(x, [1] * len(x))
