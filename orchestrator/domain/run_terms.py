"""Terms of a run: the rules for its steps, slots and submissions, from the settings."""

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
        max_rounds: Maximum number of times that the trainer may raise the demand of a step.
        groups_per_slot: Maximum number of groups in one slot.
        most_live: Maximum number of slots that one node may hold at the same time.
        lease: Maximum duration of a lease.
        lease_least: Minimum duration of a lease.
        grace: Time after a lease's end in which its work may still appear on the ledger.
        pending: Time after a submission for which its step waits for a verdict.
        deliveries: Rules by which nodes with a low delivery rate are throttled.
        kept_steps: Number of closed steps whose rows are kept in Redis.
        ask_again: Pause before a node asks for a slot again after the answer that no step needs rollouts.
        gateway: URL of the gateway whose clients the slots answer; None unless the run is a serving run.
        relays: URLs of checkpoint relays, used unless the trainer names others.
        units_per_group: Maximum work units per group. If it is set and the trainer has named no version yet, slots are
            leased for the newest version on the ledger. None: slots are leased only after the trainer's request.
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
    gateway: str | None = None

    @property
    def serving(self) -> bool:
        """Whether the run's slots answer requests of a gateway's clients."""
        return self.gateway is not None
