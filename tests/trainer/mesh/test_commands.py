"""Commands of process 0 arrive unchanged at the others."""

from __future__ import annotations

import dataclasses
import io
import pickle
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.training_groups import as_dialogues, made_groups
from trainer.distributed.commands import (
    GroupCommand,
    GroupCommandKind,
    groups_command,
    groups_of,
    state_command,
    state_of,
)
from trainer.learning.learner import LearnerState


@given(count=st.integers(0, 6), samples=st.integers(1, 5), seed=st.integers(0, 100), dialogues=st.booleans())
def test_groups_arrive_bitwise_equal_and_in_order(count: int, samples: int, seed: int, dialogues: bool) -> None:
    groups = made_groups(count, samples=samples, seed=seed)
    if dialogues:
        groups = as_dialogues(groups, seed=seed)
    found = groups_of(GroupCommand.decode(groups_command(groups).encode()))
    assert len(found) == len(groups)
    for one, two in zip(groups, found, strict=True):
        assert (one.version, one.has_signal) == (two.version, two.has_signal)
        assert one.prompt_tokens.tobytes() == two.prompt_tokens.tobytes()
        for sent, got in zip(one.samples, two.samples, strict=True):
            assert sent.reward == got.reward
            assert sent.output_tokens.tobytes() == got.output_tokens.tobytes()
            assert sent.logprobs.tobytes() == got.logprobs.tobytes()
            assert got.output_tokens.dtype == np.int32
            assert got.logprobs.dtype == np.float32
            assert [(turn.drawn, turn.given.tobytes()) for turn in got.turns] == [
                (turn.drawn, turn.given.tobytes()) for turn in sent.turns
            ]
            assert all(turn.given.dtype == np.int32 for turn in got.turns)


def test_small_tensors_of_a_state_are_sent_whole_and_large_ones_as_shapes() -> None:
    tensors = {"weight.a": torch.ones(100, 100), "step.a": torch.tensor(7.0), "rng": torch.get_rng_state()}
    command = state_command(LearnerState(tensors=tensors, facts={"counts": {"bad": 1}, "optimiser": "adamw"}))
    assert len(command.encode()) < 10_000
    found = state_of(GroupCommand.decode(command.encode()))
    assert list(found.tensors) == list(tensors)
    assert found.tensors["weight.a"].shape == (100, 100)
    assert found.tensors["step.a"] == 7.0
    assert torch.equal(found.tensors["rng"], tensors["rng"])
    assert found.facts == {"counts": {"bad": 1}, "optimiser": "adamw"}


def test_pickled_data_is_refused() -> None:
    told = io.BytesIO()
    hostile = np.array([dataclasses.replace], dtype=object)
    with zipfile.ZipFile(told, "w") as archive, archive.open(".npy", "w") as file:
        np.lib.format.write_array(file, hostile, allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        GroupCommand.decode(told.getvalue())
    with pytest.raises(ValueError, match="allow_pickle"):
        GroupCommand.decode(pickle.dumps({"word": "end"}))


def test_an_unknown_command_is_refused() -> None:
    told = GroupCommand(word=GroupCommandKind.STAY).encode().replace(b'"stay"', b'"play"')
    with pytest.raises((ValueError, zipfile.BadZipFile)):
        GroupCommand.decode(told)
