"""Check 8: the proofs fit the hidden states that the version itself computes for these tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from protocol.verdicts import ReasonCode
from rollouts.checks.case import Case
from rollouts.checks.result import Check, CheckResult, Cost, Fails, Figure, Finding, concluded, unknown
from rollouts.toploc import TOPLOC, Thresholds, aggregate
from rollouts.toploc import judge as judge_proofs
from rollouts.toploc.results import WORST

RATIONALE = (
    "A proof holds the largest values of the states that produced the tokens. Another model, or this one in fewer "
    "bits, has other states (TOPLOC, arXiv 2501.16007). Honest machines differ by rounding alone, so limits are "
    "measured; bytes that can't be a proof come from no honest prover."
)

SWAPPED = 2
"""Points of an interval, a sample or a file that may be off altogether, besides the limits. Two values that tie for the
128th place change it with the last bits, and the proof says nothing about one that the prover left out. In float32 one
interval in some thousand has such a point."""


def judge(case: Case) -> CheckResult:
    """Compares every interval, sample, and the file."""
    if not case.evidence:
        return unknown(CHECK.name, "no row was computed again")
    whole = aggregate(result for evidence in case.evidence.values() for result in evidence.proofs)
    figures: dict[str, Figure] = {"proofs": whole.proofs, "points": whole.points} | asdict(whole.figures)
    rows: Mapping[int, Mapping[str, Figure]] = {
        row: asdict(aggregate(evidence.proofs).figures) for row, evidence in sorted(case.evidence.items())
    }
    malformed = [*_malformed(case), *_miscounted(case)]
    if malformed:
        return concluded(CHECK.name, malformed, fails=Fails.EXACT, figures=figures, rows=rows)
    if case.limits is None:
        return unknown(CHECK.name, "no limits are calibrated for this model, engine and type", figures=figures)
    findings = [*_intervals(case), *_together(case)]
    return concluded(CHECK.name, findings, fails=CHECK.fails, figures=figures, rows=rows)


def _malformed(case: Case) -> Iterator[Finding]:
    for row, evidence in sorted(case.evidence.items()):
        for number, result in enumerate(evidence.proofs):
            if result.malformed is not None:
                yield case.finding(
                    ReasonCode.COMPUTATION_PROOF_MALFORMED,
                    f"proof {number}, of tokens {_tokens(case, row, number)}, can't be one: {result.malformed.value}",
                    row=row,
                    position=number * TOPLOC.interval,
                )


def _miscounted(case: Case) -> Iterator[Finding]:
    """Rows that were not computed again, whose proofs are too few or too many all the same."""
    for row, sample in enumerate(case.file.samples):
        wanted = TOPLOC.proof_bytes * -(-len(sample.output_tokens) // TOPLOC.interval)
        if row not in case.evidence and len(sample.proofs) != wanted:
            yield case.finding(
                ReasonCode.COMPUTATION_PROOF_MALFORMED,
                f"{len(sample.proofs)} bytes of proofs, and {len(sample.output_tokens)} tokens have {wanted}",
                row=row,
            )


def _intervals(case: Case) -> Iterator[Finding]:
    """Intervals that are off by themselves: of each row the first, since what comes after depends on it."""
    if case.limits is None:
        return
    for row, evidence in sorted(case.evidence.items()):
        most = [_allowed(case.limits.sample, one.points).distance_worst for one in evidence.proofs]
        off = [number for number, one in enumerate(evidence.proofs) if one.distance_mean > most[number]]
        if off:
            distance, more = evidence.proofs[off[0]].distance_mean, len(off) - 1
            yield case.finding(
                ReasonCode.COMPUTATION_OTHER_MODEL,
                f"proof {off[0]}, of tokens {_tokens(case, row, off[0])}, is off by {distance:.3g} units of the last "
                f"place; the limit is {most[off[0]]:.3g}{f', and {more} more of this row' if more else ''}",
                row=row,
                position=off[0] * TOPLOC.interval,
            )


def _together(case: Case) -> Iterator[Finding]:
    if case.limits is None:
        return
    for row, evidence in sorted(case.evidence.items()):
        one = aggregate(evidence.proofs)
        for excess in judge_proofs(one, _allowed(case.limits.sample, one.points)).excesses:
            if excess.figure != "distance_worst":
                what = f"{excess.figure} {excess.value:.3g}; the limit for a sample is {excess.threshold:.3g}"
                yield case.finding(ReasonCode.COMPUTATION_OTHER_MODEL, what, row=row)
    whole = aggregate(result for evidence in case.evidence.values() for result in evidence.proofs)
    for excess in judge_proofs(whole, _allowed(case.limits.file, whole.points)).excesses:
        if excess.figure != "distance_worst":
            yield Finding(
                reason=ReasonCode.COMPUTATION_OTHER_MODEL,
                what=f"{excess.figure} {excess.value:.3g} over all rows; the limit is {excess.threshold:.3g}",
            )


def _allowed(limits: Thresholds, points: int) -> Thresholds:
    """The limits for so many points, of which `SWAPPED` may be off altogether."""
    share = SWAPPED / max(1, points)
    raised = {
        "exponent_mismatches": min(1.0, limits.exponent_mismatches + share),
        "sign_mismatches": min(1.0, limits.sign_mismatches + share),
        "mantissa_mean": min(WORST, limits.mantissa_mean + share * WORST),
        "distance_mean": min(WORST, limits.distance_mean + share * WORST),
        "distance_worst": min(WORST, limits.distance_worst + share * WORST),
    }
    return limits.model_copy(update=raised)


def _tokens(case: Case, row: int, number: int) -> str:
    start = number * TOPLOC.interval
    return f"{start} to {max(start, min(start + TOPLOC.interval, len(case.file.samples[row].output_tokens)) - 1)}"


CHECK = Check(
    number=8, name="computation", cost=Cost.PREFILL, fails=Fails.STATISTICAL, rationale=RATIONALE, judge=judge
)
