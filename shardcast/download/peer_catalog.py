"""Catalog of the versions that peers list, with verification.

A stream of listings from each peer keeps the catalog current.

A listing is unsigned, so a peer can list versions that do not exist. The catalog verifies a version by its first
manifest extension: an accepted signer must have signed it. Background tasks read and verify the listings
(docs/decisions/0025 explains this design).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Self

from protocol.identifiers import Address, Digest
from protocol.runtime.backoff import backoff
from protocol.runtime.logs import get_logger
from protocol.runtime.waiting import wait_first
from shardcast.download.context import DownloadContext
from shardcast.errors import BadManifest, FailureKind, PeerFailed
from shardcast.manifest.manifest import Manifest, VersionKey
from shardcast.manifest.records import DeltaBase
from shardcast.manifest.signers import Signers
from shardcast.serve.version_index import ListedVersion, Listing

STRAGGLERS = timedelta(seconds=1)
"""Longest time that slow peers delay the versions of other peers: after the first listing, and during verification."""

FIRST_IGNORE = timedelta(milliseconds=250)
"""Time for which the catalog ignores a peer's unverified listings after a failed verification. The time doubles with
each consecutive failure."""
LONGEST_IGNORE = timedelta(minutes=1)
"""Longest time for which the catalog ignores a peer's unverified listings."""

