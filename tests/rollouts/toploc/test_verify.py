"""The verifier is total and strict: any bytes give a result, and only honest proofs pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollouts import toploc
from rollouts.toploc import Malformed, ProofResult
from tests.rollouts.toploc.states import normal_states, states_from_bits

STATES = normal_states(70, 512)
PROOFS = toploc.build(STATES)


def reasons(proofs: list[bytes], states: torch.Tensor = STATES) -> list[Malformed | None]:
    return [result.malformed for result in toploc.verify(states, proofs)]


def with_word(proof: bytes, place: int, word: int) -> bytes:
    """Returns the proof with one of its 129 words replaced; word 0 is the modulus."""
    return proof[: 2 * place] + word.to_bytes(2, "big") + proof[2 * place + 2 :]


def test_honest_proofs_have_no_error() -> None:
    assert toploc.verify(STATES, PROOFS) == [ProofResult(None, 128, 0, 0, 0, 0.0, 0)] * 3


@given(proofs=st.lists(st.one_of(st.binary(max_size=300), st.binary(min_size=258, max_size=258)), max_size=6))
def test_any_bytes_give_a_result_for_each_interval(proofs: list[bytes]) -> None:
    results = toploc.verify(STATES, proofs)
    assert len(results) == 3 + (len(proofs) > 3)
    assert all(0 <= result.distance_mean <= 128 and 0 <= result.mantissa_mean <= 128 for result in results)


@given(blob=st.binary(max_size=1100), rows=st.integers(0, 100), hidden=st.integers(1, 9))
def test_any_proof_bytes_of_a_row_give_results_for_any_states(blob: bytes, rows: int, hidden: int) -> None:
    intervals = -(-rows // 32)
    (results,) = toploc.verify_rows([(normal_states(rows, hidden), blob)])
    assert len(results) == intervals + (len(blob) > 258 * intervals)
    if len(blob) != 258 * intervals:
        assert any(result.malformed for result in results)


@given(data=st.data())
def test_one_changed_byte_never_verifies_without_error(data: st.DataObject) -> None:
    place, change = data.draw(st.integers(0, 257)), data.draw(st.integers(1, 255))
    forged = bytearray(PROOFS[0])
    forged[place] ^= change
    result = toploc.verify(STATES, [bytes(forged), *PROOFS[1:]])[0]
    assert result.malformed is not None or result.distance_total >= 127  # at index 0 all powers but one are zero


@pytest.mark.parametrize(
    ("proof", "reason"),
    [
        (b"", Malformed.LENGTH),
        (PROOFS[0][:2], Malformed.LENGTH),
        (PROOFS[0][:-1], Malformed.LENGTH),
        (PROOFS[0] + b"\0", Malformed.LENGTH),
        (PROOFS[0] * 2, Malformed.LENGTH),
        (with_word(PROOFS[0], 0, 0), Malformed.MODULUS),
        (with_word(PROOFS[0], 0, 1), Malformed.MODULUS),
        (with_word(PROOFS[0], 0, 512), Malformed.MODULUS),
        (with_word(PROOFS[0], 0, 65535), Malformed.MODULUS),
        (with_word(PROOFS[0], 1, 65497), Malformed.COEFFICIENT),
        (with_word(PROOFS[0], 128, 65535), Malformed.COEFFICIENT),
    ],
    ids=["no bytes", "a modulus alone", "one byte less", "one byte more", "two proofs in one", "modulus 0", "modulus 1",
         "the modulus is the hidden size", "the largest modulus",
         "the least non-element", "a non-element at the end"],
)  # fmt: skip
def test_a_proof_that_no_honest_prover_makes_is_malformed(proof: bytes, reason: Malformed) -> None:
    assert reasons([proof, *PROOFS[1:]]) == [reason, None, None]


@pytest.mark.parametrize(("hidden", "taken"), [(4096, [65433, 65496, 65497]), (2046, [65497])])
def test_a_smaller_modulus_is_accepted_only_where_indices_can_collide(hidden: int, taken: list[int]) -> None:
    states = normal_states(32, hidden)
    (proof,) = toploc.build(states)
    for modulus in (65432, 65433, 65496, 65497, 65498):
        assert reasons([with_word(proof, 0, modulus)], states) == [None if modulus in taken else Malformed.MODULUS]


def test_missing_proofs_never_pass() -> None:
    assert reasons([]) == [Malformed.MISSING] * 3
    assert reasons(PROOFS[:2]) == [None, None, Malformed.MISSING]


def test_surplus_proofs_never_pass() -> None:
    for surplus in (1, 1000):
        assert reasons(PROOFS + PROOFS[:1] * surplus) == [None, None, None, Malformed.SURPLUS]


def test_proofs_in_another_order_do_not_verify() -> None:
    first, second, last = toploc.verify(STATES, [PROOFS[1], PROOFS[0], PROOFS[2]])
    assert min(first.distance_mean, second.distance_mean) > 30
    assert last.distance_mean == 0


def test_coefficients_above_the_number_of_values_must_be_zero() -> None:
    states = normal_states(1, 64)
    (proof,) = toploc.build(states)
    forged = with_word(proof, 128, 1)
    assert reasons([proof], states) == [None]
    assert reasons([forged], states) == [Malformed.PADDING]


def test_signs_are_compared() -> None:
    (result, *_) = toploc.verify(-STATES, PROOFS)
    assert (result.exponent_mismatches, result.sign_mismatches, result.mantissa_total) == (0, 128, 0)
    assert result.distance_mean == 128


def test_a_constant_polynomial_is_detected_by_signs_and_distance() -> None:
    constant = with_word(with_word(bytes(258), 0, 65497), 1, 0x4040)  # 3.0, a common value among the largest
    (result,) = toploc.verify(normal_states(32, 4096), [constant])
    assert result.exponent_mismatches < 38  # the limit of the paper, which this proof passes
    assert result.sign_mismatches > 30
    assert result.distance_mean > 40


def test_positive_and_negative_zero_are_equal() -> None:
    zeros = states_from_bits([0, 0x8000] * 64, 4)
    assert toploc.verify(zeros, toploc.build(-zeros))[0].sign_mismatches == 0


def test_infinities_and_nans_of_the_verifier_are_compared_like_any_value() -> None:
    bits = [0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x3F80, 0xBF80] * 40
    states = states_from_bits(bits, 8)
    other_nans = states_from_bits([0x7F81 if bit & 0x7FFF > 0x7F80 else bit for bit in bits], 8)
    assert [result.distance_total for result in toploc.verify(other_nans, toploc.build(states))] == [0]
    finite = states.nan_to_num(nan=1.0, posinf=1.0, neginf=1.0)
    assert toploc.verify(finite, toploc.build(states))[0].distance_mean > 30


def test_values_on_both_sides_of_a_power_of_two_are_near_despite_different_exponents() -> None:
    below, above = states_from_bits([0x3FFF] * 128, 128), states_from_bits([0x4000] * 128, 128)
    (result,) = toploc.verify(above, toploc.build(below))
    assert (result.exponent_mismatches, result.distance_mean) == (128, 1.0)


def test_without_an_equal_exponent_mantissa_errors_are_the_worst() -> None:
    small, large = states_from_bits([0x3F80] * 128, 128), states_from_bits([0x4580] * 128, 128)
    (result,) = toploc.verify(large, toploc.build(small))
    assert (result.mantissa_mean, result.mantissa_median) == (128.0, 128.0)


@given(seed=st.integers(0, 2**32 - 1), mismatches=st.integers(0, 16))
def test_the_mantissa_median_is_over_points_with_equal_exponents(seed: int, mismatches: int) -> None:
    rng = np.random.default_rng(seed)
    claimed = 0x3F80 + rng.integers(0, 128, 16)
    own = 0x3F80 + rng.integers(0, 128, 16)
    own[:mismatches] += 0x0100
    states = states_from_bits(claimed.tolist(), 16)
    (result,) = toploc.verify(states_from_bits(own.tolist(), 16), toploc.build(states, top_k=16), top_k=16)
    apart = np.abs((claimed & 0x7F) - (own & 0x7F))[mismatches:]
    assert result.mantissa_median == (np.median(apart) if len(apart) else 128.0)
    assert result.exponent_mismatches == mismatches


def test_rows_verified_together_give_the_same_results_as_alone() -> None:
    lengths = (1, 40, 64, 7, 0, 300)
    rows = [(normal_states(n, 64, seed=n), toploc.proofs_of(normal_states(n, 64, seed=n + n % 2))) for n in lengths]
    rows += [(normal_states(40, 64), b"short"), (normal_states(3, 64), bytes(1000))]
    together = toploc.verify_rows(rows)
    assert together == [toploc.verify_rows([row])[0] for row in rows]
    assert together[0][0].distance_mean > 30
    assert together[1][0].distance_mean == 0
