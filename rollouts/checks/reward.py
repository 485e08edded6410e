"""Check 7: every row is scored again, in a sandbox if the environment needs one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

from protocol.errors import InvalidInput
from protocol.verdicts import ReasonCode
from rollouts.checks.check import Check
from rollouts.checks.check_input import CheckInput
from rollouts.checks.result import CheckResult, Cost, Fails, Figure, concluded, unknown
from rollouts.environments import Prompt, is_solved
from rollouts.environments.errors import BadDataset
from rollouts.environments.mixture import parts_of
from rollouts.files.samples import Sample

RATIONALE = (
    "Environments are pure and versioned: the same prompt and answer have the same reward everywhere. A row is excused "
    "if its scoring hits a time or memory limit. A few rows are also excused that claim too little reward and may have "
    "hit such a limit on the node. Any other difference means that the node invented the reward."
)

FEW_ROWS = 0.02
"""Share of a file's rows, at least one row, whose reward may differ by chance or because of a slower machine."""

_LONGEST_LABEL = 40
"""Maximum characters of an environment's label in a figure's name, which has at most 63 characters."""

RowScore = Mapping[str, Figure]
"""Score of a row: `task`, `length_penalty`, `reward` and three flags.

`limited`: the environment scores the row under time or memory limits. `slow`: such a limit ended the scoring.
`unscored`: the validator's total time was over before the row had a score. `task` and `reward` are None if the row is
undecided: it is slow or unscored, or it claims less reward than the validator computed.
"""
Scores = Mapping[int, RowScore]
"""Scores by row number."""
UNSCORED: RowScore = {
    "task": None,
    "length_penalty": None,
    "reward": None,
    "limited": True,
    "slow": False,
    "unscored": True,
}
"""The score of a row that the validator did not score, because the total time was over."""


def judge(case: CheckInput) -> CheckResult:
    """Scores every row and compares the scores with the file.

    Check 4 reports rows whose prompt or target does not exist.

    Raises:
        SandboxUnavailable: This machine has no sandbox for scoring answers.
    """
    note = other_build(case)
    if note:
        return unknown(CHECK.name, note)
    scorer = RowScorer(case)
    scores = {row: scorer.score(row) for row in range(len(case.file.samples))}
    return compared(case, {row: one for row, one in scores.items() if one is not None})


def other_build(case: CheckInput) -> str:
    """Returns why rewards can't be compared: the environment's versions differ; empty if equal."""
    header, here = case.file.header, case.version.environment.version
    if header.environment_version == here:
        return ""
    return f"the rewards are from {header.environment} {header.environment_version}, and this machine has {here}"


class RowScorer:
    """Scores single rows of one file; caches prompts.

    Args:
        case: The file and its version.
    """

    def __init__(self, case: CheckInput) -> None:
        self._case = case
        planner = case.version.planner

        @cache
        def prompt_of(index: int, target: int | None) -> Prompt:
            return planner.ask(index, target)[0]

        self._prompt_of = prompt_of

    def score(self, row: int) -> RowScore | None:
        """Returns the row's score; None if its prompt or target does not exist.

        Raises:
            SandboxUnavailable: This machine has no sandbox for scoring answers.
        """
        sample = self._case.file.samples[row]
        try:
            prompt = self._prompt_of(sample.prompt_index, sample.target_length)
            reward = self._case.version.planner.reward(prompt, sample.output_tokens.tolist(), sample.finish)
        except BadDataset:  # an `InvalidInput` too, but of this machine: its data set is missing or changed
            raise
        except InvalidInput:
            return None
        return {
            "task": None if reward.undecided else reward.task,
            "length_penalty": reward.length_penalty,
            "reward": None if reward.undecided else reward.total,
            "limited": reward.limited,
            "slow": reward.undecided,
            "unscored": False,
        }


def differs(case: CheckInput, row: int, score: RowScore) -> bool:
    """Returns whether a row's recorded rewards contradict a score."""
    return _difference(case.file.samples[row], score) is not None


def differing_environments(case: CheckInput, scores: Scores) -> frozenset[str]:
    """Returns environments of rows that contradict their score and can't have hit a limit.

    If the recipe has a mixture, the names are the names of its parts.
    """
    choice, samples = case.version.recipe.environment, case.file.samples
    parts = parts_of(choice.name, choice.options)
    rows = [row for row, one in scores.items() if differs(case, row, one) and not _claims_less(samples[row], one)]
    return frozenset(parts.names[parts.part(samples[row].prompt_index)] for row in rows)


def compared(case: CheckInput, scores: Scores) -> CheckResult:
    """Compares a file's rewards with scores; undecided rows are excused.

    Rows that claim too little reward and may have hit a limit on the node are excused if they are few (`is_few`). The
    number is bounded because the trainer skips undecided rows: with any number of them, a node could choose the
    training data. If too many rows claim too little and may have hit a limit, all of these rows are findings, and the
    figure `claimed_less` counts them.

    In the result, a row without a finding has the file's reward, or None if it was excused.
    """
    samples = case.file.samples
    less = {row for row, one in scores.items() if _claims_less(samples[row], one)}
    excused_less = less if is_few(len(less), rows=len(samples)) else set()
    rows = {row: undecided(one) if row in excused_less else one for row, one in scores.items()}
    findings = [
        case.finding(ReasonCode.REWARD_DIFFERS, what, row=row)
        for row, one in rows.items()
        if (what := _difference(samples[row], one)) is not None
    ]
    excused = sum(one["task"] is None for one in rows.values())
    mean = sum(sample.reward for sample in samples) / len(samples)
    figures: dict[str, Figure] = {
        "scored": len(rows) - excused,
        "excused": excused,
        "slow": sum(bool(one["slow"]) for one in rows.values()),
        "unscored": sum(bool(one["unscored"]) for one in rows.values()),
        "claimed_less": len(less - excused_less),
        "mean_reward": mean,
        **_by_environment(case),
    }
    return concluded(CHECK.name, findings, fails=CHECK.fails, figures=figures, rows=rows)


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


def undecided(score: RowScore) -> RowScore:
    """Returns the score with `task` and `reward` set to None, so that the row is excused."""
    return {**score, "task": None, "reward": None}


def is_few(number: int, *, rows: int) -> bool:
    """Returns whether this many rows of a file may differ by chance or because of a slower machine."""
    return number <= max(1, FEW_ROWS * rows)


def _claims_less(sample: Sample, score: RowScore) -> bool:
    """Returns whether a row claims less than its score, is otherwise right, and may have hit a limit on the node."""
    task = score["task"]
    less = bool(score["limited"]) and isinstance(task, float) and sample.task_reward < task
    return less and sample.length_penalty == score["length_penalty"]


def _difference(sample: Sample, score: RowScore) -> str | None:
    """Describes the first difference between a row and its score; None if equal. Undecided values are skipped."""
    pairs = (
        ("task reward", sample.task_reward, score["task"]),
        ("length penalty", sample.length_penalty, score["length_penalty"]),
        ("reward", sample.reward, score["reward"]),
    )
    wrong = [
        f"{name} is {found!r} and should be {own!r}" for name, found, own in pairs if own is not None and found != own
    ]
    return wrong[0] if wrong else None


CHECK = Check(number=7, name="reward", cost=Cost.SCORE, fails=Fails.EXACT, rationale=RATIONALE, judge=judge)
