"""Sizes and costs of a run with the user's own model, or with a pretrained one from PyPI.

Sizes of the run, such as batch, learning rate and memory, follow from the model. All checks happen before the devnet
starts a process.
"""

from __future__ import annotations

import math
import os
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from pydantic import JsonValue

from cli.devnet.options import OWN_MODEL, RunModel, RunScale
from cli.devnet.settings import CLOCKS_DIFFER
from cli.devnet.smollm2 import smollm2_folder
from cli.output.quantities import counted
from protocol.errors import InvalidInput
from protocol.runtime.budgets import free_memory, usable_cores
from rollouts.authoring.recipe_proposal import RecipeChoices, choose_recipe, propose_recipe
from rollouts.environments import load_environment, locate_options
from rollouts.models.facts import ModelFacts, read_model
from rollouts.precision import Dtype
from rollouts.recipe import Recipe, read_recipe
from trainer.evaluator import held_out_prompts
from trainer.rates import SMALL_MODEL, default_evaluation, default_learning_rate, default_rows_at_once

SMOLLM2_ENVIRONMENT = RecipeChoices(
    environment="arithmetic",
    options={"operations": ["+"], "largest": 12, "form": "question", "answer": "last-number"},
    max_new_tokens=10,
    group_size=16,
    held_out=0.4,
    count=1000,
)
"""Sums up to 12 + 12. Ten tokens suffice for the answer `11 + 12 = 23`. The environment asks for no differences,
because this model hardly ever finds a negative result, and a group without a right answer teaches nothing. Before
training, about a tenth of the answers are right, and most groups of 16 contain a right answer. The recipe holds out 64
of the 168 different prompts: with only 25, each prompt would change the measured accuracy by four percentage points."""
_SMOLLM2_GROUPS = 4
_SMOLLM2_OPTIMISER: Mapping[str, JsonValue] = {
    "learning_rate": 4e-5,
    "clip": 0.1,
    "warm_up_steps": 2,
    "schedule": "linear",
    "steps": 10,
    "final_share": 0.25,
}
"""The highest rate is twice the default for a model of this size, because the run is short. With 8e-5 the policy forgot
sums in two of three runs (decision 78)."""

_PROCESS_BYTES = 500 << 20
"""Memory of a process that has imported torch and transformers, without weights."""
_GENERATE, _FORWARD = 0.15, 0.5
"""Shares of a core's matrix throughput that generation and forward passes reach; rough, for estimates."""
_SLOW_CORE = 20e9
"""Floating-point operations per second of a slow core. Periods follow from this figure, not from a measurement: the
periods must be the same when a devnet is continued."""
_SLOTS_PER_LEASE = 2
"""A lease lasts as long as a slow core needs to generate this many slots. One slot is too few, because ten processes
share the machine. Longer leases would cost disk space, because a version stays on disk while a lease may name it."""
_SLOTS_PER_VERDICT = 10
"""Validators must give a verdict within the time in which a slow core generates and checks this many slots."""
_GENERATED_PER_LEARNED = 1.7
"""Generated groups per group that the trainer learns from; the trainer drops groups without signal and late groups."""
_FIRST_STEP = timedelta(seconds=120)
"""Time that `--check` allows for the first step, in addition to three steps on a slow core."""
_EXAMINED_VERSIONS = 2
"""Number of versions of a larger model that a validator's examiner keeps in memory. Two suffice, because work without a
verdict comes from the newest two versions."""
_MOST_KEPT = 16
"""Maximum number of versions of a small model that the trainer and a relay keep."""
_STATE_BYTES = 12
"""Bytes per parameter of the trainer's state: weights and two moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoices:
    """The user's choices for a model of their own; the devnet computes those that are None.

    Args:
        folder: The model's folder.
        environment: Name of the environment; None if the folder has a recipe.
        options: Options of the environment.
        max_new_tokens: Limit of answer tokens.
        group_size: Samples per prompt.
        learning_rate: Learning rate.
        groups: Number of groups per step.
    """

    folder: Path
    environment: str | None = None
    options: Mapping[str, JsonValue] | None = None
    max_new_tokens: int | None = None
    group_size: int | None = None
    learning_rate: float | None = None
    groups: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Facts, besides the model, on which the costs of a run depend.

    Args:
        directory: Folder of the devnet, for the check of its disk.
        workers: Number of workers, including one that cheats.
        validators: Number of validators.
        steps: Number of steps.
    """

    directory: Path
    workers: int
    validators: int = 1
    steps: int = OWN_MODEL.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedModel:
    """A model with the sizes of its run and the estimated costs.

    Args:
        model: The model.
        scale: Sizes of the run.
        task: Description for the report.
        parameters: Number of weights.
        memory: Estimated peak memory of all processes in bytes.
        disk: Estimated peak disk space of the devnet's folder in bytes.
        seconds_per_step: Estimated duration of a step on this machine.
    """

    model: RunModel
    scale: RunScale
    task: str
    parameters: int
    memory: int
    disk: int
    seconds_per_step: float

    def summary(self, *, steps: int) -> str:
        """Returns one line about the model and the expected costs of a run."""
        minutes = max(1, round(self.seconds_per_step * steps / 60))
        length = f"{counted(steps, 'step')} of {counted(self.scale.groups, 'group')}"
        return (
            f"{self.parameters / 1e6:.1f} M parameters; {length} take about {minutes} min, "
            f"{self.memory / 1e9:.1f} GB of memory and {self.disk / 1e9:.1f} GB of disk on this machine"
        )


