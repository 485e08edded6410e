"""Catalog of the versions that peers list, kept current by a stream from each peer, with verification.

Listings are unverified. A version counts as real once its first extension, signed by the publisher, was received.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Self

import structlog

from protocol.identifiers import Address, Digest
from protocol.runtime.clock import Clock
from shardcast.download.connection import Failed
from shardcast.download.peer_client import PeerClient
from shardcast.download.peers import Fault, Peers
from shardcast.errors import BadManifest
from shardcast.manifest.manifest import Manifest, VersionKey
from shardcast.manifest.records import DeltaBase
from shardcast.manifest.signers import Signers
from shardcast.metrics import FetchingMetrics
from shardcast.serve.version_index import ListedVersion, Listing

STRAGGLERS = timedelta(seconds=1)
"""Wait for further peers after the first listing."""

FIRST_DOUBT = timedelta(milliseconds=250)
LONGEST_DOUBT = timedelta(minutes=1)
"""Time in which new listings of a peer that failed verification are ignored; doubles with each failure in a row."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Check:
    """A peer that is being asked to show what it lists."""

    task: asyncio.Task[None]
    began: float


class PeerCatalog:
    """Follows what all peers have, while it is entered, and measures the way to each.

    Args:
        run: Listings of another run are not looked at.
        signers: Whose versions count.
        peers: Who is followed.
        upstream: How they are spoken to.
        metrics: Where faults are counted.
        clock: Of pauses.
    """

    def __init__(
        self,
        *,
        run: Digest,
        signers: Signers,
        peers: Peers,
        upstream: PeerClient,
        metrics: FetchingMetrics,
        clock: Clock,
    ) -> None:
        self.revision = 0
        """Grows with each listing that comes or goes, and with each version that is found to be real."""
        self._run = run
        self.signers = signers
        self._peers = peers
        self._upstream = upstream
        self._metrics = metrics
        self._clock = clock
        self._listings: dict[str, Listing] = {}
        self._asked: set[str] = set()
        self._real: set[VersionKey] = set()
        self._bases: dict[VersionKey, DeltaBase | None] = {}
        self._lies: set[tuple[str, VersionKey]] = set()
        self._checks: dict[str, _Check] = {}
        self._doubts: dict[str, int] = {}
        self._doubted: set[str] = set()
        self._change = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._follow(url)) for url in self._peers.urls]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [*self._tasks, *(check.task for check in self._checks.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def answered(self) -> bool:
        """Returns whether any peer has sent a listing."""
        return bool(self._listings)

    async def first_look(self, *, version: int | None = None) -> None:
        """Returns when all peers have said what they have or failed to, or the others have been waited for enough.

        Args:
            version: If this one is listed, there is nothing more to wait for.
        """
        patience = self._upstream.patience.answer
        waiting = asyncio.ensure_future(self._all_asked(version))
        alarm = asyncio.ensure_future(self._clock.sleep(patience))
        try:
            while not waiting.done() and not alarm.done():
                heard = bool(self._listings)
                change = asyncio.ensure_future(self.next_change())
                await asyncio.wait({waiting, alarm, change}, return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
                if self._listings and not heard:
                    alarm.cancel()
                    alarm = asyncio.ensure_future(self._clock.sleep(min(STRAGGLERS, patience)))
        finally:
            waiting.cancel()
            alarm.cancel()

    async def next_change(self, seen: int | None = None) -> None:
        """Returns when a peer has something else than now, or than at revision `seen`."""
        seen = self.revision if seen is None else seen
        while self.revision == seen:
            await self._change.wait()

    def trust(self, signers: Signers) -> None:
        """Sets the accepted signers and verifies listings again."""
        self.signers = signers
        self._real.clear()
        self._bases.clear()
        self._lies.clear()
        self._say_changed()

    def counting(self) -> tuple[Address, ...]:
        """Returns the accepted signers."""
        return self.signers.at(self._clock.now())

    def listed(self) -> list[VersionKey]:
        """Returns all listed versions, newest first, with the newest attempt of each."""
        newest: dict[int, VersionKey] = {}
        for url, listing in self._that_count():
            for key in (each.key for each in listing.versions):
                if (url, key) not in self._lies:
                    newest[key.version] = max(key, newest.get(key.version, key))
        return sorted(newest.values(), reverse=True)

    def said_of(self, key: VersionKey) -> list[ListedVersion]:
        """Returns each peer's entry for a version."""
        return [each for _, listing in self._that_count() for each in listing.versions if each.key == key]

    async def newest(self, *, version: int | None = None, but: Iterable[VersionKey] = ()) -> VersionKey | None:
        """The newest version that is real; None if there is none.

        Args:
            version: Only attempts at this one.
            but: These are not wanted.
        """
        unwanted = set(but)
        until = self._clock.monotonic() + self._upstream.patience.answer.total_seconds()
        while True:
            keys = [key for key in self.listed() if key not in unwanted and (version is None or key.version == version)]
            best = next((key for key in keys if key in self._real), None)
            now = self._clock.monotonic()
            checks = self._checks_of([key for key in keys if best is None or key > best])
            # A peer that is slow to prove its listing delays no other: it counts once it has.
            left = [(until if best is None else check.began + STRAGGLERS.total_seconds()) - now for check in checks]
            if max(left, default=0.0) <= 0:
                return best
            alarm = asyncio.ensure_future(self._clock.sleep(timedelta(seconds=max(left))))
            try:
                await asyncio.wait({alarm, *(check.task for check in checks)}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                alarm.cancel()

    def base_of(self, key: VersionKey) -> DeltaBase | None:
        """Returns the base of a verified version's deltas, if it has any."""
        return self._bases.get(key)

    def manifest(self, key: VersionKey) -> Manifest:
        """Returns an empty manifest that accepts the present signers."""
        besides = self.signers.besides(self._clock.now())
        return Manifest(run=self._run, key=key, signer=self.signers.publisher, besides=besides)

    async def sealed(self, key: VersionKey) -> Manifest | None:
        """Returns the sealed manifest of a version; None if no peer has it."""
        for url in self._holders(key):
            try:
                async with asyncio.timeout(self._upstream.patience.progress.total_seconds()):
                    return await self._read_sealed(url, key)
            except BadManifest as error:
                self._note_lie(url, key, error)
            except (Failed, TimeoutError) as error:
                self._note(url, error.fault if isinstance(error, Failed) else Fault.STALLED)
        return None

    async def _read_sealed(self, url: str, key: VersionKey) -> Manifest:
        manifest = self.manifest(key)
        async for line in self._upstream.manifest_lines(url, key, start=0):
            if line == b"\n":
                break
            manifest.read(line)
            if manifest.sealed:
                return manifest
        raise Failed(Fault.GONE, f"{url} does not have version {key} sealed")

    def _holders(self, key: VersionKey) -> list[str]:
        return [url for url, listing in self._that_count() if key in _keys(listing) and (url, key) not in self._lies]

    def _note_lie(self, url: str, key: VersionKey, error: BadManifest) -> None:
        _log.warning("bad-manifest", peer=url, version=str(key), why=error.detail)
        self._note(url, Fault.BAD_MANIFEST)
        self._lies.add((url, key))

    def _checks_of(self, keys: Iterable[VersionKey]) -> list[_Check]:
        """One check for each peer that says it has one of these and did not show it yet; begun if need be."""
        unproven = set(keys)
        found = []
        for url, listing in self._that_count():
            claimed = {key for key in _keys(listing) & unproven if (url, key) not in self._lies}
            if claimed and url not in self._doubted:
                if url not in self._checks:
                    task = asyncio.create_task(self._check(url))
                    self._checks[url] = _Check(task, self._clock.monotonic())
                found.append(self._checks[url])
        return found

    async def _check(self, url: str) -> None:
        """Verifies a peer's listed versions, newest first, until one fails."""
        try:
            while (key := self._unproven(url)) is not None:
                try:
                    # `wait_for` of Python 3.11 swallows a cancellation that comes as its work ends.
                    async with asyncio.timeout(self._upstream.patience.answer.total_seconds()):
                        await self._prove(url, key)
                except BadManifest as error:
                    self._note_lie(url, key, error)
                except (Failed, TimeoutError) as error:
                    fault = error.fault if isinstance(error, Failed) else Fault.STALLED
                    self._note(url, fault)
                    if fault is Fault.GONE:
                        self._lies.add((url, key))
                    else:
                        self._doubt(url)
                        return
                else:
                    self._doubts.pop(url, None)
                    self._say_changed()
        finally:
            del self._checks[url]

    def _unproven(self, url: str) -> VersionKey | None:
        keys = {key for each, listing in self._that_count() if each == url for key in _keys(listing)}
        return max((key for key in keys - self._real if (url, key) not in self._lies), default=None)

    async def _prove(self, url: str, key: VersionKey) -> None:
        """Returns when a peer has shown the first extension of a version. An empty line is none: it lists too early."""
        async for line in self._upstream.manifest_lines(url, key, start=0):
            manifest = self.manifest(key)
            manifest.read(line)
            self._bases[key] = manifest.base
            self._real.add(key)
            return
        raise Failed(Fault.CUT, f"{url} lists version {key} and shows nothing of it")

    def _doubt(self, url: str) -> None:
        """Ignores a peer's unverified listings for a while."""
        doubts = self._doubts.get(url, 0)
        self._doubts[url] = doubts + 1
        self._doubted.add(url)
        self._tasks = [task for task in self._tasks if not task.done()]
        pause = min(FIRST_DOUBT * 2 ** min(doubts, 10), LONGEST_DOUBT)
        self._tasks.append(asyncio.create_task(self._forgive(url, after=pause)))

    async def _forgive(self, url: str, *, after: timedelta) -> None:
        await self._clock.sleep(after)
        self._doubted.discard(url)
        self._say_changed()

    async def _all_asked(self, version: int | None) -> None:
        while len(self._asked) < len(self._peers.urls):
            if version is not None and any(key.version == version for key in self.listed()):
                return
            await self._change.wait()

    async def _follow(self, url: str) -> None:
        """Measures a peer, then hears what it has, for ever."""
        failures = 0
        while True:
            try:
                self._peers[url].note_bandwidth(await self._upstream.probe(url))
                async for listing in self._upstream.listings(url):
                    failures = 0
                    self._take(url, listing)
            except Failed as error:
                _log.info("peer-failed", peer=url, why=error.detail)
                self._note(url, error.fault)
            self._listings.pop(url, None)
            self._asked.add(url)
            self._say_changed()
            failures += 1
            await self._clock.sleep(min(timedelta(milliseconds=100) * 2 ** min(failures, 6), timedelta(seconds=5)))

    def _take(self, url: str, listing: Listing) -> None:
        signers = self.counting()
        if listing.run != self._run or (listing.publisher not in signers and not listing.only(signers).versions):
            raise Failed(Fault.REFUSED, f"{url} serves run {listing.run} of {listing.publisher}, not ours")
        if self._listings.get(url) == listing:
            return
        self._listings[url] = listing
        keys = _keys(listing)
        self._lies = {lie for lie in self._lies if lie[0] != url or lie[1] in keys}
        self._asked.add(url)
        self._say_changed()

    def _that_count(self) -> Iterator[tuple[str, Listing]]:
        """Returns each peer's listing without versions of signers that are not accepted."""
        signers = self.counting()
        return ((url, listing.only(signers)) for url, listing in self._listings.items())

    def _say_changed(self) -> None:
        self.revision += 1
        self._change.set()
        self._change = asyncio.Event()

    def _note(self, url: str, fault: Fault) -> None:
        self._metrics.errors.labels(url, fault.value).inc()
        self._peers[url].note_fault(fault, self._clock.monotonic())


def _keys(listing: Listing) -> set[VersionKey]:
    return {each.key for each in listing.versions}
