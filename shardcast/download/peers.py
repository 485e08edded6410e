"""Scores of peers, and the random choice of a peer, weighted by these scores.

A peer has a back-off after a failure, and a quarantine after invalid data; no peer is excluded for ever. The module
uses no clock and no network: callers record the outcomes of requests with their times.
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
"""Weight of the newest outcome in the moving averages, so that a score reflects about the last eight requests."""

RECOVERY_TIME = timedelta(seconds=60)
"""Time constant with which a success rate returns to 1: after this time its distance from 1 is 1/e of the original
distance. So a peer that failed is tried again."""

LEAST_SUCCESS = 0.01
"""Lower bound of the success rate. A peer with success rate 0 would never be drawn again."""

FIRST_QUARANTINE = timedelta(seconds=15)
"""Quarantine after the first invalid block or manifest; doubles with each further invalid block or manifest."""
LONGEST_QUARANTINE = timedelta(minutes=10)
"""Longest quarantine."""

FIRST_BACKOFF = timedelta(milliseconds=100)
"""Back-off after a failure; doubles with each consecutive failure."""
LONGEST_BACKOFF = timedelta(seconds=5)
"""Longest back-off."""

UNKNOWN_BANDWIDTH = 1e6
"""Bandwidth in bytes per second that is assumed for a peer before its first measurement."""

_PENALTY = {
    FailureKind.UNREACHABLE: 1.0,
    FailureKind.REFUSED: 1.0,
    FailureKind.STALLED: 1.0,
    FailureKind.CUT: 0.5,  # the peer may have sent good blocks before the connection closed
    FailureKind.BAD_BLOCK: 1.0,
    FailureKind.BAD_MANIFEST: 1.0,
    FailureKind.GONE: 0.0,  # the version may not have reached the peer yet
}
"""Factor for the effect of each kind of failure on the success rate; a kind with factor 0 has no effect."""

INVALID_DATA = frozenset({FailureKind.BAD_BLOCK, FailureKind.BAD_MANIFEST})
"""Failures that only a faulty or dishonest peer produces."""


@dataclass(slots=True)
class PeerScore:
    """Measured performance of one peer; all times are seconds of the monotonic clock."""

    url: str
    bandwidth: float = UNKNOWN_BANDWIDTH
    """Bytes per second of one connection, as a moving average."""
    success: float = 1.0
    """Share of successful requests, as a moving average at the time `at`."""
    at: float = 0.0
    """Time of the last recorded success or failure."""
    invalid_data: int = 0
    """Number of invalid blocks and manifests so far."""
    quarantined_until: float = -math.inf
    """End of the last quarantine."""
    backoff_until: float = -math.inf
    """End of the last back-off."""
    failures_in_a_row: int = 0
    """Number of failed requests since the last successful one."""
    measured: bool = False
    """Whether `bandwidth` was measured; if not, it is `UNKNOWN_BANDWIDTH`."""

    def success_at(self, now: float) -> float:
        """Returns the success rate at a time; between outcomes the rate returns towards 1."""
        recovered = 1 - (1 - self.success) * math.exp(-max(0.0, now - self.at) / RECOVERY_TIME.total_seconds())
        return max(LEAST_SUCCESS, recovered)

    def weight_at(self, now: float) -> float:
        """Returns the weight of the peer in the random choice: success rate times bandwidth."""
        return self.success_at(now) * self.bandwidth

    def record_bandwidth(self, bytes_per_second: float) -> None:
        """Adds a measurement to the moving average; the first one replaces the assumed bandwidth."""
        value = max(1.0, bytes_per_second)
        self.bandwidth = EMA * value + (1 - EMA) * self.bandwidth if self.measured else value
        self.measured = True

    def record_success(self, now: float) -> None:
        """Records a successful request."""
        self.success = EMA + (1 - EMA) * self.success_at(now)
        self.at = now
        self.failures_in_a_row = 0

    def record_failure(self, kind: FailureKind, now: float) -> None:
        """Lowers the score and starts a back-off; after invalid data also starts a quarantine."""
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
        urls: URLs of the peers, at least one.
        rng: Random generator for the choices.
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
        """Returns the URLs of all peers, in the order in which they were given."""
        return list(self._scores)

    def next_return(self, now: float) -> float | None:
        """Returns the time at which the next back-off ends; None if no peer has a back-off."""
        return min((each.backoff_until for each in self._scores.values() if each.backoff_until > now), default=None)

    def draw(self, now: float, *, without: Collection[str] = ()) -> str | None:
        """Draws a peer at random, weighted by success rate times bandwidth.

        Returns None if no peer is available.

        A peer in back-off is not drawn. A peer in quarantine is drawn only if no other peer is available: readers
        verify the blocks of every peer, so a peer in quarantine is better than no peer.

        Args:
            now: Monotonic time in seconds.
            without: URLs of peers that must not be drawn for this request.
        """
        available = [each for each in self._scores.values() if each.url not in without and each.backoff_until <= now]
        choice = [each for each in available if each.quarantined_until <= now] or available
        if not choice:
            return None
        return self._rng.choices(choice, weights=[each.weight_at(now) for each in choice])[0].url