def size_own_model(choices: ModelChoices, network: Network) -> SizedModel:
    """Checks the user's own model and environment, and computes the sizes of the run.

    Raises:
        InvalidInput: The devnet can't use the model or the environment, or this machine has too little memory or disk;
            the message says what to change.
        MusterError: The model can't be read, or the environment can't be loaded.
    """
    folder = choices.folder
    facts = read_model(folder)
    chosen = choose_recipe(
        folder,
        environment=choices.environment,
        options=choices.options or {},
        max_new_tokens=choices.max_new_tokens,
        group_size=choices.group_size,
    )
    recipe = read_recipe(folder) if chosen is None else chosen
    if chosen is None:
        _check_own_recipe(recipe)
    recipe, datasets = _locate_datasets(recipe)
    written = recipe.model_dump_json(indent=2) if chosen is not None or datasets else None
    model = RunModel(folder=folder.absolute(), recipe=written, datasets=datasets)
    task = f"{folder.resolve().name} learns {recipe.environment.name}, by reward"
    return _sized(model, recipe, facts, task=task, choices=choices, network=network)


def size_smollm2(network: Network, *, on_event: Callable[[str], None]) -> SizedModel:
    """Makes the folder of SmolLM2-135M-Instruct if missing, and computes the sizes of its run.

    Args:
        network: Other facts on which the costs of the run depend.
        on_event: Called with one line of text per stage.

    Raises:
        Unavailable: The package can't be downloaded.
        InvalidInput: This machine has too little memory or disk.
    """
    folder = smollm2_folder(on_event)
    facts = read_model(folder)
    recipe = propose_recipe(folder, SMOLLM2_ENVIRONMENT).recipe
    model = RunModel(folder=folder, recipe=recipe.model_dump_json(indent=2))
    task = "SmolLM2-135M-Instruct learns to answer sums, by reward"
    choices = ModelChoices(folder=folder, groups=_SMOLLM2_GROUPS)
    sized = _sized(model, recipe, facts, task=task, choices=choices, network=network)
    # Greedy answers decide whether the run succeeds; sampled ones would double the time of an evaluation.
    learning = {**sized.scale.learning, "optimiser": _SMOLLM2_OPTIMISER}
    return replace(sized, scale=replace(sized.scale, evaluate_every=5, evaluation_samples=0, learning=learning))


