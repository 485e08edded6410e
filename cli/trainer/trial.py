"""`muster trainer try`: the learning loop in one process, without chain and services."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from cli.environments.commands import OptionList, parse_options
from cli.output.printing import JsonOption, note, say, shorten, show_json
from cli.output.quantities import counted
from cli.trainer.results import solved_by_environment
from protocol.errors import InvalidInput, plain_message
from protocol.runtime.configuration_text import ConfigurationFile

if TYPE_CHECKING:
    from rollouts.recipe import Recipe
    from trainer.evaluator import AnswerExample, Evaluation
    from trainer.trial import TrialSettings, TrialStep

_ROW = "{:>5}  {:>6}  {:>6}  {:>9}  {:>8}  {:>8}  {:>9}  {:>8}  {:>6}"
_HEAD = ("step", "reward", "solved", "signal", "entropy", "loss", "gradient", "tokens/s", "s")
_WIDTH = 50
_EXAMPLES_SHOWN = 2


def try_(
    *,
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="A model folder.")],
    environment: Annotated[
        str | None, typer.Option(help="Environment to train on; default: the one in the folder's recipe.json.")
    ] = None,
    option: OptionList = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="With --environment: longest answer.")] = None,
    group_size: Annotated[
        int | None, typer.Option(min=2, help="With --environment: samples per prompt; default: 8.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="A trainer's settings file; its \\[trainer] table is used."),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of steps; default: 10.")] = None,
    groups: Annotated[int | None, typer.Option(min=1, help="Groups with signal in a step; default: 16.")] = None,
    staleness: Annotated[
        int | None,
        typer.Option(min=0, max=64, help="Steps by which the answering policy is older than the learning one."),
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    prompts: Annotated[
        int | None, typer.Option(min=1, help="Number of held-out prompts; default: 256, or 64 for a large model.")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=0, help="Sampled answers to each held-out prompt; default: 4, or 1 for a large model."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of prompts and answers.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: an accelerator.")] = None,
    to: Annotated[Path | None, typer.Option(help="Write the trained policy as a version to this new folder.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Try a model, an environment and an algorithm: generate, reward, learn and evaluate in one process.

    Prints a line and two sampled answers per step. With --json, prints one JSON object per line. A trial makes no
    proofs and pays nothing; `muster devnet --model FOLDER` makes a run with a whole network.
    """
    import torch  # noqa: PLC0415 - `--help` does not need it

    from trainer.trial import NoSignal, Trial  # noqa: PLC0415

    torch.set_num_threads(1)  # as in a run, because with more threads the last bits of the results differ
    if to is not None and to.exists():
        raise InvalidInput(f"{to} exists already", hint="give --to a folder that does not exist")
    recipe = _recipe(folder, environment, option or [], max_new_tokens=max_new_tokens, group_size=group_size)
    changes = {
        "steps": steps,
        "groups_per_step": groups,
        "staleness": staleness,
        "evaluation_prompts": prompts,
        "evaluation_samples": samples,
        "seed": seed,
        "device": device,
    }
    settings = _settings(config, changes, learning_rate=learning_rate, recipe=recipe, folder=folder)
    with tempfile.TemporaryDirectory(prefix="muster-trial-") as scratch:
        trial = Trial(Path(scratch), settings, base=folder, recipe=recipe)
        try:
            note(f"evaluating {counted(settings.evaluation_prompts, 'held-out prompt')}")
            _show_evaluation(0, trial.evaluate(), as_json=as_json)
            for number in range(settings.steps):
                if number == 0 and not as_json:
                    say(_ROW.format(*_HEAD))
                try:
                    step = trial.step()
                except NoSignal as error:
                    if number == 0:
                        raise
                    note(f"{error.detail}: the trial ends after {number} of {counted(settings.steps, 'step')}")
                    break
                _show_step(step, as_json=as_json)
            _show_evaluation(trial.steps, trial.evaluate(), as_json=as_json)
            if to is not None:
                trial.write(to)
                if not as_json:
                    say(f"{to} holds the trained version")
        finally:
            trial.close()


