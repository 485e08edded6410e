"""Check 10: the recorded log-probabilities match those that the version computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from protocol.verdicts import ReasonCode
from rollouts.calibration.limits import CheckLimits
from rollouts.checks.check import Check
from rollouts.checks.check_input import CheckInput
from rollouts.checks.result import CheckFinding, CheckResult, Cost, Fails, Figure, concluded, unknown

RATIONALE = (
    "The trainer divides by these probabilities, so wrong ones steer the training even if every token is right. "
    "Honest machines agree within the precision of their arithmetic."
)


def judge(case: CheckInput) -> CheckResult:
    """Compares every row that has evidence."""
    if not case.evidence:
        return unknown(CHECK.name, "no row was computed again")
    errors = {
        row: np.abs(case.file.samples[row].logprobs.astype(np.float64) - evidence.logprobs)
        for row, evidence in sorted(case.evidence.items())
    }
    every = np.concatenate([*errors.values()])
    mean, largest = float(every.mean()), float(every.max())
    own_mean, own = _own(case, errors)
    figures: dict[str, Figure] = {"tokens": len(every), "mean": mean, "largest": largest}
    if case.spread:
        figures |= {"own_mean": own_mean, "own_largest": max(own.values(), default=0.0)}
    if case.limits is None:
        return unknown(CHECK.name, "no limits are calibrated for this model, engine and type", figures=figures)
    findings = [*_rows(case, errors, own, case.limits)]
    if mean > (most := case.widest(case.limits.logprob_mean_of(len(errors)), own_mean)):
        findings.append(
            CheckFinding(
                reason=ReasonCode.LOG_PROBABILITIES_DIFFER,
                what=f"log-probabilities are off by {mean:.3g} on average; the limit is {most:.3g}",
            )
        )
    rows: Mapping[int, Mapping[str, Figure]] = {
        row: {"mean": float(one.mean()), "largest": float(one.max())} for row, one in errors.items()
    }
    return concluded(CHECK.name, findings, fails=CHECK.fails, figures=figures, rows=rows)


def _own(case: CheckInput, errors: Mapping[int, NDArray[np.float64]]) -> tuple[float, dict[int, float]]:
    """Returns the differences between the verifier's own passes: mean over all tokens, and maximum of each row."""
    spreads = {row: case.spread[row].logprobs for row in errors if row in case.spread}
    if not spreads:
        return 0.0, {}
    every = np.concatenate([*spreads.values()])
    return float(every.mean(dtype=np.float64)), {row: float(one.max(initial=0.0)) for row, one in spreads.items()}


def _rows(
    case: CheckInput,
    errors: Mapping[int, NDArray[np.float64]],
    own_differences: Mapping[int, float],
    limits: CheckLimits,
) -> Iterator[CheckFinding]:
    for row, error in errors.items():
        most = case.widest(limits.logprobs.largest, own_differences.get(row, 0.0))
        off = np.flatnonzero(~(error <= most))
        if len(off):
            at = int(off[0])
            sample, own = case.file.samples[row], case.evidence[row].logprobs
            yield case.finding(
                ReasonCode.LOG_PROBABILITIES_DIFFER,
                f"token {at} has log-probability {sample.logprobs[at]:.5g} instead of {own[at]:.5g}; the limit of the "
                f"difference is {most:.3g}",
                row=row,
                position=at,
                single=True,
            )


CHECK = Check(number=10, name="logprobs", cost=Cost.PREFILL, fails=Fails.STATISTICAL, rationale=RATIONALE, judge=judge)
