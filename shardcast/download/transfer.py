"""Transfer of the missing blocks of one version, over several connections to several peers.

A transfer runs four kinds of tasks at the same time. Manifest readers follow the growing manifest. The dispatcher
requests the blocks that the manifest announces, one request per free connection. A disk check verifies blocks that an
earlier transfer left on the disk. The watchdog cuts silent connections, and ends the transfer when no peer sends
anything any more. Every received block is verified before it is written. Relays and clients share this code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

from protocol.runtime.logs import get_logger
from protocol.runtime.retry import Deadline, DeadlinePassed
from protocol.runtime.threads import run_in_thread
from protocol.runtime.waiting import cancel_all, finish_with
from shardcast.download.connection import BlockConnection
from shardcast.download.context import DownloadContext
from shardcast.download.peers import INVALID_DATA
from shardcast.download.schedule import BlockClaim, BlockSchedule
from shardcast.errors import BadBlock, BadManifest, FailureKind, NoProgress, PeerFailed, VersionGone
from shardcast.local_version import LocalVersion, verify
from shardcast.manifest.manifest import BlockSpan, FileProgress
from shardcast.manifest.records import BLOCK

MANIFEST_READERS = 2
"""Number of peers from which the manifest is read at the start. With two peers, a peer that withholds new lines causes
no delay."""

MOST_MANIFEST_READERS = 8
"""Maximum number of peers from which the manifest is read at the same time. While the manifest is not sealed, one more
reader is added after each `PeerTimeouts.answer`, so that slow or unwilling peers can't delay a transfer for long."""

_CHECK_BLOCKS = 64
"""Number of blocks that the disk check reads per call into a thread."""

_GONE_FOR = timedelta(seconds=5)
"""Time for which all peers must lack a version, before the transfer ends with `VersionGone`."""

_RETRY_LACKING = timedelta(milliseconds=250)
"""Time after which a peer that lacked the version is asked again. A new version may reach the peer at any moment."""

_WATCH_EVERY = timedelta(seconds=1)
"""Longest interval between two checks of the watchdog."""
_LONGEST_PAUSE = timedelta(seconds=5)
"""Longest time for which a manifest reader waits before it tries again to draw an available peer."""
_SHORTEST_PAUSE = timedelta(milliseconds=5)
"""Shortest wait of the dispatcher or a manifest reader, so that neither loops without a pause."""

_log = get_logger(__name__)


