"""Attacks with other prompts, length targets or samples than the slot's seed gives."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from cli.devnet.attacks.attack import Trick
from cli.devnet.attacks.toolkit import AttackToolkit
from protocol.wire.slots import SlotGrant
from rollouts.files.samples import RolloutFile, Sample
from rollouts.plan import SlotPlan
from rollouts.sampling.parameters import SamplingParameters

_TRIES = 4
"""Samples per answer in `BestOf`."""
_COOLER = 0.8
"""Factor on the recipe's temperature in `OtherParameters`."""
_NEARLY = 0.05
"""Relative difference from the recipe's temperature in `NearTies`."""


class OtherPrompt(Trick):
    """Answers one and the same prompt in every group; another seed than the slot's draws this prompt.

    Args:
        says_so: True: rows have the index of the answered prompt. False: rows have the indices of the planned prompts.
    """

    def __init__(self, *, says_so: bool) -> None:
        self._says_so = says_so

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns a file of answers to a prompt that the slot's seed does not draw."""
        elsewhere = hashlib.sha256(toolkit.seed(grant)).digest()
        [drawn] = toolkit.planner.plan(elsewhere, groups=1).groups

        def alter(plan: SlotPlan) -> SlotPlan:
            groups = []
            for group in plan.groups:
                index = drawn.prompt.index if self._says_so else group.prompt.index
                groups.append(replace(group, prompt=replace(drawn.prompt, index=index), tokens=drawn.tokens))
            return replace(plan, groups=tuple(groups))

        return toolkit.file(grant, alter=alter)


class BestOf(Trick):
    """Samples each answer several times and submits the sample with the highest reward.

    The first sample uses the noise of the slot's seed; each further sample uses the noise of another seed.

    Args:
        tries: Number of samples per answer.
    """

    def __init__(self, tries: int = _TRIES) -> None:
        self._tries = tries

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns, for each row, the sample with the highest reward among several files."""
        seed = toolkit.seed(grant)
        noises = [hashlib.sha256(seed + bytes([number])).digest() for number in range(1, self._tries)]
        files = [toolkit.file(grant), *(toolkit.file(grant, noise=noise) for noise in noises)]
        rows = zip(*(file.samples for file in files), strict=True)
        return RolloutFile(files[0].header, tuple(max(row, key=_reward) for row in rows))


class OtherParameters(Trick):
    """Samples with other parameters than the recipe's, but reports log-probabilities under the recipe's.

    Args:
        temperature: Factor on the recipe's temperature.
        top_k: Replaces the recipe's top-k; None keeps the recipe's.
    """

    def __init__(self, *, temperature: float = _COOLER, top_k: int | None = None) -> None:
        self._temperature = temperature
        self._top_k = top_k

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns a file with honest proofs of tokens that were sampled differently."""
        right = toolkit.recipe.sampling.parameters
        top_k = right.top_k if self._top_k is None else self._top_k
        own: SamplingParameters = replace(right, temperature=right.temperature * self._temperature, top_k=top_k)
        return toolkit.proven(toolkit.file(grant, parameters=own))


class NearTies(Trick):
    """Samples each answer at three slightly different temperatures, and submits the best-rewarded sample.

    So small a difference changes a token only at a near-tie: where two tokens are almost equally likely.

    Args:
        off: Relative difference of the lowest and the highest temperature from the recipe's.
    """

    def __init__(self, off: float = _NEARLY) -> None:
        self._off = off

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns, for each row, the best of three samples that differ in near-ties only.

        A prefill of the version computes their proofs and log-probabilities.
        """
        right = toolkit.recipe.sampling.parameters
        nearly = [replace(right, temperature=right.temperature * (1 + off)) for off in (-self._off, self._off)]
        files = [*(toolkit.file(grant, parameters=parameters) for parameters in nearly), toolkit.file(grant)]
        rows = zip(*(file.samples for file in files), strict=True)
        return toolkit.proven(RolloutFile(files[0].header, tuple(max(row, key=_reward) for row in rows)))


class EarlyEnd(Trick):
    """Writes an end token halfway through each answer, with new proofs for the shorter answer."""

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns a file with every answer cut in half, and an end token that was not sampled."""
        file = toolkit.file(grant)
        halves = tuple(
            toolkit.answered(sample, sample.output_tokens[: len(sample.output_tokens) // 2].tolist())
            for sample in file.samples
        )
        return toolkit.proven(RolloutFile(file.header, halves))


def _reward(sample: Sample) -> float:
    return sample.reward
