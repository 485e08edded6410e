"""Who may do what: the roles of pools, as the ledger has them, believed for a short while."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import Protocol

from protocol.clock import Clock
from protocol.errors import Forbidden, RateLimited, Unavailable
from protocol.identifiers import Address
from protocol.retry import Deadline

MOST_REMEMBERED = 8192
MOST_AT_ONCE = 8
"""Questions to the chain at a time; strangers must not be able to flood it through us."""
MOST_WAITING = 256
CROWDED = 4
"""How many times longer an answer is believed while too many questions wait."""
ANSWER_PATIENCE = timedelta(seconds=3)
"""For the chain's answer: a client of ours waits 10 s for our own."""
REST = timedelta(seconds=2)
"""How long a chain that did not answer is left alone."""


class PoolRole(Enum):
    """What an address is to a pool, as far as discovery cares."""

    OWNER = auto()
    MANAGER = auto()
    ORCHESTRATOR = auto()
    VALIDATOR = auto()


READERS = frozenset(PoolRole)
"""Who may list a pool's nodes with their IPs. Publishers and everybody else may not."""


class RoleSource(Protocol):
    """Where roles are read: the ledger."""

    async def roles(self, pool_id: int, who: Address) -> frozenset[PoolRole]:
        """What `who` is to the pool now.

        Raises:
            NotFound: There is no such pool.
            Unavailable: The chain can't be asked.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Known:
    roles: frozenset[PoolRole]
    at: float


class Access:
    """Answers who may, from a small memory in front of the ledger.

    While the chain can't be asked, the last answer counts for longer, so that an outage of the chain stops no pool; a
    role that was never read is refused as unavailable, not as forbidden.

    Args:
        source: The ledger.
        fresh: How long an answer is believed.
        stale: How long it is believed while the chain can't be asked.
        clock: Whose time counts.
    """

    def __init__(self, source: RoleSource, *, fresh: timedelta, stale: timedelta, clock: Clock) -> None:
        self._source = source
        self._fresh = fresh.total_seconds()
        self._stale = max(fresh, stale).total_seconds()
        self._clock = clock
        self._known: OrderedDict[tuple[int, Address], _Known] = OrderedDict()
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)
        self._waiting = 0
        self._rest_until = 0.0

    async def require(self, pool_id: int, who: Address, allowed: frozenset[PoolRole]) -> None:
        """Returns if `who` has one of the roles.

        Raises:
            Forbidden: It has none of them.
            NotFound: There is no such pool.
            Unavailable: The ledger can't be asked, and was not lately.
        """
        if allowed.isdisjoint(await self.roles(pool_id, who)):
            names = " or ".join(sorted(role.name.lower() for role in allowed))
            raise Forbidden(
                f"{who} is not {names} of pool {pool_id}",
                hint="sign with the key that holds the role on the ledger (`muster pool show`)",
                code="role",
            )

    async def roles(self, pool_id: int, who: Address) -> frozenset[PoolRole]:
        """What `who` is to the pool, at most `fresh` old; older while the chain is down.

        Raises:
            NotFound: There is no such pool.
            Unavailable: The ledger can't be asked, and was not lately.
            RateLimited: Too many questions to the chain wait already.
        """
        key = (pool_id, who)
        known = self._known.get(key)
        if known is not None and self._age(known) < self._fresh:
            return known.roles
        try:
            return (await self._looked_up(key)).roles
        except RateLimited:
            # Strangers crowd the way to the chain. Whoever was known a moment ago need not wait behind them.
            if known is None or self._age(known) >= CROWDED * self._fresh:
                raise
        except Unavailable:
            if known is None or self._age(known) >= self._stale:
                raise
        return known.roles

    async def _looked_up(self, key: tuple[int, Address]) -> _Known:
        if self._waiting >= MOST_WAITING:
            raise RateLimited("too many roles are being looked up", retry_after=REST)
        self._waiting += 1
        try:
            async with self._turns:
                known = self._known.get(key)
                if known is None or self._age(known) >= self._fresh:
                    known = _Known(await self._asked(*key), self._clock.monotonic())
                    self._remember(key, known)
                return known
        finally:
            self._waiting -= 1

    async def _asked(self, pool_id: int, who: Address) -> frozenset[PoolRole]:
        """The chain's answer, within a bound; after a failure the chain has a rest, so that nobody queues for it."""
        if self._clock.monotonic() < self._rest_until:
            raise Unavailable("the chain could not be asked a moment ago", code="chain-unavailable")
        try:
            deadline = Deadline.after(ANSWER_PATIENCE, clock=self._clock)
            return await deadline.bound(self._source.roles(pool_id, who), what=f"reading the roles of {who}")
        except Unavailable:
            self._rest_until = self._clock.monotonic() + REST.total_seconds()
            raise

    def _age(self, known: _Known) -> float:
        return self._clock.monotonic() - known.at

    def _remember(self, key: tuple[int, Address], known: _Known) -> None:
        self._known[key] = known
        self._known.move_to_end(key)
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
