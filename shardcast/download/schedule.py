"""Schedule of a transfer: blocks to request next, blocks in flight, and late blocks.

The schedule uses no clock and no network: `Transfer` passes it times, and sends the requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from shardcast.manifest.manifest import BlockSpan

GATHERING_S = 0.05
"""Longest time in seconds that a few new blocks wait for more blocks, so that one request can fetch all of them."""


@dataclass(eq=False, slots=True)
class BlockClaim:
    """Blocks that are assigned to one request."""

    span: BlockSpan
    """The blocks to request."""
    at: float
    """Time at which the claim's newest block arrived; before the first block, the time of the claim. Monotonic, in
    seconds."""
    hedge_of: BlockClaim | None = None
    """The late claim, if this claim is a hedge; None otherwise. A hedge requests some missing blocks of the late
    claim from another peer."""
    peer: str = ""
    """URL of the peer from which the blocks are requested."""
    remaining: set[int] = field(default_factory=set)
    """Numbers of the blocks that no request has delivered yet."""

    @property
    def done(self) -> bool:
        """Returns whether all blocks of the claim have arrived, from this request or another one."""
        return not self.remaining


class BlockSchedule:
    """Missing blocks of one version, which are requested in the order of their announcement.

    Args:
        span_blocks: Maximum number of blocks per request.
    """

    def __init__(self, *, span_blocks: int) -> None:
        self._span_blocks = span_blocks
        self._waiting: deque[BlockSpan] = deque()
        self._claims: list[BlockClaim] = []
        self._gathering_since: float | None = None
        self.missing = 0
        """Number of blocks that have not arrived yet, claimed or not."""

    @property
    def claims(self) -> list[BlockClaim]:
        """Returns the claims whose requests are in flight."""
        return list(self._claims)

    def announce(self, spans: Iterable[BlockSpan]) -> None:
        """Adds missing blocks to the schedule."""
        for span in spans:
            self.missing += span.count
            last = self._waiting[-1] if self._waiting else None
            if last is not None and (last.file, last.first + last.count) == (span.file, span.first):
                self._waiting[-1] = BlockSpan(last.file, last.first, last.count + span.count)
            else:
                self._waiting.append(span)

    def claim(self, now: float, *, connections: int = 1, growing: bool = False) -> BlockClaim | None:
        """Claims the next blocks for a request; returns None if no blocks are ready for a request.

        Args:
            now: Monotonic time in seconds.
            connections: Number of connections among which the unclaimed blocks are divided.
            growing: Whether more blocks will be announced. If so, a claim takes up to `span_blocks` blocks, and the
                blocks are not divided among the connections. While any request is in flight, fewer than `span_blocks`
                blocks wait up to `GATHERING_S` for more blocks, because many small requests would take more time than
                the transfer of their bytes.
        """
        if not self._waiting or (growing and self._gathers(now)):
            return None
        self._gathering_since = None
        span = self._waiting.popleft()
        # The last blocks of a version are divided among the connections, so that all connections finish together.
        ready = span.count + sum(each.count for each in self._waiting)
        most = max(1, min(self._span_blocks, -(-ready // (1 if growing else connections))))
        if span.count > most:
            self._waiting.appendleft(BlockSpan(span.file, span.first + most, span.count - most))
            span = BlockSpan(span.file, span.first, most)
        return self._start(BlockClaim(span, now))

    def next_gathered(self) -> float | None:
        """Returns the time at which the blocks that wait for more blocks may be requested in any case.

        The time is monotonic, in seconds. Returns None if no blocks wait for more.
        """
        return None if self._gathering_since is None else self._gathering_since + GATHERING_S

    def hedge(self, now: float, *, after: float) -> BlockClaim | None:
        """Claims blocks of the most overdue claim again, to request them from another peer.

        Returns None if no claim is late.

        The most overdue claim is the one that has received no block for the longest time.

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
        # The hedge requests the second half of the missing blocks. A late request that is only slow delivers the first
        # half meanwhile, so that few blocks arrive twice.
        most, last, count = -(-len(slowest.remaining) // 2), max(slowest.remaining), 1
        while count < most and last - count in slowest.remaining:
            count += 1
        return self._start(BlockClaim(BlockSpan(slowest.span.file, last - count + 1, count), now, hedge_of=slowest))

    def next_hedge(self, *, after: float) -> float | None:
        """Returns the earliest time at which a claim becomes late; None if no claim can become late."""
        times = [each.at + after for each in self._claims if each.remaining and each.hedge_of is None]
        return min(times, default=None)

    def record_block(self, claim: BlockClaim, block: int, now: float) -> list[BlockClaim]:
        """Records that a claim's request delivered a block.

        No other claim waits for this block any more.

        Returns:
            Other claims for which this was the last missing block.
        """
        claim.at = now
        waiting = [each for each in self._claims if each.span.file == claim.span.file and block in each.remaining]
        for each in waiting:
            each.remaining.discard(block)
        if waiting:
            self.missing -= 1
        return [each for each in waiting if each.done and each is not claim]

    def release(self, claim: BlockClaim) -> None:
        """Ends a claim; its missing blocks can then be claimed again.

        The missing blocks that no other claim contains are the next ones to be claimed.
        """
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
