"""Implementation of `muster trainer sft` and `muster trainer eval`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from cli.output.quantities import one_of
from protocol.checkpoints import folder_files, version_digest
from rollouts.engines.opening import open_engine
from rollouts.environments import load_environment
from rollouts.models.devices import find_device
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.precision import Dtype, EngineName
from rollouts.recipe import read_recipe
from trainer.endpoint import EndpointAnswers
from trainer.errors import BadSettings
from trainer.evaluator import Evaluation, Evaluator, held_out_prompts
from trainer.presets import preset_file
from trainer.sft.settings import WarmUpSettings, check_settings, read_settings_file
from trainer.sft.warm_up import WarmUpStep, warm_up

ENDPOINT_VARIABLE = "MUSTER_ENDPOINT_TOKEN"
_LONGEST_TOKEN = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpChoices:
    """Options of `muster trainer sft`; its help texts describe them."""

    to: Path
    preset: str | None
    config: Path | None
    start: Path | None
    file: Path | None
    environment: str | None
    changes: tuple[str, ...]
    steps: int | None
    seed: int | None
    device: str | None
    every: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationChoices:
    """Options of `muster trainer eval`; its help texts describe them."""

    prompts: int
    samples: int
    held_out: float | None
    engine: str
    dtype: str
    device: str | None
    endpoint: Endpoint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An OpenAI-compatible endpoint that answers instead of an engine."""

    url: str
    model: str
    token_file: Path | None
    concurrency: int

    def answers(self, evaluator: Evaluator) -> EndpointAnswers:
        """Returns the endpoint as a source of answers; the token is in the file or in `MUSTER_ENDPOINT_TOKEN`.

        Raises:
            InvalidInput: The token file can't be read, or the endpoint can't be used for this recipe.
        """
        token = os.environ.get(ENDPOINT_VARIABLE)
        if self.token_file is not None:
            with self.token_file.open("rb") as file:
                token = file.read(_LONGEST_TOKEN).decode("ascii", "replace").strip()
        return EndpointAnswers(
            url=self.url,
            model=self.model,
            token=token or None,
            recipe=evaluator.recipe,
            tokenizer=evaluator.tokenizer,
            concurrency=self.concurrency,
        )


def run_warm_up(choices: WarmUpChoices, *, progress: Callable[[str], None]) -> Evaluation | None:
    """Trains a model and writes it as a version; returns the version's evaluation.

    Raises:
        MusterError: Training failed; the last saved state is kept.
    """
    # With more threads, models that are small enough for a CPU train slower, and the last bits of the results differ.
    torch.set_num_threads(1)

    def tell(done: WarmUpStep) -> None:
        if done.evaluation is not None or done.step % choices.every == 0 or done.step == done.steps:
            progress(_line(done))

    return warm_up(settings_of(choices), choices.to, device=find_device(choices.device), progress=tell)


def settings_of(choices: WarmUpChoices) -> WarmUpSettings:
    """Returns the settings of the preset or file, with the values of the command's options.

    Raises:
        BadSettings: The settings are invalid.
        NotFound: No preset has the given name.
    """
    source, values = _written(choices)
    if choices.start is not None:
        values["start"] = {"kind": "folder", "folder": choices.start}
    if choices.file is not None:
        values["examples"] = {"kind": "file", "path": choices.file}
    if choices.environment is not None:
        _set(values, "recipe.environment", _environment(choices.environment))
        if choices.file is None:
            _set(values, "examples.kind", "environment")
    if choices.steps is not None:
        values["steps"] = choices.steps
    if choices.seed is not None:
        values["seed"] = choices.seed
    for change in choices.changes:
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise BadSettings(f"{change[:80]!r} is no setting", hint="write key=value, such as steps=500")
        _set(values, key, _value(text))
    if "start" not in values:
        raise BadSettings(
            f"{source}: no start weights are named",
            hint="give --from with a Hugging Face folder, or --preset NAME, or `start` in --config (docs/trainer.md)",
        )
    return check_settings(values, source=source)


def run_evaluation(folder: Path, choices: EvaluationChoices) -> Evaluation:
    """Evaluates one version.

    Raises:
        MusterError: The version can't be loaded or evaluated.
    """
    torch.set_num_threads(1)
    recipe = read_recipe(folder)
    chosen = recipe.environment
    environment = load_environment(chosen.name, version=chosen.version, options=chosen.options)
    evaluator = Evaluator(
        environment=environment,
        recipe=recipe,
        tokenizer=FolderTokenizer(folder),
        indices=held_out_prompts(environment, recipe, count=choices.prompts, share=choices.held_out),
        samples=choices.samples,
    )
    if choices.endpoint is not None:
        return evaluator.measure(choices.endpoint.answers(evaluator))
    engine = open_engine(one_of(EngineName, choices.engine), dtype=one_of(Dtype, choices.dtype), device=choices.device)
    try:
        engine.load(folder, version=version_digest(folder_files(folder)))
        return evaluator.evaluate(engine)
    finally:
        engine.close()


def _line(done: WarmUpStep) -> str:
    width = len(str(done.steps))
    rate = done.tokens / done.seconds if done.seconds > 0 else 0.0
    line = (
        f"step {done.step:{width}}/{done.steps}  loss {done.loss:.3f}  gradient {done.gradient:.2f}  "
        f"rate {done.learning_rate:.1e}  {rate:,.0f} tokens/s"
    )
    if done.skipped:
        line += f"  {done.skipped} skipped"
    if done.evaluation is not None:
        line += f"  held out: {done.evaluation.greedy:.1%} right"
    return line


def _environment(text: str) -> dict[str, object]:
    name, _, version = text.partition("@")
    return {"name": name, "version": version or load_environment(name).version}


def _written(choices: WarmUpChoices) -> tuple[str, dict[str, object]]:
    """Returns the content of the preset or settings file, preceded by its name for messages.

    If the user gave neither, the content is empty.
    """
    if choices.preset is None:
        return (
            ("the options", {}) if choices.config is None else (str(choices.config), read_settings_file(choices.config))
        )
    if choices.config is not None:
        raise BadSettings("--preset and --config are both given", hint="give one; --set changes single settings")
    path = preset_file(choices.preset)
    values = read_settings_file(path)
    start = values.get("start")
    if isinstance(start, dict) and start.get("kind") == "folder":  # a preset's start folder is relative to the preset
        values["start"] = {**start, "folder": path.parent / str(start["folder"])}
    return str(path), values


def _set(values: dict[str, object], key: str, value: object) -> None:
    """Sets the value at a dotted path, such as `optimiser.learning_rate`; creates missing tables."""
    *path, last = key.split(".")
    at = values
    for part in path:
        inner = at.setdefault(part, {})
        if not isinstance(inner, dict):
            raise BadSettings(f"{key[:80]}: {part} is no table of settings", hint="docs/trainer.md lists the settings")
        at = inner
    at[last] = value


def _value(text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return value
