"""Block schedule: blocks to request next, blocks in flight, and late ones to request again.

No clock and no network; `Transfer` executes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from shardcast.manifest.manifest import BlockSpan

GATHERING_S = 0.05
"""Seconds that a few blocks may wait for more, to be requested together, while another request is in flight."""


@dataclass(eq=False, slots=True)
class BlockClaim:
    """Blocks that one request is to fetch."""

    span: BlockSpan
    at: float
    """Time of the claim, or of its last block."""
    hedge_of: BlockClaim | None = None
    """The late claim whose blocks this one requests from another peer."""
    peer: str = ""
    remaining: set[int] = field(default_factory=set)
    """Blocks that have not arrived yet, from this request or another one."""

    @property
    def done(self) -> bool:
        """Returns whether all its blocks arrived."""
        return not self.remaining


class BlockSchedule:
    """Missing blocks of one version, in the order of their announcement.

    Args:
        span_blocks: Most blocks of one request.
    """

    def __init__(self, *, span_blocks: int) -> None:
        self._span_blocks = span_blocks
        self._waiting: deque[BlockSpan] = deque()
        self._claims: list[BlockClaim] = []
        self._gathering_since: float | None = None
        self.missing = 0
        """Blocks that have not arrived yet, claimed or not."""

    @property
    def claims(self) -> list[BlockClaim]:
        """Claims in flight."""
        return list(self._claims)

    def announce(self, spans: Iterable[BlockSpan]) -> None:
        """Adds missing blocks."""
        for span in spans:
            self.missing += span.count
            last = self._waiting[-1] if self._waiting else None
            if last is not None and (last.file, last.first + last.count) == (span.file, span.first):
                self._waiting[-1] = BlockSpan(last.file, last.first, last.count + span.count)
            else:
                self._waiting.append(span)

    def claim(self, now: float, *, connections: int = 1, growing: bool = False) -> BlockClaim | None:
        """Claims the next blocks; None if all are claimed, or if a few wait to form a larger request.

        Args:
            now: Monotonic time in seconds.
            connections: Connections that share the unclaimed blocks.
            growing: Whether more blocks will be announced. If so, a request takes all waiting blocks. While it is in
                flight, a few new blocks wait until there are more, because many small requests would cost more time
                than the bytes themselves.
        """
        if not self._waiting or (growing and self._gathers(now)):
            return None
        self._gathering_since = None
        span = self._waiting.popleft()
        # The last blocks of a version are divided among the connections, so that all finish at the same time.
        ready = span.count + sum(each.count for each in self._waiting)
        most = max(1, min(self._span_blocks, -(-ready // (1 if growing else connections))))
        if span.count > most:
            self._waiting.appendleft(BlockSpan(span.file, span.first + most, span.count - most))
            span = BlockSpan(span.file, span.first, most)
        return self._start(BlockClaim(span, now))

    def next_gathered(self) -> float | None:
        """Returns the time from which on the gathered blocks are requested, however few; None if none are gathered."""
        return None if self._gathering_since is None else self._gathering_since + GATHERING_S

    def hedge(self, now: float, *, after: float) -> BlockClaim | None:
        """Claims blocks of the claim that has been without a block for longest again; None if no claim is late.

        Args:
            now: Monotonic time in seconds.
            after: Seconds without a block after which a claim is late.
        """
        hedged = {id(each.hedge_of) for each in self._claims if each.hedge_of is not None}
        late = [
            each
            for each in self._claims
            if each.remaining and each.hedge_of is None and id(each) not in hedged and now - each.at >= after
        ]
        if not late:
            return None
        slowest = min(late, key=lambda each: each.at)
        # Requests the last half of the late request's blocks again. If that request is slow but alive, the two meet in
        # the middle and few blocks arrive twice.
        most, last, count = -(-len(slowest.remaining) // 2), max(slowest.remaining), 1
        while count < most and last - count in slowest.remaining:
            count += 1
        return self._start(BlockClaim(BlockSpan(slowest.span.file, last - count + 1, count), now, hedge_of=slowest))

    def next_hedge(self, *, after: float) -> float | None:
        """Returns the time at which the next claim is late; None if there is none."""
        times = [each.at + after for each in self._claims if each.remaining and each.hedge_of is None]
        return min(times, default=None)

    def record_block(self, claim: BlockClaim, block: int, now: float) -> list[BlockClaim]:
        """Records that a claim's request delivered a block, which no other claim needs to wait for then.

        Returns:
            Other claims that this block completed.
        """
        claim.at = now
        waiting = [each for each in self._claims if each.span.file == claim.span.file and block in each.remaining]
        for each in waiting:
            each.remaining.discard(block)
        if waiting:
            self.missing -= 1
        return [each for each in waiting if each.done and each is not claim]

    def release(self, claim: BlockClaim) -> None:
        """Ends a claim; its missing blocks that no other claim covers are requested again first."""
        self._claims.remove(claim)
        covered = {block for each in self._claims if each.span.file == claim.span.file for block in each.remaining}
        for span in reversed(claim.span.without(set(_blocks(claim.span)) - claim.remaining | covered)):
            self._waiting.appendleft(span)

    def _gathers(self, now: float) -> bool:
        if not self._claims or sum(span.count for span in self._waiting) >= self._span_blocks:
            return False
        if self._gathering_since is None:
            self._gathering_since = now
        return now - self._gathering_since < GATHERING_S

    def _start(self, claim: BlockClaim) -> BlockClaim:
        claim.remaining = set(_blocks(claim.span))
        self._claims.append(claim)
        return claim


def _blocks(span: BlockSpan) -> range:
    return range(span.first, span.first + span.count)
