"""The public audit file of a verdict: all findings about one submission.

The file is the model `AuditFile` as canonical JSON (`AuditFile.encode`). The ledger stores the file's SHA-256 with the
verdict. The pool's object store has the file under `POOL/audits/VALIDATOR/SHA256`. The trainer compares the rewards
in rollout files with those in the audit file.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError

from protocol.enumerations import WireEnum
from protocol.errors import InvalidInput, plain_message
from protocol.identifiers import WireAddress, WireDigest
from protocol.verdicts import Outcome
from protocol.wire.base import MAX_INT64, LongText, Milliseconds, Name, PoolId, ShortText, WireModel
from protocol.wire.runs import SlotIndex, Step, Version

LARGEST_AUDIT_FILE = 64 * 1024 * 1024
"""Maximum size of an audit file, in bytes. Larger files are not read."""

MOST_ROWS = 1 << 20
MOST_CHECKS = 32
MOST_FINDINGS = 64
"""Maximum number of findings that are listed per check."""
MOST_FIGURES = 64
"""Maximum number of measurements per check or row."""

Row = Annotated[int, Field(ge=0, lt=MOST_ROWS)]
"""Index of a row in the rollout file, from 0."""
Figure = float | int | bool | LongText | None
"""Value of a measurement."""
Figures = Annotated[dict[Name, Figure], Field(max_length=MOST_FIGURES)]
"""Measurements by name."""
Share = Annotated[float, Field(ge=0, le=1)]


class CheckState(WireEnum):
    """Result of a check."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The check could not run; the note names the missing input. This result never counts against the node."""
    SKIPPED = "skipped"
    """The check did not run, because an earlier check had failed."""


class Certainty(WireEnum):
    """Certainty of a failed check."""

    EXACT = "exact"
    """The fault is a fact."""
    STATISTICAL = "statistical"
    """The fault depends on calibrated limits."""


class AuditFinding(WireModel):
    """One fault in the submission."""

    reason: Annotated[int, Field(ge=0, lt=1 << 16)]
    """Number of a `protocol.verdicts.ReasonCode`. A newer validator may use a code that this release does not know."""
    what: LongText
    """Explanation with the actual and the expected value."""
    row: Row | None = None
    sample: Annotated[int, Field(ge=0, le=MAX_INT64)] | None = None
    group: Annotated[int, Field(ge=0, le=MAX_INT64)] | None = None
    position: Annotated[int, Field(ge=0, le=MAX_INT64)] | None = None
    """Index of the output token in question, from 0."""


class AuditCheck(WireModel):
    """Result of one check."""

    name: Name
    state: CheckState
    fails: Certainty | None = None
    """Certainty of a failure."""
    findings: Annotated[tuple[AuditFinding, ...], Field(max_length=MOST_FINDINGS)] = ()
    found: Annotated[int, Field(ge=0, le=MAX_INT64)] = 0
    """Number of findings, of which at most `MOST_FINDINGS` are listed."""
    figures: Figures = {}
    note: LongText = ""


class AuditRow(WireModel):
    """One row of the file.

    The rewards are those that the validator computed, not those in the file.
    """

    row: Row
    group: Annotated[int, Field(ge=0, le=MAX_INT64)]
    sample: Annotated[int, Field(ge=0, le=MAX_INT64)]
    prompt_index: Annotated[int, Field(ge=0, le=MAX_INT64)]
    tokens: Annotated[int, Field(ge=0, le=MAX_INT64)]
    """Number of generated tokens."""
    task: float | None
    """Score that the environment gives; None if it could not be computed. The trainer then skips the row."""
    length_penalty: float | None
    reward: float | None
    audited: bool
    """Whether the row was recomputed with the policy."""
    figures: Figures = {}
    """Measurements of this row by the checks that recompute it."""


class AuditDraw(WireModel):
    """The rows that the validator recomputed, and how they were drawn.

    The rows are drawn from `seed` = HMAC-SHA256(epoch secret, work key ‖ block hash). The validator reveals the secret
    on the ledger after the epoch, so that anybody can recompute seed and rows.
    """

    epoch: Annotated[int, Field(ge=0, le=MAX_INT64)] | None
    """Number of the epoch whose secret was used; None if every row is recomputed. `why` then gives the reason. For
    example, no secret was committed before the submission, the epoch was over when the file was complete, or the file
    was absent at first.
    """
    block: Annotated[int, Field(ge=0, le=MAX_INT64)] | None
    """Number of the block after the submission, whose hash is part of the seed."""
    share: Share
    """Share of rows that is drawn; 1 for all rows. It depends on the node's past work."""
    why: ShortText
    """Reason for the share as text. Examples are a new node, a proven node, a recent failure, forged work by another
    node of the provider, and a late file.
    """
    rows: Annotated[tuple[Row, ...], Field(max_length=MOST_ROWS)]
    """Indices of the drawn rows in ascending order."""


class AuditFile(WireModel):
    """An audit file: all findings about one submission."""

    format: Literal[1] = 1
    pool_id: PoolId
    key: WireDigest
    """Work key of the submission."""
    validator: WireAddress
    judged_at_ms: Milliseconds
    muster: ShortText
    """Version of the validator's software."""
    outcome: Outcome
    reason: Annotated[int, Field(ge=0, lt=1 << 16)]
    words: LongText
    """Verdict in one sentence, for the contributor."""
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
    """The recomputed rows; None if no row was recomputed."""
    checks: Annotated[tuple[AuditCheck, ...], Field(max_length=MOST_CHECKS)]
    rows: Annotated[tuple[AuditRow, ...], Field(max_length=MOST_ROWS)] = ()
    second_look: bool = False
    """Whether an earlier verdict on this work exists. This verdict then decides a dispute, confirms the earlier
    verdict, or is the evidence of a dispute. The check `second-look` compares its rows with the audit file of the
    earlier verdict.
    """

    def encode(self) -> bytes:
        """Returns the file as canonical JSON: sorted keys, no spaces, UTF-8.

        Equal findings give equal bytes.
        """
        values = self.model_dump(mode="json")
        return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Parses an audit file.

        The caller must have checked the hash of `content`.

        Raises:
            InvalidInput: The file is too large or malformed.
        """
        if len(content) > LARGEST_AUDIT_FILE:
            raise InvalidInput(f"the audit file has {len(content)} bytes; the limit is {LARGEST_AUDIT_FILE}")
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])[:200]
            raise InvalidInput(
                f"this is not an audit file: {place}: {plain_message(first['msg'])}", code="bad-audit-file"
            ) from error
