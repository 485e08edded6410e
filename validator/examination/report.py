"""Converts check results to the audit file's format: bounded sizes, finite numbers, printable text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from protocol.wire.audits import MOST_FIGURES, AuditCheck, AuditFinding, AuditRow, Certainty, CheckState
from protocol.wire.base import MAX_INT64
from rollouts.checks import (
    DIALOGUE_CHECK,
    EXACT_CHECKS,
    FORMAT,
    PREFILL_CHECKS,
    SCORE_CHECK,
    CheckFinding,
    CheckResult,
)
from rollouts.checks.result import Figure
from rollouts.files.samples import RolloutFile

ORDER = (FORMAT.name, *(one.name for one in EXACT_CHECKS), *(one.name for one in PREFILL_CHECKS), SCORE_CHECK.name)
"""Names of the checks of a file's content, in the order of the audit file; files of dialogues have `DIALOGUE_CHECK`
before the last one.
"""

_LONGEST = 4000
"""Maximum length of a text, in characters."""
_SCORE = ("task", "length_penalty", "reward")
"""Names of a row's scores."""


def checks_of(results: Iterable[CheckResult], *, dialogues: bool = False) -> tuple[AuditCheck, ...]:
    """Returns all checks in the order of the audit file; checks without a result have the state `SKIPPED`.

    Args:
        results: Results of the checks that were made.
        dialogues: Whether the file has dialogues.
    """
    made = {result.check: result for result in results}
    order = (*ORDER[:-1], DIALOGUE_CHECK.name, ORDER[-1]) if dialogues else ORDER
    return tuple(
        _check(made[name]) if name in made else AuditCheck(name=name, state=CheckState.SKIPPED) for name in order
    )


def rows_of(file: RolloutFile, results: Sequence[CheckResult], *, audited: Iterable[int]) -> tuple[AuditRow, ...]:
    """Returns all rows of a file with their rewards and measurements.

    Args:
        file: The file.
        results: Results of the checks. If the result of the reward check is missing, rows have no rewards.
        audited: Numbers of the recomputed rows.
    """
    scores = next((result.rows for result in results if result.check == "reward"), {})
    measured = [result for result in results if result.check in {one.name for one in PREFILL_CHECKS}]
    again = frozenset(audited)
    rows = []
    for row, sample in enumerate(file.samples):
        score = scores.get(row, {})
        task, penalty, reward = (_number(score.get(name)) for name in _SCORE)
        rows.append(
            AuditRow(
                row=row,
                group=sample.group,
                sample=sample.sample,
                prompt_index=min(sample.prompt_index, MAX_INT64),
                tokens=len(sample.output_tokens),
                task=task,
                length_penalty=penalty,
                reward=reward,
                audited=row in again,
                figures=figures_of(_measured(measured, row, score)),
            )
        )
    return tuple(rows)


def _measured(results: Sequence[CheckResult], row: int, score: Mapping[str, Figure]) -> dict[str, Figure]:
    """Returns a row's measurements as `CHECK.NAME`.

    They include `reward.limited` if scoring the row has a limit of time or memory, and `reward.unscored` if the time
    for scoring ran out before the row was scored.
    """
    scored: dict[str, Figure] = {f"reward.{name}": True for name in ("limited", "unscored") if score.get(name)}
    return scored | {f"{one.check}.{name}": value for one in results for name, value in one.rows.get(row, {}).items()}


class RewardsRewritten(AssertionError):
    """A bug in the validator: the audit file would have a reward that contradicts the accepted rollout file."""


def check_rewards(file: RolloutFile, rows: Sequence[AuditRow]) -> None:
    """Verifies that each reward in the audit file of an accepted file is None or equals the reward in the file.

    Trainers and other validators rely on this equality.

    Raises:
        RewardsRewritten: A reward differs.
    """
    for sample, row in zip(file.samples, rows, strict=True):
        if (row.task is None) != (row.reward is None):
            raise RewardsRewritten(f"row {row.row} has the task reward {row.task} and the reward {row.reward}")
        if row.reward is not None and (row.reward, row.task) != (sample.reward, sample.task_reward):
            raise RewardsRewritten(f"row {row.row} has the reward {row.reward}, but the file has {sample.reward}")


def figures_of(figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """Returns at most `MOST_FIGURES` measurements for JSON, in which infinite numbers and NaN are text."""
    kept = list(figures.items())[:MOST_FIGURES]
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value for name, value in kept
    }


def text(words: str) -> str:
    """Returns the text with `?` in place of each unprintable character, cut after 4000 characters."""
    return "".join(each if each.isprintable() else "?" for each in words)[:_LONGEST]


def _number(value: Figure) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _check(result: CheckResult) -> AuditCheck:
    return AuditCheck(
        name=result.check,
        state=CheckState(result.state.value),
        fails=None if result.fails is None else Certainty(result.fails.value),
        findings=tuple(_finding(one) for one in result.findings),
        found=result.found,
        figures=figures_of(result.figures),
        note=text(result.note),
    )


def _finding(finding: CheckFinding) -> AuditFinding:
    return AuditFinding(
        reason=int(finding.reason),
        what=text(finding.what),
        row=finding.row,
        sample=finding.sample,
        group=finding.group,
        position=finding.position,
    )
