"""Brings what is missing of one version here: several connections to several peers, every block verified on its way.

Followers read the manifest as it grows, lanes fetch the blocks that it announces, a watchman cuts what has gone silent
and ends the transfer when nobody gives anything any more. A relay and a client do the same here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import structlog

from protocol.clock import Clock
from shardcast.connection import BlockConnection, Failed
from shardcast.errors import BadBlock, BadManifest, NoProgress, VersionGone
from shardcast.extensions import BLOCK
from shardcast.holding import Holding, verify
from shardcast.manifest import BlockSpan, FileState
from shardcast.metrics import FetchingMetrics
from shardcast.peers import Fault, Peers
from shardcast.schedule import Claim, Schedule
from shardcast.upstream import Upstream

FOLLOWERS = 2
"""Peers whose word on a growing manifest is heard at a time, so that one that withholds it holds up nobody."""

MOST_FOLLOWERS = 8
"""While a manifest is not sealed, one more peer is heard each time that an answer's patience has passed: so a client
that drew slow or unwilling ones first does not depend on them."""

_CHECK_BLOCKS = 64
_GONE_FOR = timedelta(seconds=5)
"""When every peer has said for so long that it lacks the version, it is gone."""

_LACKING_PAUSE = timedelta(milliseconds=250)
_WATCH_EVERY = timedelta(seconds=1)
_LONGEST_PAUSE_S = 5.0
_SHORTEST_PAUSE_S = 0.005

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How much is asked for at a time."""

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
        holding: Holding,
        *,
        peers: Peers,
        upstream: Upstream,
        metrics: FetchingMetrics,
        clock: Clock,
        pace: Pace | None = None,
        wanted: Callable[[FileState], bool] = lambda _: True,
        advanced: Callable[[], None] = lambda: None,
    ) -> None:
        self.holding = holding
        self.received = 0
        """Verified bytes that came, those that came twice too."""
        self._peers = peers
        self._upstream = upstream
        self._metrics = metrics
        self._clock = clock
        self._pace = pace or Pace()
        self._wanted = wanted
        self._lying: dict[int, int] = {}
        """Bytes of each file that lay here before anything of it was announced."""
        self._advanced = advanced
        self._schedule = Schedule(span_blocks=self._pace.span_blocks)
        self._to_check: asyncio.Queue[BlockSpan] = asyncio.Queue()
        self._unchecked = 0
        self._busy: dict[Claim, BlockConnection] = {}
        self._idle: dict[str, list[BlockConnection]] = {}
        self._changed = asyncio.Event()
        self._resting: deque[asyncio.Future[None]] = deque()
        """Lanes that have nothing to do."""
        self._progress_at = clock.monotonic()
        self._following: set[str] = set()
        self._quiet: set[str] = set()
        """Peers that had no news of the manifest; the others are heard before they are again."""
        self._lacking: dict[str, float] = {}
        self._lacking_since: float | None = None

    @property
    def finished(self) -> bool:
        """Whether every wanted block is here, and no more will be announced."""
        return self.holding.manifest.sealed and not self._schedule.missing and not self._unchecked

    async def run(self, known: Iterable[BlockSpan] = ()) -> None:
        """Returns when the version is complete.

        Args:
            known: Blocks that the manifest announced before, and that are to be looked for on disk or fetched.

        Raises:
            NoProgress: Nobody gave anything for too long.
            VersionGone: No peer has it any more.
            DiskFull: There is no room for it.
        """
        self._announce(known)
        threads = ThreadPoolExecutor(self._pace.connections, thread_name_prefix="shardcast")
        finish = asyncio.create_task(self._until_finished())
        tasks = [finish, asyncio.create_task(self._watch()), asyncio.create_task(self._check_what_lies_here())]
        followers = min(MOST_FOLLOWERS, len(self._peers.urls))
        tasks += [asyncio.create_task(self._follow(late=max(0, n + 1 - FOLLOWERS))) for n in range(followers)]
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
            await self._changed.wait()

    # The manifest

    async def _follow(self, *, late: int) -> None:
        """Reads the manifest from one peer after another until it is sealed; begins after so many patiences."""
        if late:
            await self._clock.sleep(late * self._upstream.patience.answer)
        while not self.holding.manifest.sealed:
            url = self._draw(without=self._following | self._quiet)
            if url is None and self._quiet:
                self._quiet.clear()
                continue
            if url is None:
                await self._pause()
                continue
            self._following.add(url)
            try:
                await self._read_manifest(url)
            except Failed as error:
                self._note_fault(url, error.fault)
            except BadManifest as error:
                _log.warning("bad-manifest", peer=url, why=error.detail)
                self._note_fault(url, Fault.BAD_MANIFEST)
            finally:
                self._following.discard(url)

    async def _read_manifest(self, url: str) -> None:
        holding = self.holding
        following = holding.manifest.length
        heard = self._clock.monotonic()
        async for line in self._upstream.manifest_lines(url, holding.manifest.key, start=following):
            if line == b"\n":
                # An origin may have nothing to say for long, and a relay may keep it to itself: nobody is blamed.
                silent = self._clock.monotonic() - heard > self._upstream.patience.answer.total_seconds()
                if silent and len(self._peers.urls) > FOLLOWERS:
                    self._quiet.add(url)
                    return
                continue
            heard = self._clock.monotonic()
            if following == holding.manifest.length:  # or the other follower was first
                self._announce(holding.take(line))
                self._note_progress()
            following += 1
            if holding.manifest.sealed:
                return
        raise Failed(Fault.GONE, f"{url} ended the manifest without a seal")

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
        self._wake_lane()
        if self.finished:
            self._wake()

    def _lies_here(self, state: FileState) -> int:
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
                self._wake()
            self._unchecked -= 1
            self._wake()

    # The blocks

    async def _lane(self, threads: ThreadPoolExecutor) -> None:
        """One connection's worth of work, until all is here."""
        while not self.finished:
            claim = self._next_claim()
            if claim is None:
                await self._rest()
                continue
            if self._schedule.has_waiting:
                self._wake_lane()
            try:
                await self._bring(claim, threads)
            finally:
                self._schedule.give_up(claim)
                if claim.left or self.finished:
                    self._wake()

    def _next_claim(self) -> Claim | None:
        """What to ask for next, and whom; None if there is nothing to ask for, or nobody who may be asked now."""
        now = self._clock.monotonic()
        peer = self._draw(without=set())
        if peer is None:
            return None
        claim = self._schedule.claim(now, connections=self._pace.connections, growing=not self.holding.manifest.sealed)
        if claim is None and len(self._peers.urls) > 1:
            claim = self._schedule.hedge(now, after=self._upstream.patience.hedge.total_seconds())
            if claim is not None and claim.hedge_of is not None:
                peer = self._draw(without={claim.hedge_of.peer})
                if peer is None:
                    self._schedule.give_up(claim)
                    return None
        if claim is not None:
            claim.peer = peer
        return claim

    async def _bring(self, claim: Claim, threads: ThreadPoolExecutor) -> None:
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
                self._note_fault(url, Fault.BAD_BLOCK if isinstance(error, BadBlock) else error.fault)
        else:
            if not connection.is_cut:
                idle.append(connection)
            now = self._clock.monotonic()
            self._peers[url].note_good(now)
            self._peers[url].note_bandwidth((connection.received - received) / max(now - began, 1e-6))
            self._measure(url)
        finally:
            del self._busy[claim]

    def _note_block(self, claim: Claim, state: FileState, block: int) -> None:
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
            self._wake()

    # Who is asked, and for how long

    def _draw(self, *, without: set[str]) -> str | None:
        now = self._clock.monotonic()
        lacking = {url for url, until in self._lacking.items() if until > now}
        return self._peers.draw(now, without=without | lacking)

    def _note_fault(self, url: str, fault: Fault) -> None:
        now = self._clock.monotonic()
        self._metrics.errors.labels(url, fault.value).inc()
        if fault is Fault.GONE:
            self._lacking[url] = now + _LACKING_PAUSE.total_seconds()
            if self._lacking_since is None and all(url in self._lacking for url in self._peers.urls):
                self._lacking_since = now
        else:
            self._peers[url].note_fault(fault, now)
            self._measure(url)
            if fault in {Fault.BAD_BLOCK, Fault.BAD_MANIFEST}:
                _log.warning("peer-lied", peer=url, fault=fault.value, version=str(self.holding.manifest.key))

    def _note_progress(self) -> None:
        self._progress_at = self._clock.monotonic()
        self._lacking_since = None
        self._lacking.clear()
        self._advanced()

    def _measure(self, url: str) -> None:
        standing = self._peers[url]
        self._metrics.bandwidth.labels(url).set(standing.bandwidth)
        self._metrics.success.labels(url).set(standing.success_at(self._clock.monotonic()))

    async def _watch(self) -> None:
        """Cuts connections that have gone silent, and gives up when nobody gives anything any more."""
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
            if self._lacking_since is not None and now - self._lacking_since > _GONE_FOR.total_seconds():
                raise VersionGone(f"no relay holds version {self.holding.manifest.key} any more")
            if now - self._progress_at > patience.progress.total_seconds():
                raise NoProgress(
                    f"nothing new of version {self.holding.manifest.key} came for "
                    f"{patience.progress.total_seconds():.0f} s"
                )

    async def _rest(self) -> None:
        """Pauses a lane until it is its turn, or a claim may have become late."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resting.append(turn)
        try:
            # Claims that others make meanwhile are not late before this has passed.
            await self._pause(turn, most_s=self._upstream.patience.hedge.total_seconds())
        finally:
            if turn in self._resting:
                self._resting.remove(turn)

    async def _pause(self, turn: asyncio.Future[None] | None = None, *, most_s: float = _LONGEST_PAUSE_S) -> None:
        """Waits until there is something to do, or somebody may be asked again."""
        now = self._clock.monotonic()
        moments = [
            self._schedule.next_hedge(after=self._upstream.patience.hedge.total_seconds()),
            self._schedule.next_gathered(),
            self._peers.next_return(now),
            min(self._lacking.values(), default=None),
        ]
        wait_s = min([each - now for each in moments if each is not None and each > now], default=most_s)
        wait_s = min(wait_s, most_s)
        alarm = asyncio.ensure_future(self._clock.sleep(timedelta(seconds=max(wait_s, _SHORTEST_PAUSE_S))))
        change = asyncio.ensure_future(self._changed.wait()) if turn is None else turn
        try:
            await asyncio.wait({alarm, change}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            alarm.cancel()
            change.cancel()

    def _wake(self) -> None:
        """Makes everybody look again."""
        self._changed.set()
        self._changed = asyncio.Event()
        while self._resting:
            self._wake_lane()

    def _wake_lane(self) -> None:
        """Gives one resting lane its turn; it wakes the next if there is more than it takes."""
        if self._resting:
            turn = self._resting.popleft()
            if not turn.done():
                turn.set_result(None)
