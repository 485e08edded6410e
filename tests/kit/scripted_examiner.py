"""An examiner with scripted results, for tests of everything around the examination."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.identifiers import Digest
from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.audits import AuditCheck, AuditRow, CheckState
from validator.examination.interface import Conclusion, Examination, IsCopy, NotJudged, Timings

Answer = Conclusion | NotJudged | BaseException


def concluded(outcome: Outcome = Outcome.ACCEPTED, reason: ReasonCode = ReasonCode.PASSED, **more: Any) -> Conclusion:
    """A conclusion of two rows."""
    rows = tuple(
        AuditRow(
            row=row,
            group=0,
            sample=row,
            prompt_index=7,
            tokens=5,
            task=1.0,
            length_penalty=0.0,
            reward=1.0,
            audited=True,
        )
        for row in range(2)
    )
    values: dict[str, Any] = {
        "words": "every check passed",
        "checks": (AuditCheck(name="format", state=CheckState.PASSED, fails="exact"),),
        "rows": rows,
        "audited": (0, 1),
        "timings": Timings(seconds={"prefill": 0.01}, rows=2, tokens=10, prefilled_rows=2, prefilled_tokens=10),
    }
    return Conclusion(outcome=outcome, reason=reason, **{**values, **more})


@dataclass
class ScriptedExaminer:
    """Returns scripted results per work and records its calls."""

    answers: dict[Digest, Answer] = field(default_factory=dict)
    otherwise: Answer = field(default_factory=concluded)
    asked: list[Examination] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    before: Callable[[Examination, IsCopy], Awaitable[None]] | None = None
    opened: bool = False
    broken: NotJudged | None = None
    """What its self-test says."""

    async def __aenter__(self) -> ScriptedExaminer:
        self.opened = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.opened = False

    async def examine(self, examination: Examination, *, is_copy: IsCopy) -> Conclusion | NotJudged:
        self.asked.append(examination)
        if isinstance(examination.file, Path):
            self.contents.append(examination.file.read_bytes())
        if self.before is not None:
            await self.before(examination, is_copy)
        answer = self.answers.get(examination.facts.work.key, self.otherwise)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def try_out(self) -> NotJudged | None:
        return self.broken
