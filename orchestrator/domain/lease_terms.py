"""Lease duration from the pool's delivery times, and the number of leases that the escrow covers. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

TIMES_KEPT = 50
"""The newest deliveries that the length of leases is taken from."""
LEAST_TIMES = 8
"""With fewer deliveries than this a lease is as long as it may be."""
MEDIANS = 4
"""A lease is so many median deliveries long: nodes four times slower than the median can still deliver."""


@dataclass(frozen=True, slots=True)
class DeliveryTime:
    """Time of one slot, from its lease until its submission was read on the ledger.

    A lease that ended without work counts as twice its duration. If leases have become too short for honest nodes, no
    node delivers, and only these entries make leases longer again.
    """

    took_ms: int
    groups: int


def lease_length(times: Sequence[DeliveryTime], *, least: timedelta, most: timedelta) -> timedelta:
    """Returns how long the next slot is leased, in whole milliseconds.

    The median is weighted by groups, so that many quick slots of one group don't shorten everybody's leases.

    Args:
        times: Of the newest deliveries.
        least: The shortest lease.
        most: The longest; it wins if it is less than `least`.
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
    """Returns how long a step waits for a slot: half of its lease. After that its groups are asked of others.

    It does not follow the median by itself: slow nodes that ask first are the median, and every step would wait for
    them.
    """
    return lease / 2


def is_late(took: timedelta, times: Sequence[DeliveryTime], *, lease: timedelta) -> bool:
    """Returns whether work came so late that its step had stopped waiting for it.

    With few known deliveries nothing is late, because lease durations do not follow delivery times yet.

    Args:
        took: From the lease to the submission, measured as in `times`: what blocks and the relayer take is in both.
        times: Of the newest deliveries.
        lease: How long the slot was leased.
    """
    return len(times) >= LEAST_TIMES and took > wait_length(lease)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Work units that the escrow covers, exact in Lua's double-precision numbers.

    Args:
        units: The free escrow in the price of a unit. In a pool that pays nothing for work it is counted in what a
            piece of work reserves for verdicts, and has no bound if that is nothing, too.
        unit: What a work unit takes of it: 1, or 0 in a pool that pays nothing for work.
        lease: What each lease takes of it besides, for verdicts; rounded up.
    """

    units: int
    unit: int
    lease: int

    @classmethod
    def of(cls, *, free: int, price: int, fees: int, most: int) -> Budget:
        """Counts an escrow.

        Args:
            free: What new work can be paid from, in the token's smallest unit.
            price: Of a work unit.
            fees: What a piece of work reserves for verdicts.
            most: The largest number that comes out.
        """
        if price:
            return cls(units=min(most, free // price), unit=1, lease=min(most, -(-fees // price)))
        return cls(units=min(most, free // fees) if fees else most, unit=0, lease=1 if fees else 0)

    def covers(self, units: int, *, open_units: int, open_leases: int) -> bool:
        """Returns whether one more lease of this size can be paid besides the open ones."""
        taken = (open_units + units) * self.unit + (open_leases + 1) * self.lease
        return taken <= self.units
