"""The client: the newest checkpoint, whole and verified, in a folder of this machine.

    async with Client(relays, run="devnet", signer=publisher_address) as client:
        fetched = await client.fetch(7, Path("models"))        # models/7, complete
        async for fetched in client.follow(Path("models")):    # and each newer one as it comes
            load(fetched.path)

A folder appears under its version's number in one step, when everything in it is verified. What is half there lies in
`.partial-N` beside it, and the next fetch goes on with it.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
from prometheus_client import CollectorRegistry

from protocol.errors import MusterError
from protocol.identifiers import Address, run_id
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.retry import Deadline, DeadlinePassed
from shardcast.download.assembly import OnProgress
from shardcast.download.attempts import Attempts, Fetched
from shardcast.download.delta_bases import DeltaBases
from shardcast.download.delta_chains import DeltaDownloader
from shardcast.download.peer_catalog import PeerCatalog
from shardcast.download.peer_client import PeerClient, PeerTimeouts, check_peers
from shardcast.download.peers import Peers
from shardcast.download.transfer import TransferPace
from shardcast.errors import NoProgress, StaleRelays, VersionDropped, VersionGone
from shardcast.freshness import AnnouncedVersion, Announcements
from shardcast.manifest.manifest import VersionKey
from shardcast.manifest.signers import Signers, signers_of
from shardcast.metrics import FetchingMetrics

KEPT_FOLDERS = 2
"""Versions that `follow` leaves on disk: the newest, and the one that may still be in use."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A version that relays have."""

    version: int
    attempt: int
    sealed: bool
    """Whether any peer has it complete."""
    size: int
    """Bytes that are announced so far."""
    relays: int
    """Number of peers that have it."""


