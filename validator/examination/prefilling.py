"""Checks 8 to 10 of an examination: prefills of the drawn rows; after a failure, of all rows.

The second prefill recomputes the same rows with other arithmetic, to tell forged rows from rounding differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from rollouts.calibration.limits import CheckLimits
from rollouts.checks import PREFILL_CHECKS, CheckInput, CheckOutcome, RowEvidence, RowSpread, gather
from rollouts.checks.sampling import CHECK as REPLAY
from rollouts.models.policy import Policy
from rollouts.precision import Dtype
from rollouts.prefill import usual_tokens
from validator.examination.conclusion import Prefilled

OTHER_SHAPE = 3
"""Factor by which the second prefill has fewer tokens per pass than the first.

Each row then has other neighbours in its pass, and the matrix products have other sizes.
"""
ALONE = 8
"""Maximum number of failed rows that the second prefill computes in one pass each; other rows share passes."""
NOISY = 2
"""Number of further prefills with noise on their inputs, if generator and verifier compute in float32.

With sharp attention, rounding may change the score of a single token by much, and two prefills may agree on that score
by chance. More prefills show the true spread; decision 58 has the figures.
"""
FLOAT32_SPREAD = 16.0
"""Factor for float32 on the largest difference between the verifier's own prefills, up to which a row may differ.

Measured factors: at most 2.5 in 480 rows of a model whose query and key weights are twenty times too large, and 8.6 in
one row of 120,000.
"""
MEASURED_SPREAD = 2.0
"""The same factor for other data types.

It equals the headroom of a calibration, because measurements of honest files set the limits of these data types.
"""


class Prefill:
    """The prefills of one file, and the results of checks 8 to 10.

    Args:
        case: The file, which has passed checks 3 to 6.
        limits: Limits of honest work.
        policy: Policy of the leased version.
        margin: Factor on the limits beyond which a statistical failure is forgery.
    """

    def __init__(self, case: CheckInput, limits: CheckLimits, policy: Policy, *, margin: float) -> None:
        float32 = case.file.header.dtype is Dtype.FLOAT32 and policy.dtype is torch.float32
        self._noisy = NOISY if float32 else 0
        factor = FLOAT32_SPREAD if float32 else MEASURED_SPREAD
        self._case = replace(case, limits=limits, spread_factor=factor)
        self._policy = policy
        self._wide = replace(case, limits=limits.widened(margin), spread_factor=margin * factor)
        self.evidence: dict[int, RowEvidence] = {}
        self.rows = 0
        self.tokens = 0

    def first(self, rows: Sequence[int]) -> Prefilled:
        """Recomputes these rows unless an earlier call did; returns the results of all rows recomputed so far."""
        missing = [row for row in rows if row not in self.evidence]
        self.evidence |= self._gather(missing, tokens_at_once=None)
        return self._judged(self.evidence, {})

    def again(self, first: Prefilled) -> tuple[Prefilled, Prefilled]:
        """Recomputes the same rows with other arithmetic, and widens the limits by the prefills' differences.

        Other arithmetic means the plain attention kernel, reversed order of rows, smaller passes, and a separate pass
        for each of the first `ALONE` failed rows.

        Args:
            first: Results of the first prefill, with a failed check.

        Returns:
            Results of both prefills, judged by limits that are wider than those of the first judgement. So the first
            prefill may pass now.
        """
        alone = {one.row for result in first.failed for one in result.findings if one.row is not None}
        alone = set(sorted(alone & self.evidence.keys())[:ALONE])
        shape = max(1, usual_tokens(self._policy.device) // OTHER_SHAPE)
        packed = [row for row in sorted(self.evidence, reverse=True) if row not in alone]
        with self._policy.other_arithmetic():
            second = self._gather(packed, tokens_at_once=shape)
            for row in sorted(alone):
                second |= self._gather([row], tokens_at_once=shape)
        others = [second]
        for noise_seed in range(self._noisy):
            with self._policy.other_arithmetic(noise_seed=noise_seed):
                others.append(self._gather(sorted(self.evidence), tokens_at_once=shape))
        spread = {row: RowSpread.between(one, [other[row] for other in others]) for row, one in self.evidence.items()}
        return self._judged(self.evidence, spread), self._judged(second, spread)

    def _gather(self, rows: Sequence[int], *, tokens_at_once: int | None) -> dict[int, RowEvidence]:
        if not rows:
            return {}
        self.rows += len(rows)
        self.tokens += sum(len(self._case.file.samples[row].output_tokens) for row in rows)
        return gather(
            self._policy,
            self._case.file,
            rows,
            seed=self._case.facts.seed,
            parameters=self._case.version.recipe.sampling.parameters,
            tokens_at_once=tokens_at_once,
        )

    def _judged(self, evidence: dict[int, RowEvidence], spread: dict[int, RowSpread]) -> Prefilled:
        evidence = dict(sorted(evidence.items()))
        case, wide = (replace(one, evidence=evidence, spread=spread) for one in (self._case, self._wide))
        results = tuple(check.judge(case) for check in PREFILL_CHECKS)
        failed = {one.check for one in results if one.state is CheckOutcome.FAILED}
        beyond = {
            check.name: result
            for check in PREFILL_CHECKS
            if check.name in failed and (result := check.judge(wide)).state is CheckOutcome.FAILED
        }
        replay_agrees = REPLAY.name in beyond
        sure = (name for name, result in beyond.items() if result.broad or replay_agrees)
        return Prefilled(results=results, beyond=frozenset(sure))
