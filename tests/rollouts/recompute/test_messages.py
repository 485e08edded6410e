"""Messages between a vLLM process and its user: nothing is lost, and hostile bytes are refused."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.checks import Draws, RowEvidence
from rollouts.errors import EngineFailed
from rollouts.recompute.messages import (
    LARGEST_HEAD,
    PREFIX,
    Compare,
    Done,
    encode,
    largest_evidence,
    lengths,
    pack_evidence,
    read_message,
    unpack_evidence,
)
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.replay import Gaps
from rollouts.toploc import ProofResult
from rollouts.toploc.results import Malformed

NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)
PROOFS = st.builds(
    ProofResult,
    malformed=st.sampled_from([None, *Malformed]),
    points=st.integers(0, 128),
    exponent_mismatches=st.integers(0, 128),
    sign_mismatches=st.integers(0, 128),
    mantissa_total=st.integers(0, 128 * 127),
    mantissa_median=st.floats(0, 128),
    distance_total=st.integers(0, 128 * 128),
)


@st.composite
def evidence(draw: st.DrawFn, *, replayed: bool) -> RowEvidence:
    count = draw(st.integers(1, 5))

    def numbers() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        return np.array(draw(st.lists(NUMBERS, min_size=count, max_size=count)), np.float32)

    logprobs, excess, variance = numbers(), numbers(), numbers()
    mismatches = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    gaps = Gaps(numbers(), numbers(), mismatches, logprobs, excess, variance) if replayed else None
    proofs = tuple(draw(st.lists(PROOFS, max_size=3)))
    return RowEvidence(proofs=proofs, logprobs=logprobs, gaps=gaps, excess=excess, variance=variance)


@given(st.data(), st.booleans())
def test_evidence_survives_the_way_between_processes(data: st.DataObject, replayed: bool) -> None:
    rows = data.draw(st.lists(evidence(replayed=replayed), min_size=1, max_size=4))
    packed, tokens = pack_evidence(rows), [len(one.logprobs) for one in rows]
    assert len(packed) <= largest_evidence(tokens)
    found = unpack_evidence(packed, tokens=tokens)
    for before, after in zip(rows, found, strict=True):
        assert before.proofs == after.proofs
        assert before.logprobs.tobytes() == after.logprobs.tobytes()
        assert (before.gaps is None) is (after.gaps is None)
        if before.gaps is not None and after.gaps is not None:
            for name in ("gaps", "outside", "mismatches", "excess", "variance"):
                assert np.array_equal(getattr(before.gaps, name), getattr(after.gaps, name))


DRAWS = st.builds(
    Draws,
    seed=st.none() | st.binary(min_size=32, max_size=32),
    parameters=st.builds(
        SamplingParameters,
        max_new_tokens=st.integers(1, 9),
        temperature=st.floats(0.01, 100),
        top_p=st.floats(0.1, 1),
        top_k=st.integers(0, 5),
    ),
)


@given(st.lists(st.tuples(DRAWS, st.integers(1, 4))))
def test_seeds_and_parameters_of_rows_survive_the_way(runs: list[tuple[Draws, int]]) -> None:
    draws = [own for own, rows in runs for _ in range(rows)]
    sent = Compare.of(draws)
    assert len(sent.draws) <= len(runs), "consecutive rows of equal draws are sent once"
    head = sent.model_dump_json()
    assert len(head) <= 300 * len(runs) + 100
    assert [*Compare.model_validate_json(head).each()] == draws


@given(st.binary(max_size=200), st.integers(0, 400))
def test_bytes_that_are_no_evidence_are_refused(garbage: bytes, cut: int) -> None:
    logprobs = np.zeros(3, np.float32)
    whole = pack_evidence([RowEvidence(proofs=(), logprobs=logprobs, gaps=None, excess=logprobs, variance=logprobs)])
    for content in (garbage, whole[:cut], whole[:cut] + garbage):
        with pytest.raises(EngineFailed, match="no valid evidence"):
            unpack_evidence(content, tokens=[3])


def test_evidence_of_other_rows_is_refused() -> None:
    logprobs = np.zeros(3, np.float32)
    whole = pack_evidence([RowEvidence(proofs=(), logprobs=logprobs, gaps=None, excess=logprobs, variance=logprobs)])
    with pytest.raises(EngineFailed, match="other rows"):
        unpack_evidence(whole, tokens=[2])


def test_a_message_is_read_whole_or_not_at_all() -> None:
    message = encode(Done(), b"body")
    assert read_message(io.BytesIO(message)) == (b'{"kind":"done"}', b"body")
    assert read_message(io.BytesIO(message[: PREFIX - 1])) is None


def test_lengths_beyond_the_limits_are_refused() -> None:
    with pytest.raises(EngineFailed, match="bytes of head"):
        lengths((LARGEST_HEAD + 1).to_bytes(4, "little") + bytes(8), most=0)
    with pytest.raises(EngineFailed, match="and 2 bytes of body"):
        lengths(bytes(4) + (2).to_bytes(8, "little"), most=1)


def test_compressed_evidence_is_refused() -> None:
    archive = io.BytesIO()
    np.savez_compressed(archive, tokens=np.zeros(1 << 20))
    with pytest.raises(EngineFailed, match="a compressed array"):
        unpack_evidence(archive.getvalue(), tokens=[3])
