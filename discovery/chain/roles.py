"""Access control by the roles of a pool, read from the ledger and cached for a short time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from enum import Enum, auto

from protocol.errors import Forbidden
from protocol.http.lookups import Lookups
from protocol.identifiers import Address
from protocol.runtime.clock import Clock


class PoolRole(Enum):
    """A role of a pool that discovery checks. The role of the publisher is missing: it gives no access here."""

    OWNER = auto()
    MANAGER = auto()
    ORCHESTRATOR = auto()
    VALIDATOR = auto()


READERS = frozenset(PoolRole)
"""Roles that may list a pool's nodes with their IPs; publishers may not."""

PoolRoles = Mapping[PoolRole, frozenset[Address]]
"""Keys that hold each role of a pool."""


class Access:
    """Checks the roles of callers in pools, with a cache of the ledger's answers.

    All roles of a pool are read together. So a caller can't cause further reads by signing with new keys. The cache is
    bounded. Strangers can fill it by requests for many pools. But once a holder of a pool's role has sent a request for
    the pool, strangers can't evict that pool. While the chain is down, cached roles are used for longer. If the chain
    is down and the roles of a pool are not cached, a request for the pool fails with `Unavailable`, not with
    `Forbidden`.

    Args:
        read: Reads the current holders of all roles of a pool from the ledger. Raises `NotFound` if there is no such
            pool.
        fresh: Age up to which cached roles are used without a read.
        stale: Age up to which cached roles are used while the chain is down.
        clock: Clock for the age of cached roles.
    """

    def __init__(
        self,
        read: Callable[[int], Awaitable[PoolRoles]],
        *,
        fresh: timedelta,
        stale: timedelta,
        clock: Clock,
    ) -> None:
        self._lookups: Lookups[int, PoolRoles] = Lookups(
            read,
            what=lambda pool_id: f"reading the roles of pool {pool_id}",
            fresh=lambda _: fresh,
            stale=stale,
            clock=clock,
        )

    async def require(self, pool_id: int, who: Address, allowed: frozenset[PoolRole]) -> None:
        """Checks that `who` has one of the allowed roles.

        Raises:
            Forbidden: `who` has none of the allowed roles.
            NotFound: There is no such pool.
            Unavailable: The ledger can't be read, and the roles are not cached or older than `stale`.
            RateLimited: Too many reads of other pools are queued.
        """
        if allowed.isdisjoint(await self.roles(pool_id, who)):
            names = " or ".join(sorted(role.name.lower() for role in allowed))
            raise Forbidden(
                f"{who} is not {names} of pool {pool_id}",
                hint="sign with the key that holds the role on the ledger (`muster pool show`)",
                code="role",
            )

    async def roles(self, pool_id: int, who: Address) -> frozenset[PoolRole]:
        """Returns the roles of `who` in a pool.

        Raises:
            NotFound: There is no such pool.
            Unavailable: The ledger can't be read, and the roles are not cached or older than `stale`.
            RateLimited: Too many reads of other pools are queued.
        """
        holders = await self._lookups.get(pool_id)
        roles = frozenset(role for role, keys in holders.items() if who in keys)
        if roles:  # a holder of a role asked, so requests of strangers must not evict this pool
            self._lookups.keep(pool_id)
        return roles
