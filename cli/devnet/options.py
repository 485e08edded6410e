"""Options of a devnet, and the presets of its run.

The preset `answers` rewards the right answer. `length` rewards the right answer, too, and subtracts a penalty for each
token that an answer is longer or shorter than its prompt requests. `dialogue` rewards the right answer at the end of a
dialogue in which the policy has to call a tool twice. `smollm2` rewards right answers of a pretrained chat
model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from ledger.devchain import ChainKind
from protocol.runtime.budgets import usable_cores
from protocol.wire.nodes import RuntimeKind
from rollouts.precision import EngineName

NO_CHEAT = "none"
DEFAULT_CHEAT = "previous-checkpoint"
SERVING_CHEAT = "smaller-model"
"""Attack of the cheating worker of `--serve`, unless the user names another."""
SERVING_CHEATS = frozenset({"another-model", "int4", "int8", "smaller-model"})
"""Attacks that a worker can run when it serves: it answers with other weights."""
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
"""Attacks that earn nothing, but cost no stake either.

Object store, orchestrator or ledger refuse most of them before there is a file to judge. In the others, the file
declares a data type or an engine build that the recipe does not allow; validators reject such a file, but do not judge
it forged.
"""
ONLY_JUDGED = frozenset({"build-of-its-own", "other-arithmetic"})
"""Attacks of `NEVER_SLASHED` that only a verdict stops.

A run in which the attacker submitted no file therefore shows nothing about the attack.
"""
NOT_SHOWN: Mapping[str, str] = {
    "banned-in-between": "a devnet bans no node, and this node works honestly until it is banned",
    "slot-shopper": "its work is honest and is paid; its predictions of seeds have no effect",
    "slow": "its work is honest and is paid; the attack only makes steps take longer",
    "skipped-index": "its work is honest and is paid; the orchestrator throttles the node only in a longer run",
}
"""Attacks whose outcome a devnet's run can't show, each with the reason."""


class FirstTask(StrEnum):
    """Task of the workers."""

    LEARN = "learn"
    """Generate rollouts that a validator checks and a trainer learns from, until all steps are done."""
    HELLO = "hello"
    """Print the node's address, then a rising number; this tests nodes, tasks, logs and events without a model."""
    SERVE = "serve"
    """Answer the requests that clients send to the pool's gateway."""


class Verification(StrEnum):
    """Answers that the devnet's verifier checks (`--serve`)."""

    NONE = "none"
    SAMPLED = "sampled"
    BEFORE = "before"


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
"""Learning settings of the presets with a shipped base model."""


