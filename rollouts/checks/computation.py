"""Check 8: the proofs match the hidden states that the version computes for these tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from protocol.verdicts import ReasonCode
from rollouts.calibration.limits import CheckLimits
from rollouts.calibration.noise_model import equally_large
from rollouts.checks.check import Check
from rollouts.checks.check_input import CheckInput
from rollouts.checks.result import CheckFinding, CheckResult, Cost, Fails, Figure, concluded, unknown
from rollouts.toploc import TOPLOC, Aggregate, ProofResult, Thresholds, aggregate
from rollouts.toploc import judge as judge_proofs
from rollouts.toploc.results import WORST

RATIONALE = (
    "A proof holds the largest values of the hidden states that produced the tokens. Another model, or the same model "
    "with fewer bits, computes other states (TOPLOC, arXiv 2501.16007). Honest machines differ by rounding alone, and "
    "the limits are calibrated on these differences; an honest prover never writes a malformed proof."
)

SWAPPED = 2
"""Number of an interval's points whose differences are ignored. If two values tie for the 128th place, rounding decides
which of them the proof includes. If the verifier's own choice is the other value, that point shows the largest possible
difference. In float32 about one interval in a thousand has such a point. Answers of one group begin with the same state
and are often identical, so every row of a group may have such a point. The points are therefore discounted per
interval, before any mean."""


def forgiven(result: ProofResult) -> ProofResult:
    """Returns an interval's result, discounting up to `SWAPPED` points whose exponents differ."""
    swapped = min(SWAPPED, result.exponent_mismatches)
    if result.malformed is not None or not swapped:
        return result
    return replace(
        result,
        exponent_mismatches=result.exponent_mismatches - swapped,
        sign_mismatches=max(0, result.sign_mismatches - swapped),
        distance_total=max(0, result.distance_total - swapped * int(WORST)),
    )


def judge(case: CheckInput) -> CheckResult:
    """Compares every interval, every sample and the whole file with their limits."""
    if not case.evidence:
        return unknown(CHECK.name, "no row was computed again")
    found = {row: tuple(map(forgiven, evidence.proofs)) for row, evidence in sorted(case.evidence.items())}
    samples = {row: aggregate(results) for row, results in found.items()}
    whole = aggregate(result for results in found.values() for result in results)
    figures: dict[str, Figure] = {"proofs": whole.proofs, "points": whole.points} | asdict(whole.figures)
    rows: Mapping[int, Mapping[str, Figure]] = {row: asdict(sample.figures) for row, sample in samples.items()}
    malformed = [*_malformed(case), *_miscounted(case)]
    if malformed:
        return concluded(CHECK.name, malformed, fails=Fails.EXACT, figures=figures, rows=rows)
    if case.limits is None:
        return unknown(CHECK.name, "no limits are calibrated for this model, engine and type", figures=figures)
    findings = [*_intervals(case, found, case.limits), *_together(case, samples, whole, case.limits)]
    return concluded(CHECK.name, findings, fails=CHECK.fails, figures=figures, rows=rows)


def _malformed(case: CheckInput) -> Iterator[CheckFinding]:
    for row, evidence in sorted(case.evidence.items()):
        for number, result in enumerate(evidence.proofs):
            if result.malformed is not None:
                yield case.finding(
                    ReasonCode.COMPUTATION_PROOF_MALFORMED,
                    f"proof {number}, of tokens {_tokens(case, row, number)}, is malformed: {result.malformed.value}",
                    row=row,
                    position=number * TOPLOC.interval,
                )


