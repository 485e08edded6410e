"""Produces the files of leased slots: plan, generate, score. The answers of several slots may share a batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Protocol

import numpy as np

from protocol.errors import Conflict
from protocol.identifiers import Digest
from protocol.leases import Lease
from protocol.runtime.clock import Clock
from protocol.wire.slots import SlotGrant
from rollouts.dialogue.play import PlayedDialogue, play
from rollouts.engines.interface import Completion, SampleRequest
from rollouts.environments import Reward, load_environment
from rollouts.files.samples import RolloutFile, Sample, SlotHeader
from rollouts.models.facts import read_model
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.plan import PlannedGroup, SlotPlan, SlotPlanner
from rollouts.recipe import Recipe, check_classes, eligible_prompts, read_recipe
from rollouts.sampling.parameters import SamplingParameters
from rollouts.seeds import seed_of_grant
from rollouts.task.arithmetic import HasArithmetics, paid_arithmetic
from rollouts.task.policies import HeldPolicy


class LeaseTooLarge(Conflict):
    """The lease allows more work units than its groups can produce."""

    code = "lease-too-large"
    default_hint = "the task releases the slot; the pool owner should correct the run's units per group"


@dataclass(frozen=True, slots=True)
class Produced:
    """A slot's file, and the time that its generation took."""

    file: RolloutFile
    took: timedelta


class Generates(HasArithmetics, Protocol):
    """The part of an engine that generates."""

    def generate(
        self,
        requests: Sequence[SampleRequest],
        parameters: SamplingParameters,
        *,
        should_stop: Callable[[], bool] | None = None,
    ) -> Iterator[Completion]:
        """Yields one completion per request, with proofs: see `Engine.generate`."""


class EnvironmentUse:
    """Lets one thread at a time use an environment; planning a slot goes before the rewards that wait."""

    def __init__(self) -> None:
        self._entry, self._use = threading.Lock(), threading.Lock()

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Waits at most for one reward; rewards that have not begun wait until the end."""
        with self._entry, self._use:
            yield

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Waits for planning that has begun or waits."""
        with self._entry:
            pass
        with self._use:
            yield


