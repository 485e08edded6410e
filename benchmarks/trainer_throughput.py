"""Measures answer tokens that a trainer learns per CPU second, one thread; `python -m benchmarks.trainer_throughput`.

Compares three layouts of one batch, `shared` also with all answers to a prompt in one row at any cost, and a usual loop
with transformers: answers padded to the longest of their micro-batch, logits at every position, the same loss, clipping
and AdamW. All use the same groups in alternating order in one process, with the same bound on positions in a
micro-batch, and the losses of their first steps are compared. An accelerator is used if there is one; then wall time
counts. `MUSTER_SHAPES` and `MUSTER_BENCHMARK_ROUNDS` select the measurements.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from benchmarks.models import random_model
from protocol.identifiers import ZERO_DIGEST
from trainer.learning.groups import TrainingGroup, TrainingSample
from trainer.learning.layout import Layout
from trainer.learning.learner import Learner
from trainer.learning.settings import LearningSettings
from trainer.models.trainable import open_model
from trainer.presets import devnet_base

ROUNDS = int(os.environ.get("MUSTER_BENCHMARK_ROUNDS", "5"))
CHOSEN = tuple(os.environ.get("MUSTER_SHAPES", "devnet,small,tiny").split(","))
RATE, CLIP = 1e-6, 0.1
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Lengths of one batch in tokens; answer lengths are drawn between their bounds, most of them short."""

    groups: int
    samples: int
    prompt: int
    output: tuple[int, int]
    row_tokens: int
    rows_at_once: int


LOADS = {
    "devnet, 0.4 M": Load(groups=16, samples=16, prompt=10, output=(5, 8), row_tokens=256, rows_at_once=8),
    "small, 20 M": Load(groups=4, samples=8, prompt=96, output=(16, 192), row_tokens=512, rows_at_once=4),
    "tiny, 2 M": Load(groups=2, samples=8, prompt=16, output=(255, 256), row_tokens=2304, rows_at_once=1),
}
ALWAYS = "shared, never cut"


def batch_of(load: Load, vocabulary: int) -> list[TrainingGroup]:
    """Makes the batch of a load; half of its answers are right."""
    rng = np.random.default_rng(1)

    def sample(number: int) -> TrainingSample:
        low, high = load.output
        length = int(np.clip(low + rng.exponential((high - low) / 3), low, high))
        tokens = rng.integers(3, vocabulary, size=length).astype(np.int32)
        logprobs = np.full(length, -np.log(vocabulary), dtype=np.float32)
        return TrainingSample(output_tokens=tokens, logprobs=logprobs, reward=float(number % 2))

    return [
        TrainingGroup(
            work=ZERO_DIGEST,
            group=group,
            prompt_index=group,
            prompt_tokens=rng.integers(3, vocabulary, size=load.prompt).astype(np.int32),
            version=0,
            samples=tuple(map(sample, range(load.samples))),
        )
        for group in range(load.groups)
    ]


