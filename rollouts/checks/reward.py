"""Check 7: every row is scored again, in the sandbox where the environment wants one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from protocol.errors import InvalidInput
from protocol.verdicts import ReasonCode
from rollouts.checks.case import Case
from rollouts.checks.result import Check, CheckResult, Cost, Fails, Figure, concluded, unknown
from rollouts.environments import Prompt
from rollouts.samples import Sample

RATIONALE = (
    "Environments are pure and versioned: the same prompt and answer have the same reward everywhere. A row whose "
    "check ran into a limit of time or memory is excused, and so is one that claims less than it is worth and may have "
    "run into it where it was made. Any other difference was written, not computed."
)

RowScore = Mapping[str, Figure]
"""Of one row `task`, `length_penalty` and `reward`; whether its check is `limited`, that is, has limits that may end
it; and whether it was `slow`: a limit or the end of the scoring time ended it. `task` and `reward` are None where the
row is undecided."""
Scores = Mapping[int, RowScore]
"""By the row's place in the file."""
UNSCORED: RowScore = {"task": None, "length_penalty": None, "reward": None, "limited": True, "slow": True}
"""A row that was not scored, because the time for all rows was over."""


def judge(case: Case) -> CheckResult:
    """Scores and compares. Rows whose prompt or target does not exist are left to check 4.

    Raises:
        SandboxUnavailable: Answers can't be checked on this machine.
    """
    note = other_build(case)
    if note:
        return unknown(CHECK.name, note)
    scorer = RowScorer(case)
    scores = {row: scorer.score(row) for row in range(len(case.file.samples))}
    return compared(case, {row: one for row, one in scores.items() if one is not None})


def other_build(case: Case) -> str:
    """Why rewards can't be compared here: the file's environment is another build; empty if they can."""
    header, here = case.file.header, case.version.environment.version
    if header.environment_version == here:
        return ""
    return f"rewards are of {header.environment} in version {header.environment_version}, and here is {here}"


class RowScorer:
    """Scores single rows of one file; prompts are asked for once.

    Args:
        case: The file, and its version.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        planner = case.version.planner

        @cache
        def prompt_of(index: int, target: int | None) -> Prompt:
            return planner.ask(index, target)[0]

        self._prompt_of = prompt_of

    def score(self, row: int) -> RowScore | None:
        """The row's score; None if its prompt or target does not exist.

        Raises:
            SandboxUnavailable: Answers can't be checked on this machine.
        """
        sample = self._case.file.samples[row]
        try:
            prompt = self._prompt_of(sample.prompt_index, sample.target_length)
            reward = self._case.version.planner.reward(prompt, sample.output_tokens.tolist(), sample.finish)
        except InvalidInput:
            return None
        return {
            "task": None if reward.undecided else reward.task,
            "length_penalty": reward.length_penalty,
            "reward": None if reward.undecided else reward.total,
            "limited": reward.limited,
            "slow": reward.undecided,
        }


def differs(case: Case, row: int, score: RowScore) -> bool:
    """Whether the file's rewards of a row contradict a score."""
    sample = case.file.samples[row]
    return _difference(sample, _without_doubt(sample, score)) is not None


def compared(case: Case, scores: Scores) -> CheckResult:
    """Holds a file's rewards against scores; rows that are undecided are excused.

    In the result, each row's reward equals the file's or is None, unless the row is among the findings.
    """
    samples = case.file.samples
    rows = {row: _without_doubt(samples[row], one) for row, one in scores.items()}
    findings = [
        case.finding(ReasonCode.REWARD_DIFFERS, what, row=row)
        for row, one in rows.items()
        if (what := _difference(samples[row], one)) is not None
    ]
    excused = sum(one["task"] is None for one in rows.values())
    mean = sum(sample.reward for sample in samples) / len(samples)
    slow = sum(bool(one["slow"]) for one in rows.values())
    figures = {"scored": len(rows) - excused, "excused": excused, "slow": slow, "mean_reward": mean}
    return concluded(CHECK.name, findings, fails=CHECK.fails, figures=figures, rows=rows)


def undecided(score: RowScore) -> RowScore:
    """The score of a row without its task and reward."""
    return {**score, "task": None, "reward": None}


def _without_doubt(sample: Sample, score: RowScore) -> RowScore:
    """Leaves a row undecided that claims 0, is worth 1, and may have run into a limit where it was made."""
    less = score["limited"] and (sample.task_reward, score["task"]) == (0.0, 1.0)
    return undecided(score) if less else score


def _difference(sample: Sample, score: RowScore) -> str | None:
    """The first thing in which the file and the score differ; undecided figures differ from nothing."""
    pairs = (
        ("task reward", sample.task_reward, score["task"]),
        ("length penalty", sample.length_penalty, score["length_penalty"]),
        ("reward", sample.reward, score["reward"]),
    )
    wrong = [f"{name} {found:g}, and it is {own:g}" for name, found, own in pairs if own is not None and found != own]
    return wrong[0] if wrong else None


CHECK = Check(number=7, name="reward", cost=Cost.SCORE, fails=Fails.EXACT, rationale=RATIONALE, judge=judge)
