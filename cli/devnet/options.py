"""Options of a devnet, and the presets of its run.

The preset `answers` rewards the right answer. `length` rewards it too, and subtracts a penalty for each token that an
answer is longer or shorter than its prompt requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from ledger.devchain import ChainKind
from protocol.wire.nodes import RuntimeKind
from rollouts.precision import EngineName

NO_CHEAT = "none"
DEFAULT_CHEAT = "previous-checkpoint"
NEVER_SLASHED = frozenset(
    {
        "build-of-its-own",
        "future-step",
        "ghost",
        "no-upload",
        "other-arithmetic",
        "stale-step",
        "swapped-upload",
        "unleased-upload",
    }
)
"""Attacks that are unpaid and not slashed: store, orchestrator or ledger refuse them before there is a file to judge,
or the file only declares a type or build that the recipe does not allow."""
ONLY_JUDGED = frozenset({"build-of-its-own", "other-arithmetic"})
"""Attacks of `NEVER_SLASHED` that only a verdict stops, so that a run without a judged file shows nothing."""
NOT_SHOWN: Mapping[str, str] = {
    "banned-in-between": "a devnet bans no node, and until its ban this node works honestly",
    "slot-shopper": "its work is honest and is paid; its predictions of seeds have no effect",
    "slow": "its work is honest and is paid; only the duration of steps would show it",
    "skipped-index": "its work is honest and is paid; only a longer run would throttle the node",
}
"""Attacks whose outcome a devnet's run can't show, each with the reason."""


class FirstTask(StrEnum):
    """Task of the workers."""

    LEARN = "learn"
    """Generate rollouts that a validator checks and a trainer learns from, until all steps are done."""
    HELLO = "hello"
    """Print the node's name and count: exercises nodes, tasks, logs and events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Quality that the policy must reach by the end of the run.

    Args:
        rise: Required rise of greedy accuracy, as a share.
        distance: Largest allowed mean distance of sampled answers from the requested length, in tokens; None if no
            length is requested.
    """

    rise: float
    distance: float | None = None


LEARNING: Mapping[str, object] = {"optimiser": {"learning_rate": 2e-4, "clip": 0.1}}
"""Learning settings of all presets."""


class PresetName(StrEnum):
    """Task that the policy learns."""

    ANSWERS = "answers"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Settings of a run.

    Args:
        task: Description for the report.
        base: Name of the shipped base model: `trainer.presets.devnet_base`.
        steps: Number of steps.
        goal: Required quality after `steps`.
        fast_steps: Number of steps with `--fast`: enough to show that the policy learns, not to reach `goal`.
        fast_goal: Required quality after `fast_steps`.
        learning: Learning settings that differ from the defaults in `trainer.learning.settings`.
    """

    task: str
    base: str
    steps: int
    goal: Goal
    fast_steps: int
    fast_goal: Goal
    learning: Mapping[str, object] = field(default_factory=lambda: LEARNING)


PRESETS: Mapping[PresetName, Preset] = {
    PresetName.ANSWERS: Preset(
        task="reverse and sort letters, by reward",
        base="devnet",
        steps=40,
        goal=Goal(rise=0.3),
        fast_steps=15,
        fast_goal=Goal(rise=0.15),
    ),
    PresetName.LENGTH: Preset(
        task="reverse and sort letters in a wanted length, by reward",
        base="devnet-length",
        steps=40,
        goal=Goal(rise=0.3, distance=1.0),
        fast_steps=15,
        fast_goal=Goal(rise=0.15, distance=1.7),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Settings of the run."""

    preset: PresetName = PresetName.ANSWERS
    steps: int = PRESETS[PresetName.ANSWERS].steps
    asynchrony: str = "two-step"
    seed: int = 1
    evaluate_every: int = 10
    evaluation_prompts: int = 256
    evaluation_samples: int = 4
    """Sampled answers to each held-out prompt, in addition to the greedy one."""
    groups: int = 16
    """Groups with a training signal in a step's batch."""
    engine: EngineName = EngineName.TORCH
    goal: Goal = PRESETS[PresetName.ANSWERS].goal
    """Quality that the policy must reach."""

    @property
    def terms(self) -> Preset:
        """Settings of the run's preset."""
        return PRESETS[self.preset]

    @property
    def async_level(self) -> int:
        """Number of steps beyond the newest version that may be leased."""
        return {"on-policy": 0, "periodic": 0, "one-step": 1, "two-step": 2, "off-policy": 8}[self.asynchrony]


@dataclass(frozen=True, slots=True, kw_only=True)
class DevnetOptions:
    """Options of a devnet."""

    directory: Path
    chain: ChainKind = ChainKind.EMBEDDED
    block_time: timedelta = timedelta(seconds=0.5)
    workers: int = 3
    cheat: str = DEFAULT_CHEAT
    """Attack of an additional worker; `none` for no such worker."""
    validators: int = 1
    task: FirstTask = FirstTask.LEARN
    run: RunOptions = RunOptions()
    runtime: RuntimeKind | None = None
    """Sandbox for tasks; None selects Docker if its engine is available, else the process sandbox."""
    keep: bool = False
    keep_running: bool = False
    """Keep the network up after the run, until Ctrl-C."""
    ledger_only: bool = False
    """Start the chain with its contracts and a pool, but no services; the user registers nodes by commands."""
    only_check: bool = False
    """Start everything, check that it works, stop."""

    @property
    def learns(self) -> bool:
        """True if the devnet trains a policy."""
        return self.task is FirstTask.LEARN and not self.ledger_only

    @property
    def cheats(self) -> bool:
        """True if one worker cheats."""
        return self.learns and self.cheat != NO_CHEAT