def _miscounted(case: CheckInput) -> Iterator[CheckFinding]:
    """Finds wrong proof lengths in rows that were not computed again."""
    for row, sample in enumerate(case.file.samples):
        wanted = TOPLOC.proof_bytes * -(-len(sample.output_tokens) // TOPLOC.interval)
        if row not in case.evidence and len(sample.proofs) != wanted:
            yield case.finding(
                ReasonCode.COMPUTATION_PROOF_MALFORMED,
                f"the row has {len(sample.proofs)} bytes of proofs, but {len(sample.output_tokens)} tokens need "
                f"{wanted} bytes",
                row=row,
            )


def _intervals(
    case: CheckInput, found: Mapping[int, Sequence[ProofResult]], limits: CheckLimits
) -> Iterator[CheckFinding]:
    """Finds rows with an interval beyond its limit.

    Only a row's first such interval is reported, because the later intervals depend on it.
    """
    for row, results in found.items():
        most = _sample_limits(case, row, limits).distance_worst
        off = [number for number, one in enumerate(results) if one.distance_mean > most]
        if off:
            distance, more = results[off[0]].distance_mean, len(off) - 1
            yield case.finding(
                ReasonCode.COMPUTATION_OTHER_MODEL,
                f"proof {off[0]}, of tokens {_tokens(case, row, off[0])}, is off by {distance:.3g} units of the last "
                f"place; the limit is {most:.3g}{f'; proofs of this row that also exceed it: {more}' if more else ''}",
                row=row,
                position=off[0] * TOPLOC.interval,
                single=True,
            )


def _sample_limits(case: CheckInput, row: int, limits: CheckLimits) -> Thresholds:
    """Returns a row's proof limits, widened if the verifier's own passes differ by too much."""
    own = case.spread[row].distance_worst if row in case.spread else 0.0
    return _as_wide(case, limits.sample, limits.sample.distance_worst, own)


def _file_limits(case: CheckInput, rows: Collection[int], limits: CheckLimits) -> Thresholds:
    own = [case.spread[row].distance for row in rows if row in case.spread]
    file = limits.file_of(len(rows))
    return _as_wide(case, file, file.distance_mean, sum(own) / max(1, len(own)))


def _as_wide(case: CheckInput, limits: Thresholds, distance: float, own: float) -> Thresholds:
    factor = case.widest(distance, own) / distance if distance > 0 else 1.0
    return limits if factor <= 1 else limits.widened(factor)


def _together(
    case: CheckInput, samples: Mapping[int, Aggregate], whole: Aggregate, limits: CheckLimits
) -> Iterator[CheckFinding]:
    for row, one in samples.items():
        for excess in judge_proofs(one, _sample_limits(case, row, limits)).excesses:
            if excess.figure != "distance_worst":  # `_intervals` reports this figure
                what = f"{excess.figure} {excess.value:.3g}; the limit for a sample is {excess.threshold:.3g}"
                yield case.finding(ReasonCode.COMPUTATION_OTHER_MODEL, what, row=row, single=one.proofs <= 1)
    for excess in judge_proofs(whole, _file_limits(case, samples, limits)).excesses:
        if excess.figure != "distance_worst":
            yield CheckFinding(
                reason=ReasonCode.COMPUTATION_OTHER_MODEL,
                what=f"{excess.figure} {excess.value:.3g} over all rows; the limit is {excess.threshold:.3g}",
            )
    if limits.scatter is not None:
        points = Counter[int]()
        for row, one in samples.items():
            points[case.file.samples[row].group] += one.points
        groups = equally_large(points.values())
        most = limits.scatter.distance_of(rows=len(samples), groups=groups)
        if whole.figures.distance_mean > most:
            yield CheckFinding(
                reason=ReasonCode.COMPUTATION_OTHER_MODEL,
                what=f"distance_mean {whole.figures.distance_mean:.3g} over {len(points)} groups, which count as "
                f"{groups:.3g} groups of equal size; the limit is {most:.3g}",
            )


def _tokens(case: CheckInput, row: int, number: int) -> str:
    start = number * TOPLOC.interval
    return f"{start} to {max(start, min(start + TOPLOC.interval, len(case.file.samples[row].output_tokens)) - 1)}"


CHECK = Check(
    number=8, name="computation", cost=Cost.PREFILL, fails=Fails.STATISTICAL, rationale=RATIONALE, judge=judge
)
