"""One examination from the first byte to the conclusion, in one process: the checks in the order of their cost.

Whatever fails here that is not the file is a `NotJudged`: no policy, no calibration, no memory, no sandbox.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from protocol.errors import MusterError
from protocol.identifiers import Digest
from protocol.verdicts import ReasonCode
from rollouts.calibration import RolloutCalibration
from rollouts.checks import EXACT_CHECKS, Case, CheckedVersion, CheckResult, Fails, Finding, SlotFacts, State
from rollouts.checks.result import Check, concluded
from rollouts.engines.errors import OutOfMemory
from rollouts.engines.interface import Dtype
from rollouts.samples import RolloutFile
from rollouts.schema import ReadLimits
from rollouts.verify import limits_of
from validator.audit.draw import draw_rows
from validator.examination.conclusion import (
    Prefilled,
    Verdict,
    accepted,
    forged,
    not_taken,
    on_word_only,
    other_joining,
    rewards_differ,
    statistical,
)
from validator.examination.interface import Conclusion, NotJudged
from validator.examination.orders import Order
from validator.examination.prefilling import Prefill
from validator.examination.reading import LimitedReader
from validator.examination.record import Record, Stages, unread
from validator.examination.scoring import scored
from validator.examination.shelf import Shelf
from validator.submissions import WorkFacts

_SLACK = 4
"""How much larger than the largest honest file one may be and still be read, so that the check it fails says why."""

_ANY = ReadLimits(file_bytes=1 << 62, rows=1 << 62, decoded_bytes=1 << 62, tokens=1 << 62)
"""Of a slot that nobody knows: what is too large for this machine is not too large for its slot."""

AskCopy = Callable[[Digest], bool]


class _CannotJudgeError(Exception):
    """Carries the reason out of the stages."""

    def __init__(self, why: NotJudged) -> None:
        super().__init__(why.why)
        self.why = why


class Procedure:
    """Examines files, one after another.

    Args:
        reader: Of strangers' files.
        shelf: Of versions and weights.
        calibration: The limits of statistical checks.
        most: The largest file that is read here.
        dtype: What to compute in; None for what each file names.
        margin: Beyond which a statistical failure is forgery.
    """

    def __init__(
        self,
        *,
        reader: LimitedReader,
        shelf: Shelf,
        calibration: RolloutCalibration,
        most: ReadLimits,
        dtype: Dtype | None,
        margin: float,
    ) -> None:
        self._reader = reader
        self._shelf = shelf
        self._calibration = calibration
        self._most = most
        self._dtype = dtype
        self._margin = margin

    def examine(self, order: Order, *, is_copy: AskCopy) -> Conclusion | NotJudged:
        """Makes every check until one fails hard, and draws the conclusion."""
        try:
            return self._examine(order, is_copy)
        except _CannotJudgeError as error:
            return error.why
        except OutOfMemory as error:
            return NotJudged(code="out-of-memory", why=error.detail, retryable=True, hint=error.hint)
        except MemoryError as error:
            return NotJudged(code="out-of-memory", why=f"memory ran out: {error}", retryable=True)
        except MusterError as error:
            return NotJudged(code=error.code, why=error.detail, retryable=error.retryable, hint=error.hint)
        except OSError as error:
            return NotJudged(code="disk-trouble", why=str(error), retryable=True)

    def try_out(self) -> NotJudged | None:
        """Decodes a file of our own in the sandbox, and computes something; None if both come out right."""
        try:
            return self._reader.try_out() or self._shelf.try_out()
        except (OutOfMemory, MemoryError) as error:
            return NotJudged(code="out-of-memory", why=f"memory ran out: {error}", retryable=True)
        except OSError as error:
            return NotJudged(code="disk-trouble", why=str(error), retryable=True)

    def _examine(self, order: Order, is_copy: AskCopy) -> Conclusion | NotJudged:
        clock = Stages()
        with clock.stage("version"):
            version = self._shelf.version(order.facts.work.checkpoint, order.folder)
        with clock.stage("format"):
            most = self._lease_limits(order.facts, version)
            read = self._reader.read(order.file, sha256=order.facts.work.sha256, lease=most)
        if isinstance(read, NotJudged):
            return read
        if isinstance(read, CheckResult):
            hidden = order.facts.lease is None and read.findings[0].reason is ReasonCode.FORMAT_TOO_LARGE
            return unread(read, on_word_only(read) if hidden else forged(read), clock.timings())
        file, format_result = read
        record = Record(file=file, results=[format_result], clock=clock)
        with clock.stage("exact"):
            case, verdict = self._exact(order, file, version, record)
        verdict = verdict or not_taken(file.header, version.recipe, here=version.environment.version)
        if verdict is None:
            record.copy = is_copy(record.fingerprint)
            with clock.stage("reward"):
                verdict = self._score(case, record)
        return record.conclusion(verdict or self._compute(case, order, record))

    def _lease_limits(self, facts: WorkFacts, version: CheckedVersion) -> ReadLimits:
        """What an honest file of this slot can't exceed, with some room for others that deserve a better reason."""
        recipe, groups = version.recipe, facts.groups if facts.lease is None else facts.lease.groups
        if groups is None:
            return _ANY
        rows = _SLACK * groups * recipe.group_size
        prompt, output = recipe.max_prompt_tokens, recipe.sampling.max_new_tokens
        decoded = (1 << 20) + rows * (512 + 4 * prompt + 8 * output + 258 * -(-output // 32))
        return ReadLimits(file_bytes=2 * decoded, rows=rows, decoded_bytes=decoded, tokens=_SLACK * max(prompt, output))

    def _exact(
        self, order: Order, file: RolloutFile, version: CheckedVersion, record: Record
    ) -> tuple[Case, Verdict | None]:
        """Checks 3 to 6, with the beacon that fits; the first is the likeliest."""
        if not order.facts.beacons:
            raise _CannotJudgeError(NotJudged(code="no-beacon", why="the slot's beacon is not known", retryable=True))
        cases = [_case(order.facts, file, version, beacon) for _, beacon in order.facts.beacons]
        case = cases[0]
        for check in EXACT_CHECKS:
            if check.name == "reward":
                continue
            result = check.judge(case)
            if check.name == "seeds":
                named = result
                case, result, record.beacon_block = _fitting(check, cases, result, order.facts)
                if case is not cases[0] and order.facts.named:
                    record.results.append(named)
                    return case, other_joining(named)
            record.results.append(result)
            if result.state is State.FAILED:
                return case, forged(result)
        if order.facts.lease is None:
            return case, _as_the_orchestrator_says(case, order.facts.groups)
        return case, None

    def _score(self, case: Case, record: Record) -> Verdict | None:
        """Check 7."""
        result = scored(case)
        if result.state is State.UNKNOWN:
            raise _CannotJudgeError(
                NotJudged(
                    code="environment-differs",
                    why=result.note,
                    retryable=False,
                    hint="run a validator with the build of the environment that the file names",
                )
            )
        record.results.append(result)
        if result.state is State.PASSED:
            return None
        environment = case.version.recipe.environment.name
        return rewards_differ(result, rows=len(case.file.samples), environment=environment, copy=record.copy)

    def _compute(self, case: Case, order: Order, record: Record) -> Verdict:
        """Checks 8 to 10."""
        clock, rows = record.clock, len(case.file.samples)
        dtype = self._dtype or case.file.header.dtype
        limits = limits_of(case.file, case.version, calibration=self._calibration, dtype=dtype)
        if limits is None:
            raise _CannotJudgeError(_not_calibrated(case, dtype))
        record.limits, record.dtype = limits, dtype
        with clock.stage("policy"):
            policy = self._shelf.policy(case.version, dtype)
        every = tuple(range(rows))
        drawn = every if record.copy else draw_rows(order.draw, rows)
        prefill = Prefill(case, limits, policy, margin=self._margin)
        with clock.stage("prefill"):
            first = prefill.first(drawn)
            if first.failed and len(drawn) < rows:
                first = prefill.first(every)
        record.prefill = prefill
        if first.malformed is not None:
            verdict = forged(first.malformed, copy=record.copy)
        elif first.failed:
            with clock.stage("again"):
                second = prefill.again(first)
            verdict = statistical(first, second, copy=record.copy)
            first = _with_both(first, second)
        else:
            _all_measured(first)
            verdict = accepted(rows=rows, audited=len(drawn), copy=record.copy)
        record.results += first.results
        return verdict


def _case(facts: WorkFacts, file: RolloutFile, version: CheckedVersion, beacon: Digest) -> Case:
    work = facts.work
    if facts.lease is not None:
        slot = SlotFacts.of_lease(facts.lease, beacon=beacon, units=work.units)
    else:
        own = SlotFacts.of_file(file, beacon=beacon, units=work.units)
        slot = replace(own, run=work.run, step=work.step, index=work.index, node=work.node, digest=work.checkpoint)
    return Case(file=file, facts=slot, version=version)


def _as_the_orchestrator_says(case: Case, groups: int | None) -> Verdict | None:
    """What a hidden lease asked for: the file has as many groups as it has, and all of each; were these all?"""
    if groups is None:
        raise _CannotJudgeError(
            NotJudged(
                code="no-lease",
                why="nobody knows the lease of this work: how many groups it had to have can't be checked",
                retryable=True,
                hint="resolve it by hand, or let it expire",
            )
        )
    if case.facts.groups == groups:
        return None
    what = f"{case.facts.groups} groups, and the slot has {groups}"
    finding = Finding(reason=ReasonCode.SEED_GROUPS, what=what)
    return on_word_only(concluded("seeds", [finding], fails=Fails.EXACT))


def _fitting(
    check: Check, cases: list[Case], first: CheckResult, facts: WorkFacts
) -> tuple[Case, CheckResult, int | None]:
    """The case whose beacon draws what is in the file; else the likeliest one, and no beacon."""
    for number, case in enumerate(cases):
        result = check.judge(case) if number else first
        if result.state is State.PASSED:
            return case, result, facts.beacons[number][0]
    return cases[0], first, None


def _not_calibrated(case: Case, dtype: Dtype) -> NotJudged:
    header = case.file.header
    return NotJudged(
        code="no-calibration",
        why=f"nobody measured what honest work of {header.engine.value} in {header.dtype.value} shows, "
        f"checked in {dtype.value}, for this model",
        retryable=False,
        hint="run `muster validator calibrate`, then retry the work",
    )


def _all_measured(first: Prefilled) -> None:
    unknown = [one for one in first.results if one.state is State.UNKNOWN]
    if unknown:
        why = f"{unknown[0].check}: {unknown[0].note}"
        raise _CannotJudgeError(NotJudged(code="not-measured", why=why, retryable=False))


def _with_both(first: Prefilled, second: Prefilled) -> Prefilled:
    """The first one's results, with the second one's figures beside theirs."""
    results = []
    for one, again in zip(first.results, second.results, strict=True):
        figures = {**one.figures, **{f"again.{name}": value for name, value in again.figures.items()}}
        figures |= {"beyond_margin": one.check in first.beyond, "again.beyond_margin": one.check in second.beyond}
        results.append(replace(one, figures=figures))
    return Prefilled(results=tuple(results), beyond=first.beyond)
