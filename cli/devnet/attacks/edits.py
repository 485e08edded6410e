"""Attacks that change a finished file: its rewards, its text, its length or its header."""

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
from rollouts.precision import Arithmetic, Dtype
from rollouts.turns import Turn

_PADDING = 8
"""Tokens that `padded` appends."""
_OFF = 0.25
"""Amount by which `unlikelier` lowers log-probabilities."""
_BONUS = 0.5
"""Length reward that `unpenalised` invents."""


class Rewritten(Trick):
    """Makes an honest file, then changes every row.

    Args:
        change: Returns the changed row.
        proven: Whether a prefill computes new proofs and log-probabilities for the changed rows.
    """

    def __init__(self, change: Callable[[AttackToolkit, Sample], Sample], *, proven: bool = False) -> None:
        self._change = change
        self._proven = proven

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns the honest file with changed rows."""
        file = toolkit.file(grant)
        changed = RolloutFile(file.header, tuple(self._change(toolkit, sample) for sample in file.samples))
        return toolkit.proven(changed) if self._proven else changed


class Rearranged(Trick):
    """Makes an honest file, then omits rows or changes their order.

    Args:
        choose: Returns the rows to submit, in order.
    """

    def __init__(self, choose: Callable[[Sequence[Sample]], Sequence[Sample]]) -> None:
        self._choose = choose

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns the honest file with rearranged rows."""
        file = toolkit.file(grant)
        return RolloutFile(file.header, tuple(self._choose(file.samples)))


class WrongRun(Trick):
    """Submits a file that the node made for another run."""

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns a file generated for the other run."""
        other = grant.model_copy(update={"lease": grant.lease.model_copy(update={"run": run_id("another-run")})})
        return toolkit.file(other)


class Relabelled(Trick):
    """Changes the header to declare another data type or software.

    Args:
        change: Returns the new header.
        of: Attack that makes the file to relabel; by default the file is honest.
    """

    def __init__(self, change: Callable[[SlotHeader], SlotHeader], *, of: Trick | None = None) -> None:
        self._change = change
        self._of = of or Trick()

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile | None:
        """Returns the file with the changed header."""
        file = self._of.make(toolkit, grant)
        return None if file is None else RolloutFile(self._change(file.header), file.samples)


def other_arithmetic(header: SlotHeader) -> SlotHeader:
    """Declares bfloat16, for which validators use wider limits than for float32."""
    return replace(header, arithmetic=Arithmetic(engine=header.engine, dtype=Dtype.BFLOAT16))


def own_build(header: SlotHeader) -> SlotHeader:
    """Declares a build of the environment that no validator has."""
    return replace(header, environment_version=f"{header.environment_version}+mine")


class OneRow(Trick):
    """Makes an honest file, then changes its first row; a prefill computes the proofs of all rows.

    Args:
        change: Returns the changed row.
        claimed: Claimed work units; None claims the units of the file.
    """

    def __init__(self, change: Callable[[AttackToolkit, Sample], Sample], *, claimed: int | None = None) -> None:
        self._change = change
        self._claimed = claimed

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns the honest file with a changed first row."""
        file = toolkit.file(grant)
        first, *others = file.samples
        return toolkit.proven(RolloutFile(file.header, (self._change(toolkit, first), *others)))

    def units(self, file: RolloutFile) -> int:
        """Returns the claimed work units."""
        return file.units if self._claimed is None else self._claimed


class OtherPool(Trick):
    """Submits a file that the node made under another pool's lease of the same run."""

    def make(self, toolkit: AttackToolkit, grant: SlotGrant) -> RolloutFile:
        """Returns a file of the other pool; files don't name their pool."""
        other = grant.model_copy(update={"lease": grant.lease.model_copy(update={"pool_id": grant.lease.pool_id + 1})})
        return toolkit.file(other)


