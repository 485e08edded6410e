"""Prometheus metrics of the origin, the relay and the client."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class ServingMetrics:
    """Metrics of a server of versions: an origin or a relay."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.answers = Counter("muster_shardcast_answers", "Responses sent", ("route", "status"), registry=registry)
        self.sent = Counter("muster_shardcast_sent_bytes", "Bytes of version files sent", registry=registry)
        self.open = Gauge("muster_shardcast_open_requests", "Requests in progress", registry=registry)
        self.refused = Counter(
            "muster_shardcast_refused",
            "Connections and requests refused because of a limit",
            ("limit",),
            registry=registry,
        )
        self.held = Gauge(
            "muster_shardcast_versions", "Versions held, complete or growing", ("state",), registry=registry
        )
        self.newest = Gauge("muster_shardcast_newest_version", "Number of the newest held version", registry=registry)
        self.age = Gauge(
            "muster_shardcast_newest_age_seconds", "Time since the newest version was first held", registry=registry
        )
        self.published = Counter("muster_shardcast_published_bytes", "Bytes published by an origin", registry=registry)

    def refuse(self, limit: str) -> None:
        """Counts a connection or request that was refused because of a limit.

        Args:
            limit: Name of the limit, the label of the metric.
        """
        self.refused.labels(limit).inc()


class DownloadMetrics:
    """Metrics of downloads by a relay or a client; the label `peer` is the peer's URL."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.received = Counter(
            "muster_shardcast_received_bytes", "Verified bytes received", ("peer",), registry=registry
        )
        self.wasted = Counter(
            "muster_shardcast_wasted_bytes",
            "Bytes received twice, because a late block was also requested from another peer",
            ("peer",),
            registry=registry,
        )
        self.errors = Counter(
            "muster_shardcast_peer_errors", "Failures of peers, by kind", ("peer", "kind"), registry=registry
        )
        self.bandwidth = Gauge(
            "muster_shardcast_peer_bandwidth",
            "Bytes per second of one connection to the peer, as a moving average",
            ("peer",),
            registry=registry,
        )
        self.success = Gauge(
            "muster_shardcast_peer_success",
            "Share of requests to the peer that succeeded, as a moving average",
            ("peer",),
            registry=registry,
        )
        self.versions = Counter(
            "muster_shardcast_fetched_versions", "Downloads of versions, by result", ("end",), registry=registry
        )
        self.over_budget = Gauge(
            "muster_shardcast_over_budget_bytes",
            "Bytes by which held versions exceed the disk budget, because leases or open work need these versions",
            registry=registry,
        )
        self.seconds = Histogram(
            "muster_shardcast_fetch_seconds",
            "Time from the start of a download to its last verified byte",
            registry=registry,
            buckets=(0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 900, 3600),
        )
