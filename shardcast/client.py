"""Client: downloads verified checkpoints of one run into local folders.

    async with Client(relays, run="devnet", signer=publisher_address) as client:
        fetched = await client.fetch(7, Path("models"))        # version 7, complete in models/7
        async for fetched in client.follow(Path("models")):    # each newest version, once it is complete
            load(fetched.path)

While version 7 is incomplete, its files are in `models/.partial-7`. When every file is verified, the client renames
this folder to `models/7`. After an interruption the next fetch continues with the files in `.partial-7`.
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

from prometheus_client import CollectorRegistry

from protocol.errors import MusterError
from protocol.identifiers import Address, run_id
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import Random
from protocol.runtime.retry import Deadline, DeadlinePassed
from protocol.runtime.threads import run_in_thread
from shardcast.download.context import DownloadContext, TransferLimits
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
"""Number of versions that `follow` leaves on disk: the newest version, and the previous one, which a reader may still
use."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A version for which at least one relay has a manifest signed by the publisher."""

    version: int
    attempt: int
    sealed: bool
    """Whether any relay lists the version as complete."""
    size: int
    """Number of bytes of the version that were published so far."""
    relays: int
    """Number of relays that list the version."""


class Client:
    """Downloads checkpoints of one run from untrusted relays; an async context manager.

    Args:
        relays: URLs of relays, or of the origin.
        run: Name or id of the run.
        signer: The publisher's address; the client refuses versions signed by other keys. `signer` may also be
            `Signers`, which adds the publisher's former key and the time until which its signatures are accepted.
        announcements: Source of the version announcements on the ledger. Without announcements, the newest version is
            the newest one for which any relay has a signed manifest.
        timeouts: Time-outs of requests to relays.
        requests: Limits of concurrent requests.
        allow_plain_http: Whether `http` to other machines is allowed, for use inside an encrypted network. The client
            verifies all content, with `http` and with `https`.
        tls: TLS context for https; by default it trusts the system's certificate authorities.
        registry: Prometheus registry for the metrics; a new one by default.
        clock: Clock; the system clock by default.
        rng: Random generator for the choice between relays.

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
        requests: TransferLimits | None = None,
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
            requests=requests or TransferLimits(),
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
        """Replaces the accepted signers, after the pool's publisher key was rotated."""
        self._catalog.trust(signers)

    async def latest(self) -> VersionKey:
        """Returns the newest version.

        If the ledger announces a version, this version is the newest one. Otherwise the newest version is the newest
        one for which a relay has a signed manifest.

        Raises:
            StaleRelays: No relay sent a signed manifest of the version that the ledger names within the time-out
                `PeerTimeouts.progress`.
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
                raise StaleRelays(f"the ledger announces version {announced.key}, but no relay has it") from None

    async def offers(self) -> list[Offered]:
        """Returns all versions for which at least one relay has a signed manifest, newest first.

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
        """Downloads a version into the folder `to/VERSION`, complete and verified.

        If the publisher is still writing the version, the client fetches each block as soon as it is published.

        Args:
            version: Number of the version; `latest` returns the newest.
            to: The folder of local versions.
            on_progress: Called after each block and each manifest extension.

        Raises:
            VersionGone: No relay has the version.
            NoProgress: No relay sends the missing blocks; the next fetch continues with the blocks on disk.
            StaleRelays: No relay has a signed manifest of the newest attempt that the ledger names.
            VersionDropped: The blocks that the publisher signed do not produce the announced files.
            VersionDiskFull: The disk has no room for the version.
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
                    f"the ledger announces attempt {announced.attempt} at version {version}, "
                    f"but the relays have attempt {key.attempt}"
                )
            fetched = await self._download(key, to, on_progress).run()
            if fetched is not None:
                return fetched
            voided.add(key)

    async def follow(
        self, to: Path, *, keep: int = KEPT_FOLDERS, on_progress: OnProgress | None = None
    ) -> AsyncGenerator[Fetched]:
        """Downloads each newest version, and yields it when it is complete and verified.

        The iteration skips a version that no relay has, or whose signed blocks do not produce the announced files.
        After each download it deletes all local versions except the newest `keep`. It runs until the caller stops it.

        Raises:
            VersionDiskFull: The disk has no room for a version.
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
            except NoProgress as error:
                _log.warning("version-retried", version=str(key), why=error.detail)  # continues with the blocks on disk
                continue
            except (VersionDropped, VersionGone, StaleRelays) as error:
                _log.warning("version-skipped", version=str(key), why=error.detail)
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
        """Returns the newest attempt at a version.

        If no relay lists the version within `PeerTimeouts.appear`, returns None.
        """
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
            return NoProgress(f"none of the {len(self.peers)} relays can be reached, or they serve another run")
        return VersionGone(f"no relay has {'any version' if version is None else f'version {version}'}")


def _prune(to: Path, keep: int) -> None:
    """Deletes outdated partial folders, and all local versions except the newest `keep`.

    A partial folder is outdated if a newer version is complete.
    """
    complete = sorted((path for path in to.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    for path in complete[:-keep]:
        shutil.rmtree(path, ignore_errors=True)
    newest = int(complete[-1].name) if complete else -1
    for path in to.glob(".partial-*"):
        number = path.name.removeprefix(".partial-")
        if number.isdecimal() and int(number) < newest:
            shutil.rmtree(path, ignore_errors=True)
