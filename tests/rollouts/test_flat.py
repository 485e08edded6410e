"""Packed rollout files: a valid file is unpacked unchanged, and anything else is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.identifiers import ZERO_ADDRESS, ZERO_DIGEST
from protocol.wire.served import SignedServedList
from rollouts.engines.interface import FinishReason
from rollouts.errors import BadRolloutFile, TooLargeHere
from rollouts.files.limits import ReadLimits
from rollouts.files.packed_format import most_bytes, pack, unpack
from rollouts.files.samples import RolloutFile, Sample, SlotHeader
from rollouts.files.schema import read_rollout_bytes, read_rollouts, write_rollouts
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.turns import Turn

LIMITS = ReadLimits(file_bytes=1 << 20, rows=8, decoded_bytes=1 << 20, tokens=64)
HEADER = SlotHeader(
    run=ZERO_DIGEST,
    step=(1 << 64) - 1,
    index=(1 << 32) - 1,
    node=ZERO_ADDRESS,
    checkpoint=ZERO_DIGEST,
    environment="letters",
    environment_version="1",
    arithmetic=Arithmetic(engine=EngineName.VLLM, dtype=Dtype.BFLOAT16),
)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
TOKENS = st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=6)
GIVEN = st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=1, max_size=6)


@st.composite
def turns_of(draw: st.DrawFn, drawn: int) -> tuple[Turn, ...]:
    """Turns of a dialogue with this number of drawn tokens, at least one."""
    ends = sorted(draw(st.sets(st.integers(1, drawn), max_size=3)) | {drawn})
    given = [np.array(draw(GIVEN), np.int32) for _ in ends[:-1]] + [np.zeros(0, np.int32)]
    return tuple(Turn(end - start, own) for (start, end), own in zip(pairwise([0, *ends]), given, strict=True))


@st.composite
def samples(draw: st.DrawFn, *, dialogues: bool = False) -> Sample:
    output = draw(GIVEN if dialogues else TOKENS)
    return Sample(
        group=draw(st.integers(0, (1 << 32) - 1)),
        sample=draw(st.integers(0, (1 << 32) - 1)),
        prompt_index=draw(st.integers(0, (1 << 64) - 1)),
        prompt_tokens=np.array(draw(TOKENS), np.int32),
        output_tokens=np.array(output, np.int32),
        logprobs=np.array(
            draw(st.lists(st.floats(-99, 0, width=32), min_size=len(output), max_size=len(output)))
        ).astype(np.float32),
        finish=draw(st.sampled_from(FinishReason)),
        task_reward=draw(FINITE),
        length_penalty=draw(FINITE),
        reward=draw(FINITE),
        target_length=draw(st.none() | st.integers(-(1 << 31), (1 << 31) - 1)),
        proofs=draw(st.binary(max_size=20)),
        turns=draw(turns_of(len(output))) if dialogues else (),
    )


SERVED = SignedServedList(content='{"format":1,"requests":[]}', signature="0x" + "ab" * 65)
FILES = st.builds(
    lambda rows, served: RolloutFile(HEADER, tuple(rows), served),
    st.booleans().flatmap(lambda dialogues: st.lists(samples(dialogues=dialogues), min_size=1, max_size=4)),
    st.none() | st.just(SERVED),
)


def plain_turns(sample: Sample) -> list[tuple[int, list[int]]]:
    return [(turn.drawn, turn.given.tolist()) for turn in sample.turns]


@given(FILES)
def test_any_rollout_file_survives_packing(file: RolloutFile) -> None:
    packed = pack(file)
    found = unpack(packed, limits=LIMITS)
    assert (found.header, found.served) == (file.header, file.served)
    for one, other in zip(found.samples, file.samples, strict=True):
        for name in set(Sample.__slots__) - {"turns"}:
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
        assert plain_turns(one) == plain_turns(other)
    assert len(packed) <= most_bytes(LIMITS)


@given(FILES, st.data())
def test_any_bytes_are_unpacked_to_a_file_or_refused(file: RolloutFile, data: st.DataObject) -> None:
    packed = bytearray(pack(file))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(packed[: data.draw(st.integers(0, len(packed)))])
    for content in (bytes(packed), cut, bytes(packed) + b"\0"):
        try:
            found = unpack(content, limits=LIMITS)
        except BadRolloutFile:
            continue
        assert pack(found)  # an accepted file is valid in all its parts
        assert np.isfinite([sample.reward for sample in found.samples]).all()


def turns(*pairs: tuple[int, int]) -> tuple[Turn, ...]:
    """Turns with these numbers of drawn and given tokens."""
    return tuple(Turn(drawn, np.zeros(given, np.int32)) for drawn, given in pairs)


BAD_TURNS = {
    "too few drawn tokens": (turns((1, 0)), "bad-value"),
    "a turn without a drawn token": (turns((2, 1), (0, 0)), "bad-value"),
    "nothing given between turns": (turns((1, 0), (1, 0)), "bad-value"),
    "tokens after the last turn": (turns((2, 1)), "bad-value"),
    "a reply beyond the limit": (turns((1, 65), (1, 0)), "too-long"),
    "too many turns": (turns(*[(1, 1)] * 65), "too-long"),
}


@pytest.mark.parametrize(("bad", "code"), BAD_TURNS.values(), ids=BAD_TURNS)
def test_turns_that_no_dialogue_has_are_refused(tmp_path: Path, bad: tuple[Turn, ...], code: str) -> None:
    two = made(output_tokens=np.zeros(2, np.int32), logprobs=np.zeros(2, np.float32), turns=bad)
    with pytest.raises(BadRolloutFile) as refused:
        unpack(pack(two), limits=LIMITS)
    assert refused.value.code == code
    write_rollouts(tmp_path / "a", two)
    with pytest.raises(BadRolloutFile) as refused:
        read_rollouts(tmp_path / "a", limits=LIMITS)
    assert refused.value.code == code


def test_dialogues_and_single_answers_are_not_mixed() -> None:
    mixed = RolloutFile(HEADER, (*made().samples, *made(turns=turns((1, 0))).samples))
    with pytest.raises(BadRolloutFile, match="single answers"):
        unpack(pack(mixed), limits=LIMITS)


def test_a_long_reply_within_the_lease_is_too_large_only_here(tmp_path: Path) -> None:
    two = made(output_tokens=np.zeros(2, np.int32), logprobs=np.zeros(2, np.float32), turns=turns((1, 9), (1, 0)))
    write_rollouts(tmp_path / "a", two)
    with pytest.raises(TooLargeHere, match="9 values in one row"):
        read_rollout_bytes((tmp_path / "a").read_bytes(), limits=LIMITS, here=replace(LIMITS, tokens=8))


def made(**changes: object) -> RolloutFile:
    values: dict[str, object] = {
        "group": 0, "sample": 0, "prompt_index": 0, "prompt_tokens": np.zeros(1, np.int32),
        "output_tokens": np.zeros(1, np.int32), "logprobs": np.zeros(1, np.float32), "finish": FinishReason.EOS,
        "task_reward": 0.0, "length_penalty": 0.0, "reward": 0.0, "target_length": None, "proofs": b"",
    }  # fmt: skip
    return RolloutFile(HEADER, (Sample(**values | changes),))  # type: ignore[arg-type]  # of the table above


@pytest.mark.parametrize(
    ("file", "code"),
    [
        (made(reward=float("nan")), "not-finite"),
        (made(logprobs=np.array([np.inf], np.float32)), "not-finite"),
        (made(output_tokens=np.zeros(65, np.int32), logprobs=np.zeros(65, np.float32)), "too-long"),
        (RolloutFile(HEADER, made().samples * 9), "too-many-rows"),
    ],
)
def test_limits_hold_whatever_sizes_the_packed_file_claims(file: RolloutFile, code: str) -> None:
    with pytest.raises(BadRolloutFile) as refused:
        unpack(pack(file), limits=LIMITS)
    assert refused.value.code == code


@pytest.mark.parametrize("name", ["two\nlines", "x" * 201, "\x1b[2J", "\ud800"])
def test_names_are_single_printable_lines(name: str) -> None:
    with pytest.raises(BadRolloutFile):
        pack(RolloutFile(replace(HEADER, environment=name), made().samples))
    packed = pack(made())
    head = json.loads(packed[4 : 4 + int.from_bytes(packed[:4], "little")])
    head["header"]["environment"] = name
    forged = json.dumps(head).encode()
    with pytest.raises(BadRolloutFile):
        unpack(
            len(forged).to_bytes(4, "little") + forged + packed[4 + int.from_bytes(packed[:4], "little") :],
            limits=LIMITS,
        )
