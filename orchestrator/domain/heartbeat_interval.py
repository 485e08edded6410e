"""Interval of heartbeats, and the deadlines after which a silent node is unhealthy or dead."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatInterval:
    """Rule for the interval of heartbeats.

    The interval is `max(shortest, nodes / target_rate)` plus a random stagger. It grows with the pool, so that the
    orchestrator's load stays constant. HashiCorp Nomad paces its clients in the same way.

    Args:
        shortest: Minimum interval.
        target_rate: Maximum heartbeats per second of the whole pool.
        stagger: Largest share of the interval that is added at random, so that nodes don't send at the same time.
        unhealthy_after: Number of intervals without a heartbeat after which a node is unhealthy.
        dead_after: Number of intervals without a heartbeat after which a node is dead; more than `unhealthy_after`.
    """

    shortest: timedelta = timedelta(seconds=10)
    target_rate: float = 500.0
    stagger: float = 0.1
    unhealthy_after: float = 2.0
    dead_after: float = 5.0

    def __post_init__(self) -> None:
        if self.shortest <= timedelta() or self.target_rate <= 0 or not 0 <= self.stagger <= 1:
            raise ValueError("shortest and target_rate must be positive, and stagger in [0, 1]")
        if not 1 < self.unhealthy_after < self.dead_after:
            raise ValueError("1 < unhealthy_after < dead_after is required, so that one late heartbeat is harmless")

    def interval(self, nodes: int, *, draw: float) -> timedelta:
        """Returns the time until the next heartbeat.

        Args:
            nodes: Number of nodes that send heartbeats.
            draw: Random number in [0, 1) that selects the stagger; 1 for the longest interval.
        """
        base = max(self.shortest.total_seconds(), nodes / self.target_rate)
        return timedelta(seconds=base * (1 + self.stagger * draw))

    def unhealthy_in(self, interval: timedelta) -> timedelta:
        """Returns the time from a node's last heartbeat until the node becomes unhealthy."""
        return interval * self.unhealthy_after

    def dead_in(self, interval: timedelta) -> timedelta:
        """Returns the time from a node's last heartbeat until the node becomes dead."""
        return interval * self.dead_after
