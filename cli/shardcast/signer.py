"""Reads from the ledger the accepted publisher, the newest version and the needed versions.

If the command line names the publisher, the ledger is not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from cli.configuration.sections import Configuration
from cli.connection import chosen_pool, open_ledger
from cli.keys import resolve_address
from ledger.client import Ledger
from ledger.client.pools import Role, RoleHolder
from ledger.version_needs import CLOCKS_DIFFER, VersionNeeds
from protocol.errors import InvalidInput, MusterError
from protocol.identifiers import ZERO_ADDRESS, Digest, run_id
from protocol.runtime.budgets import Needs
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.logs import get_logger
from protocol.runtime.waiting import cancel_all
from shardcast.freshness import AnnouncedVersion, Announcements
from shardcast.manifest.signers import Signers

ROTATION_SEEN_WITHIN = timedelta(seconds=15)
"""Interval at which the publisher is read from the ledger again."""
NEEDS_SEEN_WITHIN = timedelta(minutes=1)
"""Interval at which the needed versions are read from the ledger again."""
NEEDED_FOR = timedelta(hours=5)
"""Time for which a superseded version counts as needed if there is no ledger: the sum of a pool's default periods."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """The accepted publisher keys, and functions that read later changes from the ledger.

    Args:
        signers: The accepted publisher keys.
        announcements: Reader of the announced versions; None if the command line names the publisher.
        now: Reads the publisher again, because its key may have been rotated; None if the command line names it.
        needs: Returns which of the given versions leases and open work need; None without a ledger.
    """

    signers: Signers
    announcements: Announcements | None
    now: Callable[[], Awaitable[Signers]] | None = None
    needs: Callable[[Collection[int]], Awaitable[Needs]] | None = None

    async def watch(self, trust: Callable[[Signers], None], *, clock: Clock) -> None:
        """Calls `trust` after each rotation of the publisher's key, until cancelled."""
        signers, now = self.signers, self.now
        while now is not None:
            await clock.sleep(ROTATION_SEEN_WITHIN)
            try:
                found = await now()
            except MusterError as error:
                _log.warning("publisher-not-asked", why=error.detail)
                continue
            if found != signers:
                _log.info("publisher-rotated", publisher=found.publisher, former=found.former)
                trust(found)
                signers = found

    async def watch_needs(
        self, held: Callable[[], Collection[int]], need: Callable[[Needs | None], None], *, clock: Clock
    ) -> None:
        """Calls `need` every minute until cancelled; passes None while the ledger can't be read.

        Without a ledger, passes `Needs` that keep each superseded version for `NEEDED_FOR`.

        Args:
            held: Returns the numbers of the versions on disk.
            need: Called with the versions that leases and open work need.
            clock: Source of time for the pauses.
        """
        silent = False
        while True:
            if self.needs is None:
                need(Needs(at=clock.now().timestamp(), leases=NEEDED_FOR))
            else:
                try:
                    need(await self.needs(held()))
                    silent = False
                except MusterError as error:
                    need(None)
                    if not silent:
                        _log.warning(
                            "needs-not-read",
                            why=error.detail,
                            hint="no version is removed until the ledger can be read again",
                        )
                    silent = True
            await clock.sleep(NEEDS_SEEN_WITHIN)


@asynccontextmanager
async def following_needs(
    source: Source, held: Callable[[], Collection[int]], need: Callable[[Needs | None], None]
) -> AsyncIterator[None]:
    """Runs `source.watch_needs` while the context is entered."""
    watching = asyncio.create_task(source.watch_needs(held, need, clock=SystemClock()))
    try:
        yield
    finally:
        await cancel_all([watching])


@asynccontextmanager
async def following(source: Source, trust: Callable[[Signers], None]) -> AsyncIterator[None]:
    """Runs `source.watch` while the context is entered."""
    watching = asyncio.create_task(source.watch(trust, clock=SystemClock()))
    try:
        yield
    finally:
        await cancel_all([watching])


class LedgerAnnouncements:
    """Reads the checkpoints that the pool's publisher announced on the ledger.

    Args:
        ledger: Connected ledger client.
        pool_id: The pool.
        run: Id of the run.
    """

    def __init__(self, ledger: Ledger, *, pool_id: int, run: Digest) -> None:
        self._ledger = ledger
        self._pool_id = pool_id
        self._run = run

    async def latest(self) -> AnnouncedVersion | None:
        """Returns the newest announced version; None before the first announcement."""
        found = await self._ledger.checkpoints.latest(self._pool_id, self._run)
        return None if found is None else AnnouncedVersion(found.version, found.attempt, found.digest)


@asynccontextmanager
async def source_of(
    configuration: Configuration,
    *,
    signer: str | None,
    pool: int | None,
    run_name: str,
    clocks_differ: timedelta = CLOCKS_DIFFER,
) -> AsyncIterator[Source]:
    """Finds the accepted publisher of checkpoints.

    Args:
        configuration: The user's configuration.
        signer: The publisher that the user named; None for the pool's publisher on the ledger.
        pool: Id of the pool that the user named; None for the configured pool.
        run_name: Name or id of the run.
        clocks_differ: Tolerance between block time and this machine's clock, used to find the needed versions.

    Raises:
        InvalidInput: Neither an address nor a ledger is configured.
    """
    if signer is not None:
        yield Source(Signers(publisher=resolve_address(configuration, signer)), None)
        return
    if configuration.chain.deployment is None:
        raise InvalidInput(
            "no publisher of checkpoints is configured",
            hint="give --signer ADDRESS, or configure the chain and the pool in muster.toml",
        )
    pool_id = chosen_pool(configuration, pool)
    async with open_ledger(configuration) as ledger:

        async def now() -> Signers:
            return signers_at(await ledger.pools.role_holder(pool_id, Role.PUBLISHER))

        announcements = LedgerAnnouncements(ledger, pool_id=pool_id, run=run_id(run_name))
        needs = VersionNeeds(
            ledger, pool_id=pool_id, run=run_id(run_name), clock=SystemClock(), clocks_differ=clocks_differ
        )
        yield Source(await now(), announcements, now, needs.read)


def signers_at(role: RoleHolder) -> Signers:
    """Returns the role's holder as publisher, with the former holder and its grace period, if any."""
    former = None if role.previous == ZERO_ADDRESS else role.previous
    return Signers(publisher=role.holder, former=former, former_until=role.previous_until if former else None)
