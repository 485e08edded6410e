"""The audit file of a verdict: all findings about one submission. It is public.

The file is this model as canonical JSON (`AuditFile.encode`). The ledger stores its SHA-256 with the verdict, and the
pool's object store has it under `POOL/audits/VALIDATOR/SHA256`. The trainer takes rewards from it.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError

from protocol.errors import InvalidInput, plain_message
from protocol.identifiers import WireAddress, WireDigest
from protocol.verdicts import Outcome
from protocol.wire.base import MAX_INT64, LongText, Milliseconds, Name, PoolId, ShortText, WireModel
from protocol.wire.runs import SlotIndex, Step, Version

LARGEST_AUDIT_FILE = 64 * 1024 * 1024
"""Size limit in bytes; larger audit files are not read."""

MOST_ROWS = 1 << 20
MOST_CHECKS = 32
MOST_FINDINGS = 64
MOST_FIGURES = 64

Row = Annotated[int, Field(ge=0, lt=MOST_ROWS)]
"""Index of a row in the rollout file, from 0."""
Figure = float | int | bool | LongText | None
Figures = Annotated[dict[Name, Figure], Field(max_length=MOST_FIGURES)]
Share = Annotated[float, Field(ge=0, le=1)]


class CheckState(StrEnum):
    """State of a check."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The check could not run; the note names the missing input. This never counts against the node."""
    SKIPPED = "skipped"
    """The check was skipped, because an earlier one failed."""


class AuditFinding(WireModel):
    """One fault in the submission."""

    reason: Annotated[int, Field(ge=0, lt=1 << 16)]
    """A `protocol.verdicts.ReasonCode`; newer validators may use codes that this release does not know."""
    what: LongText
    """Explanation with the actual and the expected value."""
    row: Row | None = None
    sample: Annotated[int, Field(ge=0, le=MAX_INT64)] | None = None
    group: Annotated[int, Field(ge=0, le=MAX_INT64)] | None = None
    position: Annotated[int, Field(ge=0, le=MAX_INT64)] | None = None
    """The output token in question, from 0."""


class AuditCheck(WireModel):
    """Result of one check."""

    name: Name
    state: CheckState
    fails: Literal["exact", "statistical"] | None = None
    findings: Annotated[tuple[AuditFinding, ...], Field(max_length=MOST_FINDINGS)] = ()
    found: Annotated[int, Field(ge=0, le=MAX_INT64)] = 0
    """Number of findings; at most `MOST_FINDINGS` are listed."""
    figures: Figures = {}
    note: LongText = ""


class AuditRow(WireModel):
    """One row of the file. Rewards are the validator's own, not those in the file."""

    row: Row
    group: Annotated[int, Field(ge=0, le=MAX_INT64)]
    sample: Annotated[int, Field(ge=0, le=MAX_INT64)]
    prompt_index: Annotated[int, Field(ge=0, le=MAX_INT64)]
    tokens: Annotated[int, Field(ge=0, le=MAX_INT64)]
    """Number of generated tokens."""
    task: float | None
    """The environment's score; None if it could not be computed, in which case the trainer skips the row."""
    length_penalty: float | None
    reward: float | None
    audited: bool
    """Whether the row was recomputed with the policy."""
    figures: Figures = {}
    """Measurements of this row by the recomputing checks."""


class AuditDraw(WireModel):
    """Recomputed rows and their draw. `seed` = HMAC-SHA256(epoch secret, work key || block hash).

    The secret is revealed on the ledger after the epoch, so that seed and rows can be recomputed publicly.
    """

    epoch: Annotated[int, Field(ge=0, le=MAX_INT64)] | None
    """None if every row is audited; `why` gives the reason, for example that no secret was committed before the
    submission, that the epoch was over when the file was complete, or that the file was absent at first."""
    block: Annotated[int, Field(ge=0, le=MAX_INT64)] | None
    """Block after the submission; its hash is part of the seed."""
    share: Share
    """Share of rows that is drawn, which depends on the node's record; 1 for all rows."""
    why: ShortText
    """Reason for the share as text: a new node, a proven one, a recent failure, forged work by another node of the
    provider, a late file."""
    rows: Annotated[tuple[Row, ...], Field(max_length=MOST_ROWS)]
    """Indices of the drawn rows, ascending."""


class AuditFile(WireModel):
    """Audit file: all findings about one submission."""

    format: Literal[1] = 1
    pool_id: PoolId
    key: WireDigest
    """The work key."""
    validator: WireAddress
    judged_at_ms: Milliseconds
    muster: ShortText
    """The release of the validator's software."""
    outcome: Outcome
    reason: Annotated[int, Field(ge=0, lt=1 << 16)]
    words: LongText
    """The verdict in one sentence, for the contributor."""
    # The submission
    node: WireAddress
    run: WireDigest
    step: Step
    index: SlotIndex
    version: Version
    checkpoint: WireDigest
    sha256: WireDigest
    units: Annotated[int, Field(ge=0, le=MAX_INT64)]
    submitted_block: Annotated[int, Field(ge=0, le=MAX_INT64)]
    beacon_block: Annotated[int, Field(ge=0, le=MAX_INT64)] | None
    # The examination
    environment: ShortText = ""
    environment_version: ShortText = ""
    engine: ShortText = ""
    dtype: ShortText = ""
    verifier_engine: ShortText = ""
    verifier_dtype: ShortText = ""
    limits: dict[str, object] | None = None
    """Entry of the calibration that the statistical checks used, as JSON; None if they did not run."""
    draw: AuditDraw | None = None
    """None if no row was recomputed."""
    checks: Annotated[tuple[AuditCheck, ...], Field(max_length=MOST_CHECKS)]
    rows: Annotated[tuple[AuditRow, ...], Field(max_length=MOST_ROWS)] = ()
    second_look: bool = False
    """Whether an earlier verdict exists: this verdict decides a dispute, confirms that verdict, or is the evidence of a
    dispute. The check `second-look` then compares the rows of that verdict's audit file."""

    def encode(self) -> bytes:
        """Canonical JSON: sorted keys, no spaces, UTF-8; equal findings give equal bytes."""
        values = self.model_dump(mode="json")
        return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Parses an audit file whose hash the caller has checked.

        Raises:
            InvalidInput: The file is too large or malformed.
        """
        if len(content) > LARGEST_AUDIT_FILE:
            raise InvalidInput(f"an audit file of {len(content)} bytes; the limit is {LARGEST_AUDIT_FILE}")
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])[:200]
            raise InvalidInput(
                f"not an audit file: {place}: {plain_message(first['msg'])}", code="bad-audit-file"
            ) from error
