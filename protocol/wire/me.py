"""A contributor's own page: login by a signed request, sessions, earnings, verdicts and stake."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from protocol.identifiers import WireAddress, WireDigest
from protocol.verdicts import Outcome
from protocol.wire.audits import CheckState, Figure
from protocol.wire.base import LongText, Milliseconds, Name, PoolId, ShortText, WireModel
from protocol.wire.listings import RolloutStatus
from protocol.wire.nodes import NodeState
from protocol.wire.public import DayEarnings, Must, Number, Seconds, VerdictTotals
from protocol.wire.runs import SlotGroups, SlotIndex, Step, Units, Version

ME_PATH = "/me/"
"""Path of the contributor's web page."""

MOST_NODES = 100
"""Maximum number of a provider's nodes in one answer."""
MOST_UNBONDS = 64
MOST_WORKS = 100
"""Maximum number of works in one page."""
MOST_FINDINGS = 200
"""Maximum number of findings, and of rows, in the evidence of one verdict."""

LoginCode = Annotated[
    str, StringConstraints(pattern=r"^mlc_[A-Za-z0-9_-]{43}$"), Field(examples=["mlc_" + "Ab3_" * 10 + "x-9"])
]
"""A one-time code of 256 random bits, which a browser exchanges for a session."""


class LoginLink(WireModel):
    """A one-time link to the contributor's page; the answer of `POST /v1/me/logins`."""

    url: str
    """The page with the code in the fragment, which browsers never send to a server."""
    provider: WireAddress
    """Provider whose data the session shows: the signer, or the provider of the signing node."""
    expires_at_ms: Milliseconds


class NewSession(WireModel):
    """Request of `POST /v1/me/sessions`."""

    code: LoginCode


class CreatedSession(WireModel):
    """A session; the answer of `POST /v1/me/sessions`. Only this answer has the token."""

    token: str
    provider: WireAddress
    expires_at_ms: Milliseconds


class EndedSessions(WireModel):
    """Answer of `POST /v1/me/logins/revoke`."""

    ended: Number
    """Number of sessions that were open."""


class OwnNode(WireModel):
    """A node of the provider, with its account in this pool."""

    address: WireAddress
    state: NodeState
    since_ms: Milliseconds
    reason: LongText
    verdicts: VerdictTotals
    earned: Must
    slashed: Must


class Unbonding(WireModel):
    """Stake that the provider takes back."""

    amount: Must
    matures_at_ms: Milliseconds
    """Time from which it can be withdrawn; until then it can be slashed."""


class OwnStake(WireModel):
    """The provider's stake on the ledger."""

    active: Must
    free: Must
    """Active stake that nothing locks."""
    locked_by_memberships: Must
    locked_by_work: Must
    """Locked for work that is not final yet."""
    unbonding: Must
    unbonds: Annotated[tuple[Unbonding, ...], Field(max_length=MOST_UNBONDS)]
    unbonding_period_s: Seconds


class Contributor(WireModel):
    """Answer of `GET /v1/me`: a provider's nodes, earnings and stake in this pool."""

    pool_id: PoolId
    run: Name | None
    time_ms: Milliseconds
    session_ends_at_ms: Milliseconds
    provider: WireAddress
    nodes: Annotated[tuple[OwnNode, ...], Field(max_length=MOST_NODES)]
    nodes_total: Number
    verdicts: VerdictTotals
    counted_since_ms: Milliseconds
    """Time at which the provider's events began to be counted; 0 if there was none."""
    earned: Must
    """Final earnings so far."""
    claimed: Must
    """Part of them that was collected."""
    claimable: Must | None
    """Part of them that can be collected now; None if the ledger can't be read at the moment."""
    accepted_not_final: Must
    """Reward of the newest accepted work whose time for disputes is not over."""
    not_judged: Must
    """Reward of the newest work without a verdict, if it is accepted."""
    slashed: Must
    days: Annotated[tuple[DayEarnings, ...], Field(max_length=92)]
    challenge_period_s: Seconds | None
    """Time after a verdict in which it can be disputed."""
    stake: OwnStake | None
    """None if the ledger can't be read at the moment."""


class OwnWork(WireModel):
    """A submitted file of the provider's nodes."""

    key: WireDigest
    node: WireAddress
    step: Step
    index: SlotIndex
    version: Version
    groups: SlotGroups
    units: Units
    worth: Must
    """Reward if the work is accepted, at the pool's present price."""
    status: RolloutStatus
    outcome: Outcome | None
    reason: Annotated[int, Field(ge=0, lt=1 << 16)]
    explanation: LongText
    """Meaning of the reason in one sentence; empty without a verdict."""
    submitted_at_ms: Milliseconds
    audit_hash: WireDigest | None
    """SHA-256 of the verdict's audit file; None without a verdict."""


class OwnWorkPage(WireModel):
    """Answer of `GET /v1/me/works`: the newest works first."""

    works: Annotated[tuple[OwnWork, ...], Field(max_length=MOST_WORKS)]
    next_cursor: Number | None
    """`skip` of the next page."""


class EvidenceCheck(WireModel):
    """One check of the examination."""

    name: Name
    state: CheckState
    found: Number
    """Number of findings, of which the evidence lists some."""
    note: LongText


class EvidenceFinding(WireModel):
    """One fault that a check found."""

    check: Name
    reason: Annotated[int, Field(ge=0, lt=1 << 16)]
    what: LongText
    row: Number | None
    sample: Number | None
    group: Number | None
    position: Number | None
    """Index of the output token in question, from 0."""


class EvidenceRow(WireModel):
    """One row of the file: first the rows with findings, then further recomputed ones."""

    row: Number
    group: Number
    sample: Number
    tokens: Number
    reward: float | None
    """Reward that the validator computed."""
    recomputed: bool
    figures: dict[Name, Figure]


class WorkEvidence(WireModel):
    """What a validator found in one file: the audit file of the verdict, shortened for a page."""

    key: WireDigest
    validator: WireAddress
    judged_at_ms: Milliseconds
    outcome: Outcome
    reason: Annotated[int, Field(ge=0, lt=1 << 16)]
    words: LongText
    """Verdict in one sentence."""
    explanation: LongText
    """Meaning of the reason in one sentence."""
    environment: ShortText
    engine: ShortText
    verifier_engine: ShortText
    audit_hash: WireDigest
    """SHA-256 of the audit file, as the ledger has it; the orchestrator compared it."""
    share: float | None
    """Share of the rows that were drawn for recomputation; None if none was."""
    rows_total: Number
    rows_recomputed: Number
    checks: Annotated[tuple[EvidenceCheck, ...], Field(max_length=32)]
    findings: Annotated[tuple[EvidenceFinding, ...], Field(max_length=MOST_FINDINGS)]
    rows: Annotated[tuple[EvidenceRow, ...], Field(max_length=MOST_FINDINGS)]