class Inflated(Trick):
    """Claims 1.5 times the work units of its file."""

    def units(self, file: RolloutFile) -> int:
        """Returns more units than there are tokens."""
        return file.units + max(1, file.units // 2)


def padded(toolkit: AttackToolkit, sample: Sample) -> Sample:
    """Appends tokens after the end token, so that the node is paid for more tokens."""
    if sample.finish is not FinishReason.EOS:
        return sample
    room = toolkit.recipe.sampling.max_new_tokens - len(sample.output_tokens)
    more = np.full(min(_PADDING, room), sample.output_tokens[-1], np.int32)
    tokens = np.concatenate([sample.output_tokens, more])
    logprobs = np.zeros(len(tokens), np.float32)
    return replace(sample, output_tokens=tokens, logprobs=logprobs, turns=_recut(sample.turns, len(tokens)))


def truncated(toolkit: AttackToolkit, sample: Sample) -> Sample:
    """Cuts the answer at a third of the recipe's limit, and declares that the answer reached the limit."""
    limit = max(1, toolkit.recipe.sampling.max_new_tokens // 3)
    if len(sample.output_tokens) <= limit:
        return sample
    return toolkit.scored(
        replace(
            sample,
            output_tokens=sample.output_tokens[:limit],
            logprobs=sample.logprobs[:limit],
            finish=FinishReason.LENGTH,
            turns=_recut(sample.turns, limit),
        )
    )


def _recut(turns: Sequence[Turn], drawn: int) -> tuple[Turn, ...]:
    """Returns the turns of a dialogue, cut or prolonged at its end to a number of drawn tokens."""
    left, new = drawn, list[Turn]()
    for turn in turns:
        if left > 0:
            new.append(Turn(min(turn.drawn, left), turn.given))
            left -= turn.drawn
    if not new:
        return ()
    return (*new[:-1], Turn(new[-1].drawn + max(0, left), np.zeros(0, np.int32)))


def edited(toolkit: AttackToolkit, sample: Sample) -> Sample:
    """Replaces the answer by the right one."""
    return toolkit.answered(sample, toolkit.right_answer(sample))


def endless(toolkit: AttackToolkit, sample: Sample) -> Sample:
    """Replaces the answer by an endless program, to block a validator that runs the program."""
    return toolkit.written(sample, "while True: pass")


def boxed(toolkit: AttackToolkit, sample: Sample) -> Sample:
    """Writes two values into the answer's box; a lenient scorer accepts it if one of the two is right."""
    return toolkit.written(sample, "\\boxed{11=12}")


def made_up(toolkit: AttackToolkit, sample: Sample) -> Sample:
    """Replaces all tokens but the last, which stays so that the answer ends properly."""
    *others, last = sample.output_tokens.tolist()
    tokens = [(token + 1) % toolkit.model.vocabulary for token in others]
    safe = [token if token not in toolkit.model.end_tokens else token + 2 for token in tokens]
    return toolkit.scored(replace(sample, output_tokens=np.array([*safe, last], np.int32)))


def rewarded(_: AttackToolkit, sample: Sample) -> Sample:
    """Reports the full reward."""
    return replace(sample, task_reward=1.0, reward=1.0 - sample.length_penalty)


def unpenalised(_: AttackToolkit, sample: Sample) -> Sample:
    """Reports no length penalty for rows with a target length, and a bonus for rows without one."""
    penalty = 0.0 if sample.target_length is not None else -_BONUS
    return replace(sample, length_penalty=penalty, reward=sample.task_reward - penalty)


def unlikelier(_: AttackToolkit, sample: Sample) -> Sample:
    """Lowers the log-probabilities of rewarded answers.

    The trainer then learns more from these answers than it should.
    """
    shift = np.float32(_OFF if sample.reward > 0 else 0)
    return replace(sample, logprobs=sample.logprobs - shift)


def without_the_worst(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Omits the worst answer of every group."""
    worst: dict[int, int] = {}
    for place, sample in enumerate(samples):
        if sample.group not in worst or sample.reward < samples[worst[sample.group]].reward:
            worst[sample.group] = place
    return [sample for place, sample in enumerate(samples) if place not in worst.values()]


def best_first(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Sorts all rows by descending reward; if they are sorted already, reverses them.

    A reader that derives a row's group from its position then assigns rows to the wrong groups.
    """
    ordered = sorted(samples, key=lambda sample: sample.reward, reverse=True)
    return ordered if ordered != list(samples) else list(reversed(samples))
