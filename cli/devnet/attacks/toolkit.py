"""The real generator, with overrides for weights, plans and noise, for use by attacks.

The toolkit can also change finished samples, and compute proofs for the changed samples with a prefill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from protocol.errors import InvalidInput
from protocol.identifiers import Digest
from protocol.runtime.clock import Clock
from protocol.wire.slots import SlotGrant
from rollouts.checks import prefill_items
from rollouts.checks.evidence import drawn_rows
from rollouts.dialogue.conversation import Conversation, DialogueLimits
from rollouts.dialogue.formats import DialogueFormat
from rollouts.engines.errors import GenerationStopped
from rollouts.engines.interface import Completion, Engine, FinishReason, SampleRequest
from rollouts.environments import Prompt
from rollouts.environments.dialogue import Episode
from rollouts.files.samples import RolloutFile, Sample
from rollouts.models.facts import ModelFacts, read_model
from rollouts.models.policy import Policy, load_policy
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.plan import SlotPlan, SlotPlanner
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.prefill import prefill
from rollouts.recipe import Recipe
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.sampler import log_sums, scale
from rollouts.seeds import seed_of_grant
from rollouts.task.generator import Produced, SlotGenerator
from rollouts.task.policies import HeldPolicy
from rollouts.toploc import proofs_of
from rollouts.turns import Turn

Alter = Callable[[SlotPlan], SlotPlan]
Generate = Callable[[Sequence[SampleRequest], SamplingParameters], Iterator[Completion]]
DrawTurns = Callable[[Generate, Sequence[SampleRequest], SamplingParameters], Iterator[Completion]]
"""Draws turns of dialogues with a function that draws them honestly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueChange:
    """Changes of the environment's side of dialogues; by default none.

    Args:
        prompt: Returns the prompt with whose state a dialogue begins, from the planned one and the environment's
            `prompt`. The model reads the planned prompt.
        episode: Returns the episode to play, from the environment's.
        format: Returns the format, from the version's.
        limits: Returns the limits, from the recipe's.
    """

    prompt: Callable[[Prompt, Callable[[int], Prompt]], Prompt] = lambda prompt, _: prompt
    episode: Callable[[Episode], Episode] = lambda episode: episode
    format: Callable[[DialogueFormat], DialogueFormat] = lambda own: own
    limits: Callable[[DialogueLimits], DialogueLimits] = lambda limits: limits


class AdjustableEngine:
    """An engine that can use other weights, noise, parameters and turns than requested.

    Its reported name, type and version are those of an honest node.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._version: tuple[Path, Digest] | None = None
        self._loaded: Path | None = None
        self.weights: Path | None = None
        self.noise: bytes | None = None
        self.parameters: SamplingParameters | None = None
        self.turns: DrawTurns | None = None

    @property
    def name(self) -> EngineName:
        """Name of the engine."""
        return self._engine.name

    @property
    def dtype(self) -> Dtype:
        """Data type of the engine."""
        return self._engine.dtype

    @property
    def arithmetics(self) -> tuple[Arithmetic, ...]:
        """Combinations of engine and data type, and the numerics class if any, that the engine declares."""
        return self._engine.arithmetics

    @property
    def version(self) -> Digest | None:
        """Digest of the version that the engine claims to hold."""
        return self._engine.version

    @property
    def model(self) -> ModelFacts | None:
        """Facts of the model that the engine holds."""
        return self._engine.model

    def load(self, folder: Path, *, version: Digest) -> None:
        """Loads the version."""
        self._version, self._loaded = (folder, version), None
        self._engine.load(folder, version=version)
        self._loaded = folder

    def generate(
        self,
        requests: Sequence[SampleRequest],
        parameters: SamplingParameters,
        *,
        with_proofs: bool = True,
        should_stop: Callable[[], bool] | None = None,
    ) -> Iterator[Completion]:
        """Generates with the overrides that are set."""
        if self._version is not None and self._loaded != (wanted := self.weights or self._version[0]):
            self._loaded = None
            self._engine.load(wanted, version=self._version[1])
            self._loaded = wanted
        asked = requests if self.noise is None else [replace(one, seed=self.noise) for one in requests]
        generate = partial(self._engine.generate, with_proofs=with_proofs, should_stop=should_stop)
        if self.turns is not None:
            return self.turns(generate, asked, self.parameters or parameters)
        return generate(asked, self.parameters or parameters)

    def close(self) -> None:
        """Frees the memory and processes of the engine."""
        self._engine.close()


class _AlteredPlanner(SlotPlanner):
    """The version's planner, except that plans and dialogues are changed; scores are unchanged."""

    def __init__(self, honest: SlotPlanner, alter: Alter | None, dialogue: DialogueChange | None) -> None:
        self.__dict__.update(honest.__dict__)  # shares the state of the honest planner, instead of loading it again
        self._alter = alter
        self._change = dialogue

    def plan(self, seed: bytes, *, groups: int) -> SlotPlan:
        plan = super().plan(seed, groups=groups)
        return plan if self._alter is None else self._alter(plan)

    def converse(self, prompt: Prompt, tokens: Sequence[int], *, model: ModelFacts) -> Conversation:
        choice, change = self._recipe.dialogue, self._change
        if choice is None or self._format is None or change is None:
            return super().converse(prompt, tokens, model=model)
        limits = DialogueLimits(
            turns=choice.turns,
            new_tokens=self._recipe.sampling.max_new_tokens,
            reply_tokens=choice.reply_tokens,
            context=model.context,
        )
        return Conversation(
            change.episode(self.begin(change.prompt(prompt, self._environment.prompt))),
            prompt_tokens=tokens,
            dialogue_format=change.format(self._format),
            limits=change.limits(limits),
            end_tokens=model.end_tokens,
        )


