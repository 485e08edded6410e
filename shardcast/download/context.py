"""Objects that all downloads of one reader (a client or a relay) share."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.runtime.clock import Clock
from shardcast.download.peer_client import PeerClient, PeerTimeouts
from shardcast.download.peers import Peers
from shardcast.errors import FailureKind
from shardcast.metrics import DownloadMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLimits:
    """Limits of the requests of one transfer."""

    connections: int = 4
    """Maximum number of concurrent connections; each holds one block in memory."""
    span_blocks: int = 16
    """Maximum number of blocks per request. With more blocks per request, one slow peer would delay more blocks. With
    fewer blocks, the overhead of requests would be significant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadContext:
    """Peers of a reader, and the client, limits and metrics for requests to these peers."""

    peers: Peers
    client: PeerClient
    metrics: DownloadMetrics
    clock: Clock
    requests: TransferLimits = field(default_factory=TransferLimits)

    @property
    def timeouts(self) -> PeerTimeouts:
        """Returns the time-outs of requests to peers."""
        return self.client.timeouts

    def record_success(self, url: str, *, received: int, took_s: float) -> None:
        """Adds a successful request to a peer's score and metrics.

        Args:
            url: URL of the peer.
            received: Number of bytes in the answer.
            took_s: Duration of the request in seconds.
        """
        self.peers[url].record_success(self.clock.monotonic())
        self.peers[url].record_bandwidth(received / max(took_s, 1e-6))
        self._export_score(url)

    def record_failure(self, url: str, kind: FailureKind) -> None:
        """Adds a failed request to a peer's score and metrics."""
        self.metrics.errors.labels(url, kind.value).inc()
        self.peers[url].record_failure(kind, self.clock.monotonic())
        self._export_score(url)

    def _export_score(self, url: str) -> None:
        score = self.peers[url]
        self.metrics.bandwidth.labels(url).set(score.bandwidth)
        self.metrics.success.labels(url).set(score.success_at(self.clock.monotonic()))
