"""Encodes the commands of process 0 as bytes.

Decoding never runs code from the bytes, as unpickling would.

A command has a kind, JSON fields and arrays: the groups to learn, or the small tensors of a state.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.identifiers import Digest
from rollouts.turns import Turn
from trainer.learning.groups import TrainingGroup, TrainingSample
from trainer.learning.learner import LearnerState

Arrays = Mapping[str, NDArray[Any]]

_SMALL_BYTES = 16 * 1024
"""State tensors of at most this size are sent whole to all processes; larger tensors are sent as shards."""


class GroupCommandKind(StrEnum):
    """Kind of a command."""

    TERMS = "terms"
    """Open the base and create this process's shard of the policy."""
    BEGIN = "begin"
    """Begin an optimiser step."""
    ADD = "add"
    """Add the gradients of some groups."""
    FINISH = "finish"
    """Perform the optimiser step."""
    STATE = "state"
    """Return this process's shard of the state."""
    RESTORE = "restore"
    """Restore a saved state."""
    WEIGHTS = "weights"
    """Return this process's shard of the weights."""
    STAY = "stay"
    """Do nothing. Process 0 sends this command as a heartbeat."""
    END = "end"
    """Leave the mesh and end."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupCommand:
    """A command that all processes execute.

    Args:
        word: Kind of the command.
        facts: JSON fields.
        arrays: Arrays by name.
    """

    word: GroupCommandKind
    facts: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)

    def encode(self) -> bytes:
        """Encodes the command."""
        encoded = io.BytesIO()
        head = np.frombuffer(json.dumps({"word": self.word, "facts": dict(self.facts)}).encode(), np.uint8)
        # `Any`, because numpy annotates one keyword argument of `savez` as an option and not as an array
        arrays: dict[str, Any] = {"": head, **{f"_{name}": array for name, array in self.arrays.items()}}
        np.savez(encoded, **arrays)
        return encoded.getvalue()

    @classmethod
    def decode(cls, encoded: bytes) -> GroupCommand:
        """Decodes a command.

        Raises:
            ValueError: The bytes are not a command.
        """
        with np.load(io.BytesIO(encoded), allow_pickle=False) as read:
            header = json.loads(read[""].tobytes())
            arrays = {name[1:]: read[name] for name in read.files if name}
        return cls(word=GroupCommandKind(header["word"]), facts=header["facts"], arrays=arrays)


def groups_command(groups: Sequence[TrainingGroup]) -> GroupCommand:
    """Returns the `add` command for some groups.

    The command omits work keys and prompt indices, because the learner ignores them.
    """
    samples = [sample for group in groups for sample in group.samples]
    turns = [turn for sample in samples for turn in sample.turns]
    return GroupCommand(
        word=GroupCommandKind.ADD,
        arrays={
            "prompts": _joined([group.prompt_tokens for group in groups], np.int32),
            "prompt_lengths": np.array([len(group.prompt_tokens) for group in groups], np.int64),
            "samples": np.array([len(group.samples) for group in groups], np.int64),
            "outputs": _joined([sample.output_tokens for sample in samples], np.int32),
            "output_lengths": np.array([len(sample.output_tokens) for sample in samples], np.int64),
            "logprobs": _joined([sample.logprobs for sample in samples], np.float32),
            "turns": np.array([len(sample.turns) for sample in samples], np.int64),
            "drawn": np.array([turn.drawn for turn in turns], np.int64),
            "given": _joined([turn.given for turn in turns], np.int32),
            "given_lengths": np.array([len(turn.given) for turn in turns], np.int64),
            "rewards": np.array([sample.reward for sample in samples], np.float64),
            "versions": np.array([group.version for group in groups], np.int64),
        },
    )


def groups_of(command: GroupCommand) -> list[TrainingGroup]:
    """Returns the groups of an `add` command, in order.

    The command has no work keys and no prompt indices: each work key is zero, and each prompt index is the position of
    its group.
    """
    arrays = command.arrays
    turns = map(Turn, arrays["drawn"].tolist(), _split(arrays["given"], arrays["given_lengths"]))
    outputs, logprobs = (_split(arrays[name], arrays["output_lengths"]) for name in ("outputs", "logprobs"))
    samples = iter(
        [
            TrainingSample(
                output_tokens=tokens, logprobs=values, reward=float(reward), turns=tuple(islice(turns, int(count)))
            )
            for tokens, values, reward, count in zip(outputs, logprobs, arrays["rewards"], arrays["turns"], strict=True)
        ]
    )
    prompts = _split(arrays["prompts"], arrays["prompt_lengths"])
    return [
        TrainingGroup(
            work=Digest("0x" + "0" * 64),
            group=number,
            prompt_index=number,
            prompt_tokens=prompt,
            version=int(version),
            samples=tuple(next(samples) for _ in range(count)),
        )
        for number, (prompt, version, count) in enumerate(
            zip(prompts, arrays["versions"], arrays["samples"], strict=True)
        )
    ]


def state_command(state: LearnerState) -> GroupCommand:
    """Returns the `restore` command with the small tensors of a state and the shapes of all its tensors.

    Process 0 sends the large tensors as shards while all processes execute the command.
    """
    small = {name: tensor for name, tensor in state.tensors.items() if tensor.nbytes <= _SMALL_BYTES}
    shapes = [(name, list(tensor.shape), name in small) for name, tensor in state.tensors.items()]
    return GroupCommand(
        word=GroupCommandKind.RESTORE,
        facts={"shapes": shapes, "facts": state.facts},
        arrays={name: tensor.numpy() for name, tensor in small.items()},
    )


def state_of(command: GroupCommand) -> LearnerState:
    """Returns the state of a `restore` command.

    The memory of large tensors is uninitialised, because process 0 sends their shards later.
    """
    tensors = {
        name: torch.from_numpy(command.arrays[name]) if small else torch.empty(shape)
        for name, shape, small in command.facts["shapes"]
    }
    return LearnerState(tensors=tensors, facts=command.facts["facts"])


def _joined(arrays: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate(arrays).astype(dtype) if arrays else np.zeros(0, dtype)


def _split(joined: NDArray[Any], lengths: NDArray[Any]) -> Iterator[NDArray[Any]]:
    yield from np.split(joined, np.cumsum(lengths)[:-1]) if len(lengths) else []
