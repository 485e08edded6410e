"""One examination from the file's bytes to the conclusion, within one process.

Checks that need only the file come first, then prefills with the policy, then scoring. Errors that the file does not
cause give `NotJudged`: for example, a missing policy, missing calibration, too little memory, or a broken sandbox.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from protocol.errors import MusterError
from protocol.identifiers import Digest
from protocol.identity.typed_data import SigningDomain
from protocol.runtime.logs import get_logger
from protocol.verdicts import ReasonCode
from rollouts.calibration.limits import CheckLimits, RolloutCalibration
from rollouts.checks import EXACT_CHECKS, CheckedVersion, CheckInput, CheckOutcome, CheckResult, SeedParts, SlotFacts
from rollouts.errors import EngineFailed, OutOfMemory
from rollouts.files.limits import ReadLimits
from rollouts.files.served_metadata import MOST_SERVED_BYTES
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.recompute.errors import ClassFailed
from rollouts.recompute.interface import Recomputer
from rollouts.recompute.torch_recomputer import TorchRecomputer
from rollouts.verify.files import limits_of
from validator.audit.draw import draw_rows
from validator.domain.submissions import WorkFacts
from validator.examination.channel import Order
from validator.examination.conclusion import (
    ExaminationVerdict,
    Prefilled,
    accepted,
    forged,
    not_accepted,
    old,
    scores_differ,
    statistical,
)
from validator.examination.interface import Conclusion, NotJudged
from validator.examination.model_cache import ModelCache
from validator.examination.prefilling import Prefill
from validator.examination.reading import LimitedReader
from validator.examination.record import ExaminationRecord, Stages, unread
from validator.examination.scoring import scored
from validator.examination.vllm_cache import VllmCache

_SLACK = 4
"""Factor on the size of the largest honest file of a slot, up to which files are decoded.

