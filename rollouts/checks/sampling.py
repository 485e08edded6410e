"""Check 9: the seeded noise draws the recorded tokens from the version's logits.

Without the seed nothing can be replayed. Then the check tests whether the tokens are as probable as honest draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from protocol.verdicts import ReasonCode
from rollouts.calibration.limits import CheckLimits
from rollouts.checks.check import Check
from rollouts.checks.check_input import CheckInput
from rollouts.checks.result import CheckFinding, CheckResult, Cost, Fails, Figure, concluded, unknown
from rollouts.sampling.likelihood import deviations_of
from rollouts.sampling.replay import Gaps, Replay, summarise

RATIONALE = (
    "The seed and the version determine every token. Honest machines draw different tokens only if these are nearly "
    "tied. With another temperature or model, greedy decoding, or answers selected from several, tokens differ often "
    "or by much. A limit of each sample's sum of deviations prevents a node from choosing tokens at many near-ties."
)

MOST_DEVIATIONS = 6.0
"""Limit in standard deviations; an honest file exceeds it with a probability of 1 in 500 million."""
ENOUGH_TOKENS = 200
"""Minimum number of tokens for a test of the likelihood. The sum over fewer tokens is not yet normally distributed."""


def judge(case: CheckInput) -> CheckResult:
    """Replays every row that has evidence."""
    replayed = {row: one.gaps for row, one in sorted(case.evidence.items()) if one.gaps is not None}
    if not replayed:
        return _without_replay(case)
    whole = summarise(replayed.values())
    figures: dict[str, Figure] = {
        "tokens": whole.tokens,
        "mismatches": whole.mismatches,
        "mismatch_share": whole.mismatch_share,
        "largest": whole.largest,
        "largest_sum": whole.largest_sum,
        "sum": whole.sum,
        "likelihood_z": _likelihood(case),
    }
    if case.limits is None:
        return unknown(CHECK.name, "no limits are calibrated for this model, engine and type", figures=figures)
    findings = [*_samples(case, replayed, case.limits), *_file(whole, case.limits)]
    rows: Mapping[int, Mapping[str, Figure]] = {row: _row(one) for row, one in replayed.items()}
    return concluded(CHECK.name, findings, fails=CHECK.fails, figures=figures, rows=rows)


def _without_replay(case: CheckInput) -> CheckResult:
    """Tests whether the recorded tokens are as probable as honest draws.

    Greedy or selected answers are too probable; another model's answers are too improbable.
    """
    if not case.evidence:
        return unknown(CHECK.name, "no row was computed again: draws were not replayed")
    found = _likelihood(case)
    tokens = sum(len(one.logprobs) for one in case.evidence.values())
    figures: dict[str, Figure] = {"tokens": tokens, "likelihood_z": found}
    if found is None or tokens < ENOUGH_TOKENS or abs(found) <= MOST_DEVIATIONS:
        return unknown(CHECK.name, "the slot's seed is not known: draws were not replayed", figures=figures)
    side = "probable" if found > 0 else "improbable"
    what = f"tokens are {abs(found):.1f} standard deviations too {side} for draws; the limit is {MOST_DEVIATIONS:g}"
    finding = CheckFinding(reason=ReasonCode.SAMPLING_DISTRIBUTION, what=what)
    return concluded(CHECK.name, [finding], fails=CHECK.fails, figures=figures)


def _likelihood(case: CheckInput) -> float | None:
    """Returns the z-score over all rows with evidence; None if top-k or top-p apply, which change the mean."""
    measured = [
        (one.excess, one.variance)
        for one in case.evidence.values()
        if one.excess is not None and one.variance is not None
    ]
    return None if any(case.draws(row).parameters.masks for row in case.evidence) else deviations_of(measured)


def _row(gaps: Gaps) -> dict[str, Figure]:
    one = summarise([gaps])
    return {"mismatches": one.mismatches, "largest": one.largest, "sum": one.largest_sum}


def _samples(case: CheckInput, replayed: Mapping[int, Gaps], limits: CheckLimits) -> Iterator[CheckFinding]:
    """Reports each row's first deviating token, because later tokens were drawn in another context."""
    for row, gaps in replayed.items():
        deviations = gaps.deviations
        largest, largest_sum = _limits_of(case, row, limits)
        off = np.flatnonzero(deviations > largest)
        total = float(deviations.sum(dtype=np.float64))
        if len(off):
            at = int(off[0])
            token = int(case.file.samples[row].output_tokens[at])
            more = f"; {len(off) - 1} tokens after it are off too" if len(off) > 1 else ""
            yield case.finding(
                ReasonCode.SAMPLING_REPLAY,
                f"token {at} is {token}, and another one is ahead of it by {deviations[at]:.3g}; the limit is "
                f"{largest:.3g}{more}",
                row=row,
                position=at,
            )
        elif total > largest_sum:
            yield case.finding(
                ReasonCode.SAMPLING_REPLAY,
                f"deviations sum to {total:.3g}; the limit for a sample is {largest_sum:.3g}",
                row=row,
            )


def _limits_of(case: CheckInput, row: int, limits: CheckLimits) -> tuple[float, float]:
    """Returns a row's limits: for one token's deviation and for the sum of all deviations."""
    largest, largest_sum = limits.sampling.largest, limits.sampling.largest_sum
    if row not in case.spread:
        return largest, largest_sum
    spread = case.spread[row]
    own = max(float(spread.logprobs.max(initial=0.0)), float(spread.deviations.max(initial=0.0)))
    largest = case.widest(largest, own)
    return largest, max(largest, case.widest(largest_sum, float(spread.deviations.sum(dtype=np.float64))))


def _file(whole: Replay, limits: CheckLimits) -> Iterator[CheckFinding]:
    most = limits.sampling.mismatches(whole.tokens)
    if whole.mismatches > most:
        yield CheckFinding(
            reason=ReasonCode.SAMPLING_REPLAY,
            what=f"{whole.mismatches} of {whole.tokens} tokens are not those that the seed draws; the limit is {most}",
        )
    if limits.scatter is not None and whole.sum > (sum_limit := limits.scatter.deviations_of(whole.tokens)):
        yield CheckFinding(
            reason=ReasonCode.SAMPLING_REPLAY,
            what=f"deviations of {whole.tokens} tokens sum to {whole.sum:.3g}; the limit is {sum_limit:.3g}",
        )


CHECK = Check(number=9, name="sampling", cost=Cost.PREFILL, fails=Fails.STATISTICAL, rationale=RATIONALE, judge=judge)
