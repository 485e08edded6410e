"""`muster env`: lists and checks environments, shows prompts, scores answers, and filters prompts by difficulty.

No command uses the network. `filter` runs a model; the other commands need none.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from cli.groups import CommandGroup
from cli.output.listing import listing
from cli.output.printing import JsonOption, note, say, show_fields, show_json, show_table
from cli.output.tables import Column, Columns
from protocol.errors import InvalidInput, MusterError
from protocol.runtime.configuration_file import reads
from protocol.runtime.files import read_limited
from rollouts.environments import load_environment
from rollouts.environments.interface import Prompt
from rollouts.environments.mixture import parts_of
from rollouts.environments.playing import play_messages
from rollouts.environments.registry import environment_names, find_family
from rollouts.environments.validation import CheckedEnvironment

app = CommandGroup(no_args_is_help=True, help="Environments: families of tasks with checkable answers.")

_LONGEST_COMPLETION = 16 * 1024 * 1024
_LARGEST_OPTIONS = 256 * 1024
"""Maximum size of an options file in bytes; a whole recipe has the same limit."""

Name = Annotated[str, typer.Argument(help="Name of the environment; `muster env list` lists all.")]
Version = Annotated[str | None, typer.Option(help="Required version; default: the installed version.")]
OPTION_HELP = "key=value, the value as JSON or plain text; or @FILE, a TOML or JSON file of options; repeatable."
OptionList = Annotated[list[str] | None, typer.Option("--option", "-o", help=OPTION_HELP)]


MESSAGES = Columns.of("from", Column("text", least=24))
ENVIRONMENTS = Columns.of(
    "name", Column("version", drop=2), Column("what", least=24), Column("options", drop=1, least=12)
)
PROMPTS = Columns.of("prompt", Column("text", least=24), Column("demonstration", least=16))
MIXED_PROMPTS = Columns.of(
    "prompt", Column("environment", least=8), Column("text", least=24), Column("demonstration", least=16)
)


@app.command(name="list")
@listing()
def list_(as_json: JsonOption = False) -> None:
    """List the environments that are installed here, with their options."""
    rows: list[tuple[str, str | None, str, str | None]] = []
    for name in environment_names():
        try:
            family = find_family(name)
        except MusterError as error:
            rows.append((name, None, f"can't be used: {error.detail}", None))
            continue
        rows.append((name, family.version, family.summary, " ".join(family.options.model_fields) or None))
    show_table(ENVIRONMENTS, rows, as_json=as_json, empty="no environments")


@app.command()
@reads("sandbox")
@listing()
def show(
    name: Name,
    version: Version = None,
    option: OptionList = None,
    first: Annotated[int, typer.Option(min=0, help="Index of the first prompt to show.")] = 0,
    count: Annotated[int, typer.Option(min=0, max=1000, help="Number of prompts to show.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Show an environment's version and reward type, and some of its prompts."""
    environment = _load(name, version, option)
    size = environment.size()
    end = first + count if size is None else min(first + count, size)
    prompts = [environment.prompt(index) for index in range(first, end)]
    if as_json:
        shown = [_as_json(environment, prompt) for prompt in prompts]
        facts = {"name": environment.name, "version": environment.version, "rewards": environment.rewards}
        show_json({**facts, "size": size, "prompts": shown})
        return
    sized = "without end" if size is None else size
    facts = {"name": environment.name, "version": environment.version, "rewards": environment.rewards.value}
    tools = {"tools": _tools_of(environment, prompts)} if environment.is_dialogue else {}
    show_fields({**facts, "prompts": sized, **tools})
    parts = parts_of(name, parse_options(option or []))
    mixed = len(parts.names) > 1
    rows = [
        (
            prompt.index,
            *((parts.labels[parts.part(prompt.index)],) if mixed else ()),
            prompt.text,
            _demonstrated(environment, prompt),
        )
        for prompt in prompts
    ]
    show_table(MIXED_PROMPTS if mixed else PROMPTS, rows, empty="no prompts there")


