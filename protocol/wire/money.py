"""Money of a pool and of its nodes, for the pool's owner."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.enumerations import WireEnum
from protocol.identifiers import WireAddress
from protocol.wire.base import Milliseconds, WireModel
from protocol.wire.public import DayEarnings, Must, Seconds, VerdictTotals


class GasRole(WireEnum):
    """Use of an account that pays gas."""

    ORCHESTRATOR = "orchestrator"
    """Removes dead nodes from the ledger."""
    RELAYER = "relayer"
    """Sends the transactions of nodes."""


class GasAccount(WireModel):
    """An account of the orchestrator that pays gas."""

    role: GasRole
    address: WireAddress
    coin: Must
    """Balance in the chain's coin."""


class PoolMoneyView(WireModel):
    """Answer of `GET /v1/money`; amounts in MUST."""

    escrow: Must
    reserved: Must
    """Part of the escrow that open work reserves."""
    free: Must
    """Part that pays for further work: neither reserved nor announced for withdrawal."""
    withdrawal: Must
    """Part whose withdrawal the owner has announced."""
    withdrawal_ready_at_ms: Milliseconds | None
    accrued: Must
    """Rewards and verdict fees of all final work, as the ledger has it."""
    claimed: Must
    """Part of them that was collected."""
    burn_per_day: Must
    """Mean of the rewards that became final per day, over the last seven days."""
    days_left: Annotated[float, Field(ge=0)] | None
    """Days until the free escrow is used up at that rate; None if nothing was paid."""
    days: Annotated[tuple[DayEarnings, ...], Field(max_length=92)]
    """Rewards that became final, by day."""
    earned: Must
    """Rewards of nodes since `counted_since_ms`."""
    slashed: Must
    counted_since_ms: Milliseconds
    gas: Annotated[tuple[GasAccount, ...], Field(max_length=4)]
    chain_lag_s: Seconds
    """Age of the chain's newest block."""


class NodeAccountView(WireModel):
    """Answer of `GET /v1/nodes/{node}/account`: earnings, slashes and verdicts of one node in this pool."""

    node: WireAddress
    earned: Must
    slashed: Must
    verdicts: VerdictTotals
    counted_since_ms: Milliseconds
    """Time at which the node's events began to be counted; 0 if there was none."""


class NodeAccountPage(WireModel):
    """Answer of `GET /v1/money/nodes`."""

    accounts: Annotated[tuple[NodeAccountView, ...], Field(max_length=500)]
    next_cursor: WireAddress | None
