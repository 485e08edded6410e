"""Metrics of a step for `progress.jsonl`."""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from rollouts.environments.mixture import Parts
from trainer.by_environment import ResultsByEnvironment
from trainer.learning.metrics import LearnedStep
from trainer.run.gathering.asynchrony import StepProgress
from trainer.run.gathering.batches import Chosen, SeenFile, SeenGroup, groups_at, staleness
from trainer.run.state.journal import StepBatch
from trainer.run.state.pools import PoolSettings
from trainer.run.state.trainer_state import TrainerState


@dataclass(slots=True)
class StepTimes:
    """Durations of a step's phases in seconds."""

    wait: float = 0.0
    """Waiting for rollouts, including requests to the orchestrator."""
    read: float = 0.0
    """Listing, fetching and checking new files."""
    learn: float = 0.0
    write: float = 0.0
    """Writing the version, and waiting before the optimiser step until a save in progress has finished."""
    total: float = 0.0


@dataclass(slots=True)
class IdleShare:
    """Share of time spent waiting for rollouts.

    The first step of a process does not count, because workers start up during it.
    """

    waited: float = 0.0
    total: float = 0.0
    begun: bool = False

    def after(self, times: StepTimes) -> float | None:
        """Adds a step and returns the share so far; None before the second step."""
        if self.begun:
            self.waited += times.wait
            self.total += times.total
        self.begun = True
        return self.waited / self.total if self.total else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepDone:
    """A completed step."""

    batch: StepBatch
    files: Sequence[SeenFile]
    chosen: Chosen
    dropped: Counter[str]
    progress: StepProgress
    learned: LearnedStep | None
    """None if no group had differing rewards."""


def step_facts(
    done: StepDone, times: StepTimes, *, state: TrainerState, pools: PoolSettings, parts: Parts
) -> dict[str, Any]:
    """Returns the content of a `step` line.

    `reward` and `solved` cover all decided groups, including those with equal rewards. Over the batch alone they would
    measure the selection, not the policy. `length` is the mean number of generated tokens, and `turns` that of the
    turns of dialogues (None for single answers). `distance` is the mean distance from the target length, if there is
    one. `environments` has reward and solved share by environment, if the recipe has a mixture.
    """
    groups, learned = groups_at(done.files, done.chosen.places), done.learned
    tokens = learned.tokens if learned is not None else 0
    seen = [group for file in done.files for group in file.groups]
    solved = [one.solved for one in seen if one.solved is not None]
    samples = [sample for one in seen if one.group is not None for sample in one.group.samples]
    lengths = [len(sample.output_tokens) for sample in samples]
    return {
        "step": done.batch.step,
        "version": state.step,
        "bad": learned is not None and learned.bad,
        "reward": _mean([sample.reward for sample in samples]),
        "solved": _mean(solved),
        "environments": _environments(seen, parts),
        "length": _mean(lengths),
        "turns": _mean([len(sample.turns) for sample in samples if sample.turns]),
        "distance": _mean([one.distance for one in seen if one.distance is not None]),
        "figures": learned.figures if learned is not None else {},
        "staleness": staleness(groups, step=done.batch.step),
        "files": {"used": len(done.files), "dropped": dict(done.dropped)},
        "groups": {"used": len(groups), "left": dict(done.chosen.left)},
        "demand": {"groups": done.progress.demand, "rounds": done.progress.rounds},
        "tokens": tokens,
        "tokens_per_second": tokens / times.learn if times.learn else 0.0,
        "seconds": asdict(times),
        "memory": memory(),
        "signal_share": state.signal_share,
        "pools": {pool.value: count for pool, count in state.pools.counts(pools).items()},
    }


def _environments(seen: Sequence[SeenGroup], parts: Parts) -> dict[str, Any]:
    results = ResultsByEnvironment(parts)
    for one in seen:
        if one.group is not None and one.solved is not None:
            for sample in one.group.samples:
                results.add(one.prompt_index, reward=sample.reward, solved=one.solved)
    return {label: asdict(found) for label, found in results.results().items()}


def memory() -> dict[str, int]:
    """Returns this process's current and peak main memory in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    resident = psutil.Process().memory_info().rss
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit  # Linux updates it with a delay
    return {"resident_bytes": resident, "peak_bytes": max(peak, resident)}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