class PresetName(StrEnum):
    """Name of a preset; each preset is a task that the policy learns."""

    ANSWERS = "answers"
    LENGTH = "length"
    DIALOGUE = "dialogue"
    SMOLLM2 = "smollm2"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScale:
    """Sizes of a run that depend on the model.

    The defaults suit a model with less than a million parameters.

    Args:
        groups: Groups with a training signal in a step's batch.
        groups_per_slot: Number of groups in a slot, and so in a rollout file.
        slots_per_node: Number of leases that a node may hold at a time.
        evaluate_every: Number of steps between evaluations.
        evaluation_prompts: Number of held-out prompts per evaluation.
        evaluation_samples: Number of sampled answers to each held-out prompt, in addition to the greedy answer.
        relays: Number of relays; each holds several versions.
        keep_versions: Number of versions that trainer and relays keep on disk, in addition to the versions that leases
            or unjudged work need; None for the defaults of trainer and relays.
        share_versions: Whether the devnet saves disk space: validators read versions from the trainer's folder, relays'
            copies become hard links to the trainer's files, and tasks keep only the version in use.
        state_every: Number of steps after which the trainer saves its full state.
        return_memory: Whether trainer and validators return the memory of freed tensors to the operating system at
            once, so that fragmentation does not increase their memory.
        lease: Time within which a node must deliver a leased slot.
        judge_period: Time within which validators must judge a file; a term of the pool on the ledger.
        polling: Factor by which the services lengthen their pauses between polls. Short pauses cost CPU time that a
            long step needs.
        first_rollouts: Longest time until each honest node has submitted work.
        first_step: Longest time from these first submissions until the trainer has learned a step; only for `--check`.
        task_memory: Memory limit of a worker's task in bytes.
        policy_memory: Maximum size, in bytes, of the weights that a validator's examiner keeps in memory; None for the
            validator's default, which is a share of the machine's memory.
        learning: Learning settings that differ from the defaults in `trainer.learning.settings`.
    """

    groups: int = 16
    groups_per_slot: int = 4
    slots_per_node: int = 8
    evaluate_every: int = 10
    evaluation_prompts: int = 256
    evaluation_samples: int = 4
    relays: int = 2
    keep_versions: int | None = None
    share_versions: bool = False
    state_every: int = 1
    return_memory: bool = False
    lease: timedelta = timedelta(seconds=60)
    judge_period: timedelta = timedelta(seconds=60)
    polling: float = 1.0
    first_rollouts: timedelta = timedelta(minutes=5)
    first_step: timedelta = timedelta(seconds=120)
    task_memory: int = 2 << 30
    policy_memory: int | None = None
    learning: Mapping[str, object] = field(default_factory=lambda: LEARNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunModel:
    """Model that a run starts from.

    Args:
        folder: The model's folder.
        recipe: Recipe as JSON, which the devnet writes beside a copy of the model; None to use the folder's
            own recipe.
        datasets: Files that the recipe's environment reads; workers make them readable for their tasks.
    """

    folder: Path
    recipe: str | None = None
    datasets: tuple[Path, ...] = ()


_LARGE_MODEL_WORKERS = 1 if usable_cores() < 4 else 2
"""Number of honest workers in a run with a larger model. Trainer, validator and cheater need cores and memory, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Default settings of a run.

    Args:
        task: Description for the report.
        base: Name of the shipped base model, for `trainer.presets.devnet_base`; None if Muster ships no such model.
        steps: Number of steps.
        goal: Required quality after `steps`.
        fast_steps: Number of steps with `--fast`: enough to show that the policy learns, not to reach `goal`.
        fast_goal: Required quality after `fast_steps`.
        workers: Number of honest workers.
        asynchrony: How far generation may run ahead of learning. On one machine a larger model keeps all cores busy
            anyway, so more asynchrony would only make the rollouts staler.
    """

    task: str
    base: str | None
    steps: int
    goal: Goal
    fast_steps: int
    fast_goal: Goal
    workers: int = 3
    asynchrony: str = "two-step"


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
    PresetName.DIALOGUE: Preset(
        task="find two digits with two calls of a tool, by reward",
        base="devnet-dialogue",
        steps=30,
        goal=Goal(rise=0.4),
        fast_steps=12,
        fast_goal=Goal(rise=0.3),
    ),
    PresetName.SMOLLM2: Preset(
        task="a pretrained chat model answers sums, by reward",
        base=None,
        steps=10,
        goal=Goal(rise=0.35),
        fast_steps=5,
        fast_goal=Goal(rise=0.1),
        workers=_LARGE_MODEL_WORKERS,
        asynchrony="one-step",
    ),
}


OWN_MODEL = Preset(
    task="a model of the user's own learns by reward",
    base=None,
    steps=10,
    goal=Goal(rise=0.01),
    fast_steps=3,
    fast_goal=Goal(rise=0.0),
    workers=_LARGE_MODEL_WORKERS,
    asynchrony="one-step",
)
"""Defaults of a run with `--model`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Settings of one run."""

    name: str = PresetName.ANSWERS.value
    """Name of the preset, or of the model's folder if `own_model`."""
    own_model: bool = False
    """True if the user gave the model's folder."""
    task: str = PRESETS[PresetName.ANSWERS].task
    """Description for the report."""
    model: RunModel | None = None
    """Model that the run starts from; None for the base model of the preset `answers`."""
    scale: RunScale = RunScale()
    steps: int = PRESETS[PresetName.ANSWERS].steps
    asynchrony: str = "two-step"
    seed: int = 1
    engine: EngineName = EngineName.TORCH
    goal: Goal = PRESETS[PresetName.ANSWERS].goal
    """Quality that the policy must reach."""

    @property
    def about(self) -> dict[str, str]:
        """The settings that the report shows, by name."""
        return {
            "model" if self.own_model else "preset": self.name,
            "task": self.task,
            "steps": str(self.steps),
            "asynchrony": self.asynchrony,
            "seed": str(self.seed),
            "engine": self.engine.value,
        }

    @property
    def async_level(self) -> int:
        """Number of steps ahead of the newest version for which the orchestrator may lease slots."""
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
    """Start only the chain with its contracts and a pool; the user registers nodes with `muster` commands."""
    only_check: bool = False
    """Start everything, check that the network works, and stop."""
    verify: Verification = Verification.BEFORE

    @property
    def learns(self) -> bool:
        """True if the devnet trains a policy."""
        return self.task is FirstTask.LEARN and not self.ledger_only

    @property
    def serves(self) -> bool:
        """True if the devnet serves a model to OpenAI clients."""
        return self.task is FirstTask.SERVE and not self.ledger_only

    @property
    def has_model(self) -> bool:
        """True if the devnet has a model, and so relays and validators."""
        return self.learns or self.serves

    @property
    def cheats(self) -> bool:
        """True if the devnet has a worker that cheats."""
        return self.has_model and self.cheat != NO_CHEAT
