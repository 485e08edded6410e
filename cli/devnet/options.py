"""Options of a devnet, and the presets of its run.

The preset `answers` rewards the right answer. `length` rewards it too, and subtracts something for each token that an
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
"""Cheats that store, orchestrator or ledger refuse, so that there is nothing to judge; and what nobody of the pool can
judge, because the node chose otherwise than the recipe: that is not paid, and nothing more."""
ONLY_JUDGED = frozenset({"build-of-its-own", "other-arithmetic"})
"""Those of them that no door stops: what became of one is shown by a verdict, or not at all."""
NOT_SHOWN: Mapping[str, str] = {
    "banned-in-between": "nobody is banned in a devnet, and until somebody is, this node is an honest one",
    "slot-shopper": "what it hands in is honest work, and is paid: its forecasts are worth nothing",
    "slow": "what it hands in is honest work, and is paid; only how long steps take would show it",
    "skipped-index": "what it hands in is honest work, and is paid; only a longer run would have it rest",
}
"""Cheats of which a devnet's run could not tell whether they were stopped, and why."""


class FirstTask(StrEnum):
    """Task of the workers."""

    LEARN = "learn"
    """Generate for a run that a trainer learns from and a validator checks, until its steps are done."""
    HELLO = "hello"
    """Count, and say who they are: enough to try nodes, tasks, logs and events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Quality that the policy must reach by the end of the run.

    Args:
        rise: By how much greedy accuracy has to rise, as a share.
        distance: How many tokens answers may be from the wanted length at most, on average over drawn ones; None where
            no length is wanted.
    """

    rise: float
    distance: float | None = None


LEARNING: Mapping[str, object] = {"optimiser": {"learning_rate": 2e-4, "clip": 0.1}}
"""Learning settings that differ from the defaults in `trainer.learning.settings`."""


class PresetName(StrEnum):
    """Task that the policy learns."""

    ANSWERS = "answers"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One run.

    Args:
        task: What it is, for people.
        base: The shipped base that it starts from: `trainer.presets.devnet_base`.
        steps: Of the run.
        goal: What it has to reach in these.
        fast_steps: Enough to see it learn, not to see it become good.
        fast_goal: What it has to reach in those.
        learning: What is not as usual: `trainer.learning.settings`.
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
    """Drawn answers to each held-out prompt, besides the greedy one."""
    groups: int = 16
    """With signal, in a step's batch."""
    engine: EngineName = EngineName.TORCH
    goal: Goal = PRESETS[PresetName.ANSWERS].goal
    """Goal by which the run is judged."""

    @property
    def terms(self) -> Preset:
        """Of its preset."""
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
    """Sandbox for tasks; None takes Docker where an engine answers, else the process sandbox."""
    keep: bool = False
    keep_running: bool = False
    """Go on when the run is over, for a person to look around."""
    ledger_only: bool = False
    """The chain with its contracts and a pool, and no services: nodes are whatever commands make of them."""
    only_check: bool = False
    """Start everything, see that it works, stop."""

    @property
    def learns(self) -> bool:
        """True if there is a run."""
        return self.task is FirstTask.LEARN and not self.ledger_only

    @property
    def cheats(self) -> bool:
        """True if one worker cheats."""
        return self.learns and self.cheat != NO_CHEAT
