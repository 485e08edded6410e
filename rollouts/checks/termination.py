"""Check 6: every answer ends with an end token or at the token limit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from protocol.verdicts import ReasonCode
from rollouts.checks.check import Check
from rollouts.checks.check_input import CheckInput
from rollouts.checks.result import CheckFinding, CheckResult, Cost, Fails, concluded
from rollouts.engines.interface import FinishReason
from rollouts.files.samples import Sample

RATIONALE = (
    "A node that cuts an answer off early saves work and can improve a length reward; a node that adds tokens after "
    "the end token does work that the lease did not order. A working engine does neither. Replay (check 9) tests "
    "whether the end token was really drawn."
)


def judge(case: CheckInput) -> CheckResult:
    """Checks the end of each row."""
    ends = np.array(sorted(case.version.model.end_tokens))
    findings: list[CheckFinding] = []
    for row, sample in enumerate(case.file.samples):
        if len(sample.output_tokens):  # check 5 reports empty answers
            findings += _ending(case, row, sample, np.flatnonzero(np.isin(sample.output_tokens, ends)))
    by_end = sum(sample.finish is FinishReason.EOS for sample in case.file.samples)
    return concluded(CHECK.name, findings, fails=CHECK.fails, figures={"ended_by_eos": by_end})


def _ending(
    case: CheckInput, row: int, sample: Sample, ends: np.ndarray[tuple[int], np.dtype[np.intp]]
) -> Iterator[CheckFinding]:
    length, limit = len(sample.output_tokens), case.draws(row).parameters.max_new_tokens
    if len(ends) and (first := int(ends[0])) < length - 1:
        yield case.finding(
            ReasonCode.TERMINATION_LATE, f"{length - 1 - first} tokens follow the end token", row=row, position=first
        )
        return
    ended = bool(len(ends))
    if not ended and length < limit:
        yield case.finding(
            ReasonCode.TERMINATION_EARLY,
            f"the answer stops after {length} tokens without an end token; the limit is {limit}",
            row=row,
            position=length - 1,
        )
    elif ended != (sample.finish is FinishReason.EOS):
        yield case.finding(
            ReasonCode.TERMINATION_EARLY,
            f"the recorded finish reason is {sample.finish.value}, but the last token is {'an' if ended else 'not an'} "
            f"end token",
            row=row,
            position=length - 1,
        )


CHECK = Check(number=6, name="termination", cost=Cost.FILE, fails=Fails.EXACT, rationale=RATIONALE, judge=judge)
