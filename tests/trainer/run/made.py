"""Accepted files as the trainer holds them, without a real file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocol.identifiers import address, digest
from trainer.learning.groups import TrainingGroup, TrainingSample
from trainer.run.gathering.batches import SeenFile, SeenGroup
from trainer.run.state.journal import JournalFile


def seen_file(*, node: int, index: int, signal: Sequence[bool | None], version: int = 3) -> SeenFile:
    """Returns a file whose groups have signal, have none, or are undecided."""
    name = digest(bytes([node, index]) * 16)
    entry = JournalFile(
        key=name,
        sha256=name,
        audit=name,
        node=address("0x" + f"{node:040x}"),
        index=index,
        version=version,
        checkpoint=name,
        groups=len(signal),
    )
    return SeenFile(
        entry=entry, groups=tuple(_group(entry, number, one) for number, one in enumerate(signal)), tokens=1
    )


def _group(entry: JournalFile, number: int, signal: bool | None) -> SeenGroup:
    if signal is None:
        return SeenGroup(prompt_index=number, solved=None, group=None)
    rewards = (1.0, 0.0) if signal else (0.0, 0.0)
    group = TrainingGroup(
        work=entry.key,
        group=number,
        prompt_index=number,
        prompt_tokens=np.array([5], np.int32),
        version=entry.version,
        samples=tuple(
            TrainingSample(output_tokens=np.array([1], np.int32), logprobs=np.array([-1.0], np.float32), reward=reward)
            for reward in rewards
        ),
    )
    return SeenGroup(prompt_index=number, solved=sum(rewards) / 2, group=group)