class Transfer:
    """Fetches the missing blocks of one local version.

    Args:
        local: The version; the transfer extends its manifest.
        context: The peers from which to fetch, and the limits of requests.
        wanted: Function that selects the files to fetch; all files by default.
        on_progress: Called after each block and each new manifest extension.
    """

    def __init__(
        self,
        local: LocalVersion,
        context: DownloadContext,
        *,
        wanted: Callable[[FileProgress], bool] = lambda _: True,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.local = local
        self.received = 0
        """Number of verified bytes received; a block that arrived twice counts twice."""
        self._context = context
        self._clock = context.clock
        self._timeouts = context.timeouts
        self._wanted = wanted
        self._on_progress = on_progress
        self._schedule = BlockSchedule(span_blocks=context.requests.span_blocks)
        self._initial_sizes: dict[int, int] = {}
        """Size in bytes of each file on the disk before the transfer wrote to it."""
        self._to_check: asyncio.Queue[BlockSpan] = asyncio.Queue()
        """Blocks that may be on the disk, for the disk check."""
        self._unchecked = 0
        """Number of spans that the disk check has not completed."""
        self._requests: set[asyncio.Task[None]] = set()
        """Tasks that fetch the blocks of one claim each."""
        self._busy: dict[BlockClaim, BlockConnection] = {}
        """Connection of each claim whose request is in flight."""
        self._idle: dict[str, list[BlockConnection]] = {}
        """Open connections that no request uses, by the peer's URL."""
        self._changed = asyncio.Event()
        """Event that wakes the dispatcher: there are new blocks, a connection is free, or the transfer is complete."""
        self._progress_at = context.clock.monotonic()
        """Time of the last new block or extension, in seconds of the monotonic clock."""
        self._lacking: dict[str, float] = {}
        """URLs of peers that lack the version, with the time at which each may be asked again."""
        self._all_lacking_since: float | None = None
        """Time since which all peers lack the version; None if any peer may have the version."""
        self._manifest_peers: set[str] = set()
        """URLs of peers whose manifest is being read."""
        self._quiet_peers: set[str] = set()
        """URLs of peers whose manifest stopped growing; they are read again after all other peers."""

    @property
    def finished(self) -> bool:
        """Returns whether the manifest is sealed, and all wanted blocks are present."""
        return self.local.manifest.sealed and not self._schedule.missing and not self._unchecked

    async def run(self, known: Iterable[BlockSpan] = ()) -> None:
        """Fetches all missing blocks, and returns when the transfer is complete.

        Args:
            known: Blocks that the manifest announces already. If such a block is valid on the disk, it is not fetched.

        Raises:
            NoProgress: No peer sent a new block or extension for `PeerTimeouts.progress`.
            VersionGone: No peer has the version any more.
            VersionDiskFull: The disk has no room for the version.
        """
        self._announce(known)
        threads = ThreadPoolExecutor(self._context.requests.connections, thread_name_prefix="shardcast")
        readers = min(MOST_MANIFEST_READERS, len(self._context.peers))
        dispatcher = asyncio.create_task(self._dispatch(threads))
        others = [asyncio.create_task(self._watch()), asyncio.create_task(self._check_disk())]
        others += [asyncio.create_task(self._follow_manifest(number)) for number in range(readers)]
        try:
            await finish_with(dispatcher, others)
        finally:
            await cancel_all([dispatcher, *others, *self._requests])
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            threads.shutdown(wait=False)

    # The manifest

    async def _follow_manifest(self, number: int) -> None:
        """Reads the manifest from one peer after another until it is sealed.

        Args:
            number: Number of this manifest reader, from 0. The first `MANIFEST_READERS` start at once, and each further
                reader starts `PeerTimeouts.answer` after the previous reader.
        """
        await self._clock.sleep(max(0, number + 1 - MANIFEST_READERS) * self._timeouts.answer)
        while not self.local.manifest.sealed:
            url = self._draw(without=self._manifest_peers | self._quiet_peers)
            if url is None and self._quiet_peers:
                self._quiet_peers.clear()
                continue
            if url is None:
                await self._clock.sleep(self._until_next(_LONGEST_PAUSE))
                continue
            self._manifest_peers.add(url)
            try:
                await self._read_manifest(url)
            except PeerFailed as error:
                self._record_failure(url, error.kind)
            except BadManifest as error:
                _log.warning("bad-manifest", peer=url, why=error.detail)
                self._record_failure(url, FailureKind.BAD_MANIFEST)
            finally:
                self._manifest_peers.discard(url)

    async def _read_manifest(self, url: str) -> None:
        """Reads the manifest from one peer until it is sealed.

        Also returns when the peer has sent no extension for `PeerTimeouts.answer`, if there are more than
        `MANIFEST_READERS` peers.

        Raises:
            PeerFailed: The peer failed, or ended its manifest without a seal.
            BadManifest: The peer sent a line that is not the publisher's next extension.
        """
        manifest = self.local.manifest
        sequence = manifest.length
        heard_at = self._clock.monotonic()
        async for line in self._context.client.manifest_lines(url, manifest.key, start=sequence):
            if line == b"\n":  # a keep-alive line
                # Silence is no failure, because the origin may publish nothing new for a long time. But a relay may
                # also withhold lines, so this reader continues with another peer. With at most `MANIFEST_READERS`
                # peers, other readers already read the manifest of every other peer.
                quiet = self._clock.monotonic() - heard_at > self._timeouts.answer.total_seconds()
                if quiet and len(self._context.peers) > MANIFEST_READERS:
                    self._quiet_peers.add(url)
                    return
                continue
            heard_at = self._clock.monotonic()
            if sequence == manifest.length:  # if not, another manifest reader has already added this line
                self._announce(self.local.append_untrusted(line))
                self._record_progress()
            sequence += 1
            if manifest.sealed:
                return
        raise PeerFailed(FailureKind.GONE, f"{url} ended the manifest of version {manifest.key} without a seal")

    def _announce(self, spans: Iterable[BlockSpan]) -> None:
        """Schedules wanted blocks for a request, or for the disk check if they may be on the disk."""
        for span in spans:
            state = self.local.manifest.files[span.file]
            if not self._wanted(state):
                continue
            if span.first * BLOCK < self._initial_size(span.file):
                self._unchecked += 1
                self._to_check.put_nowait(span)
            else:
                self._schedule.announce([span])
        self._changed.set()

    def _initial_size(self, file: int) -> int:
        if file not in self._initial_sizes:
            try:
                self._initial_sizes[file] = self.local.path(file).stat().st_size
            except OSError:
                self._initial_sizes[file] = 0
        return self._initial_sizes[file]

    async def _check_disk(self) -> None:
        """Verifies blocks on the disk, in files that existed before the transfer.

        Only missing or wrong blocks are scheduled for a request.
        """
        while True:
            span = await self._to_check.get()
            for part in span.parts(_CHECK_BLOCKS):
                good = await run_in_thread(self.local.check, part)
                for block in good:
                    self.local.set_present(part.file, block)
                self._schedule.announce(part.without(good))
                self._record_progress()
                self._changed.set()
            self._unchecked -= 1
            self._changed.set()

    # The blocks

    async def _dispatch(self, threads: ThreadPoolExecutor) -> None:
        """Starts a request for each free connection, until the transfer is complete."""
        while not self.finished:
            self._changed.clear()
            for task in [task for task in self._requests if task.done()]:
                self._requests.remove(task)
                task.result()
            while len(self._requests) < self._context.requests.connections:
                claim = self._next_claim()
                if claim is None:
                    break
                task = asyncio.create_task(self._fetch(claim, threads))
                task.add_done_callback(lambda _: self._changed.set())
                self._requests.add(task)
            with suppress(DeadlinePassed):
                deadline = Deadline.after(self._until_next(self._timeouts.hedge), clock=self._clock)
                await deadline.bound(self._changed.wait(), what="the wait for blocks to request")

    def _next_claim(self) -> BlockClaim | None:
        """Claims blocks for the next request, and draws a peer for the request.

        Returns None if there are no blocks, or no available peer.
        """
        now = self._clock.monotonic()
        peer = self._draw()
        if peer is None:
            return None
        growing = not self.local.manifest.sealed
        claim = self._schedule.claim(now, connections=self._context.requests.connections, growing=growing)
        if claim is None and len(self._context.peers) > 1:
            claim = self._schedule.hedge(now, after=self._timeouts.hedge.total_seconds())
            if claim is not None and claim.hedge_of is not None:
                peer = self._draw(without={claim.hedge_of.peer})
                if peer is None:
                    self._schedule.release(claim)
                    return None
        if claim is not None:
            claim.peer = peer
        return claim

    async def _fetch(self, claim: BlockClaim, threads: ThreadPoolExecutor) -> None:
        """Fetches the blocks of one claim. Blocks that do not arrive can then be claimed again."""
        url, began = claim.peer, self._clock.monotonic()
        idle = self._idle.setdefault(url, [])
        connection = idle.pop() if idle else self._context.client.connection(url)
        received = connection.received
        self._busy[claim] = connection
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(threads, self._fetch_blocks, claim, connection, loop)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            connection.cut()
            with suppress(Exception):
                await work
            connection.close()
            raise
        except (BadBlock, PeerFailed) as error:
            if not claim.done:  # if done, another connection delivered the last blocks
                self._record_failure(url, FailureKind.BAD_BLOCK if isinstance(error, BadBlock) else error.kind)
        else:
            if not connection.is_cut:
                idle.append(connection)
            took_s = self._clock.monotonic() - began
            self._context.record_success(url, received=connection.received - received, took_s=took_s)
        finally:
            del self._busy[claim]
            self._schedule.release(claim)

    def _fetch_blocks(self, claim: BlockClaim, connection: BlockConnection, loop: asyncio.AbstractEventLoop) -> None:
        """Receives the blocks of a claim; runs in a thread.

        Each block is verified in memory, and then written to its place.
        """
        state = self.local.manifest.files[claim.span.file]
        with self.local.writing(state.index) as write:

            def take(block: int, data: memoryview) -> None:
                verify(state, block, data)
                if not self.local.has(state.index, block):
                    write(block, data)
                loop.call_soon_threadsafe(self._record_block, claim, state, block)

            connection.fetch(self.local.manifest.key, state, claim.span, take)

    def _record_block(self, claim: BlockClaim, state: FileProgress, block: int) -> None:
        size = state.size_of(block)
        metrics = self._context.metrics
        counter = metrics.wasted if self.local.has(state.index, block) else metrics.received
        counter.labels(claim.peer).inc(size)
        self.received += size
        completed = self._schedule.record_block(claim, block, self._clock.monotonic())
        self.local.set_present(state.index, block)
        for other in completed:
            if other in self._busy:
                self._busy[other].cut()  # all blocks that this connection still has to receive are present
        self._record_progress()
        if self.finished:
            self._changed.set()

    # Peers and time

    def _draw(self, *, without: AbstractSet[str] = frozenset()) -> str | None:
        """Draws an available peer that is not known to lack the version; None if there is none."""
        now = self._clock.monotonic()
        lacking = {url for url, until in self._lacking.items() if until > now}
        return self._context.peers.draw(now, without=without | lacking)

    def _record_failure(self, url: str, kind: FailureKind) -> None:
        if kind is not FailureKind.GONE:
            self._context.record_failure(url, kind)
            if kind in INVALID_DATA:
                _log.warning("peer-sent-invalid-data", peer=url, kind=kind.value, version=str(self.local.manifest.key))
            return
        # The peer's score stays unchanged: the version may have been removed there, or may not have arrived yet.
        now = self._clock.monotonic()
        self._context.metrics.errors.labels(url, kind.value).inc()
        self._lacking[url] = now + _RETRY_LACKING.total_seconds()
        if self._all_lacking_since is None and all(each in self._lacking for each in self._context.peers.urls):
            self._all_lacking_since = now

    def _record_progress(self) -> None:
        """Records a new block or extension, which proves that a peer still has the version."""
        self._progress_at = self._clock.monotonic()
        self._all_lacking_since = None
        self._lacking.clear()
        self._on_progress()

    async def _watch(self) -> None:
        """Cuts silent connections, and ends the transfer when no peer sends anything any more.

        Raises:
            VersionGone: All peers have lacked the version for `_GONE_FOR`.
            NoProgress: No new block or extension arrived for `PeerTimeouts.progress`.
        """
        timeouts, key = self._timeouts, self.local.manifest.key
        seen: dict[BlockConnection, tuple[int, float]] = {}
        while True:
            await self._clock.sleep(min(_WATCH_EVERY, timeouts.stall / 4, timeouts.progress / 4))
            now = self._clock.monotonic()
            seen = {
                connection: seen[connection]
                if connection in seen and seen[connection][0] == connection.received
                else (connection.received, now)
                for connection in self._busy.values()
            }
            for connection, (_, since) in seen.items():
                if now - since > timeouts.stall.total_seconds():
                    connection.cut()
            if self._all_lacking_since is not None and now - self._all_lacking_since > _GONE_FOR.total_seconds():
                raise VersionGone(f"no relay holds version {key} any more")
            if now - self._progress_at > timeouts.progress.total_seconds():
                raise NoProgress(
                    f"nothing new of version {key} has arrived for {timeouts.progress.total_seconds():.0f} s"
                )

    def _until_next(self, most: timedelta) -> timedelta:
        """Returns how long to wait until a request may be possible, at most `most`."""
        now = self._clock.monotonic()
        moments = [
            self._schedule.next_hedge(after=self._timeouts.hedge.total_seconds()),
            self._schedule.next_gathered(),
            self._context.peers.next_return(now),
            *self._lacking.values(),
        ]
        wait_s = min([each - now for each in moments if each is not None and each > now], default=most.total_seconds())
        return max(min(timedelta(seconds=wait_s), most), _SHORTEST_PAUSE)
