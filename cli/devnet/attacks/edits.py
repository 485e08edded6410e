"""A finished file, changed by hand: what it earns, what it says, and how long it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from cli.devnet.attacks.attack import Trick
from cli.devnet.attacks.toolkit import AttackToolkit
from protocol.identifiers import run_id
from protocol.wire.slots import SlotGrant
from rollouts.engines.interface import FinishReason
from rollouts.files.samples import RolloutFile, Sample, SlotHeader
from rollouts.precision import Dtype, EngineName

_PADDING = 8
_OFF = 0.25
_BONUS = 0.5


class Rewritten(Trick):
    """Makes an honest file, and then changes every row.

    Args:
        change: What a row becomes.
        proven: Whether proofs and log-probabilities are then made to fit.
    """

    def __init__(self, change: Callable[[AttackToolkit, Sample], Sample], *, proven: bool = False) -> None:
        self._change = change
        self._proven = proven

    def make(self, bench: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """The honest file with other rows."""
        file = bench.file(grant)
        changed = RolloutFile(file.header, tuple(self._change(bench, sample) for sample in file.samples))
        return bench.proven(changed) if self._proven else changed


class Rearranged(Trick):
    """Makes an honest file, and then leaves rows out or changes their order.

    Args:
        choose: The rows that are handed in.
    """

    def __init__(self, choose: Callable[[Sequence[Sample]], Sequence[Sample]]) -> None:
        self._choose = choose

    def make(self, bench: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """The honest file's rows as they please."""
        file = bench.file(grant)
        return RolloutFile(file.header, tuple(self._choose(file.samples)))


class WrongRun(Trick):
    """Hands in work that it did for another run, where answers are easier."""

    def make(self, bench: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """A file of the other run."""
        other = grant.model_copy(update={"lease": grant.lease.model_copy(update={"run": run_id("another-run")})})
        return bench.file(other)


class Relabelled(Trick):
    """Changes the header to claim another arithmetic or software.

    Args:
        change: Returns the new header.
        of: Makes the file; by default an honest one.
    """

    def __init__(self, change: Callable[[SlotHeader], SlotHeader], *, of: Trick | None = None) -> None:
        self._change = change
        self._of = of or Trick()

    def make(self, bench: AttackToolkit, grant: SlotGrant) -> RolloutFile | None:
        """Returns the file with the changed header."""
        file = self._of.make(bench, grant)
        return None if file is None else RolloutFile(self._change(file.header), file.samples)


def other_arithmetic(header: SlotHeader) -> SlotHeader:
    """The type that has wider limits."""
    return replace(header, dtype=Dtype.BFLOAT16)


def as_of_vllm(header: SlotHeader) -> SlotHeader:
    """The engine that has the widest limits of all, in the same type."""
    return replace(header, engine=EngineName.VLLM)


def own_build(header: SlotHeader) -> SlotHeader:
    """A build of the environment that no validator has."""
    return replace(header, environment_version=f"{header.environment_version}+mine")


class OneRow(Trick):
    """Makes an honest file, and then changes one row of it, with proofs that fit.

    Args:
        change: What the row becomes.
        claimed: Work units that are claimed; None claims what is in the file.
    """

    def __init__(self, change: Callable[[AttackToolkit, Sample], Sample], *, claimed: int | None = None) -> None:
        self._change = change
        self._claimed = claimed

    def make(self, bench: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """The honest file with another first row."""
        file = bench.file(grant)
        first, *others = file.samples
        return bench.proven(RolloutFile(file.header, (self._change(bench, first), *others)))

    def units(self, file: RolloutFile) -> int:
        """Returns the claimed work units."""
        return file.units if self._claimed is None else self._claimed


class OtherPool(Trick):
    """Hands in what it did under the same run's lease of another pool."""

    def make(self, bench: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """A file of the other pool; files don't name their pool."""
        other = grant.model_copy(update={"lease": grant.lease.model_copy(update={"pool_id": grant.lease.pool_id + 1})})
        return bench.file(other)


class Inflated(Trick):
    """Claims half as much work again as is in its file."""

    def units(self, file: RolloutFile) -> int:
        """More than there are tokens."""
        return file.units + max(1, file.units // 2)


def padded(bench: AttackToolkit, sample: Sample) -> Sample:
    """Tokens behind the end, to be paid for more of them."""
    if sample.finish is not FinishReason.EOS:
        return sample
    room = bench.recipe.sampling.max_new_tokens - len(sample.output_tokens)
    more = np.full(min(_PADDING, room), sample.output_tokens[-1], np.int32)
    tokens = np.concatenate([sample.output_tokens, more])
    return replace(sample, output_tokens=tokens, logprobs=np.zeros(len(tokens), np.float32))


def truncated(bench: AttackToolkit, sample: Sample) -> Sample:
    """The answer cut at a limit of the cheat's own, as if that were the recipe's."""
    limit = max(1, bench.recipe.sampling.max_new_tokens // 3)
    if len(sample.output_tokens) <= limit:
        return sample
    return bench.scored(
        replace(
            sample,
            output_tokens=sample.output_tokens[:limit],
            logprobs=sample.logprobs[:limit],
            finish=FinishReason.LENGTH,
        )
    )


def edited(bench: AttackToolkit, sample: Sample) -> Sample:
    """The right answer, written by hand."""
    return bench.answered(sample, bench.right_answer(sample))


def endless(bench: AttackToolkit, sample: Sample) -> Sample:
    """A program that never ends, which keeps a validator busy that runs it."""
    return bench.written(sample, "while True: pass")


def boxed(bench: AttackToolkit, sample: Sample) -> Sample:
    """A box with a wrong value beside the right one, which a lenient reader takes for the right one."""
    return bench.written(sample, "\\boxed{11=12}")


def made_up(bench: AttackToolkit, sample: Sample) -> Sample:
    """Tokens that nothing was computed for; the last one stays, so that the answer ends as it did."""
    *others, last = sample.output_tokens.tolist()
    tokens = [(token + 1) % bench.model.vocabulary for token in others]
    safe = [token if token not in bench.model.end_tokens else token + 2 for token in tokens]
    return bench.scored(replace(sample, output_tokens=np.array([*safe, last], np.int32)))


def rewarded(_: AttackToolkit, sample: Sample) -> Sample:
    """Every task solved."""
    return replace(sample, task_reward=1.0, reward=1.0 - sample.length_penalty)


def unpenalised(_: AttackToolkit, sample: Sample) -> Sample:
    """No length penalty where there is one, and a bonus where there is none."""
    penalty = 0.0 if sample.target_length is not None else -_BONUS
    return replace(sample, length_penalty=penalty, reward=sample.task_reward - penalty)


def unlikelier(_: AttackToolkit, sample: Sample) -> Sample:
    """Log-probabilities that make the trainer learn more from each good answer than it should."""
    shift = np.float32(_OFF if sample.reward > 0 else 0)
    return replace(sample, logprobs=sample.logprobs - shift)


def without_the_worst(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Every group less its worst answer."""
    worst: dict[int, int] = {}
    for place, sample in enumerate(samples):
        if sample.group not in worst or sample.reward < samples[worst[sample.group]].reward:
            worst[sample.group] = place
    return [sample for place, sample in enumerate(samples) if place not in worst.values()]


def best_first(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The best answers first; a reader that numbers rows by their place gives others' rewards to the first group."""
    ordered = sorted(samples, key=lambda sample: sample.reward)
    return ordered if ordered != list(samples) else list(reversed(samples))
