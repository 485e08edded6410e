"""Client: downloads verified checkpoints of one run into local folders.

    async with Client(relays, run="devnet", signer=publisher_address) as client:
        fetched = await client.fetch(7, Path("models"))        # models/7, complete
        async for fetched in client.follow(Path("models")):    # and each newer version as it appears
            load(fetched.path)

A version's folder appears in one step, when every file in it is verified. An incomplete version lies in `.partial-N`
beside it, and the next fetch continues with it.
"""

from __future__ import annotations

import shutil
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
from prometheus_client import CollectorRegistry

from protocol.errors import MusterError
from protocol.identifiers import Address, run_id
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.randomness import Random
from protocol.runtime.retry import Deadline, DeadlinePassed
from protocol.runtime.threads import run_in_thread
from shardcast.download.context import DownloadContext, RequestLimits
from shardcast.download.download import Download, Fetched, OnProgress
from shardcast.download.peer_catalog import PeerCatalog
from shardcast.download.peer_client import PeerClient, PeerTimeouts, check_peers
from shardcast.download.peers import Peers
from shardcast.errors import NoProgress, StaleRelays, VersionDropped, VersionGone
from shardcast.freshness import AnnouncedVersion, Announcements
from shardcast.manifest.manifest import VersionKey
from shardcast.manifest.signers import Signers, signers_of
from shardcast.metrics import DownloadMetrics

KEPT_FOLDERS = 2
"""Versions that `follow` leaves on disk: the newest, and the one before it, which may still be in use."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A version that at least one relay can prove."""

    version: int
    attempt: int
    sealed: bool
    """Whether any peer has the complete version."""
    size: int
    """Bytes announced so far."""
    relays: int
    """Number of peers that have it."""


