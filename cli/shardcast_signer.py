"""Whose checkpoints a command believes: the address it was given, or the pool's publisher on the ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cli.configuration import Configuration
from cli.connection import chosen_pool, open_ledger
from cli.keys import resolve_address
from ledger.client import Ledger
from ledger.client.pools import Role
from protocol.errors import InvalidInput
from protocol.identifiers import Address, Digest, run_id
from shardcast.freshness import Announced, Announcements


@dataclass(frozen=True, slots=True)
class Source:
    """Who publishes, and who knows what is newest."""

    signer: Address
    announcements: Announcements | None


class LedgerAnnouncements:
    """What the pool's publisher announced on the ledger.

    Args:
        ledger: Connected.
        pool_id: The pool.
        run: The run's id.
    """

    def __init__(self, ledger: Ledger, *, pool_id: int, run: Digest) -> None:
        self._ledger = ledger
        self._pool_id = pool_id
        self._run = run

    async def latest(self) -> Announced | None:
        """The newest announced version; None before the first."""
        found = await self._ledger.checkpoints.latest(self._pool_id, self._run)
        return None if found is None else Announced(found.version, found.attempt, found.digest)


@asynccontextmanager
async def source_of(
    configuration: Configuration, *, signer: str | None, pool: int | None, run_name: str
) -> AsyncIterator[Source]:
    """Finds out whose checkpoints count.

    Raises:
        InvalidInput: There is neither an address nor a ledger that is configured.
    """
    if signer is not None:
        yield Source(resolve_address(configuration, signer), None)
        return
    if configuration.chain.deployment is None:
        raise InvalidInput(
            "whose checkpoints are to be believed?",
            hint="give --signer ADDRESS, or configure the chain and the pool in muster.toml",
        )
    pool_id = chosen_pool(configuration, pool)
    async with open_ledger(configuration) as ledger:
        publisher = (await ledger.pools.seat(pool_id, Role.PUBLISHER)).holder
        yield Source(publisher, LedgerAnnouncements(ledger, pool_id=pool_id, run=run_id(run_name)))
