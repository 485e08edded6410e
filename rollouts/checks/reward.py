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


Scores = Mapping[int, Mapping[str, Figure]]
"""Of each row `task`, `length_penalty` and `reward`, and whether its check is `limited`; `task` and `reward` are None
where a limit ended it."""


def judge(case: Case) -> CheckResult:
    """Scores and compares. Rows whose prompt or target does not exist are left to check 4.

    Raises:
        SandboxUnavailable: Answers can't be checked on this machine.
    """
    header, here = case.file.header, case.version.environment.version
    if header.environment_version != here:
        return unknown(
            CHECK.name,
            f"rewards are of {header.environment} in version {header.environment_version}, and here is {here}",
        )
    return compared(case, score(case))


def score(case: Case) -> Scores:
    """What every row is worth.

    Raises:
        SandboxUnavailable: Answers can't be checked on this machine.
    """

    @cache
    def prompt_of(index: int, target: int | None) -> Prompt:
        return case.version.planner.ask(index, target)[0]

    rows: dict[int, Mapping[str, Figure]] = {}
    for row, sample in enumerate(case.file.samples):
        try:
            prompt = prompt_of(sample.prompt_index, sample.target_length)
            reward = case.version.planner.reward(prompt, sample.output_tokens.tolist(), sample.finish)
        except InvalidInput:
            continue
        rows[row] = {
            "task": None if reward.undecided else reward.task,
            "length_penalty": reward.length_penalty,
            "reward": None if reward.undecided else reward.total,
            "limited": reward.limited,
        }
    return rows


def compared(case: Case, scores: Scores) -> CheckResult:
    """Holds a file's rewards against scores; rows without one are excused."""
    findings = []
    for row, one in scores.items():
        if one["task"] is not None and (what := _difference(case.file.samples[row], one)) is not None:
            findings.append(case.finding(ReasonCode.REWARD_DIFFERS, what, row=row))
    excused = sum(one["task"] is None for one in scores.values())
    mean = sum(sample.reward for sample in case.file.samples) / len(case.file.samples)
    figures = {"scored": len(scores) - excused, "excused": excused, "mean_reward": mean}
    return concluded(CHECK.name, findings, fails=CHECK.fails, figures=figures, rows=scores)


def _difference(sample: Sample, computed: Mapping[str, Figure]) -> str | None:
    task = ("task reward", sample.task_reward, computed["task"])
    penalty = ("length penalty", sample.length_penalty, computed["length_penalty"])
    less = computed["limited"] and (sample.task_reward, computed["task"]) == (0.0, 1.0)
    pairs = (penalty,) if less else (task, penalty, ("reward", sample.reward, computed["reward"]))
    wrong = [f"{name} {found:g}, and it is {own:g}" for name, found, own in pairs if found != own]
    return wrong[0] if wrong else None


CHECK = Check(number=7, name="reward", cost=Cost.SCORE, fails=Fails.EXACT, rationale=RATIONALE, judge=judge)