@app.command()
@reads("sandbox")
def score(
    name: Name,
    index: Annotated[int, typer.Argument(min=0, help="Index of the prompt.")],
    file: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="File with the answer; default: standard input.")
    ] = None,
    version: Version = None,
    option: OptionList = None,
    unfinished: Annotated[bool, typer.Option(help="The answer was cut off at the length limit.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Score an answer to a prompt, and show every value from which the score is computed."""
    environment = _load(name, version, option)
    prompt = environment.prompt(index)
    found = environment.score(prompt, _completion(file), finished=not unfinished)
    show_fields({"task": found.task, **found.parts}, as_json=as_json)


@app.command()
@reads("sandbox")
@listing()
def play(
    name: Name,
    index: Annotated[int, typer.Argument(min=0, help="Index of the prompt.")],
    message: Annotated[
        list[str] | None,
        typer.Argument(help="Messages of the model in order; a call is written `tool(argument)`. Default: an example."),
    ] = None,
    version: Version = None,
    option: OptionList = None,
    as_json: JsonOption = False,
) -> None:
    """Play a dialogue with an environment that has several turns, and score it.

    Without messages, the environment's own example is played. A message that begins with { and is a JSON object with
    name and arguments is a call with several arguments.
    """
    environment = _load(name, version, option)
    prompt = environment.prompt(index)
    played = play_messages(environment, prompt, message or [])
    if as_json:
        show_json(played)
        return
    rows = [(message.role.value, message.text) for message in played.opening]
    for turn in played.turns:
        rows += [("model", turn.message), *((given.role.value, given.text) for given in turn.replies)]
    show_table(MESSAGES, rows, empty="no messages")
    note("score: " + ", ".join(f"{figure} {value:g}" for figure, value in played.score.items()))
    if played.not_played:
        note(
            f"a limit of time or memory ended the dialogue, so it is undecided; later messages were not played: "
            f"{played.not_played}"
        )


@app.command()
@reads("sandbox")
def check(
    name: Name,
    version: Version = None,
    option: OptionList = None,
    items: Annotated[int, typer.Option(min=1, max=1_000_000, help="Number of prompts to check.")] = 200,
    item_timeout: Annotated[
        float,
        typer.Option(min=0.1, max=3600, help="Time limit for making one prompt and scoring its answers, in seconds."),
    ] = 30.0,
    memory_mib: Annotated[
        int, typer.Option(min=256, help="Limit of the address space of each process, in MiB.")
    ] = 4096,
    as_json: JsonOption = False,
) -> None:
    """Check that an environment is reproducible and meets the interface contract.

    Two processes make and score the same prompts under different hash seeds, clocks, time zones, locales and orders.
    The command exits with 1 if a check fails.
    """
    from rollouts.environments.check import CheckSettings, check_environment  # noqa: PLC0415 - starts processes

    settings = CheckSettings(items=items, item_timeout=timedelta(seconds=item_timeout), memory_bytes=memory_mib << 20)
    report = check_environment(name, version=version, options=parse_options(option or []), settings=settings)
    if as_json:
        show_json({**asdict(report), "passed": report.passed})
    else:
        sized = "without end" if report.size is None else report.size
        show_fields(
            {
                "name": name,
                "version": report.version,
                "rewards": report.rewards.value,
                "prompts": sized,
                "checked": report.items,
            }
        )
        show_fields({each.name: each.fault or "yes" for each in report.properties})
        show_fields({figure.replace("_", " "): f"{value:.3g}" for figure, value in report.figures.items()})
    if not report.passed:
        raise typer.Exit(1)


@app.command(name="filter")
@reads("sandbox")
def filter_(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="A version: weights, tokenizer and recipe.json.")
    ],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the journal, recipe.json and prompts.u64.")],
    first: Annotated[
        int | None, typer.Option(min=0, help="First candidate prompt; default: the recipe's prompts.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Number of candidate prompts.")] = None,
    held_out: Annotated[
        float | None,
        typer.Option(min=0, max=0.99, help="Share of prompts that is kept from training; default: the recipe's."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Answers to each prompt: the k of pass@k.")] = 8,
    least: Annotated[float, typer.Option(min=0, max=1, help="The smallest share of right answers to keep.")] = 0.125,
    most: Annotated[float, typer.Option(min=0, max=1, help="The largest share of right answers to keep.")] = 0.5,
    block: Annotated[int, typer.Option(min=1, help="Prompts per batch; the journal grows by batches.")] = 16,
    engine: Annotated[str, typer.Option(help="torch or vllm.")] = "torch",
    dtype: Annotated[
        str, typer.Option(help="float32 or bfloat16; use the data type that the run pays for.")
    ] = "float32",
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1; default: an accelerator if there is one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a table of eligible prompts: those that a model solves sometimes, but not always.

    The model answers every candidate prompt several times. After an interruption, run the same command again to
    continue.
    """
    from cli.environments.difficulty_filter import FilterChoices, run_filter  # noqa: PLC0415 - loads torch, which the other commands do not need

    choices = FilterChoices(
        folder=folder,
        out=out,
        first=first,
        count=count,
        held_out=held_out,
        samples=samples,
        least=least,
        most=most,
        block=block,
        engine=engine,
        dtype=dtype,
        device=device,
    )
    result = run_filter(choices, progress=note)
    show_fields(result, as_json=as_json)
    if not as_json:
        say(f"recipe.json and prompts.u64 are in {out}: publish both files beside the weights")


def _load(name: str, version: str | None, options: list[str] | None) -> CheckedEnvironment:
    return load_environment(name, version=version, options=parse_options(options or []))


def parse_options(given: list[str]) -> dict[str, JsonValue]:
    """Returns an environment's options from `key=value` and `@FILE` texts.

    Values are JSON or plain text. A file contains a TOML or JSON table of options. If an option is given several times,
    the last value counts.

    Raises:
        InvalidInput: A text has no `=`, or a file can't be read.
    """
    found: dict[str, JsonValue] = {}
    for each in given:
        if each.startswith("@"):
            found |= _options_file(Path(each[1:]))
            continue
        key, equals, text = each.partition("=")
        if not equals or not key:
            raise InvalidInput(f"{each[:80]!r} is no option", hint="write key=value, such as digits=2")
        found[key] = parse_value(text)
    return found


def parse_value(text: str) -> JsonValue:
    """Returns an option's value: the parsed value if the text is JSON, otherwise the text."""
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value


def _options_file(path: Path) -> dict[str, JsonValue]:
    hint = "write -o @FILE with the path of a file of options"
    data = read_limited(path, most=_LARGEST_OPTIONS, what="the options file", hint=hint)
    kind = "TOML" if path.suffix == ".toml" else "JSON"
    hint = "give a JSON object or, with the ending .toml, a TOML table: one entry for each option"
    try:
        found = tomllib.loads(data.decode()) if kind == "TOML" else json.loads(data)
        json.dumps(found)  # raises TypeError for a TOML date, which no option can hold
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(f"the options file {path} is not {kind}: {error}", hint=hint) from error
    if not isinstance(found, dict):
        raise InvalidInput(f"the options file {path} has no table of options", hint=hint)
    return found


def _completion(file: Path | None) -> str:
    if file is None:
        data = sys.stdin.read(_LONGEST_COMPLETION + 1)
    else:
        with file.open(encoding="utf-8", errors="surrogateescape", newline="") as opened:
            data = opened.read(_LONGEST_COMPLETION + 1)
    if len(data) > _LONGEST_COMPLETION:
        raise InvalidInput(f"the answer has more than {_LONGEST_COMPLETION} characters")
    return data


def _as_json(environment: CheckedEnvironment, prompt: Prompt) -> dict[str, object]:
    shown: dict[str, object] = {
        "index": prompt.index,
        "text": prompt.text,
        "data": dict(prompt.data),
        "demonstration": environment.demonstration(prompt),
    }
    if environment.is_dialogue:
        episode = environment.begin(prompt)
        shown["opening"] = [asdict(message) for message in episode.opening]
        shown["tools"] = [asdict(tool) for tool in episode.tools]
        shown["demonstration_turns"] = environment.demonstration_turns(prompt)
    return shown


def _demonstrated(environment: CheckedEnvironment, prompt: Prompt) -> str | None:
    if not environment.is_dialogue:
        return environment.demonstration(prompt)
    turns = environment.demonstration_turns(prompt)
    return None if turns is None else " → ".join(turns)


def _tools_of(environment: CheckedEnvironment, prompts: Sequence[Prompt]) -> str:
    """Returns the names of the tools of these prompts; a mixture's prompts can have different ones."""
    names = dict.fromkeys(tool.name for prompt in prompts for tool in environment.begin(prompt).tools)
    return ", ".join(names) or "none"
