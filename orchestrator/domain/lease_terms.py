"""Duration of leases, and the number of leases that the escrow covers. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

TIMES_KEPT = 50
"""Number of newest deliveries from which the lease duration is computed."""
LEAST_TIMES = 8
"""Minimum number of deliveries; with fewer, a lease has its maximum duration."""
MEDIANS = 4
"""A lease lasts this many median delivery times, so a node that takes up to four times the median can deliver."""


@dataclass(frozen=True, slots=True)
class DeliveryTime:
    """Time from the lease of one slot until its submission was read on the ledger.

    A lease that ended without work is recorded with twice its duration. If leases become too short for honest nodes,
    no node delivers, and only these records make leases longer again.
    """

    took_ms: int
    groups: int


def lease_length(times: Sequence[DeliveryTime], *, least: timedelta, most: timedelta) -> timedelta:
    """Returns the duration of the next lease, in whole milliseconds.

    The median is weighted by groups, so that many quick slots of one group don't shorten the leases of all nodes.

    Args:
        times: Times of the newest deliveries.
        least: Minimum duration.
        most: Maximum duration; it applies also if it is less than `least`.
    """
    if len(times) < LEAST_TIMES:
        return most
    half, below, median = sum(each.groups for each in times) / 2, 0, 0
    for each in sorted(times, key=lambda each: each.took_ms):
        below, median = below + each.groups, each.took_ms
        if below >= half:
            break
    return min(most, max(least, timedelta(milliseconds=MEDIANS * median)))


def wait_length(lease: timedelta) -> timedelta:
    """Returns the time for which a step waits for a slot: half of the slot's lease.

    After this time the slot's groups are leased to other nodes, too. Work that arrives later is late (`is_late`), so
    slow nodes that lease the first slots of every step are throttled.
    """
    return lease / 2


def is_late(took: timedelta, times: Sequence[DeliveryTime], *, lease: timedelta) -> bool:
    """Returns whether work came after its step had stopped waiting for it.

    With fewer than `LEAST_TIMES` deliveries no work is late, because leases then have their maximum duration.

    Args:
        took: Time from the lease until the arrival of the work, as `RunSync` determines it. Unlike `times`, it excludes
            the time for relaying and mining if the node sent the work to the relayer.
        times: Times of the newest deliveries.
        lease: Duration of the slot's lease.
    """
    return len(times) >= LEAST_TIMES and took > wait_length(lease)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The pool's free escrow and the costs of a lease, in a common unit of account.

    The unit of account is the price of a work unit. If that price is 0, it is the verdict fees of one work item. Each
    number is bounded, so that the double-precision numbers of Lua scripts hold it exactly.

    Args:
        units: The free escrow, rounded down. If price and fees are both 0, leases cost nothing, and it is the bound.
        unit: Cost of one work unit: 1, or 0 if the price is 0.
        lease: Verdict fees of one lease, rounded up.
    """

    units: int
    unit: int
    lease: int

    @classmethod
    def of(cls, *, free: int, price: int, fees: int, most: int) -> Budget:
        """Computes the budget from amounts in the token's smallest unit.

        Args:
            free: Escrow that is not reserved.
            price: Price of a work unit.
            fees: Verdict fees that one work item reserves.
            most: Upper bound of each resulting number.
        """
        if price:
            return cls(units=min(most, free // price), unit=1, lease=min(most, -(-fees // price)))
        return cls(units=min(most, free // fees) if fees else most, unit=0, lease=1 if fees else 0)

    def covers(self, units: int, *, open_units: int, open_leases: int) -> bool:
        """Returns whether the escrow covers one more lease of this size besides the open ones."""
        taken = (open_units + units) * self.unit + (open_leases + 1) * self.lease
        return taken <= self.units
