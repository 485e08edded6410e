"""Collects the findings of an examination, and builds the conclusion from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from protocol.identifiers import Digest
from protocol.verdicts import Outcome
from rollouts.calibration.limits import CheckLimits
from rollouts.calibration.near_ties import NearTieCount, near_ties
from rollouts.checks import CheckResult
from rollouts.checks.sampling import CHECK as REPLAY
from rollouts.files.samples import RolloutFile
from rollouts.precision import Arithmetic, Dtype
from validator.examination.conclusion import ExaminationVerdict
from validator.examination.fingerprint import fingerprint
from validator.examination.interface import Conclusion, Timings
from validator.examination.prefilling import Prefill
from validator.examination.report import check_rewards, checks_of, rows_of, text


class Stages:
    """Measures the wall time of each stage of an examination.

    Args:
        progress: Reports progress to the service; called after each stage.
    """

    def __init__(self, progress: Callable[[], None]) -> None:
        self.progress = progress
        self._seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measures the duration of the block; a block that raises is not recorded."""
        began = time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - began
        self.progress()

    def timings(self, file: RolloutFile | None = None, prefill: Prefill | None = None) -> Timings:
        """Returns the measured durations, with the amounts of rows and tokens.

        Args:
            file: The file; None if it could not be read.
            prefill: The prefills; None if no rows were recomputed.
        """
        return Timings(
            seconds=dict(self._seconds),
            rows=0 if file is None else len(file.samples),
            tokens=0 if file is None else file.units,
            prefilled_rows=0 if prefill is None else prefill.rows,
            prefilled_tokens=0 if prefill is None else prefill.tokens,
        )


@dataclass(slots=True, kw_only=True)
class ExaminationRecord:
    """Findings about a readable file, which the stages of an examination fill in.

    Args:
        file: The decoded file.
        results: Results of the checks made so far.
        clock: Durations of the stages.
        copy: True if another submission has the same outputs.
        beacon_block: Number of the lease's beacon block.
        limits: Calibrated limits; None before they are looked up.
        verifier: Arithmetic of the prefills; None before the first prefill.
        prefill: The prefills; None before the first prefill.
    """

    file: RolloutFile
    results: list[CheckResult]
    clock: Stages
    copy: bool = False
    beacon_block: int | None = None
    limits: CheckLimits | None = None
    verifier: Arithmetic | None = None
    prefill: Prefill | None = None
    fingerprint: Digest = field(init=False)
    """Fingerprint of all outputs of the file."""

    def __post_init__(self) -> None:
        self.fingerprint = fingerprint(self.file)

    @property
    def audited(self) -> tuple[int, ...]:
        """Numbers of the recomputed rows, ascending."""
        return () if self.prefill is None else tuple(sorted(self.prefill.evidence))

    def conclusion(self, verdict: ExaminationVerdict) -> Conclusion:
        """Returns the conclusion with a verdict and all findings.

        Raises:
            RewardsRewritten: A bug in the validator: the audit file of an accepted file would have another reward than
                the file.
        """
        header = self.file.header
        rows = rows_of(self.file, self.results, audited=self.audited)
        if verdict.outcome is Outcome.ACCEPTED:
            check_rewards(self.file, rows)
        return Conclusion(
            outcome=verdict.outcome,
            reason=verdict.reason,
            words=text(verdict.words),
            checks=checks_of(self.results, dialogues=self.file.is_dialogue),
            rows=rows,
            audited=self.audited,
            fingerprint=self.fingerprint,
            limits=None if self.limits is None else self.limits.model_dump(mode="json"),
            beacon_block=self.beacon_block,
            environment=header.environment,
            environment_version=header.environment_version,
            engine=_engine_of(header.arithmetic),
            dtype=header.dtype.value,
            verifier_engine="" if self.verifier is None else _engine_of(self.verifier),
            verifier_dtype="" if self.verifier is None else self.verifier.dtype.value,
            near_ties=self._near_ties(),
            timings=self.clock.timings(self.file, self.prefill),
        )

    def _near_ties(self) -> NearTieCount | None:
        """Returns the near-ties of all recomputed rows; None if the node's near-tie budget does not apply."""
        figures = next((one.figures for one in self.results if one.check == REPLAY.name), {})
        tokens, deviations = figures.get("tokens"), figures.get("sum")
        if self.verifier is None or self.verifier.is_class:
            return None
        exact = Dtype.FLOAT32 is self.file.header.dtype is self.verifier.dtype
        if exact or self.limits is None or not isinstance(tokens, int) or not isinstance(deviations, float):
            return None
        return near_ties(tokens=tokens, deviations=deviations, limits=self.limits)


def _engine_of(arithmetic: Arithmetic) -> str:
    """Returns the name of the engine, or of the numerics class, as audit files spell it."""
    return str(arithmetic) if arithmetic.is_class else arithmetic.engine.value


def unread(result: CheckResult, verdict: ExaminationVerdict, timings: Timings) -> Conclusion:
    """Returns the conclusion about bytes that could not be decoded as a rollout file.

    Args:
        result: The failed format check.
        verdict: Verdict on the file.
        timings: Durations of the stages before the failure.
    """
    return Conclusion(
        outcome=verdict.outcome,
        reason=verdict.reason,
        words=text(verdict.words),
        checks=checks_of([result]),
        timings=timings,
    )
