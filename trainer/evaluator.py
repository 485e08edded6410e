"""Evaluates a version of the policy on held-out prompts, with greedy and sampled answers.

No slot draws held-out prompts (`Recipe.held_out`), so the policy is never trained on them. Evaluations of one run
differ only in the weights: each evaluation uses the first held-out prompts and a fixed sampling seed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from protocol.errors import InvalidInput
from rollouts.dialogue.transcript import transcript
from rollouts.engines.interface import Engine, FinishReason, SampleRequest
from rollouts.environments import Environment, Reward, is_held_out
from rollouts.environments.validation import CheckedEnvironment
from rollouts.plan import PlannedPrompt, Tokenizer, plan_prompt, play_planned
from rollouts.recipe import Recipe
from rollouts.sampling.parameters import SamplingParameters
from trainer.by_environment import EnvironmentResult, ResultsByEnvironment, results_of

_TAG = b"muster-evaluation-v1"
EXAMPLES = 8
"""Number of prompts whose greedy answers an evaluation keeps as text."""
_EXAMPLE_CHARACTERS = 2_000
_SEARCH_FACTOR = 100
"""The search for held-out prompts reads at most this many times the number of prompts that it should need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerExample:
    """A prompt and an answer, as text for people; either is cut after 2,000 characters.

    Args:
        prompt: Text of the prompt, without the chat template.
        answer: Decoded answer, without special tokens; a dialogue's transcript (`rollouts.dialogue.transcript`).
        correct: Whether the environment scores it as solved.
        finished: Whether the model ended the answer by itself.
        reward: Its reward.
        turns: Number of turns of a dialogue; 0 for a single answer.
    """

    prompt: str
    answer: str
    correct: bool
    finished: bool
    reward: float
    turns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Result of an evaluation.

    Args:
        prompts: Number of prompts.
        greedy: Share of prompts whose greedy answer is solved; partial credit does not count.
        greedy_tokens: Mean length of greedy answers, including the end token.
        greedy_finished: Share of greedy answers that end with the end token.
        samples: Number of sampled answers per prompt.
        greedy_reward: Mean reward of greedy answers after the length penalty.
        pass_at: Unbiased estimate of pass@k (at least one of k sampled answers is correct), by k.
        reward: Mean reward of sampled answers after the length penalty; None without samples.
        distance: Mean difference between answer length and target length, in the environment's unit. Measured on the
            sampled answers, or on the greedy answers if there are no samples. None without a target length.
        lengths: Mean length of the same answers, by target length.
        undecided: Number of greedy and sampled answers that could not be checked within the limits of the checker.
        examples: Greedy answers to the first `EXAMPLES` prompts.
        environments: Results of the greedy answers, by environment; empty unless the recipe has a mixture.
        sampled_environments: Results of the sampled answers, by environment; empty unless the recipe has a mixture.
    """

    prompts: int
    greedy: float
    greedy_tokens: float
    greedy_finished: float
    greedy_reward: float
    samples: int = 0
    pass_at: Mapping[int, float] = field(default_factory=dict)
    reward: float | None = None
    distance: float | None = None
    lengths: Mapping[int, float] = field(default_factory=dict)
    undecided: int = 0
    examples: tuple[AnswerExample, ...] = ()
    environments: Mapping[str, EnvironmentResult] = field(default_factory=dict)
    sampled_environments: Mapping[str, EnvironmentResult] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedAnswer:
    """One answer to a prompt.

    Args:
        place: Position of the prompt.
        text: The answer without its end token; for a dialogue, its transcript.
        tokens: Number of its tokens without the end token; for a dialogue, those that the model drew.
        finished: Whether the model ended the answer, or the last message of a dialogue, by itself.
        reward: Reward of a dialogue; None for a single answer, which is scored by its text.
        turns: Number of turns of a dialogue; 0 for a single answer.
    """

    place: int
    text: str
    tokens: int
    finished: bool
    reward: Reward | None = None
    turns: int = 0


class AnswerSource(Protocol):
    """Source of the answers that are evaluated: an engine or an endpoint."""

    def answers(
        self, planned: Sequence[PlannedPrompt], parameters: SamplingParameters, *, each: int
    ) -> Iterator[EvaluatedAnswer]:
        """Yields `each` answers to each prompt, in any order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAnswers:
    """Answers of the version that an engine has loaded.

    Args:
        engine: The engine.
        tokenizer: The model's tokenizer.
        should_stop: See `Engine.generate`.
    """

    engine: Engine
    tokenizer: Tokenizer
    should_stop: Callable[[], bool] | None = None

    def answers(
        self, planned: Sequence[PlannedPrompt], parameters: SamplingParameters, *, each: int
    ) -> Iterator[EvaluatedAnswer]:
        """Generates with each prompt's seed: see `AnswerSource.answers`."""
        if planned and planned[0].planner.has_dialogues:
            yield from self._dialogues(planned, parameters, each=each)
            return
        requests = [
            SampleRequest(sample=place * each + sample, prompt_tokens=one.group.tokens, seed=one.seed)
            for place, one in enumerate(planned)
            for sample in range(each)
        ]
        for one in self.engine.generate(requests, parameters, with_proofs=False, should_stop=self.should_stop):
            finished = one.finish is FinishReason.EOS
            tokens = one.tokens[:-1] if finished else one.tokens
            yield EvaluatedAnswer(
                place=one.sample // each, text=self.tokenizer.decode(tokens), tokens=len(tokens), finished=finished
            )

    def _dialogues(
        self, planned: Sequence[PlannedPrompt], parameters: SamplingParameters, *, each: int
    ) -> Iterator[EvaluatedAnswer]:
        samples = [(one, place * each + number) for place, one in enumerate(planned) for number in range(each)]
        for played in play_planned(self.engine, samples, parameters, should_stop=self.should_stop):
            finished = played.drawn.finish is FinishReason.EOS
            yield EvaluatedAnswer(
                place=played.sample // each,
                text=transcript(played.drawn.tokens, played.turns, self.tokenizer),
                tokens=len(played.drawn.tokens) - finished,
                finished=finished,
                reward=played.reward,
                turns=len(played.turns),
            )


