"""Terms of a run: all numbers that decide about steps, slots and submissions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from orchestrator.domain.deliveries import DeliveryTerms
from protocol.identifiers import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTerms:
    """The run's numbers.

    Args:
        name: The run's.
        run: Its id.
        pool_id: The pool's.
        async_level: How many steps generation may be ahead of the newest version.
        default_demand: Groups per step while the trainer has not said.
        max_rounds: How often the demand of a step may be raised.
        groups_per_slot: The most.
        most_live: Slots that one node may hold at a time.
        lease: The longest that a slot is leased.
        lease_least: The shortest.
        grace: How long after its end a lease may still be found on the ledger.
        pending: How long a step waits for a verdict.
        deliveries: Who gets leases.
        kept_steps: So many steps before the floor are remembered.
        ask_again: What a task waits that has nothing to do.
        relays: Where versions are, if the trainer does not say.
        units_per_group: Of a version that the ledger names and no trainer told us about; None: such get no slots.
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
