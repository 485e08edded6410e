"""`muster trainer`: supervised warm-up, training runs and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.groups import CommandGroup
from cli.output.listing import listing
from cli.output.printing import JsonOption, note, say, show_json, show_table
from cli.output.quantities import counted
from cli.output.tables import Column, Columns
from cli.trainer.export import export
from cli.trainer.results import solved_by_environment
from cli.trainer.run import publish, run
from cli.trainer.trial import try_
from protocol.errors import InvalidInput
from protocol.runtime.configuration_file import reads

if TYPE_CHECKING:
    from trainer.evaluator import Evaluation

app = CommandGroup(no_args_is_help=True, help="Warm up, train and evaluate models.")
app.command()(run)
app.command()(publish)
app.command(name="try")(try_)
app.command()(export)

Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: an accelerator if there is one.")]


@app.command()
def sft(
    *,
    to: Annotated[
        Path, typer.Option(help="Folder of the new version; the folder TO.training holds the training state.")
    ],
    preset: Annotated[
        str | None, typer.Option(help="Name of a preset (a settings file that Muster ships), such as devnet.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A TOML file of settings; see docs/trainer.md.")
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from", exists=True, file_okay=False, help="Hugging Face model folder with the initial weights."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="File of training examples: JSON lines or .parquet."),
    ] = None,
    environment: Annotated[
        str | None, typer.Option(help="Environment that supplies demonstrations; NAME or NAME@VERSION.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any setting, such as optimiser.learning_rate=1e-4; repeatable."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of random weights and of the example order.")] = None,
    device: Device = None,
    every: Annotated[int, typer.Option(min=1, help="Number of steps between two progress lines.")] = 25,
    as_json: JsonOption = False,
) -> None:
    """Warm a model up: supervised training on demonstrations or a file of examples, then write a version.

    After an interruption, run the same command again to continue.
    """
    from cli.trainer.work import WarmUpChoices, run_warm_up  # noqa: PLC0415 - loads torch, which `--help` does not need

    choices = WarmUpChoices(
        to=to,
        preset=preset,
        config=config,
        start=start,
        file=file,
        environment=environment,
        changes=tuple(set_ or ()),
        steps=steps,
        seed=seed,
        device=device,
        every=every,
    )
    from rollouts.recipe import RECIPE_FILE  # noqa: PLC0415 - loads numpy

    found = run_warm_up(choices, progress=note)
    if as_json:
        show_json({"version": to, "evaluation": found})
        return
    say(f"{to} holds the version")
    if not (to / RECIPE_FILE).exists():
        note(f"a run also needs a {RECIPE_FILE}; to write it: muster recipe init {to} --environment NAME")
    if found is not None:
        say(f"correct greedy answers: {found.greedy:.1%} of {counted(found.prompts, 'held-out prompt')}")


@app.command(name="eval")
@reads("sandbox")
@listing()
def eval_(
    folders: Annotated[
        list[Path],
        typer.Argument(
            exists=True, file_okay=False, help="Folders of versions, each with weights, tokenizer and recipe.json."
        ),
    ],
    prompts: Annotated[int, typer.Option(min=1, help="Number of held-out prompts.")] = 256,
    samples: Annotated[int, typer.Option(min=0, help="Sampled answers per prompt, for pass@k.")] = 8,
    held_out: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Share of prompts that are held out; default and maximum: the recipe's share."),
    ] = None,
    engine: Annotated[str, typer.Option(help="torch or vllm.")] = "torch",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    device: Device = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Base URL of an OpenAI-compatible endpoint that answers instead.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of the endpoint's model. Default: the name of the folder.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="File with the endpoint's token. Default: MUSTER_ENDPOINT_TOKEN."
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=1024, help="Maximum requests to the endpoint at a time.")] = 16,
    as_json: JsonOption = False,
) -> None:
    """Evaluate versions on held-out prompts: one greedy answer and several sampled ones per prompt.

    With --endpoint, a service answers; the folder gives the recipe and the tokenizer, and needs no weights.
    """
    from cli.trainer.work import Endpoint, EvaluationChoices, run_evaluation  # noqa: PLC0415 - loads torch

    if endpoint is not None and len(folders) > 1:
        raise InvalidInput(f"one endpoint can't answer for {len(folders)} folders", hint="name one folder")
    if endpoint is None and (model is not None or token_file is not None):
        raise InvalidInput("--model and --token-file belong to --endpoint", hint="give --endpoint URL too")
    choices = EvaluationChoices(
        prompts=prompts,
        samples=samples,
        held_out=held_out,
        engine=engine,
        dtype=dtype,
        device=device,
        endpoint=None
        if endpoint is None
        else Endpoint(
            url=endpoint,
            model=folders[0].resolve().name if model is None else model,
            token_file=token_file,
            concurrency=concurrency,
        ),
    )
    found = [(folder, run_evaluation(folder, choices)) for folder in folders]
    if as_json:
        show_json([{"version": folder, "evaluation": evaluation} for folder, evaluation in found])
        return
    at = sorted({k for _, evaluation in found for k in evaluation.pass_at})
    wanted = any(evaluation.distance is not None for _, evaluation in found)
    mixed = any(evaluation.environments for _, evaluation in found)
    columns = evaluation_columns(at, wanted=wanted, mixed=mixed)
    rows = [
        (
            folder,
            one.prompts,
            f"{one.greedy:.1%}",
            *(f"{one.pass_at[k]:.1%}" for k in at),
            None if one.reward is None else f"{one.reward:.3f}",
            f"{one.greedy_tokens:.1f}",
            f"{one.greedy_finished:.1%}",
            *(_lengths(one) if wanted else ()),
            *((solved_by_environment(one.environments),) if mixed else ()),
        )
        for folder, one in found
    ]
    show_table(columns, rows, empty="no versions")


def evaluation_columns(at: Sequence[int], *, wanted: bool, mixed: bool) -> Columns:
    """Returns the columns of `trainer eval`.

    Args:
        at: Numbers of answers for which pass@k was computed.
        wanted: The prompts name a length.
        mixed: The prompts come from several environments.
    """
    return Columns.of(
        Column("version", least=12),
        Column("prompts", drop=2),
        "greedy",
        *(Column(f"pass@{k}", drop=3) for k in at),
        "reward",
        Column("tokens", drop=1),
        Column("finished", drop=1),
        *((Column("from_wanted_length", drop=4), Column("mean_length_by_wanted", drop=4, least=12)) if wanted else ()),
        *((Column("greedy_by_environment", drop=5, least=12),) if mixed else ()),
    )


def _lengths(found: Evaluation) -> tuple[str | None, str | None]:
    if found.distance is None:
        return None, None
    return f"{found.distance:.2f}", ", ".join(f"{wanted}: {mean:.1f}" for wanted, mean in found.lengths.items())
