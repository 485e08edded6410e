"""`muster trainer run`: learns from accepted rollouts and publishes new versions."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from cli.output.printing import JsonOption, report, show_json
from cli.output.quantities import counted
from protocol.runtime.configuration_file import ConfigOption, reads
from protocol.runtime.logs import configure_logs


@reads("trainer", "sandbox", "tracing")
def run(
    *,
    config: ConfigOption = None,
    start: Annotated[
        Path | None, typer.Option("--from", exists=True, file_okay=False, help="Folder of the version to start from.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="The trainer's state directory; give the same one to continue a run.")
    ] = None,
    policies: Annotated[Path | None, typer.Option(help="Folder for versions, which the origin publishes.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Total number of steps.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the order of groups and of prompt tables.")] = None,
    asynchrony: Annotated[
        str | None, typer.Option(help="on-policy, one-step, two-step, off-policy or periodic.")
    ] = None,
    evaluate_every: Annotated[
        int | None, typer.Option(min=0, help="Steps between evaluations of held-out prompts; 0: never.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1; default: an accelerator if there is one.")
    ] = None,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
    as_json: JsonOption = False,
) -> None:
    """Train the run of a pool until its steps are done, or until Ctrl-C or SIGTERM.

    After an interruption, run the same command again to continue. `muster settings trainer` lists all settings. Under
    torchrun, all processes train one policy together (docs/training-runs.md).
    """
    configure_logs(level=log_level, service=True)
    from protocol.runtime.tracing import TracingSettings, tracing  # noqa: PLC0415
    from trainer.distributed.ranks import own_place  # noqa: PLC0415 - these imports load torch, which `--help` does not need
    from trainer.run.app import run_trainer  # noqa: PLC0415
    from trainer.run.learner.follower import follow_trainer  # noqa: PLC0415
    from trainer.run.settings import TrainerSettings  # noqa: PLC0415
    from trainer.run.signals import stop_on_signals  # noqa: PLC0415

    configure_logs(level=log_level, service=True)  # again, because imported libraries install log handlers
    flags = {
        "start": start,
        "state": state,
        "policies": policies,
        "steps": steps,
        "seed": seed,
        "asynchrony": asynchrony,
        "evaluate_every": evaluate_every,
        "device": device,
    }
    settings = TrainerSettings.load(file=config, flags=flags)
    place = own_place(os.environ)
    if place is not None and not place.leads:
        follow_trainer(settings, place)
        return

    async def command() -> int:
        stop = asyncio.Event()
        with stop_on_signals(stop), tracing("trainer", TracingSettings.load(file=config)):
            return (await run_trainer(settings, stop=stop, place=place)).step

    learned = asyncio.run(command())
    if as_json:
        show_json({"steps": learned, "of": settings.steps, "done": learned >= settings.steps}, one_line=True)
    elif learned >= settings.steps:
        report(f"learned all {counted(learned, 'step')}; version {learned} is in {settings.policies / str(learned)}")
    else:
        report(f"stopped after {learned} of {counted(settings.steps, 'step')}; run the same command again to continue")


@reads("trainer")
def publish(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Version: weights, tokenizer and recipe.json.")
    ],
    *,
    config: ConfigOption = None,
    state: Annotated[Path | None, typer.Option(help="The publisher's state directory; one per run.")] = None,
    policies: Annotated[Path | None, typer.Option(help="Folder for versions, which the origin publishes.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Publish one version without training, for example a model that a pool serves.

    The version is copied to the folder of versions and announced on the ledger; from then on, nodes lease slots of it.
    The command reads the settings of `muster trainer run`. Repeat it after an interruption.
    """
    from trainer.run.one_version import publish_one  # noqa: PLC0415 - loads torch, which `--help` does not need
    from trainer.run.settings import TrainerSettings  # noqa: PLC0415

    settings = TrainerSettings.load(file=config, flags={"start": folder, "state": state, "policies": policies})
    done = asyncio.run(publish_one(settings))
    if as_json:
        show_json({"version": done.version, "digest": done.digest, "new": done.is_new}, one_line=True)
    elif done.is_new:
        report(f"version {done.version} is published: {done.digest}")
    else:
        report(f"version {done.version} was published already: {done.digest}")
