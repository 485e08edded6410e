"""`muster recipe`: writes the recipe of a model folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import JsonValue, ValidationError

from cli.environments.commands import OptionList, Version, parse_options
from cli.environments.questions import choose_environment, complete_options
from cli.groups import CommandGroup
from cli.output.printing import JsonOption, say, show_fields, show_json, warn
from cli.output.quantities import one_of
from protocol.errors import Conflict, InvalidInput, plain_message
from protocol.runtime.configuration_file import reads
from protocol.runtime.files import write_atomically
from rollouts.dialogue.interface import FormatName
from rollouts.environments.served import NAME as SERVED
from rollouts.precision import Arithmetic

if TYPE_CHECKING:
    from rollouts.authoring.recipe_proposal import ProposedRecipe, RecipeChoices
    from rollouts.models.chat import ChatFormat

app = CommandGroup(no_args_is_help=True, help="Recipes: how rollouts of a model are generated.")


@app.command()
@reads("sandbox")
def init(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="A model: config, weights and tokenizer.")
    ],
    environment: Annotated[
        str | None, typer.Option(help="The environment; `muster env list` lists all. Default at a terminal: ask.")
    ] = None,
    version: Version = None,
    option: OptionList = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Longest answer, or all messages of a dialogue together, in tokens; default: 512, at most half of "
            "the context.",
        ),
    ] = None,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest prompt in tokens; default: twice the longest measured one.")
    ] = None,
    group_size: Annotated[int | None, typer.Option(min=2, max=4096, help="Samples per prompt; default: 16.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature; default: 1.")] = None,
    chat: Annotated[
        bool | None, typer.Option("--chat/--no-chat", help="Use the chat template; default: yes if the model has one.")
    ] = None,
    system_prompt: Annotated[str | None, typer.Option(help="Text of a system message before each prompt.")] = None,
    template_option: Annotated[
        list[str] | None,
        typer.Option(help="key=value for the chat template, such as enable_thinking=false; repeatable."),
    ] = None,
    dialogue_format: Annotated[
        str | None,
        typer.Option(help="Format of dialogues: template, chatml or plain; default: the first that suits the model."),
    ] = None,
    turns: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Longest dialogue in messages of the model; default: by demonstrations."),
    ] = None,
    reply_tokens: Annotated[
        int | None, typer.Option(min=1, max=2**16, help="Longest reply in a dialogue in tokens; default: at most 512.")
    ] = None,
    held_out: Annotated[
        float | None, typer.Option(min=0, max=0.99, help="Share of prompts kept from training; default: 0.02.")
    ] = None,
    first: Annotated[int | None, typer.Option(min=0, help="Index of the first prompt; default: 0.")] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="Number of prompts; default: all, or 20,000 of an endless environment.")
    ] = None,
    arithmetic: Annotated[
        list[str] | None,
        typer.Option(
            help="Engine and data type that the run pays for, e.g. vllm/bfloat16; repeatable. Default: float32."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing recipe.json.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write recipe.json beside a model's weights.

    The command measures prompts with the model's tokenizer and checks that prompts and answers fit into the context.
    At a terminal, the command asks for missing required values. docs/rollouts.md describes all fields.
    """
    from rollouts.authoring.recipe_proposal import RecipeChoices  # noqa: PLC0415 - loads transformers
    from rollouts.recipe import RECIPE_FILE  # noqa: PLC0415 - loads numpy

    target = folder / RECIPE_FILE
    if target.exists() and not force:
        raise Conflict(f"{target} exists already", hint="give --force to replace it")
    form = _chat(chat, system_prompt or "", parse_options(template_option or []))
    name = choose_environment(environment)
    of_training = {
        "group_size": group_size,
        "temperature": temperature,
        "chat": form,
        "dialogue_format": dialogue_format,
        "turns": turns,
        "reply_tokens": reply_tokens,
        "held_out": held_out,
        "first": first,
        "count": count,
    }
    given = [key.replace("_", " ") for key, value in of_training.items() if value is not None]
    if name == SERVED and given:
        raise InvalidInput(
            f"a served version has no choice of {', '.join(given)}",
            hint="leave it out: prompts, chats and sampling parameters come from the clients of the gateway",
        )
    choices = RecipeChoices(
        environment=name,
        version=version,
        options=complete_options(name, parse_options(option or [])),
        max_new_tokens=max_new_tokens,
        max_prompt_tokens=max_prompt_tokens,
        group_size=group_size or 16,
        temperature=1.0 if temperature is None else temperature,
        chat=form,
        held_out=0.02 if held_out is None else held_out,
        first=first or 0,
        count=count,
        arithmetic=tuple(arithmetic or ()),
        dialogue_format=None if dialogue_format is None else one_of(FormatName, dialogue_format),
        turns=turns,
        reply_tokens=reply_tokens,
    )
    proposed = _proposed(folder, choices)
    write_atomically(target, proposed.recipe.model_dump_json(indent=2) + "\n", mode=0o644)
    figures = _figures(target, proposed)
    if as_json:
        show_json(figures)
        return
    show_fields({figure.replace("_", " "): value for figure, value in figures.items()})
    for caution in _cautions(proposed):
        warn(caution)
    is_served = proposed.recipe.gateway is not None
    say(f"next: muster trainer {'publish' if is_served else 'eval'} {folder}")