def held_out_prompts(environment: Environment, recipe: Recipe, *, count: int, share: float | None = None) -> list[int]:
    """Returns the indices of the first held-out prompts with distinct texts; fewer if there are not enough.

    Args:
        environment: The recipe's environment.
        recipe: The version's recipe, which has the held-out share.
        count: Number of prompts.
        share: Share of prompts that count as held out; None for the recipe's share. A share below the recipe's selects
            a subset of the prompts that the recipe holds out.

    Raises:
        InvalidInput: No prompt was found, the version is served, or the share is larger than the recipe's.
    """
    recipe.check_has_prompts()
    if share is None:
        share = recipe.held_out
    if share > recipe.held_out:
        raise InvalidInput(
            f"a held-out share of {share} includes prompts that training may use: the recipe holds out only a share "
            f"of {recipe.held_out}",
            hint="give at most the recipe's share, or set held_out in the recipe before anything is trained",
        )
    size = environment.size()
    search = math.ceil(count / share) * _SEARCH_FACTOR if share > 0 else 0
    found: list[int] = []
    texts: set[str] = set()
    for index in range(search if size is None else min(size, search)):
        if len(found) == count:
            break
        prompt = environment.prompt(index)
        if prompt.text not in texts and is_held_out(prompt, share):
            found.append(index)
            texts.add(prompt.text)
    if not found:
        raise InvalidInput(
            f"{environment.name} has no prompts that are held out at a share of {share}",
            hint="an evaluation needs prompts kept out of training: set held_out in the recipe before training",
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """Evaluates versions on the same prompts.

    Args:
        environment: The recipe's environment.
        recipe: Prompt format and sampling parameters.
        tokenizer: The model's tokenizer.
        indices: Indices of the prompts.
        samples: Number of sampled answers per prompt, in addition to the greedy answer.
    """

    environment: CheckedEnvironment
    recipe: Recipe
    tokenizer: Tokenizer
    indices: Sequence[int]
    samples: int = 0

    def evaluate(self, engine: Engine, *, should_stop: Callable[[], bool] | None = None) -> Evaluation:
        """Evaluates the version that the engine has loaded.

        Raises:
            PromptTooLong: A prompt leaves no room for an answer.
            BadVersionFolder: A prompt can't be tokenized for this model.
            SandboxUnavailable: Answers can't be checked on this machine.
            GenerationStopped: `should_stop` returned True.
        """
        return self.measure(EngineAnswers(engine=engine, tokenizer=self.tokenizer, should_stop=should_stop))

    def measure(self, source: AnswerSource) -> Evaluation:
        """Evaluates the answers of a source.

        Raises:
            MusterError: As for `evaluate`, or the source failed.
        """
        planned = [self._plan(index) for index in self.indices]
        sampling = self.recipe.sampling.parameters
        at_best = SamplingParameters(max_new_tokens=sampling.max_new_tokens, top_k=1)
        greedy = self._tally(source, planned, at_best, each=1, shown=True)
        drawn = self._tally(source, planned, sampling, each=self.samples)
        measured = drawn if self.samples else greedy
        return Evaluation(
            prompts=len(planned),
            greedy=sum(greedy.solved.values()) / len(planned),
            greedy_tokens=greedy.tokens / len(planned),
            greedy_finished=greedy.finished / len(planned),
            greedy_reward=math.fsum(greedy.rewards) / len(greedy.rewards),
            samples=self.samples,
            pass_at={
                k: sum(pass_at(k, samples=self.samples, solved=drawn.solved[place]) for place in range(len(planned)))
                / len(planned)
                for k in _powers_of_two(self.samples)
            },
            reward=math.fsum(drawn.rewards) / len(drawn.rewards) if self.samples else None,
            distance=measured.distance,
            lengths=measured.mean_lengths,
            undecided=greedy.undecided + drawn.undecided,
            examples=tuple(example for _, example in sorted(greedy.examples.items())),
            environments=greedy.environments.results(),
            sampled_environments=drawn.environments.results(),
        )

    def _plan(self, index: int) -> PlannedPrompt:
        recipe = self.recipe.model_copy(update={"held_out": 0.0})  # the recipe's own share would exclude this prompt
        return plan_prompt(index, tag=_TAG, recipe=recipe, environment=self.environment, tokenizer=self.tokenizer)

    def _tally(
        self,
        source: AnswerSource,
        planned: Sequence[PlannedPrompt],
        parameters: SamplingParameters,
        *,
        each: int,
        shown: bool = False,
    ) -> _Tally:
        """Accumulates the results of answers; if `shown`, the answers to the first prompts are kept as text."""
        tally = _Tally(environments=results_of(self.recipe), keeps_examples=shown)
        if planned and each:
            for answer in source.answers(planned, parameters, each=each):
                tally.add(planned[answer.place], answer)
        return tally


@dataclass(slots=True)
class _Tally:
    """Accumulates the results of answers."""

    environments: ResultsByEnvironment
    keeps_examples: bool
    """Whether answers are kept as text."""
    solved: Counter[int] = field(default_factory=Counter)
    tokens: int = 0
    finished: int = 0
    rewards: list[float] = field(default_factory=list)
    lengths: dict[int, list[int]] = field(default_factory=dict)
    """Lengths by target length; empty without a target."""
    undecided: int = 0
    examples: dict[int, AnswerExample] = field(default_factory=dict)
    """The last answer to each of the first `EXAMPLES` prompts, by the prompt's position."""

    def add(self, planned: PlannedPrompt, answer: EvaluatedAnswer) -> None:
        prompt, place = planned.group.prompt, answer.place
        reward = answer.reward
        if reward is None:
            reward = planned.planner.text_reward(prompt, answer.text, tokens=answer.tokens, finished=answer.finished)
        self.solved[place] += reward.solved
        self.tokens += answer.tokens + answer.finished
        self.finished += answer.finished
        self.rewards.append(reward.total)
        self.environments.add(prompt.index, reward=reward.total, solved=reward.solved)
        if reward.target is not None:
            self.lengths.setdefault(reward.target, []).append(reward.length)
        self.undecided += reward.undecided
        if self.keeps_examples and place < EXAMPLES:
            self.examples[place] = AnswerExample(
                prompt=prompt.text[:_EXAMPLE_CHARACTERS],
                answer=answer.text[:_EXAMPLE_CHARACTERS],
                correct=reward.solved,
                finished=answer.finished,
                reward=reward.total,
                turns=answer.turns,
            )

    @property
    def distance(self) -> float | None:
        off = [abs(length - wanted) for wanted, lengths in self.lengths.items() for length in lengths]
        return sum(off) / len(off) if off else None

    @property
    def mean_lengths(self) -> dict[int, float]:
        return {wanted: sum(lengths) / len(lengths) for wanted, lengths in sorted(self.lengths.items())}


def pass_at(k: int, *, samples: int, solved: int) -> float:
    """Returns the unbiased estimate of pass@k (Codex, arXiv 2107.03374, equation 1).

    Args:
        k: Number of answers drawn, at most `samples`.
        samples: Number of answers to a prompt.
        solved: Number of correct answers.
    """
    return 1.0 - math.comb(samples - solved, k) / math.comb(samples, k)


def _powers_of_two(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length())]
