"""Brings what is missing of one version here: several connections to several peers, every block verified on its way.

Followers read the manifest as it grows (`following`), lanes fetch the blocks that it announces, a watchman cuts what
has gone silent and ends the transfer when no peer sends anything any more. Relays and clients share this code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from protocol.runtime.clock import Clock
from shardcast.download.connection import BlockConnection, Failed
from shardcast.download.manifest_stream import ManifestStream
from shardcast.download.peer_client import PeerClient
from shardcast.download.peer_selection import PeerSelection
from shardcast.download.peers import Fault, Peers
from shardcast.download.schedule import BlockClaim, BlockSchedule
from shardcast.download.wakeups import Wakeups
from shardcast.errors import BadBlock, NoProgress, VersionGone
from shardcast.local_version import LocalVersion, verify
from shardcast.manifest.manifest import BlockSpan, FileProgress
from shardcast.manifest.records import BLOCK
from shardcast.metrics import FetchingMetrics

_CHECK_BLOCKS = 64
_GONE_FOR = timedelta(seconds=5)
"""Time after which a version that all peers lack counts as gone."""

_WATCH_EVERY = timedelta(seconds=1)
_LONGEST_PAUSE = timedelta(seconds=5)
_SHORTEST_PAUSE = timedelta(milliseconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPace:
    """Sizes of requests."""

    connections: int = 4
    """At most; each holds one block in memory."""
    span_blocks: int = 16
    """Most blocks of one request: few enough to share between peers, enough that asking costs little beside them."""


class Transfer:
    """Completes one holding.

    Args:
        holding: What is to be completed.
        peers: Who may be asked.
        upstream: How.
        metrics: Where it is counted.
        clock: Of deadlines.
        pace: How much at a time.
        wanted: Which files; all by default.
        advanced: Told after each block and each new extension.
    """

    def __init__(
        self,
        holding: LocalVersion,
        *,
        peers: Peers,
        upstream: PeerClient,
        metrics: FetchingMetrics,
        clock: Clock,
        pace: TransferPace | None = None,
        wanted: Callable[[FileProgress], bool] = lambda _: True,
        advanced: Callable[[], None] = lambda: None,
    ) -> None:
        self.holding = holding
        self.received = 0
        """Verified bytes that came, those that came twice too."""
        self._givers = PeerSelection(peers, key=holding.manifest.key, metrics=metrics, clock=clock)
        self._upstream = upstream
        self._metrics = metrics
        self._clock = clock
        self._pace = pace or TransferPace()
        self._wanted = wanted
        self._lying: dict[int, int] = {}
        """Bytes of each file that lay here before anything of it was announced."""
        self._advanced = advanced
        self._schedule = BlockSchedule(span_blocks=self._pace.span_blocks)
        self._to_check: asyncio.Queue[BlockSpan] = asyncio.Queue()
        self._unchecked = 0
        self._busy: dict[BlockClaim, BlockConnection] = {}
        self._idle: dict[str, list[BlockConnection]] = {}
        self._resting = Wakeups(clock=clock)
        self._progress_at = clock.monotonic()
        self._following = ManifestStream(
            holding,
            givers=self._givers,
            upstream=upstream,
            clock=clock,
            announced=self._hear,
            pause=lambda: self._resting.pause(self._until_next(_LONGEST_PAUSE)),
        )

    @property
    def finished(self) -> bool:
        """Returns whether the download is complete: sealed, and all wanted blocks present."""
        return self.holding.manifest.sealed and not self._schedule.missing and not self._unchecked

    async def run(self, known: Iterable[BlockSpan] = ()) -> None:
        """Returns when the version is complete.

        Args:
            known: Blocks that the manifest announced before, and that are to be looked for on disk or fetched.

        Raises:
            NoProgress: No peer sent anything for too long.
            VersionGone: No peer has it any more.
            DiskFull: There is no room for it.
        """
        self._announce(known)
        threads = ThreadPoolExecutor(self._pace.connections, thread_name_prefix="shardcast")
        finish = asyncio.create_task(self._until_finished())
        tasks = [finish, asyncio.create_task(self._watch()), asyncio.create_task(self._check_what_lies_here())]
        tasks += [asyncio.create_task(line) for line in self._following.lines()]
        tasks += [asyncio.create_task(self._lane(threads)) for _ in range(self._pace.connections)]
        try:
            while not finish.done():
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                tasks = [task for task in tasks if task not in done]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for connections in self._idle.values():
                for connection in connections:
                    connection.close()
            threads.shutdown(wait=False)

    async def _until_finished(self) -> None:
        while not self.finished:
            await self._resting.change()

    # The manifest

    def _hear(self, spans: Iterable[BlockSpan]) -> None:
        self._announce(spans)
        self._note_progress()

    def _announce(self, spans: Iterable[BlockSpan]) -> None:
        for span in spans:
            state = self.holding.manifest.files[span.file]
            if not self._wanted(state):
                continue
            if span.first * BLOCK < self._lies_here(state):
                self._unchecked += 1
                self._to_check.put_nowait(span)
            else:
                self._schedule.announce([span])
        self._resting.wake_one()
        if self.finished:
            self._resting.wake()

    def _lies_here(self, state: FileProgress) -> int:
        if state.index not in self._lying:
            try:
                self._lying[state.index] = self.holding.path(state.index).stat().st_size
            except OSError:
                self._lying[state.index] = 0
        return self._lying[state.index]

    async def _check_what_lies_here(self) -> None:
        """Looks for blocks on the disk, before they are asked for, in files that were there at the start."""
        while True:
            span = await self._to_check.get()
            for part in span.parts(_CHECK_BLOCKS):
                good = await asyncio.to_thread(self.holding.check, part)
                for block in good:
                    self.holding.mark(part.file, block)
                self._schedule.announce(part.without(good))
                self._note_progress()
                self._resting.wake()
            self._unchecked -= 1
            self._resting.wake()

    # The blocks

    async def _lane(self, threads: ThreadPoolExecutor) -> None:
        """One connection's worth of work, until all is here."""
        while not self.finished:
            claim = self._next_claim()
            if claim is None:
                await self._rest()
                continue
            if self._schedule.has_waiting:
                self._resting.wake_one()
            try:
                await self._bring(claim, threads)
            finally:
                self._schedule.give_up(claim)
                if claim.left or self.finished:
                    self._resting.wake()

    def _next_claim(self) -> BlockClaim | None:
        """Returns the next request and its peer; None if there is nothing to request or no available peer."""
        now = self._clock.monotonic()
        peer = self._givers.draw()
        if peer is None:
            return None
        claim = self._schedule.claim(now, connections=self._pace.connections, growing=not self.holding.manifest.sealed)
        if claim is None and self._givers.count > 1:
            claim = self._schedule.hedge(now, after=self._upstream.patience.hedge.total_seconds())
            if claim is not None and claim.hedge_of is not None:
                peer = self._givers.draw(without={claim.hedge_of.peer})
                if peer is None:
                    self._schedule.give_up(claim)
                    return None
        if claim is not None:
            claim.peer = peer
        return claim

    async def _bring(self, claim: BlockClaim, threads: ThreadPoolExecutor) -> None:
        url, began = claim.peer, self._clock.monotonic()
        idle = self._idle.setdefault(url, [])
        connection = idle.pop() if idle else self._upstream.connection(url)
        received = connection.received
        self._busy[claim] = connection
        loop = asyncio.get_running_loop()
        state = self.holding.manifest.files[claim.span.file]

        def fetch() -> None:
            with self.holding.writing(state.index) as write:

                def sink(block: int, data: memoryview) -> None:
                    verify(state, block, data)
                    if not self.holding.has(state.index, block):
                        write(block, data)
                    loop.call_soon_threadsafe(self._note_block, claim, state, block)

                connection.fetch(self.holding.manifest.key, state, claim.span, sink)

        work = loop.run_in_executor(threads, fetch)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            connection.cut()
            with suppress(Exception):
                await work
            connection.close()
            raise
        except (BadBlock, Failed) as error:
            if not claim.done:  # or it was cut because another had brought the rest
                self._givers.note_fault(url, Fault.BAD_BLOCK if isinstance(error, BadBlock) else error.fault)
        else:
            if not connection.is_cut:
                idle.append(connection)
            took_s = self._clock.monotonic() - began
            self._givers.note_good(url, received=connection.received - received, took_s=took_s)
        finally:
            del self._busy[claim]

    def _note_block(self, claim: BlockClaim, state: FileProgress, block: int) -> None:
        size = state.size_of(block)
        counter = self._metrics.wasted if self.holding.has(state.index, block) else self._metrics.received
        counter.labels(claim.peer).inc(size)
        self.received += size
        freed = self._schedule.brought(claim, block, self._clock.monotonic())
        self.holding.mark(state.index, block)
        for other in freed:
            if other in self._busy:
                self._busy[other].cut()  # all that it was sent for is here
        self._note_progress()
        if self.finished:
            self._resting.wake()

    def _note_progress(self) -> None:
        self._progress_at = self._clock.monotonic()
        self._givers.note_progress()
        self._advanced()

    # For how long

    async def _watch(self) -> None:
        """Closes silent connections, and gives up when no peer sends anything any more."""
        patience = self._upstream.patience
        seen: dict[BlockConnection, tuple[int, float]] = {}
        while True:
            await self._clock.sleep(min(_WATCH_EVERY, patience.stall / 4, patience.progress / 4))
            now = self._clock.monotonic()
            seen = {
                connection: seen[connection]
                if connection in seen and seen[connection][0] == connection.received
                else (connection.received, now)
                for connection in self._busy.values()
            }
            for connection, (_, since) in seen.items():
                if now - since > patience.stall.total_seconds():
                    connection.cut()
            if self._givers.gone_for > _GONE_FOR:
                raise VersionGone(f"no relay holds version {self.holding.manifest.key} any more")
            if now - self._progress_at > patience.progress.total_seconds():
                raise NoProgress(
                    f"nothing new of version {self.holding.manifest.key} came for "
                    f"{patience.progress.total_seconds():.0f} s"
                )

    async def _rest(self) -> None:
        """Pauses a lane until it is its turn, or a claim may have become late."""
        # Claims that others make meanwhile are not late before this has passed.
        await self._resting.rest(self._until_next(self._upstream.patience.hedge))

    def _until_next(self, most: timedelta) -> timedelta:
        """Returns the time until the next possible request; `most` if unknown."""
        now = self._clock.monotonic()
        moments = [
            self._schedule.next_hedge(after=self._upstream.patience.hedge.total_seconds()),
            self._schedule.next_gathered(),
            self._givers.next_return(),
        ]
        wait_s = min([each - now for each in moments if each is not None and each > now], default=most.total_seconds())
        return max(min(timedelta(seconds=wait_s), most), _SHORTEST_PAUSE)
