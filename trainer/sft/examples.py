"""Examples of a warm-up: tokenized prompts and completions, or dialogues."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from rollouts.dialogue.conversation import Conversation
from rollouts.dialogue.formats import DialogueFormat, check_end, open_format
from rollouts.environments import Prompt, is_held_out
from rollouts.environments.validation import CheckedEnvironment
from rollouts.errors import BadVersionFolder
from rollouts.models.facts import ModelFacts
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.plan import SlotPlanner
from rollouts.recipe import Recipe
from trainer.errors import BadExamples

_TARGET_TAG = b"muster-demonstration-v1"


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt with its completion, or a dialogue.

    Args:
        prompt: At least one token; no loss is computed on it.
        completion: At least one token, the last one the end token.
        given: Indices of those tokens of the completion that the model only reads, such as a tool's replies; no loss is
            computed on them.
    """

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    given: frozenset[int] = frozenset()

    @property
    def tokens(self) -> tuple[int, ...]:
        """Returns prompt and completion as one sequence."""
        return self.prompt + self.completion

    @property
    def learned(self) -> int:
        """Returns the number of tokens with loss."""
        return len(self.completion) - len(self.given)


class Corpus(Protocol):
    """Candidates by index; some candidates may not be usable."""

    def __len__(self) -> int:
        """Returns the number of candidates."""
        ...

    def example(self, place: int) -> Example | None:
        """Returns the candidate at an index, deterministically; None if the candidate is not used."""
        ...


def message_end(dialogue_format: DialogueFormat, *, end: int, end_tokens: Collection[int]) -> int:
    """Returns the token that ends the model's messages in dialogues.

    Args:
        dialogue_format: The format of dialogues.
        end: End token of completions, for formats that take any.
        end_tokens: Tokens that end an answer of the model.

    Raises:
        BadVersionFolder: The format needs a token that does not end the model's answers, so no message would end.
    """
    check_end(dialogue_format, end_tokens)
    return end if dialogue_format.end is None else dialogue_format.end


def dialogue_example(prompt: Sequence[int], parts: Sequence[tuple[Sequence[int], bool]]) -> Example:
    """Returns a dialogue as an example.

    Args:
        prompt: The prompt's tokens.
        parts: Tokens after the prompt in order, each part with a flag whether it has loss.
    """
    completion: list[int] = []
    given: list[int] = []
    for tokens, learned in parts:
        if not learned:
            given += range(len(completion), len(completion) + len(tokens))
        completion += tokens
    return Example(tuple(prompt), tuple(completion), frozenset(given))


