"""Intermediate findings of an examination, and their conclusion."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from protocol.identifiers import Digest
from protocol.verdicts import Outcome
from rollouts.calibration.limits import CheckLimits
from rollouts.calibration.near_ties import NearTieCount, near_ties
from rollouts.checks import CheckResult
from rollouts.checks.sampling import CHECK as REPLAY
from rollouts.files.samples import RolloutFile
from rollouts.precision import Dtype, EngineName
from validator.examination.conclusion import ExaminationVerdict
from validator.examination.fingerprint import fingerprint
from validator.examination.interface import Conclusion, Timings
from validator.examination.prefilling import Prefill
from validator.examination.report import check_rewards, checks_of, rows_of, text


class Stages:
    """Measures wall time by stage."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measures the duration of the block."""
        began = time.perf_counter()
        yield
        self._seconds[name] = time.perf_counter() - began

    def timings(self, file: RolloutFile | None = None, prefill: Prefill | None = None) -> Timings:
        """Returns all measured costs."""
        return Timings(
            seconds=dict(self._seconds),
            rows=0 if file is None else len(file.samples),
            tokens=0 if file is None else file.units,
            prefilled_rows=0 if prefill is None else prefill.rows,
            prefilled_tokens=0 if prefill is None else prefill.tokens,
        )


@dataclass(slots=True, kw_only=True)
class ExaminationRecord:
    """Findings about a readable file."""

    file: RolloutFile
    results: list[CheckResult]
    clock: Stages
    copy: bool = False
    beacon_block: int | None = None
    limits: CheckLimits | None = None
    dtype: Dtype | None = None
    prefill: Prefill | None = None
    fingerprint: Digest = field(init=False)

    def __post_init__(self) -> None:
        self.fingerprint = fingerprint(self.file)

    @property
    def audited(self) -> tuple[int, ...]:
        """Recomputed rows, ascending."""
        return () if self.prefill is None else tuple(sorted(self.prefill.evidence))

    def conclusion(self, verdict: ExaminationVerdict) -> Conclusion:
        """Returns the conclusion with all findings.

        Raises:
            RewardsRewritten: An accepted file would get a reward that differs from the file's own.
        """
        header = self.file.header
        rows = rows_of(self.file, self.results, audited=self.audited)
        if verdict.outcome is Outcome.ACCEPTED:
            check_rewards(self.file, rows)
        return Conclusion(
            outcome=verdict.outcome,
            reason=verdict.reason,
            words=text(verdict.words),
            checks=checks_of(self.results),
            rows=rows,
            audited=self.audited,
            fingerprint=self.fingerprint,
            limits=None if self.limits is None else self.limits.model_dump(mode="json"),
            beacon_block=self.beacon_block,
            environment=header.environment,
            environment_version=header.environment_version,
            engine=header.engine.value,
            dtype=header.dtype.value,
            verifier_engine=EngineName.TORCH.value if self.dtype is not None else "",
            verifier_dtype="" if self.dtype is None else self.dtype.value,
            near_ties=self._near_ties(),
            timings=self.clock.timings(self.file, self.prefill),
        )

    def _near_ties(self) -> NearTieCount | None:
        """Returns the replay results of all recomputed rows."""
        figures = next((one.figures for one in self.results if one.check == REPLAY.name), {})
        tokens, deviations = figures.get("tokens"), figures.get("sum")
        exact = Dtype.FLOAT32 is self.file.header.dtype is self.dtype
        if exact or self.limits is None or not isinstance(tokens, int) or not isinstance(deviations, float):
            return None
        return near_ties(tokens=tokens, deviations=deviations, limits=self.limits)


def unread(result: CheckResult, verdict: ExaminationVerdict, timings: Timings) -> Conclusion:
    """Returns the conclusion about bytes that are not a rollout file."""
    return Conclusion(
        outcome=verdict.outcome,
        reason=verdict.reason,
        words=text(verdict.words),
        checks=checks_of([result]),
        timings=timings,
    )
