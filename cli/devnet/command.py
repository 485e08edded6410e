"""`muster devnet`: a whole network on this machine."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from cli.devnet.options import (
    DEFAULT_CHEAT,
    NO_CHEAT,
    NOT_SHOWN,
    PRESETS,
    DevnetOptions,
    FirstTask,
    Goal,
    PresetName,
    RunOptions,
)
from cli.devnet.runner import run_devnet
from cli.devnet.view import make_view
from cli.output import note
from ledger.devchain import ChainKind
from protocol.errors import InvalidInput
from protocol.runtime.extras import MissingExtra, require_extra
from protocol.wire.nodes import RuntimeKind
from rollouts.precision import EngineName


class AsynchronyChoice(StrEnum):
    """Distance by which generation may run ahead of learning."""

    ON_POLICY = "on-policy"
    ONE_STEP = "one-step"
    TWO_STEP = "two-step"
    OFF_POLICY = "off-policy"
    PERIODIC = "periodic"


def devnet(
    *,
    directory: Annotated[Path, typer.Option(help="Folder for its state, keys and logs.")] = Path(".devnet"),
    chain: Annotated[ChainKind, typer.Option(help="Chain: the embedded one, or anvil.")] = ChainKind.EMBEDDED,
    block_time: Annotated[float, typer.Option(min=0.05, max=60, help="Seconds between blocks, at most.")] = 0.5,
    workers: Annotated[int, typer.Option(min=0, max=50, help="Honest workers to run.")] = 3,
    cheat: Annotated[str, typer.Option(help="Attack of one more worker; `none` for no such worker.")] = DEFAULT_CHEAT,
    preset: Annotated[
        PresetName, typer.Option(help="What the policy learns: right answers, or also their length.")
    ] = PresetName.ANSWERS,
    validators: Annotated[int, typer.Option(min=1, max=3, help="Validators to run.")] = 1,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of steps.")] = None,
    asynchrony: Annotated[
        AsynchronyChoice, typer.Option(help="Distance of generation ahead of learning.")
    ] = AsynchronyChoice.TWO_STEP,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the trainer.")] = 1,
    engine: Annotated[EngineName, typer.Option(help="Engine that generates.")] = EngineName.TORCH,
    fast: Annotated[
        bool, typer.Option("--fast", help="Fewer steps: enough to see it learn, not to see it become good.")
    ] = False,
    rise: Annotated[
        int | None,
        typer.Option(min=-100, max=100, help="Points by which held-out greedy accuracy has to rise; by default 30."),
    ] = None,
    distance: Annotated[
        float | None,
        typer.Option(min=0, help="Allowed distance of answers from the wanted length, in tokens (--preset length)."),
    ] = None,
    runtime: Annotated[
        RuntimeKind | None, typer.Option(help="Sandbox of tasks; default: Docker if an engine answers.")
    ] = None,
    task: Annotated[FirstTask, typer.Option(help="Task of the workers.")] = FirstTask.LEARN,
    ledger_only: Annotated[
        bool, typer.Option("--ledger-only", help="Chain, contracts and a pool; no services and no workers.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Continue the last devnet of this folder.")] = False,
    keep_running: Annotated[
        bool, typer.Option("--keep-running", help="Keep the network up after the run, until Ctrl-C.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Start everything, check that it works, stop.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of a live view.")] = False,
) -> None:
    """Run a whole network on this machine until it has learned; Ctrl-C stops all of it.

    Exits 0 only if it learned (held-out greedy accuracy rose; lengths came near to the wanted ones), no honest
    submission was rejected as forged, and the cheater was slashed and evicted. The report is in DIRECTORY/report.
    """
    _check_cheat(cheat)
    chosen = PRESETS[preset]
    run = RunOptions(
        preset=preset,
        steps=steps or (chosen.fast_steps if fast else chosen.steps),
        asynchrony=asynchrony.value,
        seed=seed,
        engine=engine,
        goal=_goal(chosen.fast_goal if fast else chosen.goal, rise=rise, distance=distance),
    )
    options = DevnetOptions(
        directory=directory,
        chain=chain,
        block_time=timedelta(seconds=block_time),
        workers=workers,
        cheat=cheat,
        validators=validators,
        task=task,
        run=run,
        runtime=runtime,
        keep=keep,
        keep_running=keep_running,
        ledger_only=ledger_only,
        only_check=check,
    )
    if chain is ChainKind.EMBEDDED:
        require_extra("devnet")
    if options.learns:
        require_extra("rollouts")
    if options.cheats:
        _require_attacks()
    with make_view(plain=plain or check) as view:
        result = asyncio.run(run_devnet(options, view))
    if result is None:
        return
    sys.stdout.write("\n" + result.text)
    if not result.good:
        missed = "; ".join(one.name for one in result.criteria if not one.met)
        note(f"the network ran, but these criteria were not met: {missed}")
        raise typer.Exit(1)


def _goal(preset: Goal, *, rise: int | None, distance: float | None) -> Goal:
    """Returns the preset's goal with the user's changes.

    Raises:
        InvalidInput: A distance is given for a preset without lengths.
    """
    if distance is not None and preset.distance is None:
        raise InvalidInput("--distance without lengths that are wanted", hint="take --preset length, or leave it out")
    return Goal(
        rise=preset.rise if rise is None else rise / 100, distance=preset.distance if distance is None else distance
    )


def _require_attacks() -> None:
    """Checks that the attack kit is installed: it has a distribution of its own, `muster-network-attacks`.

    Raises:
        MissingExtra: It is not.
    """
    if find_spec("cli.devnet.attacks") is None:
        raise MissingExtra("the attack kit", "attacks", alternative=f"run no cheater: --cheat {NO_CHEAT}")


def _check_cheat(name: str) -> None:
    """Checks that an attack exists and that a devnet can show it; the message lists all attacks.

    Raises:
        InvalidInput: There is no attack of this name, or a devnet can't show what becomes of it.
        MissingExtra: The attack kit is not installed.
    """
    if name in {NO_CHEAT, DEFAULT_CHEAT}:
        return
    if name in NOT_SHOWN:
        raise InvalidInput(
            f"a devnet can't show {name}: {NOT_SHOWN[name]}",
            hint="`python -m pytest tests/attacks/test_refusals.py` tries it on the real orchestrator and ledger",
        )
    _require_attacks()
    from cli.devnet.attacks.registry import ATTACKS  # noqa: PLC0415 - brings torch, which other devnets can spare

    if name not in ATTACKS:
        raise InvalidInput(
            f"there is no cheat {name}", hint=f"one of: {', '.join(sorted(ATTACKS))}, or none; docs/attacks.md"
        )