class Client:
    """Downloads checkpoints of one run from untrusted relays, while it is entered.

    Args:
        relays: URLs of relays, or of the origin.
        run: Name or id of the run.
        signer: The publisher's address; versions signed by other keys are refused. Or `Signers`, with the publisher's
            former key and the time until which it is accepted.
        announcements: Announcements of versions on the ledger; without them the newest version is the newest that any
            relay can prove.
        timeouts: Time-outs of relays.
        requests: Limits of concurrent requests.
        allow_plain_http: Allows `http` to other machines, for use inside an encrypted network. Content is verified
            either way.
        tls: For https; the system's certificate authorities by default.
        registry: Registry of the metrics.
        clock: The system's by default.
        rng: Source of randomness of the choice between relays.

    Raises:
        InvalidInput: `relays` is empty, or a URL in it is invalid or not allowed.
    """

    def __init__(
        self,
        relays: Sequence[str],
        *,
        run: str,
        signer: Address | Signers,
        announcements: Announcements | None = None,
        timeouts: PeerTimeouts | None = None,
        requests: RequestLimits | None = None,
        allow_plain_http: bool = False,
        tls: ssl.SSLContext | None = None,
        registry: CollectorRegistry | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self.run = run_id(run)
        self.peers = Peers(check_peers(relays, allow_plain_http=allow_plain_http), rng=rng)
        self.metrics = DownloadMetrics(CollectorRegistry() if registry is None else registry)
        self._announcements = announcements
        self._context = DownloadContext(
            peers=self.peers,
            client=PeerClient(timeouts=timeouts, tls=tls),
            metrics=self.metrics,
            clock=SystemClock() if clock is None else clock,
            requests=requests or RequestLimits(),
        )
        self._catalog = PeerCatalog(self._context, run=self.run, signers=signers_of(signer))
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._context.client)
        await self._stack.enter_async_context(self._catalog)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def trust(self, signers: Signers) -> None:
        """Sets the accepted signers after a rotation of the publisher role."""
        self._catalog.trust(signers)

    async def latest(self) -> VersionKey:
        """Returns the newest version: the one that the ledger names, else the newest that a relay can prove.

        Raises:
            StaleRelays: No relay proved the version that the ledger names within the time-out.
            VersionGone: No relay has any version.
            NoProgress: No relay answers.
        """
        announced = await self._announced()
        if announced is None:
            await self._catalog.first_look()
            newest = await self._catalog.newest()
            if newest is None:
                raise self._none_found()
            return newest
        deadline = Deadline.after(self._context.timeouts.progress, clock=self._context.clock)
        while True:
            seen = self._catalog.revision
            if await self._is_verified(announced):
                return announced.key
            try:
                await deadline.bound(self._catalog.next_change(seen), what="the wait for the announced version")
            except DeadlinePassed:
                raise StaleRelays(f"the ledger names version {announced.key}, and no relay has it") from None

    async def offers(self) -> list[Offered]:
        """Returns all versions that at least one relay can prove, newest first.

        Raises:
            NoProgress: No relay answers.
        """
        await self._catalog.first_look()
        if not self._catalog.answered:
            raise self._none_found()
        found = []
        for key in self._catalog.listed():
            entries = self._catalog.entries_of(key)
            if await self._catalog.newest(version=key.version) == key and entries:
                found.append(
                    Offered(
                        version=key.version,
                        attempt=key.attempt,
                        sealed=any(each.sealed for each in entries),
                        size=max(each.size for each in entries),
                        relays=len(entries),
                    )
                )
        return found

    async def fetch(self, version: int, to: Path, *, on_progress: OnProgress | None = None) -> Fetched:
        """Returns when the folder `to/VERSION` holds the version, complete and verified.

        A version that is still being written is fetched as it grows.

        Args:
            version: Number of the version; see `latest`.
            to: The folder of local versions.
            on_progress: Called after each block.

        Raises:
            VersionGone: No relay has the version.
            NoProgress: No relay sends the missing blocks; the next fetch continues from there.
            StaleRelays: The ledger names a newer attempt than any relay can prove.
            VersionDropped: The publisher's own blocks do not make the announced content.
            VersionDiskFull: There is no room for it.
            Conflict: Another process fetches the same version into the same folder.
        """
        await self._catalog.first_look(version=version)
        voided: set[VersionKey] = set()
        while True:
            announced = await self._announced()
            key = await self._newest_attempt(version, without=voided)
            if key is None:
                raise self._none_found(version)
            if announced is not None and announced.version == version and key.attempt < announced.attempt:
                raise StaleRelays(
                    f"the ledger names attempt {announced.attempt} at version {version}, and relays have {key.attempt}"
                )
            fetched = await self._download(key, to, on_progress).run()
            if fetched is not None:
                return fetched
            voided.add(key)

    async def follow(
        self, to: Path, *, keep: int = KEPT_FOLDERS, on_progress: OnProgress | None = None
    ) -> AsyncGenerator[Fetched]:
        """Yields each newest version once it is complete and verified in the folder; never ends.

        An unavailable or dropped version is skipped. Versions older than the newest `keep` are deleted.

        Raises:
            VersionDiskFull: There is no room.
        """
        last: VersionKey | None = None
        skipped: set[VersionKey] = set()
        while True:
            seen = self._catalog.revision
            key = await self._catalog.newest(without=skipped)
            if key is None or (last is not None and key <= last):
                await self._catalog.next_change(seen)
                continue
            try:
                fetched = await self._download(key, to, on_progress, yields_to_newer=True).run()
            except (VersionDropped, VersionGone, NoProgress, StaleRelays) as error:
                _log.warning("version-skipped", version=str(key), why=error.detail)
                if not isinstance(error, NoProgress):
                    skipped.add(key)
                continue
            if fetched is None:
                continue
            last = key
            skipped = {each for each in skipped if each > key}
            await run_in_thread(_prune, to, keep)
            yield fetched

    def _download(
        self, key: VersionKey, to: Path, on_progress: OnProgress | None, *, yields_to_newer: bool = False
    ) -> Download:
        return Download(
            key=key,
            to=to,
            context=self._context,
            catalog=self._catalog,
            announcements=self._announcements,
            on_progress=on_progress,
            yields_to_newer=yields_to_newer,
        )

    async def _is_verified(self, announced: AnnouncedVersion) -> bool:
        found = await self._catalog.newest(version=announced.version)
        return found is not None and found.attempt >= announced.attempt

    async def _newest_attempt(self, version: int, *, without: set[VersionKey]) -> VersionKey | None:
        """Returns the newest attempt at a version; waits `PeerTimeouts.appear` for a relay to list one."""
        deadline = Deadline.after(self._context.timeouts.appear, clock=self._context.clock)
        while True:
            seen = self._catalog.revision
            key = await self._catalog.newest(version=version, without=without)
            if key is not None:
                return key
            try:
                await deadline.bound(self._catalog.next_change(seen), what="the wait for a version")
            except DeadlinePassed:
                return None

    async def _announced(self) -> AnnouncedVersion | None:
        return None if self._announcements is None else await self._announcements.latest()

    def _none_found(self, version: int | None = None) -> MusterError:
        if not self._catalog.answered:
            return NoProgress(f"none of {len(self.peers)} relays can be reached, or they serve another run")
        return VersionGone(f"no relay has {'any version' if version is None else f'version {version}'}")


def _prune(to: Path, keep: int) -> None:
    """Deletes all but the newest versions, and partial folders of versions older than the newest."""
    complete = sorted((path for path in to.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    for path in complete[:-keep]:
        shutil.rmtree(path, ignore_errors=True)
    newest = int(complete[-1].name) if complete else -1
    for path in to.glob(".partial-*"):
        number = path.name.removeprefix(".partial-")
        if number.isdecimal() and int(number) < newest:
            shutil.rmtree(path, ignore_errors=True)
