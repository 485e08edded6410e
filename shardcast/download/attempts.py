"""One attempt at a version: fetched until it stands whole and verified, or until something newer takes its place."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import structlog

from protocol.errors import MusterError, Unavailable
from protocol.identifiers import Digest
from protocol.runtime.clock import Clock
from shardcast.download.assembly import Assembly, OnProgress
from shardcast.download.peer_catalog import PeerCatalog
from shardcast.download.peer_client import PeerClient
from shardcast.download.peers import Peers
from shardcast.download.transfer import TransferPace
from shardcast.errors import VersionDropped
from shardcast.freshness import Announcements
from shardcast.manifest.manifest import VersionKey
from shardcast.metrics import FetchingMetrics

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A version that is whole and verified."""

    version: int
    attempt: int
    digest: Digest
    path: Path
    """The folder that holds its files."""
    size: int
    """Bytes of its files."""
    received: int
    """Bytes that came for it; what lay on the disk already did not."""
    took: timedelta


class Attempts:
    """Fetches attempts, one at a time or several.

    Args:
        directory: Knows what relays have.
        peers: Who is asked.
        upstream: How.
        announcements: Announcements on the ledger; None without a ledger.
        metrics: Where it is counted.
        clock: Of deadlines.
        pace: How much is asked for at a time.
    """

    def __init__(
        self,
        directory: PeerCatalog,
        *,
        peers: Peers,
        upstream: PeerClient,
        announcements: Announcements | None,
        metrics: FetchingMetrics,
        clock: Clock,
        pace: TransferPace | None,
    ) -> None:
        self._directory = directory
        self._peers = peers
        self._upstream = upstream
        self._announcements = announcements
        self._metrics = metrics
        self._clock = clock
        self._pace = pace

    async def fetch(
        self,
        key: VersionKey,
        expected: Digest | None,
        base: Path | None,
        *,
        to: Path,
        on_progress: OnProgress | None,
        overtaken: bool,
    ) -> Fetched | None:
        """The version that an attempt became; None if a newer attempt voids it, or a newer version takes its place.

        Args:
            key: The attempt.
            expected: The digest that it must have; what the ledger says, if it is not given.
            base: The folder of the version that it is a change of; None to fetch it whole.
            to: The folder that versions stand in.
            on_progress: Told after each block.
            overtaken: Whether a newer version takes its place before it is sealed.

        Raises:
            BaseNeeded, WrongBase: It has to be fetched in another way.
            MusterError: As `Client.fetch`.
        """
        began = self._clock.monotonic()
        assembly = Assembly(
            key,
            to,
            manifest=self._directory.manifest(key),
            peers=self._peers,
            upstream=self._upstream,
            metrics=self._metrics,
            clock=self._clock,
            pace=self._pace,
            on_progress=on_progress,
            base=base,
        )
        work = asyncio.create_task(self._assemble(assembly, expected))
        watch = asyncio.create_task(self._until_voided(assembly, overtaken=overtaken))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self._metrics.versions.labels("voided").inc()
                return None
            path = work.result()
        except MusterError as error:
            self._metrics.versions.labels(error.code).inc()
            raise
        finally:
            work.cancel()
            watch.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)
        took = self._clock.monotonic() - began
        self._metrics.versions.labels("complete").inc()
        self._metrics.seconds.observe(took)
        digest = assembly.manifest.digest
        if digest is None:
            raise VersionDropped(f"version {key} was never sealed")
        return Fetched(
            version=key.version,
            attempt=key.attempt,
            digest=digest,
            path=path,
            size=sum(file.size for file in assembly.manifest.content()),
            received=assembly.received,
            took=timedelta(seconds=took),
        )

    async def _assemble(self, assembly: Assembly, expected: Digest | None) -> Path:
        path = await assembly.run(expected=expected or await self._expected(assembly.key))
        expected = await self._expected(assembly.key)  # it may have been announced meanwhile
        if expected not in {None, assembly.manifest.digest}:
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
            raise VersionDropped(f"version {assembly.key} was announced as {expected}, and is another")
        return path

    async def _until_voided(self, assembly: Assembly, *, overtaken: bool) -> None:
        """Returns when a newer attempt is real; with `overtaken`, also a newer version while this one is unsealed."""
        key = assembly.key
        while True:
            seen = self._directory.revision
            newer = await self._directory.newest()
            again = await self._directory.newest(version=key.version)
            if again is not None and again > key:
                return
            if overtaken and newer is not None and newer > key and not assembly.manifest.sealed:
                return
            await self._directory.next_change(seen)

    async def _expected(self, key: VersionKey) -> Digest | None:
        if self._announcements is None:
            return None
        try:
            announced = await self._announcements.latest()
        except Unavailable as error:
            # What the publisher signed is the publisher's; only how fresh it is stays unknown for now.
            _log.warning("announcements-unavailable", why=error.detail)
            return None
        return announced.digest if announced is not None and announced.key == key else None