def _sized(
    model: RunModel, recipe: Recipe, facts: ModelFacts, *, task: str, choices: ModelChoices, network: Network
) -> SizedModel:
    """Computes sizes and costs of the run, and checks this machine's memory and disk.

    Raises:
        InvalidInput: This machine has too little memory or disk.
    """
    rate = default_learning_rate(facts.parameters) if choices.learning_rate is None else choices.learning_rate
    row = recipe.row_tokens(facts.context)
    rows = default_rows_at_once(row, vocabulary=facts.vocabulary)
    small = facts.parameters <= SMALL_MODEL
    groups = choices.groups or (16 if small else 8)
    per_slot = 4 if small else 2
    generating, checking, _ = _operations(facts, recipe, groups=per_slot)
    verdict = _on_slow_core(_SLOTS_PER_VERDICT * (generating + checking))
    evaluation = default_evaluation(facts.parameters)
    scale = RunScale(
        groups=groups,
        groups_per_slot=per_slot,
        slots_per_node=8 if small else 2,
        evaluate_every=10 if small else 5,
        evaluation_prompts=evaluation.prompts,
        evaluation_samples=evaluation.samples,
        relays=2 if small else 1,
        keep_versions=None if small else 2,
        share_versions=not small,
        state_every=1 if small else 10,
        return_memory=not small,
        lease=max(timedelta(seconds=60), _on_slow_core(_SLOTS_PER_LEASE * generating)),
        judge_period=max(timedelta(seconds=60), verdict),
        polling=1.0 if small else 10.0,
        first_rollouts=max(timedelta(minutes=5), 2 * verdict),
        first_step=_FIRST_STEP + _on_slow_core(3 * sum(_operations(facts, recipe, groups=groups))),
        task_memory=(2 << 30) + 6 * facts.parameters,
        policy_memory=None if small else _EXAMINED_VERSIONS * 4 * facts.parameters,
        learning={
            "row_tokens": row,
            "rows_at_once": rows,
            "optimiser": {"learning_rate": rate, "clip": 0.1, "warm_up_steps": 2},
        },
    )
    seconds = _seconds_per_step(facts, recipe, groups=groups, workers=network.workers)
    sized = SizedModel(
        model=model,
        scale=scale,
        task=task,
        parameters=facts.parameters,
        memory=_memory(facts, row=row, rows=rows, network=network),
        disk=_disk(facts, scale=scale, seconds_per_step=seconds, network=network),
        seconds_per_step=seconds,
    )
    _check_machine(sized, network)
    return sized


def _check_machine(sized: SizedModel, network: Network) -> None:
    if sized.memory > (free := free_memory()):
        raise InvalidInput(
            f"the run needs about {sized.memory / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free",
            hint="use a smaller model, or fewer --workers or --validators",
        )
    directory = network.directory.absolute()
    place = next(each for each in (directory, *directory.parents) if each.exists())
    if sized.disk > (left := shutil.disk_usage(place).free):
        raise InvalidInput(
            f"the run needs about {sized.disk / 1e9:.1f} GB of disk, and {place} has {left / 1e9:.1f} GB",
            hint="use a smaller model, fewer --workers or --validators, or another --directory",
        )


def _memory(facts: ModelFacts, *, row: int, rows: int, network: Network) -> int:
    """Returns the estimated peak memory of all processes in bytes."""
    weights = 4 * facts.parameters  # every process computes in float32
    logits = 4 * row * rows * facts.vocabulary
    trainer = 4 * weights + 4 * logits  # weights, gradients and two moments
    processes = network.workers + network.validators + 1  # the 1 is the trainer's evaluation process
    models = processes + (_EXAMINED_VERSIONS - 1) * network.validators
    return trainer + models * weights + (processes + 6) * _PROCESS_BYTES


def _disk(facts: ModelFacts, *, scale: RunScale, seconds_per_step: float, network: Network) -> int:
    """Returns the estimated peak disk space of the devnet's folder in bytes.

    The trainer and the relays keep a version until all leases for it have ended, which is one lease duration after two
    newer versions have appeared. Each worker holds a version and its successor. The trainer writes a new state before
    it removes the old one, so two states are on disk for a moment.
    """
    version = 4 * facts.parameters
    leased = 3 + math.ceil((scale.lease + CLOCKS_DIFFER).total_seconds() / seconds_per_step)
    held = min(leased if scale.keep_versions else _MOST_KEPT, network.steps + 1)
    copies = held * (1 + scale.relays) + 4 * network.validators
    if scale.share_versions:  # relays link complete files to the trainer's; validators read the trainer's folder
        copies = held + scale.relays
    base = version  # the copy of the model, if the devnet writes a recipe beside it
    return base + version * (copies + 2 * network.workers) + 2 * _STATE_BYTES * facts.parameters


