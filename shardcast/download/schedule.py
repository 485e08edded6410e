"""Block schedule: blocks to request next, blocks in flight, and late ones to request again.

No clock and no network; `Transfer` executes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from shardcast.manifest.manifest import BlockSpan

GATHERING_S = 0.05
"""Seconds that a few blocks may wait for more to be asked for with them, while another request is on its way."""


@dataclass(eq=False, slots=True)
class BlockClaim:
    """Blocks that one connection was sent for."""

    span: BlockSpan
    at: float
    """Time of the claim, or of its last block."""
    hedge_of: BlockClaim | None = None
    peer: str = ""
    left: set[int] = field(default_factory=set)
    """Blocks that it has not brought yet."""

    @property
    def done(self) -> bool:
        """Returns whether all its blocks arrived."""
        return not self.left


class BlockSchedule:
    """The blocks of one version that are still missing, in the order of their announcement.

    Args:
        span_blocks: Most blocks of one request.
    """

    def __init__(self, *, span_blocks: int) -> None:
        self._span_blocks = span_blocks
        self._waiting: deque[BlockSpan] = deque()
        self._claims: list[BlockClaim] = []
        self._gathering_since: float | None = None
        self.missing = 0
        """Blocks that are not here yet, asked for or not."""

    @property
    def claims(self) -> list[BlockClaim]:
        """Claims in flight."""
        return list(self._claims)

    @property
    def has_waiting(self) -> bool:
        """Returns whether a block is unclaimed."""
        return bool(self._waiting)

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
            connections: How many share what is left.
            growing: Whether more is still to be announced. Then a request takes all there is, and while one is on its
                way the next is not made for a few blocks: many small ones would cost more than the bytes.
        """
        if not self._waiting or (growing and self._gathers(now)):
            return None
        self._gathering_since = None
        span = self._waiting.popleft()
        # The end of a version is shared out, so that the connections end together.
        ready = span.count + sum(each.count for each in self._waiting)
        most = max(1, min(self._span_blocks, -(-ready // (1 if growing else connections))))
        if span.count > most:
            self._waiting.appendleft(BlockSpan(span.file, span.first + most, span.count - most))
            span = BlockSpan(span.file, span.first, most)
        return self._start(BlockClaim(span, now))

    def next_gathered(self) -> float | None:
        """Returns the time at which a partial span is requested anyway; None if there is none."""
        return None if self._gathering_since is None else self._gathering_since + GATHERING_S

    def hedge(self, now: float, *, after: float) -> BlockClaim | None:
        """A second claim on blocks of the one that has brought nothing for longest; None if none is late.

        Args:
            now: Monotonic time in seconds.
            after: Seconds without a block from which on a claim is late.
        """
        hedged = {id(each.hedge_of) for each in self._claims if each.hedge_of is not None}
        late = [
            each
            for each in self._claims
            if each.left and each.hedge_of is None and id(each) not in hedged and now - each.at >= after
        ]
        if not late:
            return None
        slowest = min(late, key=lambda each: each.at)
        # From its end, and half of it: where it is slow and not dead the two meet, and few blocks come twice.
        most, last, count = -(-len(slowest.left) // 2), max(slowest.left), 1
        while count < most and last - count in slowest.left:
            count += 1
        return self._start(BlockClaim(BlockSpan(slowest.span.file, last - count + 1, count), now, hedge_of=slowest))

    def next_hedge(self, *, after: float) -> float | None:
        """Returns the time at which the next claim is late; None if there is none."""
        times = [each.at + after for each in self._claims if each.left and each.hedge_of is None]
        return min(times, default=None)

    def brought(self, claim: BlockClaim, block: int, now: float) -> list[BlockClaim]:
        """A block is here: all who were sent for it are free of it.

        Returns:
            Those, besides the bringer, who have nothing left to bring now.
        """
        claim.at = now
        had = [each for each in self._claims if each.span.file == claim.span.file and block in each.left]
        for each in had:
            each.left.discard(block)
        if had:
            self.missing -= 1
        return [each for each in had if each.done and each is not claim]

    def give_up(self, claim: BlockClaim) -> None:
        """Ends a claim; missing blocks that no other claim covers are requested again first."""
        self._claims.remove(claim)
        others = {block for each in self._claims if each.span.file == claim.span.file for block in each.left}
        for span in reversed(claim.span.without(set(_all(claim.span)) - claim.left | others)):
            self._waiting.appendleft(span)

    def _gathers(self, now: float) -> bool:
        if not self._claims or sum(span.count for span in self._waiting) >= self._span_blocks:
            return False
        if self._gathering_since is None:
            self._gathering_since = now
        return now - self._gathering_since < GATHERING_S

    def _start(self, claim: BlockClaim) -> BlockClaim:
        claim.left = set(_all(claim.span))
        self._claims.append(claim)
        return claim


def _all(span: BlockSpan) -> range:
    return range(span.first, span.first + span.count)