class PlainLoop:
    """A usual training loop with transformers."""

    def __init__(self, folder: Path, load: Load) -> None:
        self._model = cast("Any", open_model(folder, device=DEVICE)[0])
        self._model.eval()
        self._optimiser = torch.optim.AdamW(self._model.parameters(), lr=RATE, betas=(0.9, 0.99), weight_decay=0.0)
        self._places = load.row_tokens * load.rows_at_once

    def learn(self, groups: Sequence[TrainingGroup]) -> float:
        """Learns one step; returns its loss."""
        rows: list[tuple[Any, Any, Any, float]] = []
        for group in groups:
            rewards = np.array([sample.reward for sample in group.samples])
            worth = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
            rows += [
                (group.prompt_tokens, sample.output_tokens, sample.logprobs, advantage)
                for sample, advantage in zip(group.samples, worth, strict=True)
            ]
        total = sum(len(output) for _, output, _, _ in rows)
        at_once = max(1, self._places // max(len(prompt) + len(output) for prompt, output, _, _ in rows))
        loss = sum(self._add(rows[first : first + at_once], total) for first in range(0, len(rows), at_once))
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), CLIP)
        self._optimiser.step()
        self._optimiser.zero_grad()
        return loss

    def _add(self, rows: Sequence[tuple[Any, Any, Any, float]], total: int) -> float:
        longest = max(len(prompt) + len(output) for prompt, output, _, _ in rows)
        tokens = torch.zeros(len(rows), longest, dtype=torch.int64)
        there = torch.zeros(len(rows), longest)
        old, learned = torch.zeros(len(rows), longest - 1), torch.zeros(len(rows), longest - 1)
        for row, (prompt, output, logprobs, _) in enumerate(rows):
            end = len(prompt) + len(output)
            tokens[row, :end] = torch.from_numpy(np.concatenate([prompt, output]))
            there[row, :end] = 1
            old[row, len(prompt) - 1 : end - 1] = torch.from_numpy(logprobs)
            learned[row, len(prompt) - 1 : end - 1] = 1
        tokens, there, old, learned = (value.to(DEVICE) for value in (tokens, there, old, learned))
        worth = torch.tensor([advantage for *_, advantage in rows], dtype=torch.float32, device=DEVICE)[:, None]
        logits = self._model(input_ids=tokens, attention_mask=there, use_cache=False).logits[:, :-1]
        found = torch.log_softmax(logits.float(), dim=-1).gather(2, tokens[:, 1:, None])[..., 0]
        ratio = (found - old).exp()
        term = torch.minimum(ratio.clamp(max=4) * worth, ratio.clamp(0.8, 1.2) * worth)
        loss: Any = -(term * learned).sum() / total
        loss.backward()
        return float(loss.item())


def measure(folder: Path, load: Load, vocabulary: int) -> dict[str, tuple[float, float]]:
    """Returns, for each layout, the first loss and the median seconds for the batch."""
    groups = batch_of(load, vocabulary)
    plain = PlainLoop(folder, load)
    works: dict[str, Callable[[int], float]] = {"plain transformers loop": lambda _: plain.learn(groups)}
    for name in [*Layout, ALWAYS]:
        layout = Layout.SHARED if name == ALWAYS else Layout(name)
        settings = LearningSettings.model_validate(
            {
                "layout": layout,
                "row_tokens": load.row_tokens,
                "rows_at_once": load.rows_at_once,
                "optimiser": {"learning_rate": RATE, "warm_up_steps": 0, "clip": CLIP},
            }
        )
        learner = Learner(open_model(folder, device=DEVICE)[0], settings)
        if name == ALWAYS:
            setattr(learner, "_width", 1 << 30)  # noqa: B010 - attention costs nothing beside such matrices
        works[name] = lambda step, learner=learner: learner.learn(groups, step=step).loss  # type: ignore[misc]
    losses: dict[str, float] = {}
    took: dict[str, list[float]] = {name: [] for name in works}
    clock = time.perf_counter if DEVICE.type == "cuda" else time.process_time
    for step in range(ROUNDS + 1):
        for name, work in works.items():
            began = clock()
            loss = work(step)
            losses.setdefault(name, loss)
            if step:  # the first step warms up
                took[name].append(clock() - began)
    return {name: (losses[name], statistics.median(took[name])) for name in works}


def main() -> None:
    """Measures and prints."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        for shape, load in LOADS.items():
            if not shape.startswith(CHOSEN):
                continue
            folder = devnet_base() if shape.startswith("devnet") else random_model(Path(scratch) / "model", shape)
            vocabulary = 64 if shape.startswith("devnet") else 8192
            tokens = sum(len(each.output_tokens) for group in batch_of(load, vocabulary) for each in group.samples)
            table = Table(
                title=f"{shape} on {DEVICE}: {load.groups} x {load.samples} answers, prompts of {load.prompt}, answers "
                f"of {load.output[0]} to {load.output[1]}, {tokens} tokens in all"
            )
            for column in ("way", "seconds a step", "tokens/s", "against the plain loop", "loss of the first step"):
                table.add_column(column, justify="left" if column == "way" else "right")
            found = measure(folder, load, vocabulary)
            base = found["plain transformers loop"][1]
            for name, (loss, seconds) in found.items():
                row = (f"{seconds:.3f}", f"{tokens / seconds:,.0f}", f"{base / seconds:.2f}x", f"{loss:.5f}")
                table.add_row(name, *row)
            Console(width=120).print(table)


if __name__ == "__main__":
    end_in_order()
    main()
