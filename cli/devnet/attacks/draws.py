"""Other prompts, other targets and other draws than the slot's seed gives."""

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
_COOLER = 0.8
_NEARLY = 0.05


class OtherPrompt(Trick):
    """Answers one and the same prompt in every group: one that another slot would have drawn.

    Args:
        says_so: Whether the file names that prompt; else it names the planned ones.
    """

    def __init__(self, *, says_so: bool) -> None:
        self._says_so = says_so

    def make(self, bench: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Answers to another question than the seed asks."""
        elsewhere = hashlib.sha256(bench.seed(grant)).digest()
        [drawn] = bench.planner.plan(elsewhere, groups=1).groups

        def alter(plan: SlotPlan) -> SlotPlan:
            groups = []
            for group in plan.groups:
                index = drawn.prompt.index if self._says_so else group.prompt.index
                groups.append(replace(group, prompt=replace(drawn.prompt, index=index), tokens=drawn.tokens))
            return replace(plan, groups=tuple(groups))

        return bench.file(grant, alter=alter)


class BestOf(Trick):
    """Draws each answer several times, with noise of its own after the first, and keeps the one with the best reward.

    Args:
        tries: How often.
    """

    def __init__(self, tries: int = _TRIES) -> None:
        self._tries = tries

    def make(self, bench: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """The best of several files, row by row."""
        seed = bench.seed(grant)
        noises = [hashlib.sha256(seed + bytes([number])).digest() for number in range(1, self._tries)]
        files = [bench.file(grant), *(bench.file(grant, noise=noise) for noise in noises)]
        rows = zip(*(file.samples for file in files), strict=True)
        return RolloutFile(files[0].header, tuple(max(row, key=_reward) for row in rows))


class OtherParameters(Trick):
    """Draws by parameters of its own, and reports the log-probabilities that the right ones would give.

    Args:
        temperature: What the recipe's temperature is multiplied with.
        top_k: As the recipe's.
    """

    def __init__(self, *, temperature: float = _COOLER, top_k: int | None = None) -> None:
        self._temperature = temperature
        self._top_k = top_k

    def make(self, bench: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Honest proofs of tokens that were drawn in another way."""
        right = bench.recipe.sampling.parameters
        top_k = right.top_k if self._top_k is None else self._top_k
        own: SamplingParameters = replace(right, temperature=right.temperature * self._temperature, top_k=top_k)
        return bench.proven(bench.file(grant, parameters=own))


class NearTies(Trick):
    """Takes, where several tokens are nearly as likely, the one that is rewarded best.

    Parameters a little off draw another token only where two are nearly tied.

    Args:
        off: How far the temperatures are off, as a share.
    """

    def __init__(self, off: float = _NEARLY) -> None:
        self._off = off

    def make(self, bench: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """The best of three files that differ in near-ties only, row by row, with the version's own proofs."""
        right = bench.recipe.sampling.parameters
        nearly = [replace(right, temperature=right.temperature * (1 + off)) for off in (-self._off, self._off)]
        files = [*(bench.file(grant, parameters=parameters) for parameters in nearly), bench.file(grant)]
        rows = zip(*(file.samples for file in files), strict=True)
        return bench.proven(RolloutFile(files[0].header, tuple(max(row, key=_reward) for row in rows)))


class EarlyEnd(Trick):
    """Writes an end token halfway through each answer: half of the work, and proofs that fit what is left."""

    def make(self, bench: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Every answer cut in half, with an end token that nobody drew."""
        file = bench.file(grant)
        halves = tuple(
            bench.answered(sample, sample.output_tokens[: len(sample.output_tokens) // 2].tolist())
            for sample in file.samples
        )
        return bench.proven(RolloutFile(file.header, halves))


def _reward(sample: Sample) -> float:
    return sample.reward
