"""Interface of examinations: request, conclusion and errors."""

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
    """Hash and size of a file that exceeds this validator's size limit and was not stored.

    Args:
        sha256: SHA-256 of the file's bytes.
        size: Size in bytes.
    """

    sha256: Digest
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Request for an examination.

    Args:
        facts: Facts of the submission from the ledger.
        file: Path of the downloaded file, or hash and size of a file that was not stored; the hash equals the
            submitted one.
        checkpoint: The policy version that the lease names, and its relays.
        draw: Selection of the rows to recompute.
    """

    facts: WorkFacts
    file: Path | HashedFile
    checkpoint: CheckpointRef
    draw: RowDraw


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Durations of the stages of one examination, and its numbers of rows and tokens, for metrics.

    Args:
        seconds: Wall time in seconds by stage: `version`, `format`, `exact`, `policy`, `prefill`, `again` (the second
            prefill), `reward`. Stages that were not reached are absent.
        rows: Number of rows of the file.
        tokens: Number of generated tokens in the file.
        prefilled_rows: Number of recomputed rows, counted once per prefill.
        prefilled_tokens: Number of generated tokens in the recomputed rows, counted once per prefill.
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
        outcome: Outcome of the verdict.
        reason: Reason code of the verdict.
        words: Reason of the verdict in one sentence.
        checks: All checks in the order of the audit file, with skipped checks.
        rows: All rows of the file; empty if it could not be read.
        audited: Numbers of the recomputed rows, ascending. All rows are recomputed if a drawn row failed, or if another
            submission has the same outputs.
        fingerprint: Fingerprint of all outputs, independent of the order of rows; None if the file could not be read.
        limits: The calibration entry that was used, as JSON; None if no rows were recomputed.
        beacon_block: Number of the lease's beacon block; None if the file could not be read.
        environment: Name of the environment, from the file's header; empty if the file could not be read.
        environment_version: Version of the environment, from the header; empty if the file could not be read.
        engine: Engine that generated the file, from the header; empty if the file could not be read.
        dtype: Data type in which the file was generated, from the header; empty if the file could not be read.
        verifier_engine: Engine of the prefills; empty if no rows were recomputed.
        verifier_dtype: Data type of the prefills; empty if no rows were recomputed.
        near_ties: Near-ties that an accepted file adds to its node's budget. None if generator and verifier both
            computed in float32, if the verifier computed in a numerics class, if the arithmetic has no calibrated
            limits, or if no rows were replayed.
        timings: Durations of the stages, and numbers of rows and tokens. They are not part of the audit file, which
            must not depend on the machine.
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
    """Result of an examination that ended without a conclusion, for a reason that the node did not cause.

    Args:
        code: Error code for metrics and operators, such as `no-calibration`, `no-policy` or `out-of-memory`.
        why: Text of the error.
        retryable: True if a retry by this validator may succeed. If False, other validators try, or the work is parked.
        hint: Action for the operator.
        failed_class: Numerics class that this machine failed to reproduce; empty for other errors.
    """

    code: str
    why: str
    retryable: bool
    hint: str = ""
    failed_class: str = ""


IsCopy = Callable[[Digest], Awaitable[bool]]
"""Returns True if another submission has the given fingerprint; then every row of the file is recomputed.

Equal outputs alone prove nothing: two honest nodes may have equal outputs where answers are short. A copy of long
answers fails the replay, because the seed of the copying node's own slot draws other tokens.
"""


class Examiner(Protocol):
    """Examines rollout files; several calls may run concurrently."""

    async def examine(self, examination: Examination, *, is_copy: IsCopy) -> Conclusion | NotJudged:
        """Runs the checks, the cheapest first, until the verdict is certain, and returns the conclusion.

        Errors of this machine, the version or the calibration give `NotJudged`, never a conclusion. A file that can't
        be decoded gives a conclusion about the file.

        Args:
            examination: The file with its facts.
            is_copy: Returns True if another submission has the given fingerprint.
        """
        ...

    async def try_out(self) -> NotJudged | None:
        """Tests a free process, its sandbox and its device without a submission; returns None, or the error.

        The test never waits for a running examination: if all processes are busy, it passes.
        """
        ...
