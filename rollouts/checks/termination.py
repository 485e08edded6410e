"""Check 6: every answer, and every turn of a dialogue, ends with an end token or at the token limit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from protocol.verdicts import ReasonCode
from rollouts.checks.check import Check
from rollouts.checks.check_input import CheckInput
from rollouts.checks.result import CheckFinding, CheckResult, Cost, Fails, concluded
from rollouts.engines.interface import FinishReason
from rollouts.files.samples import Sample
from rollouts.turns import Turn

RATIONALE = (
    "A node that cuts an answer off early saves work and can improve a length reward; a node that adds tokens after "
    "the end token does work that the lease did not order. A working engine does neither. Replay (check 9) tests "
    "whether the end token was really drawn."
)


def judge(case: CheckInput) -> CheckResult:
    """Checks the end of each row, and in dialogues the end of each turn."""
    ends = np.array(sorted(case.version.model.end_tokens))
    findings: list[CheckFinding] = []
    for row, sample in enumerate(case.file.samples):
        if len(sample.output_tokens):  # check 5 reports empty answers
            findings += islice(_endings(case, row, sample, np.flatnonzero(np.isin(sample.output_tokens, ends))), 1)
    by_end = sum(sample.finish is FinishReason.EOS for sample in case.file.samples)
    return concluded(CHECK.name, findings, fails=CHECK.fails, figures={"ended_by_eos": by_end})


def _endings(case: CheckInput, row: int, sample: Sample, ends: NDArray[np.intp]) -> Iterator[CheckFinding]:
    """Yields what is wrong with the ends of a row's turns; a single answer has one turn."""
    most_new = case.draws(row).parameters.max_new_tokens
    room = case.version.model.context - len(sample.prompt_tokens)
    turns = sample.turns or (Turn(len(sample.output_tokens), np.zeros(0, np.int32)),)
    start = 0
    for number, turn in enumerate(turns):
        stop, limit = start + turn.drawn, most_new - start
        if sample.turns:
            limit = min(limit, room)
        name = f"turn {number}" if sample.turns else "the answer"
        here = ends[(ends >= start) & (ends < stop)]
        yield from _ending(case, row, here, place=range(start, stop), limit=limit, name=name)
        start, room = stop, room - turn.drawn - len(turn.given)
    ended = len(ends) > 0 and int(ends[-1]) == len(sample.output_tokens) - 1
    if ended != (sample.finish is FinishReason.EOS):
        yield case.finding(
            ReasonCode.TERMINATION_EARLY,
            f"the recorded finish reason is {sample.finish.value}, but the last token is {'an' if ended else 'not an'} "
            f"end token",
            row=row,
            position=len(sample.output_tokens) - 1,
        )


def _ending(
    case: CheckInput, row: int, ends: NDArray[np.intp], *, place: range, limit: int, name: str
) -> Iterator[CheckFinding]:
    """Yields what is wrong with the end of one turn.

    Args:
        case: The file.
        row: The row.
        ends: Output tokens of the turn that are end tokens, ascending.
        place: The turn's output tokens.
        limit: Maximum number of tokens of the turn.
        name: Name of the turn for findings.
    """
    length = len(place)
    if len(ends) and (first := int(ends[0])) < place[-1]:
        yield case.finding(
            ReasonCode.TERMINATION_LATE,
            f"{place[-1] - first} tokens follow the end token{'' if name == 'the answer' else f' of {name}'}",
            row=row,
            position=first,
        )
    elif not len(ends) and length < limit:
        yield case.finding(
            ReasonCode.TERMINATION_EARLY,
            f"{name} stops after {length} tokens without an end token; the limit is {limit}",
            row=row,
            position=place[-1],
        )


CHECK = Check(number=6, name="termination", cost=Cost.FILE, fails=Fails.EXACT, rationale=RATIONALE, judge=judge)