def _chat(chat: bool | None, system: str, template: dict[str, JsonValue]) -> bool | ChatFormat | None:
    """Returns the recipe's chat format.

    Without a system prompt and template options, returns `chat`: True for the model's format, False for none, None for
    the model's format if it has one. Otherwise returns a format with this prompt and these options.

    Raises:
        InvalidInput: `--no-chat` is given with parts of a chat format, or the format is invalid.
    """
    if not system and not template:
        return chat
    if chat is False:
        raise InvalidInput("--no-chat excludes a system prompt and template options", hint="leave one of them out")
    return _chat_format(system, template)


def _proposed(folder: Path, choices: RecipeChoices) -> ProposedRecipe:
    """Measures the prompts and returns the recipe.

    Raises:
        MusterError: The model, the environment or a choice is not usable.
    """
    from rollouts.authoring.recipe_proposal import propose_recipe  # noqa: PLC0415 - loads transformers

    try:
        return propose_recipe(folder, choices)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in found["loc"])
        raise InvalidInput(f"{place}: {plain_message(found['msg'])}", hint="docs/rollouts.md describes it") from error


def _figures(target: Path, proposed: ProposedRecipe) -> dict[str, object]:
    recipe = proposed.recipe
    limits = {} if recipe.dialogue is None else recipe.dialogue.model_dump(mode="json")
    dialogue = {f"dialogue_{name}": value for name, value in limits.items()}
    return {
        "recipe": str(target),
        "environment": f"{recipe.environment.name} {recipe.environment.version}",
        "prompts": recipe.prompts.count,
        "chat": bool(recipe.chat),
        "longest_prompt_tokens": proposed.longest_prompt,
        "measured_prompts": proposed.measured,
        "max_prompt_tokens": recipe.max_prompt_tokens,
        "max_new_tokens": recipe.sampling.max_new_tokens,
        **dialogue,
        "context": proposed.context,
        "row_tokens": proposed.row_tokens,
    }


def _cautions(proposed: ProposedRecipe) -> Iterator[str]:
    """Yields warnings about a recipe that is valid but works badly in training."""
    yield from _wide_limits(proposed)
    if proposed.recipe.gateway is not None:
        return
    from trainer.learning.settings import LearningSettings  # noqa: PLC0415 - loads torch

    longest, row_tokens = proposed.row_tokens, LearningSettings().row_tokens
    if longest > row_tokens:
        yield (
            f"a prompt and its answer may have {longest} tokens, and the trainer's rows hold {row_tokens}: "
            f"set learning.row_tokens to {longest} or more in the trainer's settings"
        )
    answer, demonstrated = proposed.recipe.sampling.max_new_tokens, proposed.longest_demonstration
    if demonstrated is not None and demonstrated > answer:
        yield (
            f"{proposed.recipe.environment.name} demonstrates an answer of {demonstrated} tokens with the end of "
            f"sequence, and answers have up to {answer}; a cut-off answer is never right: raise --max-new-tokens"
        )
    if not proposed.recipe.held_out:
        yield "no prompts are held out, so nothing can be evaluated: give --held-out 0.02"


def _wide_limits(proposed: ProposedRecipe) -> Iterator[str]:
    """Yields a warning about arithmetics with wide limits."""
    if wide := [name for name in proposed.recipe.arithmetic if Arithmetic.parse(name).has_wide_limits]:
        yield (
            f"files of {', '.join(wide)} are checked with wide limits: weights in eight bits, older versions and "
            "chosen near-ties can pass (docs/attacks.md); float32 and numerics classes have narrow limits "
            "(docs/engines.md)"
        )


def _chat_format(system: str, template: dict[str, JsonValue]) -> ChatFormat:
    from rollouts.models.chat import ChatFormat  # noqa: PLC0415 - loads transformers

    try:
        return ChatFormat(system=system, template=template)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        raise InvalidInput(f"chat: {plain_message(found['msg'])}", hint="docs/rollouts.md describes it") from error
