"""`muster devnet`: a whole network on this machine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from cli.devnet.options import (
    DEFAULT_CHEAT,
    NO_CHEAT,
    NOT_SHOWN,
    OWN_MODEL,
    PRESETS,
    SERVING_CHEAT,
    SERVING_CHEATS,
    DevnetOptions,
    FirstTask,
    Goal,
    Preset,
    PresetName,
    RunModel,
    RunOptions,
    Verification,
)
from cli.devnet.result import RunResult
from cli.devnet.runner import run_devnet
from cli.devnet.view import make_view
from cli.environments.commands import parse_options
from cli.output.printing import note
from ledger.devchain import ChainKind
from protocol.errors import InvalidInput
from protocol.runtime.configuration_file import reads
from protocol.runtime.extras import MissingExtra, require_extra
from protocol.wire.nodes import RuntimeKind
from rollouts.precision import EngineName
from trainer.presets import devnet_base
from trainer.run.gathering.asynchrony import AsynchronyName


@reads("sandbox")
def devnet(
    *,
    directory: Annotated[Path, typer.Option(help="Folder for the devnet's state, keys and logs.")] = Path(".devnet"),
    chain: Annotated[ChainKind, typer.Option(help="Development chain to run.")] = ChainKind.EMBEDDED,
    block_time: Annotated[float, typer.Option(min=0.05, max=60, help="Maximum seconds between blocks.")] = 0.5,
    workers: Annotated[
        int | None,
        typer.Option(min=0, max=50, help="Honest workers; default: 3, or with a larger model 2 (1 below 4 cores)."),
    ] = None,
    cheat: Annotated[str, typer.Option(help="Attack that an extra worker runs; or `none`.")] = DEFAULT_CHEAT,
    preset: Annotated[
        PresetName | None,
        typer.Option(
            help="Task to learn: answers; answers of a wanted length; calls of a tool; or sums, with a chat model."
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Model folder to train instead of a preset's model."),
    ] = None,
    environment: Annotated[
        str | None, typer.Option(help="With --model: the environment; default: as in the folder's recipe.json.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="Environment option key=value, or @FILE; repeatable.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="With --environment: maximum tokens per answer; default: 128.")
    ] = None,
    group_size: Annotated[
        int | None, typer.Option(min=2, max=4096, help="With --environment: samples per prompt; default: 8.")
    ] = None,
    groups: Annotated[int | None, typer.Option(min=1, max=1 << 20, help="With --model: groups per step.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(min=1e-12, max=1, help="With --model: learning rate; default: by the model's size.")
    ] = None,
    validators: Annotated[int, typer.Option(min=1, max=3, help="Validators to run.")] = 1,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of steps.")] = None,
    asynchrony: Annotated[
        AsynchronyName | None,
        typer.Option(
            help="How far generation may run ahead of learning; default: two-step, or one-step for larger models."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the trainer.")] = 1,
    engine: Annotated[EngineName, typer.Option(help="Engine that generates rollouts.")] = EngineName.TORCH,
    fast: Annotated[
        bool, typer.Option("--fast", help="Fewer steps: enough to see an improvement, not a good policy.")
    ] = False,
    rise: Annotated[
        int | None,
        typer.Option(
            min=-100,
            max=100,
            help="Required rise of held-out greedy accuracy in percentage points; defaults: docs/devnet.md.",
        ),
    ] = None,
    distance: Annotated[
        float | None,
        typer.Option(min=0, help="With --preset length: allowed mean distance from the wanted length, in tokens."),
    ] = None,
    runtime: Annotated[
        RuntimeKind | None, typer.Option(help="Sandbox of tasks; default: docker if available, else process.")
    ] = None,
    task: Annotated[
        FirstTask, typer.Option(help="Workers' task: generate rollouts, print numbers, or answer clients (--serve).")
    ] = FirstTask.LEARN,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the model to OpenAI clients through a gateway, instead of training.")
    ] = False,
    verify: Annotated[
        Verification | None,
        typer.Option(help="With --serve: which answers a verifier checks; before: each one before its delivery."),
    ] = None,
    ledger_only: Annotated[
        bool, typer.Option("--ledger-only", help="Start only a chain, contracts and a pool.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Continue the last devnet of this folder.")] = False,
    keep_running: Annotated[
        bool, typer.Option("--keep-running", help="Keep the network up after the run, until Ctrl-C.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Start everything, check that it works, stop.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of a live view.")] = False,
) -> None:
    """Run a whole network on this machine until its policy has learned; Ctrl-C stops everything.

    With --serve, the network serves a model through OpenAI's API until Ctrl-C, and trains nothing.

    After a complete run, the exit code is 0 only if the policy learned (held-out greedy accuracy rose; lengths came
    near the wanted ones), no honest submission was judged forged, and the cheater was slashed and evicted. For an
    attack that costs no stake, it is enough that the cheater was not paid. The report is in DIRECTORY/report.
    """
    if serve:
        task = FirstTask.SERVE
    if task is FirstTask.SERVE:
        cheat = SERVING_CHEAT if cheat == DEFAULT_CHEAT else cheat
        _check_serving(
            {"ledger_only": ledger_only, "steps": steps, "asynchrony": asynchrony, "fast": fast, "rise": rise}
        )
    elif verify is not None:
        raise InvalidInput("--verify without --serve", hint="add --serve, or leave --verify out")
    _check_cheat(cheat, serves=task is FirstTask.SERVE, dialogues=preset is PresetName.DIALOGUE)
    own = ModelFlags(
        model=model,
        environment=environment,
        option=tuple(option or ()),
        max_new_tokens=max_new_tokens,
        group_size=group_size,
        groups=groups,
        learning_rate=learning_rate,
    )
    own.check(preset)
    if ledger_only or task is FirstTask.HELLO:
        own.check_absent(preset, because="--ledger-only" if ledger_only else "--task hello")
    chosen = OWN_MODEL if model is not None else PRESETS[preset or PresetName.ANSWERS]
    honest = chosen.workers if workers is None else workers
    run = RunOptions(
        name=model.resolve().name if model is not None else (preset or PresetName.ANSWERS).value,
        own_model=model is not None,
        task=chosen.task,
        steps=steps or (chosen.fast_steps if fast else chosen.steps),
        asynchrony=chosen.asynchrony if asynchrony is None else asynchrony.value,
        seed=seed,
        engine=engine,
        goal=_goal(chosen.fast_goal if fast else chosen.goal, rise=rise, distance=distance),
    )
    options = DevnetOptions(
        directory=directory,
        chain=chain,
        block_time=timedelta(seconds=block_time),
        workers=honest,
        cheat=cheat,
        validators=validators,
        task=task,
        run=run,
        runtime=runtime,
        keep=keep,
        keep_running=keep_running,
        ledger_only=ledger_only,
        only_check=check,
        verify=verify or Verification.BEFORE,
    )
    _check_extras(options)
    if options.has_model:
        options = replace(options, run=_with_model(options, chosen, own))
    with make_view(plain=plain or check) as view:
        result = asyncio.run(run_devnet(options, view))
    if result is not None:
        _report(result)


def _report(result: RunResult) -> None:
    """Prints the report of a run.

    Raises:
        typer.Exit: The run did not meet all criteria.
    """
    sys.stdout.write("\n" + result.text)
    if not result.good:
        missed = "; ".join(one.name for one in result.criteria if not one.met)
        note(f"the network ran, but these criteria were not met: {missed}")
        raise typer.Exit(1)


def _check_extras(options: DevnetOptions) -> None:
    """Checks that the optional packages that these options need are installed.

    Raises:
        MissingExtra: A package is not installed.
    """
    if options.chain is ChainKind.EMBEDDED:
        require_extra("devnet")
    if options.has_model:
        require_extra("rollouts")
    if options.cheats:
        _require_attacks()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlags:
    """Command-line flags for the user's own model; None or empty where the user gave none."""

    model: Path | None
    environment: str | None
    option: tuple[str, ...]
    max_new_tokens: int | None
    group_size: int | None
    groups: int | None
    learning_rate: float | None

    def check(self, preset: PresetName | None) -> None:
        """Checks that the flags fit together.

        Raises:
            InvalidInput: Two flags exclude each other, or a flag needs another flag that is missing.
        """
        if self.model is None:
            if given := [name for name in ("environment", "option", "groups", "learning_rate") if getattr(self, name)]:
                raise InvalidInput(
                    f"--{given[0].replace('_', '-')} without --model",
                    hint="add --model FOLDER, or omit this flag: a preset fixes its own settings",
                )
        elif preset is not None:
            raise InvalidInput("--preset and --model are both given", hint="leave one out: a preset has a model")
        if self.environment is None and (self.option or self.max_new_tokens or self.group_size):
            raise InvalidInput(
                "options of an environment without --environment",
                hint="the recipe.json in the model's folder has them; give --environment NAME to replace it",
            )

    def check_absent(self, preset: PresetName | None, *, because: str) -> None:
        """Checks that the user gives no model and no preset for a devnet that trains no model.

        Args:
            preset: The preset, as given.
            because: The flag that makes the devnet train no model; the error text names it.

        Raises:
            InvalidInput: A model or a preset is given.
        """
        if self.model is not None or preset is not None:
            raise InvalidInput(
                f"{'--preset' if self.model is None else '--model'} with {because}",
                hint="such a devnet trains no model: leave one of the two out",
            )


