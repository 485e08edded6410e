"""Interface of examinations: request, result and errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protocol.identifiers import Digest
from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.audits import AuditCheck, AuditRow
from protocol.wire.runs import CheckpointRef
from rollouts.calibration.near_ties import NearTieCount
from validator.audit.draw import RowDraw
from validator.domain.submissions import WorkFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedFile:
    """A file that was hashed as it arrived and not kept, because it is larger than this validator reads.

    Args:
        sha256: Of its bytes.
        size: In bytes.
    """

    sha256: Digest
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Request for an examination.

    Args:
        facts: Of the submission.
        file: The bytes that were uploaded, already compared with the hash that was submitted.
        checkpoint: The version, and where it can be fetched.
        draw: Which rows.
    """

    facts: WorkFacts
    file: Path | HashedFile
    checkpoint: CheckpointRef
    draw: RowDraw


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Costs of an examination, for metrics.

    Args:
        seconds: Of wall time, by stage: `version`, `format`, `exact`, `policy`, `prefill`, `again`, `reward`. A stage
            that was not reached is not there.
        rows: Of the file.
        tokens: Generated ones, in the file.
        prefilled_rows: Rows that were computed again, each as often as it was.
        prefilled_tokens: Their generated tokens.
    """

    seconds: dict[str, float]
    rows: int = 0
    tokens: int = 0
    prefilled_rows: int = 0
    prefilled_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """Conclusion of an examination, with all data for the audit file.

    Args:
        outcome: The verdict.
        reason: Why.
        words: The verdict in one sentence.
        checks: Every check in order, those that were not made too.
        rows: Every row of the file, if it could be read.
        audited: The rows that were computed again, ascending; more than the draw where something was suspicious.
        fingerprint: Of all outputs, whatever the order of rows; None if the file could not be read.
        limits: The calibration's entry that was used, as JSON.
        beacon_block: The one that the lease names; None if the file could not be read.
        environment: Name, as the file has it, and so on.
        near_ties: What an accepted file adds to its node's budget; None if nothing in it could be steered.
        timings: What it took; no part of the audit file, which is the same whoever writes it.
    """

    outcome: Outcome
    reason: ReasonCode
    words: str
    checks: tuple[AuditCheck, ...]
    rows: tuple[AuditRow, ...] = ()
    audited: tuple[int, ...] = ()
    fingerprint: Digest | None = None
    limits: dict[str, object] | None = None
    beacon_block: int | None = None
    environment: str = ""
    environment_version: str = ""
    engine: str = ""
    dtype: str = ""
    verifier_engine: str = ""
    verifier_dtype: str = ""
    near_ties: NearTieCount | None = None
    timings: Timings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotJudged:
    """No conclusion can be drawn here and now, through no fault of the node.

    Args:
        code: What kind of trouble, for metrics and for people: `no-calibration`, `no-policy`, `out-of-memory`, ...
        why: In words.
        retryable: Whether trying again may help; if not, a person has to look (the work is parked).
        hint: What that person can do.
    """

    code: str
    why: str
    retryable: bool
    hint: str = ""


IsCopy = Callable[[Digest], Awaitable[bool]]
"""Returns whether other work has the same fingerprint. Then every row is recomputed: equal outputs occur naturally
where answers are short, but a copy fails the replay of its own slot's noise."""


class Examiner(Protocol):
    """Examines files; several at once, as far as the machine allows."""

    async def examine(self, examination: Examination, *, is_copy: IsCopy) -> Conclusion | NotJudged:
        """Makes every check, the cheapest first, and draws the conclusion.

        Whatever is wrong with this machine, the version or the calibration is `NotJudged`, never a conclusion; whatever
        the bytes of the file do to their reader is a conclusion about the file.
        """
        ...

    async def try_out(self) -> NotJudged | None:
        """Examines nothing, with everything that is needed for it; None if that works, else what does not.

        It never waits for an examination that is under way: where all are busy, that is answer enough.
        """
        ...
