"""Groups of rollouts with random tokens, and log-probabilities near or far from a model's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from protocol.identifiers import Digest
from rollouts.precision import Dtype
from rollouts.turns import Turn
from tests.kit.tiny_model import VOCABULARY
from trainer.learning.forward import answer_logits
from trainer.learning.groups import TrainingGroup, TrainingSample
from trainer.learning.layout import Layout, lay_out
from trainer.learning.losses import logprobs_and_entropies
from trainer.models.trainable import open_model

WORK = Digest("0x" + "07" * 32)


def made_groups(
    count: int = 3,
    *,
    samples: int = 4,
    prompt: tuple[int, int] = (1, 9),
    output: tuple[int, int] = (1, 7),
    seed: int = 1,
) -> list[TrainingGroup]:
    """Groups of random lengths and rewards of 0, 1 and values between."""
    rng = np.random.default_rng(seed)

    def tokens(between: tuple[int, int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return rng.integers(4, VOCABULARY, size=rng.integers(between[0], between[1] + 1)).astype(np.int32)

    def sample() -> TrainingSample:
        output_tokens = tokens(output)
        logprobs = -rng.exponential(1.5, size=len(output_tokens)).astype(np.float32)
        return TrainingSample(output_tokens=output_tokens, logprobs=logprobs, reward=float(rng.choice([0, 0.25, 1])))

    return [
        TrainingGroup(
            work=WORK,
            group=number,
            prompt_index=number,
            prompt_tokens=tokens(prompt),
            version=1,
            samples=tuple(sample() for _ in range(samples)),
        )
        for number in range(count)
    ]


def as_dialogues(groups: Sequence[TrainingGroup], *, seed: int = 5) -> list[TrainingGroup]:
    """The same groups with tokens given after some of the drawn ones, so that samples have one to several turns."""
    rng = np.random.default_rng(seed)

    def turns(drawn: int) -> tuple[Turn, ...]:
        cuts = [0, *(place for place in range(1, drawn) if rng.random() < 0.4), drawn]
        lengths = [*rng.integers(1, 4, size=len(cuts) - 2), 0]
        given = [rng.integers(4, VOCABULARY, size=length).astype(np.int32) for length in lengths]
        return tuple(Turn(int(end - start), tokens) for start, end, tokens in zip(cuts, cuts[1:], given, strict=False))

    return [
        replace(group, samples=tuple(replace(one, turns=turns(len(one.output_tokens))) for one in group.samples))
        for group in groups
    ]


def with_own_logprobs(
    model: PreTrainedModel,
    groups: Sequence[TrainingGroup],
    *,
    off: float = 0.0,
    temperature: float = 1.0,
    seed: int = 2,
) -> list[TrainingGroup]:
    """The same groups as if the model had sampled them, or one whose log-probabilities differ by about `off`."""
    rng = np.random.default_rng(seed)
    out: list[TrainingGroup] = []
    for group in groups:
        (rows,) = lay_out([group], layout=Layout.PADDED, row_tokens=256, rows_at_once=4096, width=1)
        token_n = torch.from_numpy(np.concatenate([each.output_tokens for each in group.samples]).astype(np.int64))
        with torch.no_grad():
            logits_nv = answer_logits(model, rows, dtype=Dtype.FLOAT32)
            found = logprobs_and_entropies(logits_nv, token_n, temperature=temperature)[0].numpy()
        found = (found + rng.normal(0, off, size=len(found))).astype(np.float32)
        ends = np.cumsum([len(each.output_tokens) for each in group.samples])
        parts = np.split(found, ends[:-1])
        samples = tuple(replace(each, logprobs=part) for each, part in zip(group.samples, parts, strict=True))
        out.append(replace(group, samples=samples))
    return out


def fresh(folder: Path) -> PreTrainedModel:
    """A folder's model, for a test to change."""
    return open_model(folder, device=torch.device("cpu"))[0]