A file that is somewhat too large is decoded, so that a check can name its error.
"""

_log = get_logger(__name__)

AskCopy = Callable[[Digest], bool]
"""Returns True if another submission has the given fingerprint."""


class _CannotJudgeError(Exception):
    """Ends an examination without a conclusion; `Procedure.examine` catches it and returns `why`."""

    def __init__(self, why: NotJudged) -> None:
        super().__init__(why.why)
        self.why = why


class Procedure:
    """Examines files, one after another.

    Args:
        reader: Reader of untrusted files.
        models: Cache of versions and weights.
        vllm: Cache of vLLM processes, which recompute files of numerics classes.
        calibration: Limits of the statistical checks.
        dtype: Data type of prefills; None for the data type that each file names.
        margin: Factor on the limits beyond which a statistical failure is forgery.
        scoring: Time limit for scoring all rows of one file.
    """

    def __init__(
        self,
        *,
        reader: LimitedReader,
        models: ModelCache,
        vllm: VllmCache,
        calibration: RolloutCalibration,
        dtype: Dtype | None,
        margin: float,
        scoring: timedelta,
    ) -> None:
        self._reader = reader
        self._models = models
        self._vllm = vllm
        self._calibration = calibration
        self._dtype = dtype
        self._margin = margin
        self._scoring = scoring

    def examine(
        self, order: Order, *, is_copy: AskCopy, progress: Callable[[], None] = lambda: None
    ) -> Conclusion | NotJudged:
        """Runs the checks up to the first exact failure, and returns the conclusion or the error.

        Args:
            order: The file with its facts.
            is_copy: Returns True if another submission has the given fingerprint.
            progress: Called after each stage and each piece of the recomputation; restarts the service's time limit.
        """
        try:
            return self._examine(order, is_copy, Stages(progress))
        except _CannotJudgeError as error:
            return error.why
        except MemoryError as error:
            return NotJudged(code="out-of-memory", why=f"memory ran out: {error}", retryable=True)
        except MusterError as error:
            retryable = error.retryable or isinstance(error, EngineFailed)  # a failed engine may work again later
            failed_class = str(error.arithmetic) if isinstance(error, ClassFailed) else ""
            return NotJudged(
                code=error.code, why=error.detail, retryable=retryable, hint=error.hint, failed_class=failed_class
            )
        except OSError as error:
            return NotJudged(code="disk-trouble", why=str(error), retryable=True)

    def try_out(self) -> NotJudged | None:
        """Decodes a known file in the sandbox and tests the device; returns None if both work, else the error."""
        try:
            return self._reader.try_out() or self._models.try_out()
        except (OutOfMemory, MemoryError) as error:
            return NotJudged(code="out-of-memory", why=f"memory ran out: {error}", retryable=True)
        except OSError as error:
            return NotJudged(code="disk-trouble", why=str(error), retryable=True)

    def _examine(self, order: Order, is_copy: AskCopy, clock: Stages) -> Conclusion | NotJudged:
        with clock.stage("version"):
            version = self._models.version(order.facts.work.checkpoint, order.folder)
        with clock.stage("format"):
            most = _lease_limits(order.facts, version)
            read = self._reader.read(order.file, sha256=order.facts.work.sha256, lease=most)
        if isinstance(read, NotJudged):
            return read
        if isinstance(read, CheckResult):
            is_old = read.findings[0].reason is ReasonCode.FORMAT_OLD
            return unread(read, old(read) if is_old else forged(read), clock.timings())
        file, format_result = read
        record = ExaminationRecord(
            file=file, results=[format_result], clock=clock, beacon_block=order.facts.work.beacon_block
        )
        case = CheckInput.of(file, _slot(order.facts), version)
        with clock.stage("exact"):
            verdict = _exact(case, record)
        return record.conclusion(verdict or self._beyond_the_file(case, order, record, is_copy))

    def _beyond_the_file(
        self, case: CheckInput, order: Order, record: ExaminationRecord, is_copy: AskCopy
    ) -> ExaminationVerdict:
        """Runs checks 8 to 10 on the drawn rows, then checks 7 and 11 on all rows; returns the verdict.

        Scoring comes last because it may run the programs in the answers for minutes. A file whose engine, data type or
        environment the recipe does not allow is rejected only after the drawn rows have passed; otherwise a node could
        submit junk under the name of another engine without losing stake. One exception: if the calibration has no
        limits for the file's arithmetic, such a file is rejected without checks 7 to 10. Rejections lower the node's
        delivery rate.
        """
        lenient = not_accepted(case.file.header, case.version.recipe, here=case.version.environment.version)
        record.copy = is_copy(record.fingerprint)
        verifier = self._verifier(case)
        limits = limits_of(case.file, case.version, calibration=self._calibration, verifier=verifier)
        if limits is None:
            if lenient is not None:
                return lenient
            raise _CannotJudgeError(_not_calibrated(case, verifier))
        record.limits, record.verifier = limits, verifier
        failed = self._compute_with_room(case, order, record, limits, verifier)
        if failed is not None:
            return failed
        if lenient is not None:
            return lenient
        with record.clock.stage("reward"):
            return self._score(case, record)

    def _verifier(self, case: CheckInput) -> Arithmetic:
        """Returns the arithmetic that recomputes a file: the file's numerics class if the recipe allows it, else torch.

        A file of a class that the recipe does not allow is recomputed by torch. So a node can't make validators start
        vLLM by naming a class in its file.
        """
        made_by = case.file.header.arithmetic
        if made_by.is_class and case.version.recipe.takes(made_by):
            return made_by
        return Arithmetic(engine=EngineName.TORCH, dtype=self._dtype or made_by.dtype)

    def _recomputer(self, case: CheckInput, verifier: Arithmetic) -> Recomputer:
        if verifier.is_class:
            return self._vllm.recomputer(case.version, verifier)
        return TorchRecomputer(self._models.policy(case.version, verifier.dtype), made_in=case.file.header.dtype)

    def _compute_with_room(
        self, case: CheckInput, order: Order, record: ExaminationRecord, limits: CheckLimits, verifier: Arithmetic
    ) -> ExaminationVerdict | None:
        """Runs checks 8 to 10; if memory runs out, frees the memory of all versions and runs them once more.

        Torch and vLLM have separate budgets for weights, and vLLM's memory besides the weights is an estimate.
        """
        try:
            return self._compute(case, order, record, limits, verifier)
        except OutOfMemory as error:
            _log.warning("out-of-memory", why=error.detail, version=case.version.digest)
        record.prefill = None
        self._vllm.close()
        self._models.drop()
        return self._compute(case, order, record, limits, verifier)

    def _compute(
        self, case: CheckInput, order: Order, record: ExaminationRecord, limits: CheckLimits, verifier: Arithmetic
    ) -> ExaminationVerdict | None:
        """Runs checks 8 to 10; returns None if they pass."""
        clock, rows = record.clock, len(case.file.samples)
        with clock.stage("policy"):
            recomputer = self._recomputer(case, verifier)
        every = tuple(range(rows))
        drawn = every if record.copy else draw_rows(order.draw, rows)
        record.prefill = prefill = Prefill(case, limits, recomputer, margin=self._margin, progress=clock.progress)
        with clock.stage("prefill"):
            first = prefill.first(drawn)
            if first.failed and len(drawn) < rows:
                first = prefill.first(every)
        # In a class also a malformed proof is the finding of one vLLM process, which alone accuses nobody.
        if first.failed and (first.malformed is None or verifier.is_class):
            with clock.stage("again"):
                first, second = prefill.again(first)
            first = _with_both(first, second)
        else:
            second = first
        if first.malformed is not None:
            verdict = forged(first.malformed, copy=record.copy)
        elif first.failed:
            verdict = statistical(first, second, copy=record.copy)
        else:
            verdict = None
            _all_measured(first)
        record.results += first.results
        return verdict

    def _score(self, case: CheckInput, record: ExaminationRecord) -> ExaminationVerdict:
        """Runs check 7, and check 11 if the recipe has dialogues, on a file that passed all other checks."""
        found = scored(case, budget=self._scoring)
        reward = found.results[-1]
        if reward.state is CheckOutcome.UNKNOWN:
            raise _CannotJudgeError(
                NotJudged(
                    code="environment-differs",
                    why=reward.note,
                    retryable=False,
                    hint="run a validator that has the build of the environment that the file names",
                )
            )
        record.results += found.results
        rows = len(case.file.samples)
        failed = [one for one in found.results if one.state is CheckOutcome.FAILED]
        if not failed:
            slow, unscored = (sum(bool(one[name]) for one in reward.rows.values()) for name in ("slow", "unscored"))
            return accepted(rows=rows, audited=len(record.audited), slow=slow, unscored=unscored, copy=record.copy)
        return scores_differ(failed, rows=rows, environments=found.environments, copy=record.copy)


def _lease_limits(facts: WorkFacts, version: CheckedVersion) -> ReadLimits:
    """Returns limits for decoding a file of this slot, well above the sizes of an honest file.

    With such wide limits, the decoder lets most wrong files through, and a check refuses them and names the error.

    A decoded row has 512 bytes of fixed size, 4 bytes per prompt token, 8 bytes per output token (token and
    log-probability), 258 bytes for the proof of each 32 output tokens, 16 bytes per turn, and 4 bytes per given token.
    """
    recipe, context = version.recipe, version.model.context
    rows = _SLACK * facts.work.groups * recipe.group_size
    prompt, output = recipe.longest_prompt(context), recipe.sampling.max_new_tokens
    turns, reply = (0, 0) if recipe.dialogue is None else (recipe.dialogue.turns, recipe.dialogue.reply_tokens)
    given = min(recipe.most_given_tokens, context)
    listed = 0 if recipe.gateway is None else MOST_SERVED_BYTES
    row = 512 + 4 * prompt + 8 * output + 258 * -(-output // 32) + 16 * turns + 4 * given
    decoded = (1 << 20) + rows * row
    return ReadLimits(
        file_bytes=2 * decoded + listed,
        rows=rows,
        decoded_bytes=decoded,
        tokens=_SLACK * max(prompt, output, turns, min(reply, context)),
    )


def _slot(facts: WorkFacts) -> SlotFacts:
    work = facts.work
    return SlotFacts(
        run=work.run,
        step=work.step,
        index=work.index,
        node=work.node,
        digest=work.checkpoint,
        groups=work.groups,
        max_units=work.max_units,
        parts=SeedParts(chain_id=facts.chain_id, pool_id=work.pool_id, beacon=facts.beacon, salt=work.salt),
        units=work.units,
        domain=SigningDomain(facts.chain_id, facts.work_ledger),
    )


def _exact(case: CheckInput, record: ExaminationRecord) -> ExaminationVerdict | None:
    """Runs checks 3 to 6; returns None if they pass."""
    for check in EXACT_CHECKS:
        result = check.judge(case)
        record.results.append(result)
        if result.state is CheckOutcome.FAILED:
            return forged(result)
    return None


def _not_calibrated(case: CheckInput, verifier: Arithmetic) -> NotJudged:
    header = case.file.header
    return NotJudged(
        code="no-calibration",
        why=f"the calibration has no limits for work of {header.engine.value} in {header.dtype.value}, "
        f"checked in {verifier.dtype.value}, with this model",
        retryable=False,
        hint="run `muster validator calibrate`, then retry the work",
    )


def _all_measured(first: Prefilled) -> None:
    """Ends the examination without a conclusion if the prefill could not decide a check.

    So no file is accepted without the result of that check.

    Raises:
        _CannotJudgeError: A check is undecided.
    """
    unknown = [one for one in first.results if one.state is CheckOutcome.UNKNOWN]
    if unknown:
        why = f"{unknown[0].check}: {unknown[0].note}"
        raise _CannotJudgeError(NotJudged(code="not-measured", why=why, retryable=False))


def _with_both(first: Prefilled, second: Prefilled) -> Prefilled:
    """Returns the first prefill's results, extended by the second prefill's measurements."""
    results = []
    for one, again in zip(first.results, second.results, strict=True):
        figures = {**one.figures, **{f"again.{name}": value for name, value in again.figures.items()}}
        figures |= {"beyond_margin": one.check in first.beyond, "again.beyond_margin": one.check in second.beyond}
        results.append(replace(one, figures=figures))
    return Prefilled(results=tuple(results), beyond=first.beyond)
