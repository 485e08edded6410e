"""Proposes and checks recipes of a model folder, with lengths from the environment's own prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from protocol.errors import InvalidInput
from protocol.identifiers import address
from rollouts.dialogue.formats import DialogueFormat, FormatName, check_end, open_format
from rollouts.environments import Environment, load_environment
from rollouts.environments.check import ProbedPrompt, probe_prompts
from rollouts.environments.mixture import parts_of
from rollouts.environments.served import NAME as SERVED
from rollouts.errors import BadVersionFolder
from rollouts.models.architecture import check_model_folder
from rollouts.models.chat import ChatFormat
from rollouts.models.facts import ModelFacts, read_model
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.recipe import (
    LARGEST_INDEX,
    MOST_TURNS,
    RECIPE_FILE,
    DialogueChoice,
    EnvironmentChoice,
    PromptRange,
    Recipe,
    SamplingChoice,
    check_classes,
    eligible_prompts,
    read_recipe,
    serving_recipe,
)

ENDLESS_COUNT = 20_000
"""Default number of prompts from an infinite environment."""
LONGEST_ANSWER = 512
"""Default limit of answer tokens; if half of the model's context is less, half of the context."""
SHORT_ANSWER, SHORT_RUN_GROUP, SHORT_RUN_HELD_OUT = 128, 8, 0.1
"""Default limit of answer tokens, samples per prompt and held-out share of a trial or a devnet."""
SAMPLED = 256
"""Number of prompts whose lengths are measured."""
_ROUND = 64
LEAST_TURNS = 4
"""Default limit of turns if the environment demonstrates no dialogue of more than two turns."""
MOST_REPLY, LEAST_REPLY = 512, 16
"""Bounds of the default limit of tokens between two turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeChoices:
    """Choices of the user; the proposal fills in fields that are None.

    Args:
        environment: Name of the environment.
        version: Version of the environment; None for the installed version.
        options: Options of the environment.
        max_new_tokens: Limit of answer tokens.
        max_prompt_tokens: Limit of prompt tokens.
        group_size: Samples per prompt, at least 2.
        temperature: Sampling temperature.
        chat: Whether and how prompts become chats; None makes chats if the tokenizer has a chat template.
        held_out: Share of prompts that is never trained on.
        first: Index of the first prompt.
        count: Number of prompts.
        arithmetic: Accepted engines and data types; empty for float32 on either engine.
        dialogue_format: Format of dialogues; None for the first of `template`, `chatml` and `plain` that suits the
            tokenizer.
        turns: Limit of turns of a dialogue.
        reply_tokens: Limit of tokens between two turns.
    """

    environment: str
    version: str | None = None
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    max_new_tokens: int | None = None
    max_prompt_tokens: int | None = None
    group_size: int = 16
    temperature: float = 1.0
    chat: bool | ChatFormat | None = None
    held_out: float = 0.02
    first: int = 0
    count: int | None = None
    arithmetic: tuple[str, ...] = ()
    dialogue_format: FormatName | None = None
    turns: int | None = None
    reply_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedRecipe:
    """A recipe and the figures behind it.

    Args:
        recipe: The recipe.
        context: The model's context in tokens.
        measured: Number of prompts whose lengths were measured; 0 for a served version, which has none.
        longest_prompt: Tokens of the longest measured prompt; 0 for a served version.
        longest_demonstration: Tokens of the longest of a few demonstrations of the environment, with the end token;
            None if the environment has none.
    """

    recipe: Recipe
    context: int
    measured: int
    longest_prompt: int
    longest_demonstration: int | None

    @property
    def row_tokens(self) -> int:
        """Returns the tokens of the longest prompt and answer or dialogue, which a row of the trainer must hold."""
        return self.recipe.row_tokens(self.context)


def propose_recipe(folder: Path, choices: RecipeChoices) -> ProposedRecipe:
    """Returns a recipe for the model in a folder, if prompts and answers fit into the context.

    For the environment `served`, only options, lengths and arithmetic are used.

    Raises:
        InvalidInput: The choices contradict each other, the model's context or the environment's size.
        MusterError: The folder has no usable model, or the environment can't be loaded.
    """
    facts, tokenizer = read_model(folder), FolderTokenizer(folder)
    check_model_folder(folder)
    if choices.environment == SERVED:
        return _serving_proposal(folder, facts, choices)
    environment = load_environment(choices.environment, version=choices.version, options=choices.options)
    prompts = _prompt_range(environment, choices)
    form = _choose_format(tokenizer, facts, choices) if environment.is_dialogue else None
    if form is None and (choices.dialogue_format or choices.turns or choices.reply_tokens):
        raise InvalidInput(
            f"environment {choices.environment} has single answers", hint="leave out the limits and format of dialogues"
        )
    chat = tokenizer.has_chat_template if choices.chat is None else choices.chat
    if form in {FormatName.PLAIN, FormatName.CHATML} and not isinstance(choices.chat, ChatFormat):
        chat = False
    if chat and form is not FormatName.CHATML and not tokenizer.has_chat_template:
        raise InvalidInput(
            f"the tokenizer in {folder} has no chat template",
            hint="use --no-chat, or add chat_template to the tokenizer's tokenizer_config.json",
        )
    chosen = EnvironmentChoice(name=choices.environment, version=environment.version, options=dict(choices.options))
    answer = choices.max_new_tokens or min(LONGEST_ANSWER, facts.context // 2)
    sampled = parts_of(choices.environment, choices.options).sample(prompts.first, prompts.count, most=SAMPLED)
    probed = _probe(chosen, sampled)
    dialogue_format = None if form is None else open_format(form, tokenizer, chat=chat)
    lengths = _prompt_lengths(tokenizer, probed, chat=chat, dialogue_format=dialogue_format)
    longest = max(lengths, key=lengths.__getitem__)
    room = facts.context - answer
    limit = choices.max_prompt_tokens or min(room, -(-2 * lengths[longest] // _ROUND) * _ROUND)
    if not 0 < limit <= room:
        raise InvalidInput(
            f"prompts of {max(limit, 1)} and answers of {answer} tokens exceed the model's context of {facts.context}",
            hint="lower --max-new-tokens or --max-prompt-tokens",
        )
    if lengths[longest] > limit:
        raise InvalidInput(
            f"prompt {longest} of {choices.environment} has {lengths[longest]} tokens, but the limit is {limit}: the "
            f"model's context is {facts.context}, and answers have up to {answer}",
            hint=("" if choices.max_prompt_tokens is None else "raise --max-prompt-tokens, ")
            + "lower --max-new-tokens, or use a model with a longer context",
        )
    dialogue: DialogueChoice | None = None
    if form is not None:
        demonstrated = max((len(each.demonstration_turns or ()) for each in probed.values()), default=0)
        turns = choices.turns or min(MOST_TURNS, max(LEAST_TURNS, 2 * demonstrated))
        spare = (facts.context - answer - limit) // max(1, turns - 1)
        reply = choices.reply_tokens or max(LEAST_REPLY, min(MOST_REPLY, spare))
        dialogue = DialogueChoice(format=form, turns=turns, reply_tokens=reply)
    recipe = Recipe(
        environment=chosen,
        sampling=SamplingChoice(temperature=choices.temperature, max_new_tokens=answer),
        group_size=choices.group_size,
        max_prompt_tokens=limit,
        chat=chat,
        dialogue=dialogue,
        held_out=choices.held_out,
        arithmetic=choices.arithmetic,
        prompts=prompts,
    )
    check_classes(recipe, facts, folder=folder)
    demonstrations = [_demonstrated_tokens(tokenizer, each, dialogue_format) for each in probed.values()]
    return ProposedRecipe(
        recipe=recipe,
        context=facts.context,
        measured=len(lengths),
        longest_prompt=lengths[longest],
        longest_demonstration=max((each for each in demonstrations if each is not None), default=None),
    )


def _choose_format(tokenizer: FolderTokenizer, facts: ModelFacts, choices: RecipeChoices) -> FormatName:
    """Returns the format of dialogues that the user chose, or the first one that suits the tokenizer.

    Raises:
        BadVersionFolder: The chosen format does not suit the tokenizer, or none does that a chat model can use.
    """
    wanted = choices.dialogue_format
    if wanted is None and choices.chat is None and not tokenizer.has_chat_template:
        candidates = [FormatName.CHATML, FormatName.PLAIN]
    elif wanted is None:
        candidates = [FormatName.PLAIN] if choices.chat is False else [FormatName.TEMPLATE, FormatName.CHATML]
    else:
        candidates = [wanted]
    faults: list[BadVersionFolder] = []
    for each in candidates:
        try:
            check_end(open_format(each, tokenizer, chat=choices.chat or False), facts.end_tokens)
        except BadVersionFolder as error:
            faults.append(error)
        else:
            return each
    raise faults[0]


def _demonstrated_tokens(
    tokenizer: FolderTokenizer, probed: ProbedPrompt, dialogue_format: DialogueFormat | None
) -> int | None:
    """Returns the drawn tokens of a demonstration, with the end tokens; None if the environment has none."""
    if dialogue_format is None:
        texts = None if probed.demonstration is None else [probed.demonstration]
    else:
        turns = probed.demonstration_turns
        texts = None if turns is None else [dialogue_format.demonstrated(text, probed.tools) for text in turns]
    return None if texts is None else sum(len(tokenizer.encode_answer(text)) + 1 for text in texts)


def _serving_proposal(folder: Path, facts: ModelFacts, choices: RecipeChoices) -> ProposedRecipe:
    """Returns a recipe whose prompts come from a gateway's clients; a prompt may fill the context beside its answer."""
    environment = load_environment(choices.environment, version=choices.version, options=choices.options)
    answer = choices.max_new_tokens or min(LONGEST_ANSWER, facts.context // 2)
    limit = choices.max_prompt_tokens or facts.context - 1
    if max(answer, limit) >= facts.context:
        raise InvalidInput(
            f"prompts of {limit} and answers of {answer} tokens exceed the model's context of {facts.context}",
            hint=f"give --max-new-tokens and --max-prompt-tokens of at most {facts.context - 1}",
        )
    gateway = address(str(choices.options["gateway"]))
    made = serving_recipe(gateway, max_new_tokens=answer, max_prompt_tokens=limit, arithmetic=choices.arithmetic)
    recipe = made.model_copy(
        update={"environment": made.environment.model_copy(update={"version": environment.version})}
    )
    check_classes(recipe, facts, folder=folder)
    return ProposedRecipe(
        recipe=recipe, context=facts.context, measured=0, longest_prompt=0, longest_demonstration=None
    )


def choose_recipe(
    folder: Path,
    *,
    environment: str | None,
    options: Mapping[str, JsonValue],
    max_new_tokens: int | None = None,
    group_size: int | None = None,
) -> Recipe | None:
    """Returns a recipe for a short run with an environment.

    If no environment is named, checks the folder's own recipe and returns None.

    Args:
        folder: The model's folder.
        environment: Name of the environment; None for the folder's own recipe.
        options: Options of the environment.
        max_new_tokens: Limit of answer tokens; by default 128, or half of the context if that is less.
        group_size: Samples per prompt, 8 by default.

    Raises:
        InvalidInput: The folder has no recipe, and no environment is named.
        MusterError: As for `propose_recipe` and `check_recipe`.
    """
    if environment is None:
        if not (folder / RECIPE_FILE).is_file():
            raise InvalidInput(
                f"{folder} has no {RECIPE_FILE}",
                hint=f"give --environment NAME, or write a recipe: muster recipe init {folder} --environment NAME",
            )
        check_recipe(folder, read_recipe(folder))
        return None
    choices = RecipeChoices(
        environment=environment,
        options=options,
        max_new_tokens=max_new_tokens or min(SHORT_ANSWER, read_model(folder).context // 2),
        group_size=group_size or SHORT_RUN_GROUP,
        held_out=SHORT_RUN_HELD_OUT,
    )
    return propose_recipe(folder, choices).recipe


def check_recipe(folder: Path, recipe: Recipe) -> None:
    """Checks that a recipe suits the model in a folder: architecture, chat template, environment and lengths.

    Raises:
        InvalidInput: Prompts exceed the recipe's limit, or prompts and answers exceed the model's context; or the
            prompts come from a gateway's clients.
        BadVersionFolder: The model is unsupported, the tokenizer has no chat template, or the prompt table is invalid.
        MusterError: The environment can't be loaded, raises an exception, hangs or breaks its contract.
    """
    recipe.check_has_prompts()
    facts, tokenizer = read_model(folder), FolderTokenizer(folder)
    check_model_folder(folder)
    answer, name = recipe.sampling.max_new_tokens, recipe.environment.name
    again = f"write the recipe again for this model: muster recipe init {folder} --environment {name} --force"
    if answer >= facts.context:
        raise InvalidInput(
            f"the recipe's answers of {answer} tokens exceed the model's context of {facts.context}", hint=again
        )
    dialogue_format: DialogueFormat | None = None
    if recipe.dialogue is not None:
        dialogue_format = open_format(recipe.dialogue.format, tokenizer, chat=recipe.chat)
        check_end(dialogue_format, facts.end_tokens)
    elif recipe.chat and not tokenizer.has_chat_template:
        raise BadVersionFolder(
            f"the recipe asks for a chat, but the tokenizer in {folder} has no chat template",
            hint=f"{again}; or add chat_template to tokenizer_config.json",
        )
    probed = _probe(recipe.environment, _sampled(folder, recipe))
    if any(bool(each.opening) != (dialogue_format is not None) for each in probed.values()):
        kind = "single answers" if dialogue_format is not None else "several turns"
        raise InvalidInput(
            f"environment {name} has {kind}, but the recipe has {'the' if dialogue_format is not None else 'no'} field "
            "dialogue",
            hint=again,
        )
    lengths = _prompt_lengths(tokenizer, probed, chat=recipe.chat, dialogue_format=dialogue_format)
    longest = max(lengths, key=lengths.__getitem__)
    if lengths[longest] > recipe.max_prompt_tokens:
        raise InvalidInput(
            f"prompt {longest} of {name} has {lengths[longest]} tokens with this tokenizer, but the recipe allows "
            f"{recipe.max_prompt_tokens}",
            hint=f"the recipe was made for another tokenizer: {again}",
        )
    if lengths[longest] + answer > facts.context:
        raise InvalidInput(
            f"prompt {longest} of {name} with {lengths[longest]} tokens and answers of {answer} tokens exceed the "
            f"model's context of {facts.context}",
            hint=again,
        )


def _sampled(folder: Path, recipe: Recipe) -> list[int]:
    """Returns about `SAMPLED` eligible prompts, evenly spread; for a range of a mixture, prompts of each part."""
    eligible, prompts = eligible_prompts(folder, recipe), recipe.prompts
    if isinstance(prompts, PromptRange):
        parts = parts_of(recipe.environment.name, recipe.environment.options)
        return parts.sample(prompts.first, prompts.count, most=SAMPLED)
    return list(eligible[:: max(1, len(eligible) // SAMPLED)])


def _probe(chosen: EnvironmentChoice, indices: Sequence[int]) -> dict[int, ProbedPrompt]:
    """Returns the prompts that the environment has, by index.

    Raises:
        InvalidInput: The environment has none of the prompts.
    """
    found = probe_prompts(chosen.name, version=chosen.version, options=chosen.options, indices=indices)
    if not found:
        raise InvalidInput(
            f"{chosen.name} has none of the prompts that the recipe names",
            hint="choose prompts within the environment's size",
        )
    return found


def _prompt_lengths(
    tokenizer: FolderTokenizer,
    probed: Mapping[int, ProbedPrompt],
    *,
    chat: bool | ChatFormat,
    dialogue_format: DialogueFormat | None,
) -> dict[int, int]:
    """Returns the number of tokens of each prompt, by index."""
    if dialogue_format is not None:
        return {index: len(dialogue_format.open(each.opening, each.tools)) for index, each in probed.items()}
    return {index: len(tokenizer.encode(each.text, chat=chat)) for index, each in probed.items()}


def _prompt_range(environment: Environment, choices: RecipeChoices) -> PromptRange:
    size = environment.size()
    count = choices.count or (ENDLESS_COUNT if size is None else size - choices.first)
    if choices.first + count > LARGEST_INDEX:
        raise InvalidInput(
            f"prompt {choices.first + count - 1} is beyond the last index", hint="lower --first or --count"
        )
    if size is not None and not 0 < count <= size - choices.first:
        raise InvalidInput(
            f"{choices.environment} has {size} prompts, but {choices.first} to {choices.first + count - 1} were chosen",
            hint="change --first or --count",
        )
    return PromptRange(first=choices.first, count=count)