FIRST_RECONNECT = timedelta(milliseconds=200)
"""First back-off before the catalog opens a peer's stream of listings again; doubles with each consecutive failure."""
LONGEST_RECONNECT = timedelta(seconds=5)
"""Longest back-off before the catalog opens a peer's stream of listings again."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Verification:
    """Running verification of the versions that one peer lists."""

    task: asyncio.Task[None]
    began: float
    """Start, in seconds of the monotonic clock."""


class PeerCatalog:
    """Follows the listings of all peers; an async context manager.

    The catalog also measures the bandwidth to each peer.

    Args:
        context: The peers, and the client with which to reach them.
        run: Id of the run; listings of other runs are refused.
        signers: Accepted signers; versions of any other signer are ignored.
    """

    def __init__(self, context: DownloadContext, *, run: Digest, signers: Signers) -> None:
        self.revision = 0
        """Number of changes so far; changed listings and verified versions count."""
        self.signers = signers
        self._run = run
        self._context = context
        self._client = context.client
        self._clock = context.clock
        self._listings: dict[str, Listing] = {}
        self._contacted: set[str] = set()
        """URLs of peers that sent a listing, or failed to send one."""
        self._verified: set[VersionKey] = set()
        """Versions whose first manifest extension was received and verified."""
        self._bases: dict[VersionKey, DeltaBase | None] = {}
        """Base of each verified version; None for a version without deltas."""
        self._disproved: set[tuple[str, VersionKey]] = set()
        """Pairs of a peer's URL and a version: the peer lists the version, but sent no valid manifest of it."""
        self._verifications: dict[str, _Verification] = {}
        """Running verification of each peer, by URL."""
        self._failures: dict[str, int] = {}
        """Number of consecutive failed verifications of each peer, by URL."""
        self._ignored: set[str] = set()
        """URLs of peers whose unverified listings are ignored for a while."""
        self._change = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._follow(url)) for url in self._context.peers.urls]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [*self._tasks, *(each.task for each in self._verifications.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def answered(self) -> bool:
        """Returns whether any peer has sent a listing."""
        return bool(self._listings)

    async def first_look(self, *, version: int | None = None) -> None:
        """Waits until every peer has sent a listing or failed.

        The wait lasts at most `PeerTimeouts.answer`, and at most `STRAGGLERS` after the first listing.

        Args:
            version: Number of a version; the wait also ends as soon as any peer lists this version.
        """
        time_limit = self._context.timeouts.answer
        waiting = asyncio.ensure_future(self._all_contacted(version))
        alarm = asyncio.ensure_future(self._clock.sleep(time_limit))
        try:
            while not waiting.done() and not alarm.done():
                had_listing = bool(self._listings)
                await wait_first(self.next_change(), tasks=[waiting, alarm])
                if self._listings and not had_listing:
                    alarm.cancel()
                    alarm = asyncio.ensure_future(self._clock.sleep(min(STRAGGLERS, time_limit)))
        finally:
            waiting.cancel()
            alarm.cancel()

    async def next_change(self, seen: int | None = None) -> None:
        """Waits until `revision` differs from `seen`, by default from its present value."""
        seen = self.revision if seen is None else seen
        while self.revision == seen:
            await self._change.wait()

    def trust(self, signers: Signers) -> None:
        """Replaces the accepted signers, and discards all results of earlier verifications."""
        self.signers = signers
        self._verified.clear()
        self._bases.clear()
        self._disproved.clear()
        self._notify()

    def accepted_signers(self) -> tuple[Address, ...]:
        """Returns the signers that are accepted now."""
        return self.signers.accepted_at(self._clock.now())

    def listed(self) -> list[VersionKey]:
        """Returns the newest listed attempt at each version, newest first, verified or not."""
        newest: dict[int, VersionKey] = {}
        for url, listing in self._accepted_listings():
            for key in _keys(listing):
                if (url, key) not in self._disproved:
                    newest[key.version] = max(key, newest.get(key.version, key))
        return sorted(newest.values(), reverse=True)

    def entries_of(self, key: VersionKey) -> list[ListedVersion]:
        """Returns the entries of all peers' listings for one attempt at a version, verified or not."""
        return [each for _, listing in self._accepted_listings() for each in listing.versions if each.key == key]

    async def newest(self, *, version: int | None = None, without: Iterable[VersionKey] = ()) -> VersionKey | None:
        """Returns the newest verified version; None if there is none.

        Starts verifications of listed versions that are newer, and waits for these verifications. If no version is
        verified yet, the wait lasts at most `PeerTimeouts.answer`. Otherwise the wait for each verification ends
        `STRAGGLERS` after the verification's start.

        Args:
            version: Number of a version; only attempts at it are considered. None considers all versions.
            without: Versions to leave out.
        """
        excluded = set(without)
        until = self._clock.monotonic() + self._context.timeouts.answer.total_seconds()
        while True:
            keys = [key for key in self.listed() if key not in excluded and (version is None or key.version == version)]
            best = next((key for key in keys if key in self._verified), None)
            now = self._clock.monotonic()
            pending = self._verify([key for key in keys if best is None or key > best])
            # Once a version is verified, a peer that is slow to prove its listing delays the result by at most
            # `STRAGGLERS`.
            left = [(until if best is None else each.began + STRAGGLERS.total_seconds()) - now for each in pending]
            if max(left, default=0.0) <= 0:
                return best
            alarm = self._clock.sleep(timedelta(seconds=max(left)))
            await wait_first(alarm, tasks=[each.task for each in pending])

    def base_of(self, key: VersionKey) -> DeltaBase | None:
        """Returns the base of a version's deltas; None if the version has no deltas, or is not verified."""
        return self._bases.get(key)

    def manifest(self, key: VersionKey) -> Manifest:
        """Returns an empty manifest that accepts lines of the signers that are accepted now."""
        former = self.signers.former_at(self._clock.now())
        return Manifest(run=self._run, key=key, signer=self.signers.publisher, other_signers=former)

    async def sealed(self, key: VersionKey) -> Manifest | None:
        """Downloads and verifies the sealed manifest of a version; None if no peer sends it."""
        for url in self._holders(key):
            try:
                async with asyncio.timeout(self._context.timeouts.progress.total_seconds()):
                    return await self._read_sealed(url, key)
            except BadManifest as error:
                self._disprove(url, key, error)
            except (PeerFailed, TimeoutError) as error:
                self._context.record_failure(url, _kind_of(error))
        return None

    async def _read_sealed(self, url: str, key: VersionKey) -> Manifest:
        manifest = self.manifest(key)
        async for line in self._client.manifest_lines(url, key, start=0):
            if line == b"\n":
                break
            manifest.read(line)
            if manifest.sealed:
                return manifest
        raise PeerFailed(FailureKind.GONE, f"{url} has no sealed manifest of version {key}")

    def _holders(self, key: VersionKey) -> list[str]:
        return [
            url
            for url, listing in self._accepted_listings()
            if key in _keys(listing) and (url, key) not in self._disproved
        ]

    # Verification of listings

    def _verify(self, keys: Iterable[VersionKey]) -> list[_Verification]:
        """Starts verifications of the peers that list one of these versions; returns all that run for the versions.

        The result includes verifications that an earlier call started. A peer has at most one verification at a time;
        an ignored peer has none.
        """
        unverified = set(keys)
        found = []
        for url, listing in self._accepted_listings():
            claimed = {key for key in _keys(listing) & unverified if (url, key) not in self._disproved}
            if claimed and url not in self._ignored:
                if url not in self._verifications:
                    task = asyncio.create_task(self._verify_peer(url))
                    self._verifications[url] = _Verification(task, self._clock.monotonic())
                found.append(self._verifications[url])
        return found

    async def _verify_peer(self, url: str) -> None:
        """Verifies the versions that a peer lists, newest first.

        Stops when the peer fails to answer.
        """
        try:
            while (key := self._next_unverified(url)) is not None:
                try:
                    # `asyncio.wait_for` of Python 3.11 would lose a cancellation that arrives just as its work ends.
                    async with asyncio.timeout(self._context.timeouts.answer.total_seconds()):
                        await self._verify_version(url, key)
                except BadManifest as error:
                    self._disprove(url, key, error)
                except (PeerFailed, TimeoutError) as error:
                    kind = _kind_of(error)
                    self._context.record_failure(url, kind)
                    if kind is FailureKind.GONE:
                        self._disproved.add((url, key))
                    else:
                        self._ignore(url)
                        return
                else:
                    self._failures.pop(url, None)
                    self._notify()
        finally:
            del self._verifications[url]

    def _next_unverified(self, url: str) -> VersionKey | None:
        keys = {key for each, listing in self._accepted_listings() if each == url for key in _keys(listing)}
        return max((key for key in keys - self._verified if (url, key) not in self._disproved), default=None)

    async def _verify_version(self, url: str, key: VersionKey) -> None:
        """Verifies a version by the first line of its manifest from this peer.

        If the peer sends an empty keep-alive line first, that line counts as invalid, because a peer that lists a
        version must have the version's first extension.

        Raises:
            PeerFailed: The peer sent no line.
            BadManifest: The line is not the first extension, signed by an accepted signer.
        """
        async for line in self._client.manifest_lines(url, key, start=0):
            manifest = self.manifest(key)
            manifest.read(line)
            self._bases[key] = manifest.base
            self._verified.add(key)
            return
        raise PeerFailed(FailureKind.CUT, f"{url} lists version {key}, but sends no line of its manifest")

    def _disprove(self, url: str, key: VersionKey, error: BadManifest) -> None:
        _log.warning("bad-manifest", peer=url, version=str(key), why=error.detail)
        self._context.record_failure(url, FailureKind.BAD_MANIFEST)
        self._disproved.add((url, key))

    def _ignore(self, url: str) -> None:
        """Ignores a peer's unverified listings for a time that grows with consecutive failures."""
        self._failures[url] = self._failures.get(url, 0) + 1
        self._ignored.add(url)
        self._tasks = [task for task in self._tasks if not task.done()]
        delay = backoff(FIRST_IGNORE, LONGEST_IGNORE, self._failures[url])
        self._tasks.append(asyncio.create_task(self._end_ignore(url, after=delay)))

    async def _end_ignore(self, url: str, *, after: timedelta) -> None:
        await self._clock.sleep(after)
        self._ignored.discard(url)
        self._notify()

    # Streams of listings

    async def _all_contacted(self, version: int | None) -> None:
        while len(self._contacted) < len(self._context.peers):
            if version is not None and any(key.version == version for key in self.listed()):
                return
            await self._change.wait()

    async def _follow(self, url: str) -> None:
        """Measures the bandwidth to a peer, and reads its stream of listings.

        After the stream ends, measures the bandwidth and reads the stream again.
        """
        failures = 0
        while True:
            try:
                self._context.peers[url].record_bandwidth(await self._client.probe(url))
                async for listing in self._client.listings(url):
                    failures = 0
                    self._update(url, listing)
            except PeerFailed as error:
                _log.info("peer-failed", peer=url, why=error.detail)
                self._context.record_failure(url, error.kind)
            self._listings.pop(url, None)
            self._contacted.add(url)
            self._notify()
            failures += 1
            await self._clock.sleep(backoff(FIRST_RECONNECT, LONGEST_RECONNECT, failures))

    def _update(self, url: str, listing: Listing) -> None:
        signers = self.accepted_signers()
        if listing.run != self._run or (listing.publisher not in signers and not listing.only(signers).versions):
            raise PeerFailed(
                FailureKind.REFUSED, f"{url} serves run {listing.run} of publisher {listing.publisher}, not this run"
            )
        if self._listings.get(url) == listing:
            return
        self._listings[url] = listing
        keys = _keys(listing)
        # Results are dropped for versions that the peer no longer lists. Otherwise a peer that lists ever new versions
        # could fill the memory.
        self._disproved = {each for each in self._disproved if each[0] != url or each[1] in keys}
        self._contacted.add(url)
        self._notify()

    def _accepted_listings(self) -> Iterator[tuple[str, Listing]]:
        """Returns each peer's URL and listing, without versions of signers that are not accepted."""
        signers = self.accepted_signers()
        return ((url, listing.only(signers)) for url, listing in self._listings.items())

    def _notify(self) -> None:
        self.revision += 1
        self._change.set()
        self._change = asyncio.Event()


def _keys(listing: Listing) -> set[VersionKey]:
    return {each.key for each in listing.versions}


def _kind_of(error: PeerFailed | TimeoutError) -> FailureKind:
    return error.kind if isinstance(error, PeerFailed) else FailureKind.STALLED