def _on_slow_core(operations: float) -> timedelta:
    """Returns the time that a slow core takes for a number of floating-point operations.

    The time is rounded up to whole seconds, because the ledger counts whole seconds.
    """
    return timedelta(seconds=math.ceil(operations / _SLOW_CORE))


def _locate_datasets(recipe: Recipe) -> tuple[Recipe, tuple[Path, ...]]:
    """Returns the recipe with absolute paths of its data sets, and these files.

    The workers make the files readable for their tasks at the same paths. A task has another working directory than the
    devnet, so relative paths would name other files.

    Raises:
        InvalidInput: A file is not readable by all users, but the devnet's user is root, so tasks run as another user.
    """
    chosen = recipe.environment
    options, files = locate_options(chosen.name, chosen.options)
    for file in files:
        if os.geteuid() == 0 and not file.stat().st_mode & stat.S_IROTH:
            raise InvalidInput(
                f"tasks can't read {file}: they run as another user, because the devnet's user is root",
                hint=f"chmod a+r {file}",
            )
    if not files:
        return recipe, ()
    return recipe.model_copy(update={"environment": chosen.model_copy(update={"options": options})}), files


def _check_own_recipe(recipe: Recipe) -> None:
    """Checks that a devnet can learn with the recipe of a folder.

    Raises:
        InvalidInput: The recipe holds out no prompts, has groups of one answer, or does not accept work computed in
            float32.
        MusterError: The recipe's environment can't be used.
    """
    chosen = recipe.environment
    environment = load_environment(chosen.name, version=chosen.version, options=chosen.options)
    held_out_prompts(environment, recipe, count=1)
    if recipe.group_size < 2:
        raise InvalidInput("the recipe has groups of one answer", hint="learning compares answers: set group_size to 2")
    if recipe.arithmetic and not any(name.endswith(f"/{Dtype.FLOAT32}") for name in recipe.arithmetic):
        raise InvalidInput(
            f"the recipe pays for {', '.join(recipe.arithmetic)} only, and a devnet computes in float32",
            hint="add torch/float32 to arithmetic in recipe.json",
        )


def _operations(facts: ModelFacts, recipe: Recipe, *, groups: int) -> tuple[float, float, float]:
    """Returns the costs of generating, validating and learning a number of groups.

    The unit is one operation at a core's full throughput.
    """
    answers = groups * recipe.group_size
    new_tokens = answers * recipe.sampling.max_new_tokens
    all_tokens = answers * ((recipe.max_prompt_tokens + recipe.most_given_tokens) // 2) + new_tokens
    forward = 2 * facts.parameters  # operations of one token; the backward pass takes twice as many
    return forward * new_tokens / _GENERATE, forward * all_tokens / _FORWARD, 3 * forward * all_tokens / _FORWARD


def _seconds_per_step(facts: ModelFacts, recipe: Recipe, *, groups: int, workers: int) -> float:
    """Returns the estimated duration of a step.

    The stages of a step overlap, and each process computes on one core.
    """
    generating, validating, learning = _operations(facts, recipe, groups=groups)
    generating, validating = _GENERATED_PER_LEARNED * generating, _GENERATED_PER_LEARNED * validating
    cores = usable_cores()
    total = generating + validating + learning
    slowest = max(generating / min(cores, max(1, workers)), validating, learning, total / cores)
    return slowest / _core_throughput()


def _core_throughput() -> float:
    """Measures one core's floating-point operations per second in a float32 matrix product."""
    import torch  # noqa: PLC0415 - devnets of the shipped base models do not need it here

    side = 768
    torch.set_num_threads(1)
    matrix = torch.ones(side, side)
    matrix @ matrix  # the first product is slower, so it is not measured
    began = time.perf_counter()
    rounds = 8
    for _ in range(rounds):
        matrix @ matrix
    return rounds * 2 * side**3 / (time.perf_counter() - began)
