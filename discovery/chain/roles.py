"""Access control by pool roles on the ledger, cached for a short time."""

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
    """A role in a pool that discovery distinguishes."""

    OWNER = auto()
    MANAGER = auto()
    ORCHESTRATOR = auto()
    VALIDATOR = auto()


READERS = frozenset(PoolRole)
"""Roles that may list a pool's nodes with their IPs; publishers may not."""

PoolRoles = Mapping[PoolRole, frozenset[Address]]
"""The holders of each role."""


class RoleSource(Protocol):
    """Source of pool roles."""

    async def roles(self, pool_id: int) -> PoolRoles:
        """Returns the current holders of all roles in a pool.

        Raises:
            NotFound: There is no such pool.
            Unavailable: The chain can't be read.
        """
        ...


class Access:
    """Checks roles against a cache in front of the ledger.

    All roles of a pool are read together, so requests under new keys cause no further reads. Once a role holder has
    asked about a pool, requests of other callers for other pools can't evict its roles. During an outage of the chain
    the cached roles are used for longer. A pool whose roles were never read is refused as unavailable, not as
    forbidden.

    Args:
        source: Reads roles from the ledger.
        fresh: How long roles are cached.
        stale: How long cached roles are used while the chain is unavailable.
        clock: Source of time.
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
        """Checks that `who` has one of the allowed roles.

        Raises:
            Forbidden: It has none of them.
            NotFound: There is no such pool.
            Unavailable: The ledger can't be read and no cached roles are left.
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
        """Returns the roles of `who`, at most `fresh` old, or `stale` while the chain is unavailable.

        Raises:
            NotFound: There is no such pool.
            Unavailable: The ledger can't be read and no cached roles are left.
            RateLimited: Too many pools are being looked up.
        """
        holders = await self._lookups.get(pool_id)
        roles = frozenset(role for role, keys in holders.items() if who in keys)
        if roles:
            self._lookups.keep(pool_id)
        return roles
