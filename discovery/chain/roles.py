"""Who may do what: the roles of pools, as the ledger has them, believed for a short while."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import Enum, auto
from typing import Protocol

from protocol.errors import Forbidden
from protocol.http.lookups import Lookups
from protocol.identifiers import Address
from protocol.runtime.clock import Clock


class PoolRole(Enum):
    """What an address is to a pool, as far as discovery cares."""

    OWNER = auto()
    MANAGER = auto()
    ORCHESTRATOR = auto()
    VALIDATOR = auto()


READERS = frozenset(PoolRole)
"""Who may list a pool's nodes with their IPs. Publishers and everybody else may not."""

PoolRoles = Mapping[PoolRole, frozenset[Address]]
"""The holders of each role."""


class RoleSource(Protocol):
    """Where roles are read: the ledger."""

    async def roles(self, pool_id: int) -> PoolRoles:
        """Everybody who has a role in the pool now.

        Raises:
            NotFound: There is no such pool.
            Unavailable: The chain can't be asked.
        """
        ...


class Access:
    """Answers who may, from a small memory in front of the ledger.

    A pool's roles are read all at once, so a stranger with ever new keys causes no read. A pool that was asked about by
    a holder of a role stays remembered, however many others strangers ask about. While the chain can't be
    asked, the last answer counts for longer, so that an outage of the chain stops no pool; a role that was never read
    is refused as unavailable, not as forbidden.

    Args:
        source: The ledger.
        fresh: How long an answer is believed.
        stale: How long it is believed while the chain can't be asked.
        clock: Whose time counts.
    """

    def __init__(self, source: RoleSource, *, fresh: timedelta, stale: timedelta, clock: Clock) -> None:
        self._lookups: Lookups[int, PoolRoles] = Lookups(
            source.roles,
            what=lambda pool_id: f"reading the roles of pool {pool_id}",
            fresh=lambda _: fresh,
            stale=stale,
            clock=clock,
        )

    async def require(self, pool_id: int, who: Address, allowed: frozenset[PoolRole]) -> None:
        """Returns if `who` has one of the roles.

        Raises:
            Forbidden: It has none of them.
            NotFound: There is no such pool.
            Unavailable: The ledger can't be asked, and was not lately.
            RateLimited: Too many pools are being looked up.
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
            RateLimited: Too many pools are being looked up.
        """
        holders = await self._lookups.get(pool_id)
        roles = frozenset(role for role, keys in holders.items() if who in keys)
        if roles:
            self._lookups.keep(pool_id)
        return roles
