"""Scores of peers: a weighted random choice, back-off after failures, quarantine after invalid data.

No I/O and no clock: takes outcomes with their times, returns choices. No peer is excluded for ever.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta

from protocol.runtime.backoff import backoff
from protocol.runtime.randomness import Random, generator
from shardcast.errors import FailureKind

EMA = 0.25
"""Weight of the newest outcome in the moving averages: a score reflects about the last eight requests."""

RECOVERY_TIME = timedelta(seconds=60)
"""Time after which a low success rate has lost all but 1/e of its weight, so that a failed peer is tried again."""

LEAST_SUCCESS = 0.01
"""Lower bound of the success rate. With zero a peer would never be drawn again."""

FIRST_QUARANTINE = timedelta(seconds=15)
"""Quarantine after the first invalid block or manifest; doubles with each further one."""
LONGEST_QUARANTINE = timedelta(minutes=10)

FIRST_BACKOFF = timedelta(milliseconds=100)
"""Back-off after a failure; doubles with each failure in a row."""
LONGEST_BACKOFF = timedelta(seconds=5)

UNKNOWN_BANDWIDTH = 1e6
"""Bytes per second that are assumed of a peer before its first measurement."""

_PENALTY = {
    FailureKind.UNREACHABLE: 1.0,
    FailureKind.REFUSED: 1.0,
    FailureKind.STALLED: 1.0,
    FailureKind.CUT: 0.5,  # the blocks before the cut were good
    FailureKind.BAD_BLOCK: 1.0,
    FailureKind.BAD_MANIFEST: 1.0,
    FailureKind.GONE: 0.0,  # the version may not have reached the peer yet
}
"""Weight of a failure in the success rate."""

INVALID_DATA = frozenset({FailureKind.BAD_BLOCK, FailureKind.BAD_MANIFEST})
"""Failures that only a faulty or dishonest peer produces."""


@dataclass(slots=True)
class PeerScore:
    """Measured performance of one peer."""

    url: str
    bandwidth: float = UNKNOWN_BANDWIDTH
    """Bytes per second of one connection, smoothed."""
    success: float = 1.0
    """Share of successful requests, smoothed, as of `at`."""
    at: float = 0.0
    invalid_data: int = 0
    """Invalid blocks and manifests so far."""
    quarantined_until: float = -math.inf
    backoff_until: float = -math.inf
    failures_in_a_row: int = 0
    measured: bool = False
    """Whether `bandwidth` is a measurement."""

    def success_at(self, now: float) -> float:
        """Returns the success rate; it recovers towards 1 with time."""
        recovered = 1 - (1 - self.success) * math.exp(-max(0.0, now - self.at) / RECOVERY_TIME.total_seconds())
        return max(LEAST_SUCCESS, recovered)

    def weight_at(self, now: float) -> float:
        """Returns the weight in the random choice: success rate times bandwidth."""
        return self.success_at(now) * self.bandwidth

    def record_bandwidth(self, bytes_per_second: float) -> None:
        """Adds a measurement to the average; the first one replaces the assumption."""
        value = max(1.0, bytes_per_second)
        self.bandwidth = EMA * value + (1 - EMA) * self.bandwidth if self.measured else value
        self.measured = True

    def record_success(self, now: float) -> None:
        """Records a successful request."""
        self.success = EMA + (1 - EMA) * self.success_at(now)
        self.at = now
        self.failures_in_a_row = 0

    def record_failure(self, kind: FailureKind, now: float) -> None:
        """Records a failed request: lowers the score, starts a back-off, and a quarantine after invalid data."""
        self.success = (1 - EMA * _PENALTY[kind]) * self.success_at(now)
        self.at = now
        self.failures_in_a_row += 1
        self.backoff_until = now + backoff(FIRST_BACKOFF, LONGEST_BACKOFF, self.failures_in_a_row).total_seconds()
        if kind in INVALID_DATA:
            self.success = LEAST_SUCCESS
            self.invalid_data += 1
            quarantine = backoff(FIRST_QUARANTINE, LONGEST_QUARANTINE, self.invalid_data)
            self.quarantined_until = now + quarantine.total_seconds()


class Peers:
    """All peers of a reader, with their scores.

    Args:
        urls: At least one.
        rng: Source of randomness of the choices.
    """

    def __init__(self, urls: Iterable[str], *, rng: Random | None = None) -> None:
        self._scores = {url: PeerScore(url) for url in dict.fromkeys(urls)}
        self._rng = generator if rng is None else rng

    def __getitem__(self, url: str) -> PeerScore:
        return self._scores[url]

    def __len__(self) -> int:
        return len(self._scores)

    @property
    def urls(self) -> list[str]:
        """Returns the URLs of all peers, in the order given."""
        return list(self._scores)

    def next_return(self, now: float) -> float | None:
        """Returns the time at which the next back-off ends; None if no peer is backing off."""
        return min((each.backoff_until for each in self._scores.values() if each.backoff_until > now), default=None)

    def draw(self, now: float, *, without: Collection[str] = ()) -> str | None:
        """Draws a peer with probability proportional to success rate times bandwidth; None if all are unavailable.

        A peer in back-off is not drawn. A peer in quarantine is drawn only if no other one is available: its blocks are
        verified like all others, so a sometimes dishonest peer is better than none.

        Args:
            now: Monotonic time in seconds.
            without: Peers that this request cannot use.
        """
        available = [each for each in self._scores.values() if each.url not in without and each.backoff_until <= now]
        choice = [each for each in available if each.quarantined_until <= now] or available
        if not choice:
            return None
        return self._rng.choices(choice, weights=[each.weight_at(now) for each in choice])[0].url