def _recipe(
    folder: Path, environment: str | None, option: list[str], *, max_new_tokens: int | None, group_size: int | None
) -> Recipe | None:
    """Returns a recipe for the environment.

    If `environment` is None, checks the recipe in the folder and returns None.

    Raises:
        MusterError: The model, the environment or the recipe is not usable.
    """
    from rollouts.authoring.recipe_proposal import choose_recipe  # noqa: PLC0415 - loads transformers

    if environment is None and (option or max_new_tokens or group_size):
        raise InvalidInput(
            "options of an environment without --environment", hint="give --environment NAME, or leave them out"
        )
    return choose_recipe(
        folder,
        environment=environment,
        options=parse_options(option),
        max_new_tokens=max_new_tokens,
        group_size=group_size,
    )


def _settings(
    config: Path | None,
    changes: Mapping[str, object],
    *,
    learning_rate: float | None,
    recipe: Recipe | None,
    folder: Path,
) -> TrialSettings:
    """Returns the settings of the file, with the values of the options.

    Sizes that neither gives are derived from the model and the recipe.

    Raises:
        InvalidInput: The file or a value is invalid.
    """
    from rollouts.models.devices import find_device  # noqa: PLC0415
    from rollouts.models.facts import read_model  # noqa: PLC0415
    from rollouts.recipe import read_recipe  # noqa: PLC0415 - loads numpy
    from trainer.rates import default_evaluation, default_learning_rate, default_rows_at_once  # noqa: PLC0415
    from trainer.trial import TrialSettings  # noqa: PLC0415

    values: dict[str, Any] = {}
    if config is not None:
        values = dict(ConfigurationFile.read(config, own="trainer").table("trainer"))
        if not values or not isinstance(values.get("learning", {}), dict):
            raise InvalidInput(f"{config} has no table [trainer]", hint="give the settings file of a trainer")
    values |= {name: value for name, value in changes.items() if value is not None}
    values["device"] = str(find_device(values.get("device")))
    learning = dict(values.get("learning", {}))
    facts, used = read_model(folder), recipe or read_recipe(folder)
    row = learning.setdefault("row_tokens", used.row_tokens(facts.context))
    if isinstance(row, int) and row > 0:
        learning.setdefault("rows_at_once", default_rows_at_once(row, vocabulary=facts.vocabulary))
    evaluation = default_evaluation(facts.parameters)
    values.setdefault("evaluation_prompts", evaluation.prompts)
    values.setdefault("evaluation_samples", evaluation.samples)
    optimiser = dict(learning.get("optimiser", {}))
    optimiser.setdefault("learning_rate", default_learning_rate(facts.parameters))
    if learning_rate is not None:
        optimiser["learning_rate"] = learning_rate
    learning["optimiser"] = optimiser
    try:
        return TrialSettings.model_validate(values | {"learning": learning})
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, found["loc"]))
        raise InvalidInput(
            f"{place}: {plain_message(found['msg'])}", hint="docs/learning.md lists the settings"
        ) from error


def _show_step(step: TrialStep, *, as_json: bool) -> None:
    if as_json:
        show_json({"kind": "step", **asdict(step)}, one_line=True)
        return
    learned = step.learned
    say(
        _ROW.format(
            learned.step + 1,
            f"{step.reward:.3f}",
            f"{step.solved:.1%}",
            f"{learned.groups} of {step.generated}",
            f"{learned.entropy:.3f}",
            f"{learned.loss:.4f}",
            f"{learned.gradient_norm:.3f}",
            f"{step.tokens_per_second:,.0f}",
            f"{step.seconds:.1f}",
        )
    )
    if step.environments:
        say(f"       solved: {solved_by_environment(step.environments)}")
    for one in step.examples[:_EXAMPLES_SHOWN]:
        say(f"       {_example(one)}")


def _show_evaluation(version: int, found: Evaluation, *, as_json: bool) -> None:
    if as_json:
        show_json({"kind": "evaluation", "version": version, **asdict(found)}, one_line=True)
        return
    sampled = f", sampled {found.pass_at[1]:.1%}" if found.pass_at else ""
    partial = (
        f", mean reward of greedy answers {found.greedy_reward:.3f}" if found.greedy_reward != found.greedy else ""
    )
    say(f"held-out prompts answered right: greedy {found.greedy:.1%}{sampled}, of {found.prompts}{partial}")
    if found.environments:
        say(f"       greedy by environment: {solved_by_environment(found.environments)}")
    for one in found.examples[:_EXAMPLES_SHOWN]:
        say(f"       {_example(one)}")


def _example(one: AnswerExample) -> str:
    return f"{'right' if one.correct else 'wrong'}  {shorten(one.prompt, _WIDTH)} → {shorten(one.answer, _WIDTH)}"
