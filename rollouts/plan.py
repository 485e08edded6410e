"""The work of a slot: prompts, target lengths and samples, derived from the seed and the version folder.

The generating node and every verifier build the same plan, so that a verifier can compare a file with the plan row by
row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from protocol.errors import InvalidInput
from rollouts.dialogue.conversation import Conversation, DialogueLimits
from rollouts.dialogue.formats import DialogueFormat, DialogueTokenizer, open_format
from rollouts.dialogue.play import Dialogue, PlayedDialogue, play_in_rounds
from rollouts.engines.errors import NothingLoaded
from rollouts.engines.interface import Engine, FinishReason, SampleRequest
from rollouts.environments import Prompt, Reward, is_held_out, reward_of
from rollouts.environments.dialogue import Episode
from rollouts.environments.errors import NoSuchPrompt
from rollouts.environments.validation import CheckedEnvironment
from rollouts.errors import BadVersionFolder
from rollouts.models.chat import ChatFormat
from rollouts.models.facts import ModelFacts
from rollouts.recipe import Recipe
from rollouts.sampling.parameters import SamplingParameters
from rollouts.seeds import check_groups, draw_targets, prompt_positions

_MAX_SKIPPED = 10_000
_MAX_SKIPPED_PER_GROUP = 200
"""A plan skips at most 10,000 held-out prompts, plus 200 for each group, which bounds the planner's work. A recipe
holds out at most 99 % of the prompts, so the expected number of skipped prompts is at most 99 for each group."""


class Tokenizer(DialogueTokenizer, Protocol):
    """Interface of the version's tokenizer."""

    def encode(self, text: str, *, chat: bool | ChatFormat = False) -> Sequence[int]:
        """Returns the token ids of a text; `chat` wraps the text as user turn in the chat template."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of token ids, without special tokens."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGroup:
    """One prompt of a slot.

    Args:
        group: The group's number in the slot, from 0.
        prompt: The prompt with the text that the model reads, and with its target length if there is a length reward.
        tokens: The encoded prompt text.
        samples: Numbers of the group's samples in the slot.
    """

    group: int
    prompt: Prompt
    tokens: tuple[int, ...]
    samples: range


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """The complete work of a slot, in the order of the rows of its file."""

    seed: bytes
    groups: tuple[PlannedGroup, ...]

    def requests(self) -> list[SampleRequest]:
        """Returns one engine request per sample."""
        return [
            SampleRequest(sample=sample, prompt_tokens=group.tokens, seed=self.seed)
            for group in self.groups
            for sample in group.samples
        ]

    def group_of_sample(self) -> dict[int, PlannedGroup]:
        """Returns the group of each sample, by the sample's number in the slot."""
        return {sample: group for group in self.groups for sample in group.samples}


