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
    """A file that was hashed as it arrived and not stored, because it is larger than this validator reads.

    Args:
        sha256: SHA-256 of its bytes.
        size: Size in bytes.
    """

    sha256: Digest
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Request for an examination.

    Args:
        facts: Facts of the submission.
        file: The uploaded file; its hash was verified.
        checkpoint: The version, and its relays.
        draw: Rows to recompute.
    """

    facts: WorkFacts
    file: Path | HashedFile
    checkpoint: CheckpointRef
    draw: RowDraw


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Costs of an examination, for metrics.

    Args:
        seconds: Wall time by stage: `version`, `format`, `exact`, `policy`, `prefill`, `again`, `reward`; stages that
            were not reached are absent.
        rows: Rows of the file.
        tokens: Generated tokens in the file.
        prefilled_rows: Recomputed rows, counted once per prefill.
        prefilled_tokens: Generated tokens of these.
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
        reason: Reason code.
        words: Reason of the verdict in one sentence.
        checks: All checks in order, skipped ones included.
        rows: All rows of the file, if it could be read.
        audited: Recomputed rows, ascending; more than the draw if something was suspicious.
        fingerprint: Fingerprint of all outputs, independent of the order of rows; None if the file could not be read.
        limits: The calibration entry that was used, as JSON.
        beacon_block: Beacon block of the lease; None if the file could not be read.
        environment: Name of the environment in the file.
        near_ties: Near-ties that an accepted file adds to its node's budget; None if both sides computed in
            float32, if there are no calibrated limits, or if no rows were replayed.
        timings: Costs; not part of the audit file, which must not depend on the machine.
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
    """The examination has no conclusion for a reason that is not the node's.

    Args:
        code: Error code for metrics and people: `no-calibration`, `no-policy`, `out-of-memory`, ...
        why: Reason as text.
        retryable: True if a retry may help; otherwise the work is parked for a person.
        hint: Action for that person.
    """

    code: str
    why: str
    retryable: bool
    hint: str = ""


IsCopy = Callable[[Digest], Awaitable[bool]]
"""Returns whether other work has the same fingerprint. Then every row is recomputed: equal outputs occur naturally
where answers are short, but a copy fails the replay of its own slot's noise."""


class Examiner(Protocol):
    """Examines files, several at once if the machine allows."""

    async def examine(self, examination: Examination, *, is_copy: IsCopy) -> Conclusion | NotJudged:
        """Runs all checks, the cheapest first, and returns the conclusion.

        Errors of this machine, the version or the calibration give `NotJudged`, never a conclusion. Errors that the
        file's bytes cause in their reader give a conclusion about the file.
        """
        ...

    async def try_out(self) -> NotJudged | None:
        """Tests all parts of an examination without a submission; returns None if they work, else the error.

        It never waits for a running examination: if all processes are busy, the test passes.
        """
        ...