class Client:
    """Downloads checkpoints of one run from untrusted relays, while it is entered.

    Args:
        relays: URLs of relays, or of the origin.
        run: The run's name, or its id.
        signer: The publisher's address: nothing that somebody else signed is believed. Or `Signers`, with the key
            before it and until when that one counts.
        announcements: What the ledger says is newest; without it, the newest that any relay can prove.
        patience: How long relays may take.
        pace: How much is asked for at a time.
        allow_plain_http: Lets `http` go beyond this machine: only inside a network that is itself encrypted. What is
            fetched is verified either way.
        tls: For https; the system's authorities by default.
        registry: For metrics.
        clock: The system's by default.
        draws: Randomness of the draws between relays.

    Raises:
        InvalidInput: There is no relay, or one has no URL that may be spoken to.
    """

    def __init__(
        self,
        relays: Sequence[str],
        *,
        run: str,
        signer: Address | Signers,
        announcements: Announcements | None = None,
        patience: PeerTimeouts | None = None,
        pace: TransferPace | None = None,
        allow_plain_http: bool = False,
        tls: ssl.SSLContext | None = None,
        registry: CollectorRegistry | None = None,
        clock: Clock | None = None,
        draws: random.Random | None = None,
    ) -> None:
        self.run = run_id(run)
        self.peers = Peers(check_peers(relays, allow_plain_http=allow_plain_http), draws=draws)
        self.metrics = FetchingMetrics(CollectorRegistry() if registry is None else registry)
        self._announcements = announcements
        self._clock = SystemClock() if clock is None else clock
        self._upstream = PeerClient(patience=patience, tls=tls)
        self._directory = PeerCatalog(
            run=self.run,
            signers=signers_of(signer),
            peers=self.peers,
            upstream=self._upstream,
            metrics=self.metrics,
            clock=self._clock,
        )
        self._attempts = Attempts(
            self._directory,
            peers=self.peers,
            upstream=self._upstream,
            announcements=announcements,
            metrics=self.metrics,
            clock=self._clock,
            pace=pace,
        )
        self._chains = DeltaDownloader(
            DeltaBases(self._directory),
            directory=self._directory,
            patience=self._upstream.patience.progress,
            clock=self._clock,
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._upstream)
        await self._stack.enter_async_context(self._directory)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def trust(self, signers: Signers) -> None:
        """Sets the accepted signers after a rotation of the publisher role."""
        self._directory.trust(signers)

    async def latest(self) -> VersionKey:
        """The newest version: the one that the ledger names, else the newest that a relay can prove.

        Raises:
            StaleRelays: No relay has come to show the version that the ledger names.
            VersionGone: No relay has anything.
        """
        announced = await self._announced()
        if announced is None:
            await self._directory.first_look()
            newest = await self._directory.newest()
            if newest is None:
                raise self._nothing()
            return newest
        deadline = Deadline.after(self._upstream.patience.progress, clock=self._clock)
        while True:
            seen = self._directory.revision
            if await self._shown(announced):
                return announced.key
            try:
                await deadline.bound(self._directory.next_change(seen), what="the wait for the announced version")
            except DeadlinePassed:
                raise StaleRelays(f"the ledger names version {announced.key}, and no relay shows it") from None

    async def offers(self) -> list[Offered]:
        """All versions that some relay has and can prove, newest first.

        Raises:
            NoProgress: No relay answers.
        """
        await self._directory.first_look()
        if not self._directory.answered:
            raise self._nothing()
        found = []
        for key in self._directory.listed():
            listed = self._directory.said_of(key)
            if await self._directory.newest(version=key.version) == key and listed:
                found.append(
                    Offered(
                        version=key.version,
                        attempt=key.attempt,
                        sealed=any(each.sealed for each in listed),
                        size=max(each.size for each in listed),
                        relays=len(listed),
                    )
                )
        return found

    async def fetch(self, version: int, to: Path, *, on_progress: OnProgress | None = None) -> Fetched:
        """Returns when the version stands whole and verified in the folder `to/VERSION`.

        A version that is still being written is fetched as it grows.

        Args:
            version: Which one; see `latest`.
            to: The folder that versions stand in.
            on_progress: Told after each block.

        Raises:
            VersionGone: No relay has it (any more).
            NoProgress: No peer sends the missing blocks; the next fetch continues from there.
            VersionDropped: The publisher's own blocks don't make what was announced.
            DiskFull: There is no room for it.
            Conflict: Another process is fetching the same version into the same folder.
        """
        await self._directory.first_look(version=version)
        refused: set[VersionKey] = set()
        while True:
            announced = await self._announced()
            key = await self._appeared(version, refused)
            if key is None:
                raise self._nothing(version)
            if announced is not None and announced.version == version and key.attempt < announced.attempt:
                raise StaleRelays(
                    f"the ledger names attempt {announced.attempt} at version {version}; relays are behind"
                )
            fetched = await self._fetch_unless_voided(key, to, on_progress, overtaken=False)
            if fetched is not None:
                return fetched
            refused.add(key)

    async def follow(
        self, to: Path, *, keep: int = KEPT_FOLDERS, on_progress: OnProgress | None = None
    ) -> AsyncGenerator[Fetched]:
        """Yields each newest version once it is complete and verified in the folder; never ends.

        An unavailable or dropped version is skipped. Versions older than the newest `keep` are deleted.

        Raises:
            DiskFull: There is no room.
        """
        last: VersionKey | None = None
        refused: set[VersionKey] = set()
        while True:
            seen = self._directory.revision
            key = await self._directory.newest(but=refused)
            if key is None or (last is not None and key <= last):
                await self._directory.next_change(seen)
                continue
            try:
                fetched = await self._fetch_unless_voided(key, to, on_progress, overtaken=True)
            except (VersionDropped, VersionGone, NoProgress, StaleRelays) as error:
                _log.warning("version-passed-over", version=str(key), why=error.detail)
                if not isinstance(error, NoProgress):
                    refused.add(key)
                continue
            if fetched is None:
                continue
            last = key
            refused = {each for each in refused if each > key}
            await asyncio.to_thread(_prune, to, keep)
            yield fetched

    async def _fetch_unless_voided(
        self, key: VersionKey, to: Path, on_progress: OnProgress | None, *, overtaken: bool
    ) -> Fetched | None:
        """Fetches one attempt; None if a newer one voids it, or takes its place before it is sealed."""
        wanted = partial(self._attempts.fetch, to=to, on_progress=on_progress, overtaken=overtaken)
        between = partial(self._attempts.fetch, to=to, on_progress=None, overtaken=False)
        return await self._chains.fetch(key, to, wanted=wanted, between=between)

    async def _shown(self, announced: AnnouncedVersion) -> bool:
        found = await self._directory.newest(version=announced.version)
        return found is not None and found.attempt >= announced.attempt

    async def _appeared(self, version: int, refused: set[VersionKey]) -> VersionKey | None:
        """The newest attempt at a version; waits a moment for it to show up."""
        deadline = Deadline.after(self._upstream.patience.appear, clock=self._clock)
        while True:
            seen = self._directory.revision
            key = await self._directory.newest(version=version, but=refused)
            if key is not None:
                return key
            try:
                await deadline.bound(self._directory.next_change(seen), what="the wait for a version")
            except DeadlinePassed:
                return None

    async def _announced(self) -> AnnouncedVersion | None:
        return None if self._announcements is None else await self._announcements.latest()

    def _nothing(self, version: int | None = None) -> MusterError:
        if not self._directory.answered:
            return NoProgress(f"none of {len(self.peers.urls)} relays can be reached, or they serve another run")
        what = "any version" if version is None else f"version {version}"
        return VersionGone(f"no relay has {what}")


def _prune(to: Path, keep: int) -> None:
    """Deletes all but the newest versions, and what is left of fetches of older ones."""
    whole = sorted((path for path in to.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    for path in whole[:-keep]:
        shutil.rmtree(path, ignore_errors=True)
    newest = int(whole[-1].name) if whole else -1
    for path in to.glob(".partial-*"):
        number = path.name.removeprefix(".partial-")
        if number.isdecimal() and int(number) < newest:
            shutil.rmtree(path, ignore_errors=True)