def _with_model(options: DevnetOptions, preset: Preset, own: ModelFlags) -> RunOptions:
    """Returns the run's options with the model and the sizes that follow from it.

    Raises:
        MusterError: The devnet can't use the model or its environment, or this machine has too little memory or disk.
    """
    run = options.run
    if own.model is None and preset.base is not None:
        return replace(run, model=RunModel(folder=devnet_base(preset.base)))
    from cli.devnet.model import ModelChoices, Network, size_own_model, size_smollm2  # noqa: PLC0415 - loads transformers

    network = Network(
        directory=options.directory,
        workers=options.workers + options.cheats,
        validators=options.validators,
        steps=run.steps,
    )
    if own.model is None:
        sized = size_smollm2(network, on_event=note)
    else:
        choices = ModelChoices(
            folder=own.model,
            environment=own.environment,
            options=parse_options(list(own.option)),
            max_new_tokens=own.max_new_tokens,
            group_size=own.group_size,
            groups=own.groups,
            learning_rate=own.learning_rate,
        )
        sized = size_own_model(choices, network)
    note(f"{run.name}: {sized.summary(steps=run.steps)}")
    return replace(run, model=sized.model, scale=sized.scale, task=sized.task)


def _goal(preset: Goal, *, rise: int | None, distance: float | None) -> Goal:
    """Returns the preset's goal with the user's changes.

    Raises:
        InvalidInput: A distance is given for a preset without lengths.
    """
    if distance is not None and preset.distance is None:
        raise InvalidInput("--distance needs wanted lengths", hint="give --preset length, or omit --distance")
    return Goal(
        rise=preset.rise if rise is None else rise / 100, distance=preset.distance if distance is None else distance
    )


