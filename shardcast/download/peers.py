"""Choice of the next relay: probed at the start, then drawn by its score, and never excluded for ever.

No I/O: takes outcomes with their times, returns choices.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

EMA = 0.25
"""Weight of the newest outcome. A quarter: some eight requests decide what a relay is worth."""

HEALING = timedelta(seconds=60)
"""Time in which a bad standing loses all but 1/e of its weight, so that a relay that failed is tried again."""

LEAST_SUCCESS = 0.01
"""A relay's success is never taken for less, or it would never be drawn again."""

FIRST_QUARANTINE = timedelta(seconds=15)
"""Exclusion after a bad block; doubles with each further one."""
LONGEST_QUARANTINE = timedelta(minutes=10)

FIRST_REST = timedelta(milliseconds=100)
"""Pause after a failure; doubles with each failure in a row."""
LONGEST_REST = timedelta(seconds=5)

UNKNOWN_BANDWIDTH = 1e6
"""Bytes per second that are assumed of a relay whose probe has not come back yet."""


class Fault(Enum):
    """Fault of a peer."""

    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    """It answered with an error, or not with what was asked for."""
    STALLED = "stalled"
    """It stopped sending, or sent too slowly."""
    CUT = "cut"
    """It closed in the middle of an answer."""
    BAD_BLOCK = "bad-block"
    BAD_MANIFEST = "bad-manifest"
    GONE = "gone"
    """It does not have the version."""


_COST = {
    Fault.UNREACHABLE: 1.0,
    Fault.REFUSED: 1.0,
    Fault.STALLED: 1.0,
    Fault.CUT: 0.5,  # what came before the cut was good
    Fault.BAD_BLOCK: 1.0,
    Fault.BAD_MANIFEST: 1.0,
    Fault.GONE: 0.0,  # it may not have heard of the version yet
}
_LIES = frozenset({Fault.BAD_BLOCK, Fault.BAD_MANIFEST})


@dataclass(slots=True)
class PeerScore:
    """Measured performance of one peer."""

    url: str
    bandwidth: float = UNKNOWN_BANDWIDTH
    """Bytes per second of one connection, smoothed."""
    success: float = 1.0
    """Share of requests that went well, smoothed, as of `at`."""
    at: float = 0.0
    lies: int = 0
    quarantined_until: float = -math.inf
    resting_until: float = -math.inf
    failures_in_a_row: int = 0
    measured: bool = False

    def success_at(self, now: float) -> float:
        """The smoothed share, healed by the time that has passed."""
        healed = 1 - (1 - self.success) * math.exp(-max(0.0, now - self.at) / HEALING.total_seconds())
        return max(LEAST_SUCCESS, healed)

    def weight_at(self, now: float) -> float:
        """Weight of the draw: success rate times bandwidth."""
        return self.success_at(now) * self.bandwidth

    def note_bandwidth(self, bytes_per_second: float) -> None:
        """Takes a measurement; the first one counts as it is."""
        value = max(1.0, bytes_per_second)
        self.bandwidth = EMA * value + (1 - EMA) * self.bandwidth if self.measured else value
        self.measured = True

    def note_good(self, now: float) -> None:
        """A request went well."""
        self.success = EMA + (1 - EMA) * self.success_at(now)
        self.at = now
        self.failures_in_a_row = 0

    def note_fault(self, fault: Fault, now: float) -> None:
        """A request went wrong."""
        self.success = (1 - EMA * _COST[fault]) * self.success_at(now)
        self.at = now
        rest = min(FIRST_REST * 2 ** min(self.failures_in_a_row, 10), LONGEST_REST)
        self.resting_until = now + rest.total_seconds()
        self.failures_in_a_row += 1
        if fault in _LIES:
            self.success = LEAST_SUCCESS
            pause = min(FIRST_QUARANTINE * 2 ** min(self.lies, 10), LONGEST_QUARANTINE)
            self.lies += 1
            self.quarantined_until = now + pause.total_seconds()


class Peers:
    """All peers that may be asked.

    Args:
        urls: Where they are; at least one.
        draws: Randomness for the draws.
    """

    def __init__(self, urls: Iterable[str], *, draws: random.Random | None = None) -> None:
        self._standings = {url: PeerScore(url) for url in dict.fromkeys(urls)}
        self._draws = random.Random() if draws is None else draws  # noqa: S311 - a spread of load, not a secret

    def __getitem__(self, url: str) -> PeerScore:
        return self._standings[url]

    @property
    def urls(self) -> list[str]:
        """All of them, in the order given."""
        return list(self._standings)

    def next_return(self, now: float) -> float | None:
        """Returns the time at which the next paused peer may be asked again."""
        return min((each.resting_until for each in self._standings.values() if each.resting_until > now), default=None)

    def draw(self, now: float, *, without: Collection[str] = ()) -> str | None:
        """Draws a peer with probability proportional to success times bandwidth.

        Peers in quarantine are drawn only if no other is left: their blocks are verified like all others, and a
        relay that lies at times is better than none. Peers that failed just now are left alone for a moment; None says
        that no other peer is left.

        Args:
            now: Monotonic time in seconds.
            without: Peers that can't be used for this.
        """
        able = [each for each in self._standings.values() if each.url not in without and each.resting_until <= now]
        trusted = [each for each in able if each.quarantined_until <= now]
        choice = trusted or able
        if not choice:
            return None
        return self._draws.choices(choice, weights=[each.weight_at(now) for each in choice])[0].url
