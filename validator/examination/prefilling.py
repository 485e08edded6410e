"""Checks 8 to 10 as a service makes them: drawn rows first, then all, then all once more in another batch shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rollouts.calibration import Limits
from rollouts.checks import PREFILL_CHECKS, Case, RowEvidence, State, gather
from rollouts.policy import Policy
from rollouts.prefill import usual_tokens
from validator.examination.conclusion import Prefilled

OTHER_SHAPE = 3
"""A pass of the second prefill has this part of the tokens of the first one's: so no row keeps its neighbours, and
matrix products have other sizes."""
ALONE = 8
"""Rows that failed and are computed alone in the second prefill; the rest of its rows are packed."""


class Prefill:
    """The computations on one case.

    Args:
        case: Identity to rewards are known to be right.
        limits: What honest work shows.
        policy: The version's.
        margin: How much wider limits are made to find what is beyond doubt.
    """

    def __init__(self, case: Case, limits: Limits, policy: Policy, *, margin: float) -> None:
        self._case = replace(case, limits=limits)
        self._policy = policy
        self._wide = replace(case, limits=limits.widened(margin))
        self.evidence: dict[int, RowEvidence] = {}
        self.rows = 0
        self.tokens = 0

    def first(self, rows: Sequence[int]) -> Prefilled:
        """Computes these rows, beside those that were computed before."""
        missing = [row for row in rows if row not in self.evidence]
        self.evidence |= self._gather(missing, tokens_at_once=None)
        return self._judged(self.evidence)

    def again(self, first: Prefilled) -> Prefilled:
        """Computes the same rows in another batch shape: the other way round, in smaller passes, failed ones alone."""
        alone = {one.row for result in first.failed for one in result.findings if one.row is not None}
        alone = set(sorted(alone & self.evidence.keys())[:ALONE])
        shape = max(1, usual_tokens(self._policy.device) // OTHER_SHAPE)
        packed = [row for row in sorted(self.evidence, reverse=True) if row not in alone]
        evidence = self._gather(packed, tokens_at_once=shape)
        for row in sorted(alone):
            evidence |= self._gather([row], tokens_at_once=shape)
        return self._judged(evidence)

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

    def _judged(self, evidence: dict[int, RowEvidence]) -> Prefilled:
        evidence = dict(sorted(evidence.items()))
        case, wide = (replace(one, evidence=evidence) for one in (self._case, self._wide))
        results = tuple(check.judge(case) for check in PREFILL_CHECKS)
        failed = [one for one in results if one.state is State.FAILED]
        by_name = {check.name: check for check in PREFILL_CHECKS}
        beyond = (one.check for one in failed if by_name[one.check].judge(wide).state is State.FAILED)
        return Prefilled(results=results, beyond=frozenset(beyond))