class SlotGenerator:
    """Produces files with one version of the policy.

    Args:
        engine: An engine that has loaded the version.
        policy: The version's folder.
        scorer: Executor that scores answers while others are generated.
        clock: Clock for measuring time.

    Raises:
        BadVersionFolder: The folder has no usable recipe, prompts or tokenizer.
        UnknownEnvironment: The recipe's environment is not installed here.
        ArithmeticNotTaken: The recipe accepts none of the engine's arithmetics.
    """

    def __init__(self, engine: Generates, policy: HeldPolicy, *, scorer: Executor, clock: Clock) -> None:
        self._engine = engine
        self._policy = policy
        self._scorer = scorer
        self._clock = clock
        self._recipe: Recipe = read_recipe(policy.folder)
        self._facts = read_model(policy.folder)
        check_classes(self._recipe, self._facts, folder=policy.folder)
        self.choose_arithmetic(())
        choice = self._recipe.environment
        self._environment = load_environment(choice.name, version=choice.version, options=choice.options)
        self._planner = SlotPlanner(
            recipe=self._recipe,
            eligible=eligible_prompts(policy.folder, self._recipe),
            environment=self._environment,
            tokenizer=FolderTokenizer(policy.folder),
        )
        self._environment_use = EnvironmentUse()

    @property
    def version(self) -> Digest:
        """Digest of the version that files are generated with."""
        return self._policy.digest

    def choose_arithmetic(self, unverifiable: Collection[str]) -> None:
        """Chooses the arithmetic that further files name.

        Args:
            unverifiable: Numerics classes that no validator of the pool can verify now.

        Raises:
            ArithmeticNotTaken: The recipe accepts none of the engine's arithmetics.
            ArithmeticNotVerifiable: No validator can verify those of the engine's arithmetics that the recipe accepts.
        """
        self._arithmetic = paid_arithmetic(self._recipe.taken, self._engine, unverifiable=unverifiable)

    def check_lease(self, lease: Lease) -> None:
        """Checks that the lease allows no more work units than the recipe can produce.

        The ledger locks the penalty for forged work in proportion to `max_units`, so a larger value would lock more of
        the provider's stake than necessary.

        Raises:
            LeaseTooLarge: The lease allows more work units than the recipe can produce.
        """
        most = lease.groups * self._recipe.units_per_group
        if lease.max_units > most:
            raise LeaseTooLarge(
                f"the lease allows {lease.max_units} work units, but {lease.groups} groups of this version have "
                f"{most} at most, and the penalty is locked for all units that the lease allows"
            )

    def plan(self, grant: SlotGrant) -> SlotPlan:
        """Returns the prompts and requests of a slot.

        Raises:
            LeaseTooLarge: The lease allows more work units than its groups can produce.
        """
        lease = grant.lease.lease
        self.check_lease(lease)
        with self._environment_use.planning():
            return self._planner.plan(seed_of_grant(grant), groups=lease.groups)

    def begin(self, grant: SlotGrant, plan: SlotPlan, *, should_stop: Callable[[], bool]) -> SlotInProgress:
        """Requests the answers of a slot; does not wait for them. Waits for the environment if it has dialogues.

        Raises:
            EnvironmentFault: The environment breaks its contract.
            NothingLoaded: The engine has lost the version after a failure.
        """
        lease = grant.lease.lease
        header = SlotHeader(
            run=lease.run,
            step=lease.step,
            index=lease.index,
            node=lease.node,
            checkpoint=lease.digest,
            environment=self._recipe.environment.name,
            environment_version=self._environment.version,
            arithmetic=self._arithmetic,
        )
        if self._recipe.dialogue is not None:
            samples = partial(self._dialogues, plan, self._play(plan, should_stop))
        else:
            parameters = self._recipe.sampling.parameters
            answers = self._engine.generate(plan.requests(), parameters, should_stop=should_stop)
            samples = partial(self._single_answers, plan, answers)
        return SlotInProgress(header, samples, clock=self._clock)

    def _single_answers(self, plan: SlotPlan, answers: Iterator[Completion]) -> Sequence[Sample]:
        drawn: dict[int, Completion] = {}
        rewards: dict[int, Future[Reward]] = {}
        groups = plan.group_of_sample()
        try:
            for completion in answers:
                drawn[completion.sample] = completion
                rewards[completion.sample] = self._scorer.submit(self._reward, groups[completion.sample], completion)
            return [_sample(groups[number], drawn[number], rewards[number].result()) for number in sorted(drawn)]
        finally:
            for waiting in rewards.values():
                waiting.cancel()

    def _play(self, plan: SlotPlan, should_stop: Callable[[], bool]) -> Iterator[PlayedDialogue]:
        dialogues = [
            self._planner.dialogue(
                group, sample, seed=plan.seed, model=self._facts, environment_use=self._environment_use.scoring
            )
            for sample, group in plan.group_of_sample().items()
        ]
        parameters = self._recipe.sampling.parameters
        return play(self._engine, dialogues, parameters, replies=self._scorer, should_stop=should_stop)

    def _dialogues(self, plan: SlotPlan, played: Iterator[PlayedDialogue]) -> Sequence[Sample]:
        groups = plan.group_of_sample()
        return [_played_sample(groups[one.sample], one) for one in sorted(played, key=lambda one: one.sample)]

    def _reward(self, group: PlannedGroup, completion: Completion) -> Reward:
        with self._environment_use.scoring():
            return self._planner.reward(group.prompt, completion.tokens, completion.finish)

    def produce(self, grant: SlotGrant, *, should_stop: Callable[[], bool]) -> Produced:
        """Generates and scores a slot's file, alone.

        Raises:
            LeaseTooLarge: The lease allows more work units than its groups can produce.
            NothingLoaded: The engine has lost the version after a failure.
            Others: See `SlotInProgress.finish`.
        """
        return self.begin(grant, self.plan(grant), should_stop=should_stop).finish()


class SlotInProgress:
    """A slot whose answers the engine computes.

    Args:
        header: Header of the file.
        samples: Waits for the samples; returns them in the order of the file's rows.
        clock: Clock for measuring time.
    """

    def __init__(self, header: SlotHeader, samples: Callable[[], Sequence[Sample]], *, clock: Clock) -> None:
        self._header = header
        self._samples = samples
        self._clock = clock
        self._began = clock.monotonic()

    def finish(self) -> Produced:
        """Waits for the answers and their rewards; returns the file.

        Raises:
            GenerationStopped: `should_stop` returned true.
            EngineFailed: The engine failed.
            EnvironmentFault: The environment breaks its contract.
            SandboxUnavailable: This machine has no sandbox for scoring answers.
        """
        file = RolloutFile(self._header, tuple(self._samples()))
        return Produced(file, timedelta(seconds=self._clock.monotonic() - self._began))


def _sample(group: PlannedGroup, completion: Completion, reward: Reward) -> Sample:
    return Sample(
        group=group.group,
        sample=completion.sample,
        prompt_index=group.prompt.index,
        prompt_tokens=np.array(group.tokens, np.int32),
        output_tokens=np.array(completion.tokens, np.int32),
        logprobs=completion.logprobs,
        finish=completion.finish,
        task_reward=reward.task,
        length_penalty=reward.length_penalty,
        reward=reward.total,
        target_length=reward.target,
        proofs=completion.proofs,
    )


def _played_sample(group: PlannedGroup, played: PlayedDialogue) -> Sample:
    return replace(_sample(group, played.drawn, played.reward), turns=played.turns)