class EnvironmentCorpus:
    """Demonstrations of an environment for a range of prompts.

    Prompts that the recipe holds out have no demonstration here. If the recipe has dialogues, demonstrations are played
    with the environment, as rollouts are.

    Args:
        environment: Environment of the recipe.
        recipe: Format of the prompts and held-out share.
        tokenizer: Tokenizer of the model.
        model: Facts of the model, whose context limits dialogues.
        end: End token of completions; messages of dialogues end with that of their format, if it has one.
        indices: Indices of the candidates.

    Raises:
        BadVersionFolder: The tokenizer or the model's end tokens can't be used with the recipe's dialogue format.
    """

    def __init__(
        self,
        environment: CheckedEnvironment,
        recipe: Recipe,
        *,
        tokenizer: FolderTokenizer,
        model: ModelFacts,
        end: int,
        indices: range,
    ) -> None:
        self._environment = environment
        self._recipe = recipe
        self._tokenizer = tokenizer
        self._model = model
        self._end = end
        if recipe.dialogue is not None:
            dialogue_format = open_format(recipe.dialogue.format, tokenizer, chat=recipe.chat)
            self._end = message_end(dialogue_format, end=end, end_tokens=model.end_tokens)
        self._indices = indices

    def __len__(self) -> int:
        """Returns the number of candidates."""
        return len(self._indices)

    def example(self, place: int) -> Example | None:
        """Returns a demonstration; None if there is none, or if the recipe holds it out or its limits forbid it.

        Raises:
            BadExamples: The tokenizer can't represent the demonstration, so no answer of the model could be correct.
        """
        index = self._indices[place]
        prompt = self._environment.prompt(index)
        if self._recipe.held_out and is_held_out(prompt, self._recipe.held_out):
            return None
        planner = SlotPlanner(
            recipe=self._recipe, eligible=[index], environment=self._environment, tokenizer=self._tokenizer
        )
        try:
            asked = planner.plan(hashlib.sha256(_TARGET_TAG + index.to_bytes(8, "big")).digest(), groups=1).groups[0]
        except BadVersionFolder:
            return None
        if self._recipe.dialogue is not None:
            return self._played(planner.converse(asked.prompt, asked.tokens, model=self._model), asked.prompt)
        answer = self._environment.demonstration(replace(prompt, target_length=asked.prompt.target_length))
        return None if answer is None else Example(asked.tokens, self._message(index, answer))

    def _played(self, conversation: Conversation, prompt: Prompt) -> Example | None:
        """Returns a demonstrated dialogue."""
        texts = self._environment.demonstration_turns(prompt)
        if texts is None:
            return None
        for text in texts:
            drawn = self._message(prompt.index, conversation.demonstrated(text))
            if conversation.fault_of(drawn):  # a limit of the recipe has ended the dialogue, or cuts this message off
                return None
            conversation.add(drawn)
        parts: list[tuple[Sequence[int], bool]] = []
        start = 0
        for turn in conversation.turns:
            parts.append((conversation.drawn[start : start + turn.drawn], True))
            start += turn.drawn
            if start < len(conversation.drawn):  # the reply to the last message is not part of a demonstration
                parts.append((turn.given.tolist(), False))
        return dialogue_example(conversation.prompt_tokens, parts)

    def _message(self, index: int, answer: str) -> tuple[int, ...]:
        """Returns the tokens of a message of the model."""
        completion = self._tokenizer.encode_answer(answer)
        if self._tokenizer.decode(completion) != answer:
            raise BadExamples(
                f"the tokenizer can't write the demonstration of prompt {index}: {answer[:40]!r} becomes "
                f"{self._tokenizer.decode(completion)[:40]!r}",
                hint="give the tokenizer every character of the environment",
            )
        return (*completion, self._end)


@dataclass(slots=True)
class ExampleStream:
    """Endless stream of examples in a seeded order, with every candidate once per epoch.

    Args:
        corpus: Source of the examples.
        seed: Seed of the order.
        longest: Maximum tokens of an example; longer examples are skipped.
        position: Number of candidates that an earlier stream consumed; this stream continues after them.
    """

    corpus: Corpus
    seed: int
    longest: int
    position: int = 0
    left_out: int = 0
    """Number of examples skipped as too long in this process."""
    _order: Sequence[int] = field(default=(), init=False)
    _epoch: int = field(default=-1, init=False)

    def take(self, count: int) -> list[Example]:
        """Returns the next examples.

        Raises:
            BadExamples: No candidate of a whole epoch can be used.
        """
        found: list[Example] = []
        since = 0
        while len(found) < count:
            example = self._next()
            if example is None:
                since += 1
            else:
                found.append(example)
                since = 0
            if since > 2 * len(self.corpus):  # then a whole epoch was unusable, wherever in an epoch the count began
                raise BadExamples(
                    f"none of {len(self.corpus)} candidates can be trained on ({self.left_out} of them too long)",
                    hint="give an environment with demonstrations, other prompts, or longer rows",
                )
        return found

    def _next(self) -> Example | None:
        epoch, place = divmod(self.position, len(self.corpus))
        if epoch != self._epoch:
            self._order, self._epoch = epoch_order(len(self.corpus), seed=self.seed, epoch=epoch), epoch
        self.position += 1
        example = self.corpus.example(self._order[place])
        if example is not None and len(example.tokens) > self.longest:
            self.left_out += 1
            return None
        return example


def epoch_order(count: int, *, seed: int, epoch: int) -> Sequence[int]:
    """Returns a shuffled `range(count)`, from a generator whose raw words are stable across releases of numpy."""
    words = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(count)
    order: list[int] = np.argsort(words, kind="stable").tolist()
    return order
