"""Selection of peers for one version: by score, without those that lack it."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from datetime import timedelta

import structlog

from protocol.runtime.clock import Clock
from shardcast.download.peers import Fault, Peers
from shardcast.manifest.manifest import VersionKey
from shardcast.metrics import FetchingMetrics

_LACKING_PAUSE = timedelta(milliseconds=250)
_log = structlog.get_logger(__name__)


class PeerSelection:
    """The peers, as the transfer of one version sees them.

    Args:
        peers: All of them; their standing is shared with other transfers.
        key: The version.
        metrics: Where faults and measurements are counted.
        clock: Of pauses.
    """

    def __init__(self, peers: Peers, *, key: VersionKey, metrics: FetchingMetrics, clock: Clock) -> None:
        self._peers = peers
        self._key = key
        self._metrics = metrics
        self._clock = clock
        self._lacking: dict[str, float] = {}
        self._lacking_since: float | None = None

    @property
    def count(self) -> int:
        """Returns the number of peers, available or not."""
        return len(self._peers.urls)

    @property
    def gone_for(self) -> timedelta:
        """For how long every peer has been saying that it lacks the version; zero while one has not."""
        if self._lacking_since is None:
            return timedelta()
        return timedelta(seconds=self._clock.monotonic() - self._lacking_since)

    def draw(self, *, without: AbstractSet[str] = frozenset()) -> str | None:
        """One that may be asked now; None if there is none."""
        now = self._clock.monotonic()
        lacking = {url for url, until in self._lacking.items() if until > now}
        return self._peers.draw(now, without=without | lacking)

    def next_return(self) -> float | None:
        """Returns the time at which an unavailable peer may be asked again, in monotonic seconds."""
        now = self._clock.monotonic()
        moments = [self._peers.next_return(now), *(until for until in self._lacking.values() if until > now)]
        return min((each for each in moments if each is not None), default=None)

    def note_progress(self) -> None:
        """Records that a peer sent part of the version, so it still exists."""
        self._lacking_since = None
        self._lacking.clear()

    def note_good(self, url: str, *, received: int, took_s: float) -> None:
        """A request went well.

        Args:
            url: Of whom.
            received: Bytes that came.
            took_s: In how many seconds.
        """
        self._peers[url].note_good(self._clock.monotonic())
        self._peers[url].note_bandwidth(received / max(took_s, 1e-6))
        self._measure(url)

    def note_fault(self, url: str, fault: Fault) -> None:
        """A request went wrong."""
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
                _log.warning("peer-lied", peer=url, fault=fault.value, version=str(self._key))

    def _measure(self, url: str) -> None:
        standing = self._peers[url]
        self._metrics.bandwidth.labels(url).set(standing.bandwidth)
        self._metrics.success.labels(url).set(standing.success_at(self._clock.monotonic()))