def _require_attacks() -> None:
    """Checks that the attack kit, the distribution `muster-network-attacks`, is installed.

    Raises:
        MissingExtra: The attack kit is not installed.
    """
    if find_spec("cli.devnet.attacks") is None:
        raise MissingExtra("the attack kit", "attacks", alternative=f"run no cheater: --cheat {NO_CHEAT}")


def _check_serving(flags: Mapping[str, object]) -> None:
    """Checks that no flag of a training run is given with `--serve`.

    Raises:
        InvalidInput: Such a flag is given.
    """
    if given := [name for name, value in flags.items() if value not in {None, False}]:
        raise InvalidInput(
            f"--{given[0].replace('_', '-')} with --serve",
            hint="a devnet that serves a model trains nothing: leave one of the two out",
        )


def _check_cheat(name: str, *, serves: bool, dialogues: bool) -> None:
    """Checks that an attack exists and that a devnet can show its outcome.

    Raises:
        InvalidInput: No attack has this name (the hint lists all), or a devnet can't show its outcome.
        MissingExtra: The attack kit is not installed.
    """
    if serves:
        if name != NO_CHEAT and name not in SERVING_CHEATS:
            raise InvalidInput(
                f"there is no cheat {name} with --serve", hint=f"one of: {', '.join(sorted(SERVING_CHEATS))}, or none"
            )
        return
    if name in {NO_CHEAT, DEFAULT_CHEAT}:
        return
    if name in NOT_SHOWN:
        raise InvalidInput(
            f"a devnet can't show {name}: {NOT_SHOWN[name]}",
            hint="`python -m pytest tests/attacks/test_refusals.py` runs it against the real orchestrator and ledger",
        )
    _require_attacks()
    from cli.devnet.attacks.registry import ATTACKS  # noqa: PLC0415 - loads torch, which a devnet without attacks does not need

    if name not in ATTACKS:
        raise InvalidInput(
            f"there is no cheat {name}", hint=f"one of: {', '.join(sorted(ATTACKS))}, or none; docs/attacks.md"
        )
    if ATTACKS[name].dialogues and not dialogues:
        raise InvalidInput(f"{name} forges dialogues, and this devnet has single answers", hint="add --preset dialogue")
