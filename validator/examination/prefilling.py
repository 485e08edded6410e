"""Checks 8 to 10 of an examination: prefills of the drawn rows, and after a failure, prefills of all rows.

If a check still fails, a second prefill recomputes the same rows with other arithmetic, to distinguish forged rows from
rounding differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from rollouts.calibration.limits import CheckLimits
from rollouts.checks import PREFILL_CHECKS, CheckInput, CheckOutcome, RowEvidence, RowSpread
from rollouts.checks.sampling import CHECK as REPLAY
from rollouts.recompute.interface import Recomputer
from rollouts.turns import given_tokens
from validator.examination.conclusion import Prefilled

ALONE = 8
"""Maximum number of failed rows of which the second prefill computes each in a pass of its own; others share passes."""


PIECE_TOKENS = 8192
"""Maximum tokens of prompts, outputs and replies that are recomputed between two reports of progress; a longer row is a
piece of its own. The time limit of an examination applies to each piece, so slow processors can judge large files: with
the default limit of 600 s, 14 tokens/s are enough."""


class Prefill:
    """The prefills of one file, and the results of checks 8 to 10.

    Args:
        case: The file, which has passed checks 3 to 6.
        limits: Limits of honest work.
        recomputer: Recomputes rows with the leased version.
        margin: Factor on the limits beyond which a statistical failure is forgery.
        progress: Called after each piece of the recomputation.
    """

    def __init__(
        self,
        case: CheckInput,
        limits: CheckLimits,
        recomputer: Recomputer,
        *,
        margin: float,
        progress: Callable[[], None],
    ) -> None:
        factor = recomputer.spread_factor
        self._case = replace(case, limits=limits, spread_factor=factor)
        self._recomputer = recomputer
        self._progress = progress
        self._wide = replace(case, limits=limits.widened(margin), spread_factor=margin * factor)
        self.evidence: dict[int, RowEvidence] = {}
        self.rows = 0
        self.tokens = 0

    def first(self, rows: Sequence[int]) -> Prefilled:
        """Recomputes those of `rows` that no earlier call recomputed; returns the results over all recomputed rows."""
        missing = [row for row in rows if row not in self.evidence]
        for piece in self._pieces(missing):
            self.evidence |= self._recomputer.evidence(self._case.drawn_file, self._case.with_draws(piece))
            self._count(piece)
        return self._judged(self.evidence, {})

    def again(self, first: Prefilled) -> tuple[Prefilled, Prefilled]:
        """Recomputes the same rows in other passes, and widens the limits by the passes' differences.

        Args:
            first: Results of the first prefill, with a failed check.

        Returns:
            Results of both prefills, judged by the widened limits. So the first prefill may pass now, although it
            failed before.

        Raises:
            ClassFailed: Passes in one numerics class differ, or a new process does not reproduce the class.
        """
        alone = {one.row for result in first.failed for one in result.findings if one.row is not None}
        alone = set(sorted(alone & self.evidence.keys())[:ALONE])
        rows = sorted(self.evidence)
        self._recomputer.renew()
        self._progress()
        others: list[dict[int, RowEvidence]] = []
        for piece in self._pieces(rows):
            passes = self._recomputer.again(
                self._case.drawn_file, self._case.with_draws(piece), alone.intersection(piece)
            )
            others = [one | new for one, new in zip(others or [{} for _ in passes], passes, strict=True)]
            self._count(piece * len(passes))
        spread = {row: RowSpread.between(one, [other[row] for other in others]) for row, one in self.evidence.items()}
        return self._judged(self.evidence, spread), self._judged(others[0], spread)

    def _pieces(self, rows: Sequence[int]) -> Iterator[list[int]]:
        """Yields the rows in pieces of at most `PIECE_TOKENS` tokens or one row, and reports progress after each."""
        piece: list[int] = []
        tokens = 0
        for row in rows:
            sample = self._case.file.samples[row]
            own = len(sample.prompt_tokens) + len(sample.output_tokens) + given_tokens(sample.turns)
            if piece and tokens + own > PIECE_TOKENS:
                yield piece
                self._progress()
                piece, tokens = [], 0
            piece.append(row)
            tokens += own
        if piece:
            yield piece
            self._progress()

    def _count(self, rows: Sequence[int]) -> None:
        self.rows += len(rows)
        self.tokens += sum(len(self._case.file.samples[row].output_tokens) for row in rows)

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
