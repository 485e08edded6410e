"""Scores the rows of a file in the environment, and replays dialogues; checks 7 and 11 compare the results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache

from protocol.errors import InvalidInput
from rollouts.checks.check_input import CheckInput
from rollouts.checks.dialogue_replay import DialogueFault, replay
from rollouts.checks.result import Figure
from rollouts.environments import Prompt
from rollouts.environments.errors import BadDataset
from rollouts.files.samples import Sample

FEW_ROWS = 0.02
"""Share of a file's rows, at least one row, whose reward may differ by chance or because of a slower machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowScore:
    """Score of a row by this machine.

    Args:
        task: The task reward; None if the row is undecided: it is slow or unscored, it claims less reward than this
            machine computed, repeated scores differ, or its dialogue differs.
        length_penalty: The length penalty; None if the row has no score.
        reward: The reward; None if `task` is None.
        limited: Whether the environment scores the row under time or memory limits.
        slow: Whether such a limit ended the scoring.
        unscored: Whether the validator's total time was over before the row had a score.
        fault: First difference between the row's dialogue and its replay; None if there is none.
    """

    task: float | None = None
    length_penalty: float | None = None
    reward: float | None = None
    limited: bool = False
    slow: bool = False
    unscored: bool = False
    fault: DialogueFault | None = None

    @property
    def figures(self) -> Mapping[str, Figure]:
        """The values without the fault."""
        return {name: value for name, value in asdict(self).items() if name != "fault"}

    @property
    def undecided(self) -> RowScore:
        """The same score without a decision, so that the row is excused."""
        return replace(self, task=None, reward=None, fault=None)


Scores = Mapping[int, RowScore]
"""Scores by row number."""
UNSCORED = RowScore(limited=True, unscored=True)
"""The score of a row that the validator did not score, because the total time was over."""


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
        """Returns the row's score; None if its prompt or target does not exist, which check 4 reports.

        Raises:
            EnvironmentFault: The environment breaks its contract.
            SandboxUnavailable: This machine has no sandbox for scoring answers.
        """
        sample = self._case.file.samples[row]
        fault: DialogueFault | None = None
        try:
            prompt = self._prompt_of(sample.prompt_index, sample.target_length)
        except BadDataset:  # an `InvalidInput` too, but of this machine: its data set is missing or changed
            raise
        except InvalidInput:
            return None
        if self._case.version.recipe.dialogue is not None:
            replayed = replay(self._case, row, prompt)
            reward, fault = replayed.reward, replayed.fault
        else:
            reward = self._case.version.planner.reward(prompt, sample.output_tokens.tolist(), sample.finish)
        if reward is None:
            return RowScore(length_penalty=0.0, limited=fault is not None and fault.ends_at_limit, fault=fault)
        return RowScore(
            task=None if reward.undecided else reward.task,
            length_penalty=reward.length_penalty,
            reward=None if reward.undecided else reward.total,
            limited=reward.limited,
            slow=reward.undecided,
        )


def score_rows(case: CheckInput) -> Scores:
    """Scores every row, without a limit of time for all rows.

    Check 4 reports rows whose prompt or target does not exist.

    Raises:
        SandboxUnavailable: This machine has no sandbox for scoring answers.
    """
    scorer = RowScorer(case)
    scores = {row: scorer.score(row) for row in range(len(case.file.samples))}
    return {row: one for row, one in scores.items() if one is not None}


def differs(case: CheckInput, row: int, score: RowScore) -> bool:
    """Returns whether a row's recorded rewards or dialogue contradict a score."""
    return score.fault is not None or difference(case.file.samples[row], score) is not None


def excused_rows(case: CheckInput, scores: Scores) -> frozenset[int]:
    """Returns rows that may have hit a limit on the node, if they are few (`is_few`); else none.

    These rows claim less reward than their score, or end without reward where the environment goes on. Their number is
    bounded because the trainer skips undecided rows: with any number of them, a node could choose the training data.
    """
    less = frozenset(row for row in scores if may_be_limit(case, row, scores[row]))
    return less if is_few(len(less), rows=len(case.file.samples)) else frozenset()


def may_be_limit(case: CheckInput, row: int, score: RowScore) -> bool:
    """Returns whether a limit of the node's machine may be the only cause of a row's difference."""
    if score.fault is not None:
        return score.fault.ends_at_limit
    return _claims_less(case.file.samples[row], score)


def is_few(number: int, *, rows: int) -> bool:
    """Returns whether this many rows of a file may differ by chance or because of a slower machine."""
    return number <= max(1, FEW_ROWS * rows)


def _claims_less(sample: Sample, score: RowScore) -> bool:
    """Returns whether a row claims less than its score, is otherwise right, and may have hit a limit on the node."""
    less = score.limited and score.task is not None and sample.task_reward < score.task
    return less and sample.length_penalty == score.length_penalty


def difference(sample: Sample, score: RowScore) -> str | None:
    """Describes the first difference between a row and its score; None if equal. Undecided values are skipped."""
    pairs = (
        ("task reward", sample.task_reward, score.task),
        ("length penalty", sample.length_penalty, score.length_penalty),
        ("reward", sample.reward, score.reward),
    )
    wrong = [
        f"{name} is {found!r} and should be {own!r}" for name, found, own in pairs if own is not None and found != own
    ]
    return wrong[0] if wrong else None
