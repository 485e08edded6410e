"""Checkpoint relays in Redis: the allowed ones, with the last registration of each."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.store.database import Database
from protocol.errors import Conflict
from protocol.identifiers import Address, address
from protocol.wire.relays import MOST_ALLOWED_RELAYS


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRelayRow:
    """Row of an allowed relay."""

    relay: Address
    url: str | None
    """URL that the relay registered; None if it is not registered."""
    expires_ms: int
    """End of the registration's lease, in Unix milliseconds."""


class CheckpointRelayStore:
    """Reads and writes relays.

    Only relays that the owner allowed are stored, so strangers can't fill Redis.

    Args:
        database: Database of the pool.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._allowed = database.key("checkpoint-relays", "allowed")
        self._registered = database.key("checkpoint-relays", "said")

    async def allow(self, relay: Address) -> None:
        """Allows a relay to register.

        Raises:
            Conflict: The maximum number of relays is allowed already.
        """
        count, known = await self._database.ask_many([("SCARD", self._allowed), ("SISMEMBER", self._allowed, relay)])
        if count >= MOST_ALLOWED_RELAYS and not known:
            raise Conflict(
                f"{count} relays are allowed, and a pool has at most {MOST_ALLOWED_RELAYS}",
                hint="deny one: `muster pool relays deny ADDRESS`",
                code="too-many-relays",
            )
        await self._database.ask("SADD", self._allowed, relay)

    async def deny(self, relay: Address) -> bool:
        """Removes a relay and its registration; returns whether the relay was allowed."""
        removed, _ = await self._database.ask_many([("SREM", self._allowed, relay), ("HDEL", self._registered, relay)])
        return bool(removed)

    async def is_allowed(self, relay: Address) -> bool:
        """Returns whether the owner allows the relay."""
        return bool(await self._database.ask("SISMEMBER", self._allowed, relay))

    async def put(self, relay: Address, *, url: str, expires_ms: int) -> None:
        """Writes the URL of an allowed relay, and the end of its lease in Unix milliseconds."""
        await self._database.ask("HSET", self._registered, relay, f"{expires_ms} {url}")

    async def leave(self, relay: Address) -> None:
        """Deletes the registration of a relay, which stays allowed."""
        await self._database.ask("HDEL", self._registered, relay)

    async def all(self) -> list[CheckpointRelayRow]:
        """Returns the allowed relays, sorted by address."""
        allowed, registered = await self._database.ask_many(
            [("SMEMBERS", self._allowed), ("HGETALL", self._registered)]
        )
        flat = registered if isinstance(registered, list) else [part for pair in registered.items() for part in pair]
        leases = {flat[at].decode(): flat[at + 1].decode() for at in range(0, len(flat), 2)}
        return [_row(address(name), leases.get(name, "")) for name in sorted(each.decode() for each in allowed)]


def _row(relay: Address, lease: str) -> CheckpointRelayRow:
    expires, _, url = lease.partition(" ")
    return CheckpointRelayRow(relay=relay, url=url or None, expires_ms=int(expires or 0))
