"""Check 7: every row is scored again, in the sandbox where the environment wants one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from protocol.errors import InvalidInput
from protocol.verdicts import ReasonCode
from rollouts.checks.case import Case
from rollouts.checks.result import Check, CheckResult, Cost, Fails, Figure, Finding, concluded, unknown
from rollouts.environments import Prompt, Reward
from rollouts.samples import Sample

RATIONALE = (
    "Environments are pure and versioned: the same prompt and answer have the same reward everywhere. A row whose "
    "check ran into a limit of time or memory is excused; any other difference was written, not computed."
)


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

    @cache
    def prompt_of(index: int, target: int | None) -> Prompt:
        return case.version.planner.ask(index, target)[0]

    findings: list[Finding] = []
    rows: dict[int, Mapping[str, Figure]] = {}
    excused = 0
    for row, sample in enumerate(case.file.samples):
        try:
            prompt = prompt_of(sample.prompt_index, sample.target_length)
            reward = case.version.planner.reward(prompt, sample.output_tokens.tolist(), sample.finish)
        except InvalidInput:
            continue
        rows[row] = {"task": reward.task, "length_penalty": reward.length_penalty, "reward": reward.total}
        if reward.undecided:
            excused += 1
        elif (what := _difference(sample, reward)) is not None:
            findings.append(case.finding(ReasonCode.REWARD_DIFFERS, what, row=row))
    mean = sum(sample.reward for sample in case.file.samples) / len(case.file.samples)
    figures = {"scored": len(rows), "excused": excused, "mean_reward": mean}
    return concluded(CHECK.name, findings, fails=CHECK.fails, figures=figures, rows=rows)


def _difference(sample: Sample, reward: Reward) -> str | None:
    pairs = (
        ("task reward", sample.task_reward, reward.task),
        ("length penalty", sample.length_penalty, reward.length_penalty),
        ("reward", sample.reward, reward.total),
    )
    wrong = [f"{name} {found:g}, and it is {computed:g}" for name, found, computed in pairs if found != computed]
    return wrong[0] if wrong else None


CHECK = Check(number=7, name="reward", cost=Cost.SCORE, fails=Fails.EXACT, rationale=RATIONALE, judge=judge)
