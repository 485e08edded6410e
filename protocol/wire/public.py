"""Public summary of a pool: its nodes, progress, verdicts, payments and terms, without a login."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from protocol.identifiers import WireAddress
from protocol.wire.base import Milliseconds, Name, PoolId, ShortText, WireModel
from protocol.wire.listings import MOST_FIGURED_STEPS, StepFigures
from protocol.wire.runs import StepView, Version

PUBLIC_PATH = "/public/"
"""Path of the pool's public web page."""

MOST_PROVIDERS = 20
"""Maximum number of providers in the ranking."""
MOST_DAYS = 92
"""Maximum number of days with earnings."""

Must = Annotated[
    str, StringConstraints(pattern=r"^-?[0-9]{1,60}(\.[0-9]{1,18})?$"), Field(examples=["12.5"], max_length=80)
]
"""An amount of MUST as a decimal number."""
Seconds = Annotated[int, Field(ge=0)]
Number = Annotated[int, Field(ge=0)]


class DayEarnings(WireModel):
    """Earnings that became final on one day."""

    day: Annotated[int, Field(ge=0, lt=1 << 32, examples=[20_454])]
    """Days since 1970 in UTC."""
    earned: Must


class VerdictTotals(WireModel):
    """Numbers of verdicts and disputes, as read from the ledger's events."""

    accepted: int
    rejected: int
    forged: int
    """Verdicts by outcome, including those that decided disputes."""
    expired: int
    """Work that no validator judged in time."""
    disputes: int
    disputes_lost: int


class PublicProvider(WireModel):
    """One line of the ranking of providers."""

    provider: WireAddress
    nodes_live: Number
    accepted: int
    rejected: int
    forged: int
    earned: Must
    slashed: Must


class PublicTerms(WireModel):
    """The pool's terms of work on the ledger."""

    price_per_unit: Must
    """Pay for one work unit of accepted work."""
    penalty_per_unit: Must
    """Stake that is slashed for each work unit of a lease if its work is forged."""
    stake_per_capacity: Must
    """Stake that joining locks for each unit of the node's capacity."""
    min_capacity: Number
    max_nodes: Number
    audited_share: Annotated[float, Field(ge=0, le=1)]
    """Minimum share of work that validators recompute."""
    judge_period_s: Seconds
    challenge_period_s: Seconds
    """Time after a verdict in which it can be disputed."""
    dispute_period_s: Seconds
    notice_period_s: Seconds
    """Time between the proposal of new terms and their taking effect."""


class PublicSummary(WireModel):
    """Answer of `GET /v1/public`.

    A background loop writes it every few seconds, so that its cost does not depend on the number of readers.
    """

    pool_id: PoolId
    chain_id: Number
    url: ShortText
    """URL of the pool, which `muster worker init` takes."""
    service: WireAddress
    """Address of the pool's orchestrator key."""
    release: ShortText
    run: Name | None
    time_ms: Milliseconds
    """Time at which the summary was written."""
    active: bool
    """Whether the pool accepts nodes and work."""
    nodes_live: Number
    """Nodes whose last heartbeat is recent."""
    nodes_members: Number
    """Members of the pool on the ledger."""
    version: Version | None = None
    """Newest version of the policy."""
    steps: Annotated[tuple[StepView, ...], Field(max_length=64)] = ()
    figures: Annotated[tuple[StepFigures, ...], Field(max_length=MOST_FIGURED_STEPS)] = ()
    verdicts: VerdictTotals
    counted_since_ms: Milliseconds
    """Time at which verdicts and payments began to be counted; 0 if there was none."""
    earned: Must
    slashed: Must
    days: Annotated[tuple[DayEarnings, ...], Field(max_length=MOST_DAYS)] = ()
    providers: Annotated[tuple[PublicProvider, ...], Field(max_length=MOST_PROVIDERS)] = ()
    """The providers with the highest earnings, in descending order."""
    terms: PublicTerms | None = None
    """None if the ledger could not be read for minutes."""
