"""Check 7: every row is scored again, in a sandbox if the environment needs one."""

from __future__ import annotations

import math

from protocol.verdicts import ReasonCode
from rollouts.checks import dialogue
from rollouts.checks.check import Check
from rollouts.checks.check_input import CheckInput
from rollouts.checks.result import CheckResult, Cost, Fails, Figure, concluded, unknown
from rollouts.checks.scoring import (
    Scores,
    difference,
    differs,
    excused_rows,
    may_be_limit,
    other_build,
    score_rows,
)
from rollouts.environments import is_solved
from rollouts.environments.mixture import parts_of

RATIONALE = (
    "Environments are pure and versioned: the same prompt and answer have the same reward everywhere. A row is excused "
    "if its scoring hits a time or memory limit. A few rows are also excused that claim too little reward and may have "
    "hit such a limit on the node. Any other difference means that the node invented the reward."
)

_LONGEST_LABEL = 40
"""Maximum characters of an environment's label in a figure's name, which has at most 63 characters."""


def judge(case: CheckInput) -> CheckResult:
    """Scores every row and compares the scores with the file.

    Raises:
        SandboxUnavailable: This machine has no sandbox for scoring answers.
    """
    note = other_build(case)
    return unknown(CHECK.name, note) if note else compared(case, score_rows(case))


def compared_rows(case: CheckInput, scores: Scores) -> tuple[CheckResult, ...]:
    """Returns the results of checks 7 and 11, in the order of `checks.score_checks`, from one score of each row."""
    result = compared(case, scores)
    return (result,) if case.version.recipe.dialogue is None else (dialogue.compared(case, scores), result)


def differing_environments(case: CheckInput, scores: Scores) -> frozenset[str]:
    """Returns environments of rows that contradict their score and can't have hit a limit.

    If the recipe has a mixture, the names are the names of its parts.
    """
    choice, samples = case.version.recipe.environment, case.file.samples
    parts = parts_of(choice.name, choice.options)
    rows = [row for row, one in scores.items() if differs(case, row, one) and not may_be_limit(case, row, one)]
    return frozenset(parts.names[parts.part(samples[row].prompt_index)] for row in rows)


def compared(case: CheckInput, scores: Scores) -> CheckResult:
    """Compares a file's rewards with scores; undecided rows are excused.

    Rows that claim too little reward and may have hit a limit on the node are excused if they are few: see
    `excused_rows`. If there are more, all of these rows are findings, and the figure `claimed_less` counts them.

    In the result, a row without a finding has the file's reward, or None if it was excused.
    """
    samples, excused_less = case.file.samples, excused_rows(case, scores)
    rows = {row: one.undecided if row in excused_less else one for row, one in scores.items()}
    findings = [
        case.finding(ReasonCode.REWARD_DIFFERS, what, row=row)
        for row, one in rows.items()
        if one.fault is None and (what := difference(samples[row], one)) is not None
    ]
    claimed_less = [row for row, one in rows.items() if one.fault is None and may_be_limit(case, row, one)]
    excused = sum(one.task is None for one in rows.values())
    mean = sum(sample.reward for sample in samples) / len(samples)
    figures: dict[str, Figure] = {
        "scored": len(rows) - excused,
        "excused": excused,
        "slow": sum(one.slow for one in rows.values()),
        "unscored": sum(one.unscored for one in rows.values()),
        "claimed_less": len(claimed_less),
        "mean_reward": mean,
        **_by_environment(case),
    }
    figures_of_rows = {row: one.figures for row, one in rows.items()}
    return concluded(CHECK.name, findings, fails=CHECK.fails, figures=figures, rows=figures_of_rows)


def _by_environment(case: CheckInput) -> dict[str, Figure]:
    """Returns mean task reward and share of solved answers of each environment of a mixture."""
    choice = case.version.recipe.environment
    parts = parts_of(choice.name, choice.options)
    if len(parts.names) == 1:
        return {}
    tasks: list[list[float]] = [[] for _ in parts.names]
    for sample in case.file.samples:
        tasks[parts.part(sample.prompt_index)].append(sample.task_reward)
    figures: dict[str, Figure] = {}
    for label, found in zip(parts.labels, tasks, strict=True):
        if found:
            name = label[:_LONGEST_LABEL]
            figures[f"{name}.mean_task_reward"] = math.fsum(found) / len(found)
            figures[f"{name}.solved"] = sum(map(is_solved, found)) / len(found)
    return figures


CHECK = Check(number=7, name="reward", cost=Cost.SCORE, fails=Fails.EXACT, rationale=RATIONALE, judge=judge)