class AttackToolkit(SlotGenerator):
    """Makes the files of an attack.

    Args:
        engine: Engine that has loaded the version.
        policy: The version on disk.
        scorer: Executor that scores answers.
        clock: Source of time.
        history: Folders of earlier versions, the oldest first.
        room: Folder for changed weights.
        make: The attack's function that makes a slot's file; None makes honest files.
    """

    def __init__(
        self,
        engine: AdjustableEngine,
        policy: HeldPolicy,
        *,
        scorer: Executor,
        clock: Clock,
        history: Sequence[Path],
        room: Path,
        make: Callable[[AttackToolkit, SlotGrant], RolloutFile | None] | None = None,
    ) -> None:
        super().__init__(engine, policy, scorer=scorer, clock=clock)
        self.engine = engine
        self.folder = policy.folder
        self.history = tuple(history)
        self.room = room
        self.model: ModelFacts = read_model(policy.folder)
        self._make = make
        self._honest = self._planner
        self._tokenizer = FolderTokenizer(policy.folder)
        self._should_stop: Callable[[], bool] = bool  # `bool()` returns False: do not stop
        self._right: Policy | None = None

    @property
    def planner(self) -> SlotPlanner:
        """Planner of the version."""
        return self._honest

    @property
    def recipe(self) -> Recipe:
        """Recipe of the version."""
        return self._recipe

    def produce(self, grant: SlotGrant, *, should_stop: Callable[[], bool]) -> Produced:
        """Returns the slot's file, made by the attack.

        Raises:
            GenerationStopped: `should_stop` returned True, or the attack gives the slot up.
        """
        if self._make is None:
            return super().produce(grant, should_stop=should_stop)
        began = self._clock.now()
        self._should_stop = should_stop
        file = self._make(self, grant)
        if file is None:
            raise GenerationStopped("the attack gives the slot up")
        return Produced(file, self._clock.now() - began)

    def file(
        self,
        grant: SlotGrant,
        *,
        weights: Path | None = None,
        noise: bytes | None = None,
        parameters: SamplingParameters | None = None,
        alter: Alter | None = None,
        dialogue: DialogueChange | None = None,
        turns: DrawTurns | None = None,
    ) -> RolloutFile:
        """Returns the slot's file, made by the real generator with the given overrides.

        Args:
            grant: The slot.
            weights: Folder of other weights than the version's.
            noise: Seed of the sampling noise, instead of the slot's.
            parameters: Sampling parameters, instead of the recipe's.
            alter: Changes the plan before generation.
            dialogue: Changes the environment's side of dialogues.
            turns: Draws the turns of dialogues.

        Raises:
            InvalidInput: `dialogue` or `turns` is given, and the version has single answers.
        """
        if (dialogue is not None or turns is not None) and self._recipe.dialogue is None:
            raise InvalidInput(
                "this attack needs dialogues, and the version has single answers",
                hint="start the attack in a run whose recipe has the field dialogue",
            )
        engine = self.engine
        engine.weights, engine.noise, engine.parameters, engine.turns = weights, noise, parameters, turns
        self._planner = _AlteredPlanner(self._honest, alter, dialogue)
        try:
            return super().produce(grant, should_stop=self._should_stop).file
        finally:
            engine.weights = engine.noise = engine.parameters = engine.turns = None
            self._planner = self._honest

    def is_stopped(self) -> bool:
        """Returns True if the task has to give the slot up."""
        return self._should_stop()

    def seed(self, grant: SlotGrant) -> bytes:
        """Returns the slot's seed."""
        return seed_of_grant(grant)

    def proven(self, file: RolloutFile) -> RolloutFile:
        """Returns the same tokens with the proofs and log-probabilities of a prefill of the version."""
        if self._right is None:
            self._right = load_policy(self.folder, dtype=self.engine.dtype, device=torch.device("cpu"))
        answers = prefill_items(file, range(len(file.samples)))
        states: list[list[torch.Tensor]] = [[] for _ in answers]
        logprobs: list[list[np.ndarray[tuple[int], np.dtype[np.float32]]]] = [[] for _ in answers]
        for every in prefill(self._right, answers):
            part = drawn_rows(every, answers)
            scaled, at = scale(part.logits, self._recipe.sampling.parameters), 0
            totals = log_sums(scaled)
            for span in part.spans:
                here = slice(at, at := at + span.stop - span.start)
                drawn = file.samples[span.answer].output_tokens[span.start : span.stop]
                tokens = torch.from_numpy(drawn.astype(np.int64))
                chosen = scaled[here].gather(1, tokens[:, None])[:, 0] - totals[here]
                states[span.answer].append(part.states[here].clone())
                logprobs[span.answer].append(chosen.numpy().astype(np.float32))
        samples = tuple(
            replace(sample, logprobs=np.concatenate(own), proofs=proofs_of(torch.cat(of_one)))
            for sample, own, of_one in zip(file.samples, logprobs, states, strict=True)
        )
        return RolloutFile(file.header, samples)

    def scored(self, sample: Sample) -> Sample:
        """Returns the sample with the reward that the environment gives to its present answer."""
        prompt, tokens = self._honest.ask(sample.prompt_index, sample.target_length)
        drawn = sample.output_tokens.tolist()
        if sample.turns:
            conversation, start = self._honest.converse(prompt, tokens, model=self.model), 0
            for turn in sample.turns:
                own = drawn[start : start + turn.drawn]
                if conversation.fault_of(own):
                    break
                conversation.add(own)
                start += turn.drawn
            reward = self._honest.dialogue_reward(conversation)
        else:
            reward = self._honest.reward(prompt, drawn, sample.finish)
        return replace(sample, task_reward=reward.task, length_penalty=reward.length_penalty, reward=reward.total)

    def answered(self, sample: Sample, tokens: Sequence[int]) -> Sample:
        """Returns the sample with another answer that an end token closes, and with the reward of this answer.

        In a dialogue the answer is the only turn.

        An answer longer than the recipe's `max_new_tokens` is cut, and has no end token. The proofs of the old answer
        stay, and all log-probabilities are set to 0; `proven` computes both for the new answer.
        """
        most = self._recipe.sampling.max_new_tokens
        ended = [*tokens, min(self.model.end_tokens)]
        finish = FinishReason.EOS if len(ended) <= most else FinishReason.LENGTH
        new = np.array(ended[:most], np.int32)
        turns = (Turn(len(new), np.zeros(0, np.int32)),) if sample.turns else ()
        logprobs = np.zeros(len(new), np.float32)
        return self.scored(replace(sample, output_tokens=new, logprobs=logprobs, finish=finish, turns=turns))

    def encode(self, text: str) -> Sequence[int]:
        """Returns the tokens of a text without any tokens before or after it."""
        return self._tokenizer.encode_answer(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens, without control tokens."""
        return self._tokenizer.decode(list(tokens))

    def written(self, sample: Sample, text: str) -> Sample:
        """Returns the sample with `text` as its answer, as `answered` does with tokens."""
        return self.answered(sample, self._tokenizer.encode_answer(text))

    def right_answer(self, sample: Sample) -> list[int]:
        """Returns the tokens of the right answer, if the environment reveals it.

        Raises:
            InvalidInput: The environment does not reveal the right answer.
        """
        prompt, _ = self._honest.ask(sample.prompt_index, sample.target_length)
        data = prompt.data.get("data", prompt.data)  # a mixture nests its part's data
        known = data.get("answer") if isinstance(data, Mapping) else None
        answer = known or self._environment.demonstration(prompt)
        if answer is None:
            raise InvalidInput(f"{self._environment.name} does not reveal its answers", hint="use a synthetic family")
        return self._tokenizer.encode_answer(str(answer))