class SlotPlanner:
    """Plans the slots of one version.

    Args:
        recipe: The version's recipe.
        eligible: Indices of the version's eligible prompts.
        environment: The environment named by the recipe.
        tokenizer: The tokenizer in the version folder.

    Raises:
        BadVersionFolder: The recipe has dialogues and the environment has none, or the reverse. Or the tokenizer
            can't be used for the recipe's dialogues.
    """

    def __init__(
        self, *, recipe: Recipe, eligible: Sequence[int], environment: CheckedEnvironment, tokenizer: Tokenizer
    ) -> None:
        self._recipe = recipe
        self._eligible = eligible
        self._environment = environment
        self._tokenizer = tokenizer
        if recipe.dialogue is None and environment.is_dialogue:
            raise BadVersionFolder(
                f"environment {environment.name} has several turns, but the recipe has no field dialogue",
                hint='set dialogue in the recipe, such as {"format": "template", "turns": 4}',
            )
        if recipe.dialogue is not None and not environment.is_dialogue:
            raise BadVersionFolder(
                f"environment {environment.name} has single answers, but the recipe has the field dialogue",
                hint="remove dialogue from the recipe, or choose an environment with several turns",
            )
        self._format: DialogueFormat | None = None
        if recipe.dialogue is not None:
            self._format = open_format(recipe.dialogue.format, tokenizer, chat=recipe.chat)

    @property
    def has_dialogues(self) -> bool:
        """Whether the recipe has dialogues."""
        return self._format is not None

    def plan(self, seed: bytes, *, groups: int) -> SlotPlan:
        """Returns the plan of the slot with this seed.

        Raises:
            InvalidInput: There are no groups or too many.
            BadVersionFolder: The version lists a prompt that the environment lacks, or that is empty or too long. Or
                too many of the drawn prompts are held out.
            MusterError: The environment or this machine failed; neither the version nor a node is at fault.
        """
        check_groups(groups)
        indices = self._draw(seed, groups)
        targets: Sequence[int | None] = [None] * groups
        if self._recipe.length is not None:
            targets = draw_targets(seed, self._recipe.length.targets, groups)
        size = self._recipe.group_size
        planned = []
        for group, (index, target) in enumerate(zip(indices, targets, strict=True)):
            prompt, tokens = self.ask(index, target)
            samples = range(group * size, (group + 1) * size)
            planned.append(PlannedGroup(group=group, prompt=prompt, tokens=tokens, samples=samples))
        return SlotPlan(seed=seed, groups=tuple(planned))

    def _draw(self, seed: bytes, groups: int) -> Iterator[int]:
        """Yields indices of the slot's prompts, skipping held-out prompts."""
        share = self._recipe.held_out
        drawn = passed = 0
        for position in prompt_positions(seed, len(self._eligible)):
            index = self._eligible[position]
            if not share or not is_held_out(self._prompt(index), share):
                yield index
                drawn += 1
                if drawn == groups:
                    return
                continue
            passed += 1
            if passed > _MAX_SKIPPED + _MAX_SKIPPED_PER_GROUP * groups:
                raise BadVersionFolder(
                    f"{passed} of {passed + drawn} drawn prompts are held out, at a share of {share}",
                    hint="lower held_out in the recipe, or list prompts that are not held out in prompts.u64",
                )

    def _prompt(self, index: int) -> Prompt:
        try:
            return self._environment.prompt(index)
        except NoSuchPrompt as error:  # other errors come from this machine, its data or the environment's code
            raise BadVersionFolder(f"the version lists prompt {index}: {error.detail}") from error

    def ask(self, index: int, target: int | None) -> tuple[Prompt, tuple[int, ...]]:
        """Returns a prompt, with target length and the text that the model reads, and its tokens.

        Raises:
            BadVersionFolder: The environment lacks the prompt, or its text is empty or too long.
            MusterError: The environment or this machine failed; neither the version nor a node is at fault.
        """
        prompt = self._prompt(index)
        if target is not None and self._recipe.length is not None:
            text = self._recipe.length.template.replace("{target}", str(target)).replace("{prompt}", prompt.text)
            prompt = replace(prompt, text=text, target_length=target)
        tokens = tuple(self._encoded(prompt))
        if not 0 < len(tokens) <= self._recipe.max_prompt_tokens:
            raise BadVersionFolder(
                f"prompt {index} has {len(tokens)} tokens; the recipe allows 1 to {self._recipe.max_prompt_tokens}",
                hint="leave the prompt out of the version's eligible prompts",
            )
        return prompt, tokens

    def _encoded(self, prompt: Prompt) -> Sequence[int]:
        if self._format is None:
            return self._tokenizer.encode(prompt.text, chat=self._recipe.chat)
        episode = self.begin(prompt)
        return self._format.open(episode.opening, episode.tools)

    def begin(self, prompt: Prompt) -> Episode:
        """Begins an episode of a recipe with dialogues.

        Raises:
            EnvironmentFault: The environment breaks its contract.
        """
        return self._environment.begin(prompt)

    def converse(self, prompt: Prompt, tokens: Sequence[int], *, model: ModelFacts) -> Conversation:
        """Begins the dialogue of a planned prompt.

        Args:
            prompt: A planned prompt.
            tokens: Its tokens.
            model: Facts of the version's model.

        Raises:
            InvalidInput: The recipe has no dialogues.
            EnvironmentFault: The environment breaks its contract.
        """
        choice = self._recipe.dialogue
        if choice is None or self._format is None:
            raise InvalidInput("the recipe has no dialogues")
        return Conversation(
            self.begin(prompt),
            prompt_tokens=tokens,
            dialogue_format=self._format,
            limits=DialogueLimits(
                turns=choice.turns,
                new_tokens=self._recipe.sampling.max_new_tokens,
                reply_tokens=choice.reply_tokens,
                context=model.context,
            ),
            end_tokens=model.end_tokens,
        )

    def dialogue(
        self,
        group: PlannedGroup,
        sample: int,
        *,
        seed: bytes,
        model: ModelFacts,
        environment_use: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Dialogue:
        """Returns a dialogue of a planned prompt, to be played.

        Args:
            group: The planned prompt.
            sample: Number of the sample.
            seed: Seed of the noise.
            model: Facts of the version's model.
            environment_use: See `Dialogue`.
        """
        return Dialogue(
            sample,
            seed=seed,
            begin=partial(self.converse, group.prompt, group.tokens, model=model),
            reward=self.dialogue_reward,
            environment_use=environment_use,
        )

    def dialogue_reward(self, conversation: Conversation) -> Reward:
        """Returns the reward of a dialogue that is over."""
        return reward_of(conversation.score(), rule=None, target=None, output_tokens=len(conversation.drawn))

    def reward(self, prompt: Prompt, output_tokens: Sequence[int], finish: FinishReason) -> Reward:
        """Returns the reward of an answer; the scored text does not contain the end token.

        Args:
            prompt: A planned prompt.
            output_tokens: All sampled tokens, including the end token.
            finish: Reason why the answer ended.

        Raises:
            SandboxUnavailable: This machine has no sandbox for scoring the answer.
        """
        finished = finish is FinishReason.EOS
        answer = output_tokens[:-1] if finished else output_tokens
        return self.text_reward(prompt, self._tokenizer.decode(answer), tokens=len(answer), finished=finished)

    def text_reward(self, prompt: Prompt, text: str, *, tokens: int, finished: bool) -> Reward:
        """Returns the reward of an answer that is known as text.

        Args:
            prompt: A planned prompt.
            text: The answer without its end token.
            tokens: Number of its tokens without the end token.
            finished: Whether the model ended the answer by itself.

        Raises:
            SandboxUnavailable: This machine has no sandbox for scoring the answer.
        """
        score = self._environment.score(prompt, text, finished=finished)
        return reward_of(score, rule=self._recipe.length_reward, target=prompt.target_length, output_tokens=tokens)


@dataclass(frozen=True, slots=True)
class PlannedPrompt:
    """A prompt to be measured outside a slot: its group of samples, their seed, and the planner that scores them."""

    planner: SlotPlanner
    seed: bytes
    group: PlannedGroup


def plan_prompt(
    index: int, *, tag: bytes, recipe: Recipe, environment: CheckedEnvironment, tokenizer: Tokenizer
) -> PlannedPrompt:
    """Plans the samples of one prompt, whose seed depends on the prompt's index only.

    Args:
        index: Index of the prompt.
        tag: Domain separation of the seed; changing it changes all samples.
        recipe: Prompt format and group size. With a held-out share, planning fails if the prompt is held out.
        environment: The environment named by the recipe.
        tokenizer: The model's tokenizer.

    Raises:
        BadVersionFolder: As in `SlotPlanner.plan`.
        MusterError: The environment or this machine failed.
    """
    planner = SlotPlanner(recipe=recipe, eligible=[index], environment=environment, tokenizer=tokenizer)
    plan = planner.plan(hashlib.sha256(tag + index.to_bytes(8, "big")).digest(), groups=1)
    return PlannedPrompt(planner, plan.seed, plan.groups[0])


def play_planned(
    engine: Engine,
    samples: Sequence[tuple[PlannedPrompt, int]],
    parameters: SamplingParameters,
    *,
    should_stop: Callable[[], bool] | None = None,
) -> Iterator[PlayedDialogue]:
    """Plays dialogues of planned prompts in rounds, without proofs.

    Args:
        engine: An engine that has loaded a version.
        samples: Prompts and distinct sample numbers.
        parameters: Sampling parameters.
        should_stop: See `Engine.generate`.

    Raises:
        NothingLoaded: No weights are loaded.
        MusterError: See `rollouts.dialogue.play.play`.
    """
    model = engine.model
    if model is None:
        raise NothingLoaded(f"the {engine.name.value} engine has no weights loaded")
    dialogues = [one.planner.dialogue(one.group, sample, seed=one.seed, model=model) for one, sample in samples]
    draw = partial(engine.generate, parameters=parameters, with_proofs=False, should_stop=should_stop)
    with ThreadPoolExecutor(1, thread_name_prefix="reply") as replies:
        yield from play_in_rounds(draw, dialogues, replies=replies, should_stop=should_stop)
