"""Terms of a run: the settings for its steps, slots and submissions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from orchestrator.domain.deliveries import DeliveryTerms
from protocol.identifiers import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTerms:
    """Terms of one run.

    Args:
        name: Name of the run.
        run: Id of the run.
        pool_id: Id of the pool.
        async_level: Number of steps by which generation may be ahead of the newest version.
        default_demand: Groups per step until the trainer states a demand.
        max_rounds: Number of times that the demand of a step may be raised.
        groups_per_slot: Maximum groups of a slot.
        most_live: Maximum slots that one node holds at a time.
        lease: Maximum duration of a lease.
        lease_least: Minimum duration of a lease.
        grace: Time after a lease's end in which its work may still appear on the ledger.
        pending: Time that a step waits for a verdict.
        deliveries: Delivery rules, which throttle nodes.
        kept_steps: Number of closed steps whose rows are kept.
        ask_again: Pause before a node asks again when no step needs rollouts.
        relays: URLs of relays, used unless the trainer names others.
        units_per_group: Work units per group, to use the ledger's newest version without a trainer's request; None:
            wait for that request.
    """

    name: str
    run: Digest
    pool_id: int
    async_level: int
    default_demand: int
    max_rounds: int
    groups_per_slot: int
    most_live: int
    lease: timedelta
    lease_least: timedelta
    grace: timedelta
    pending: timedelta
    deliveries: DeliveryTerms
    kept_steps: int
    ask_again: timedelta
    relays: tuple[str, ...]
    units_per_group: int | None
