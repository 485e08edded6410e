"""Prometheus metrics of the gateway."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


@dataclass(frozen=True, slots=True)
class GatewayMetrics:
    """Metrics: counters of this replica, and gauges of the whole gateway."""

    requests: Counter
    tokens: Counter
    retries: Counter
    verdicts: Counter
    refused: Counter
    first_token: Histogram
    sessions: Gauge
    waiting: Gauge
    in_progress: Gauge

    @classmethod
    def on(cls, registry: CollectorRegistry) -> GatewayMetrics:
        """Registers the metrics and returns them."""
        return cls(
            Counter("muster_gateway_requests", "Requests of clients, by outcome", ["outcome"], registry=registry),
            Counter("muster_gateway_tokens", "Tokens of answers that were accepted", ["kind"], registry=registry),
            Counter(
                "muster_gateway_retries",
                "Attempts at requests that were given up, by cause",
                ["cause"],
                registry=registry,
            ),
            Counter("muster_gateway_verdicts", "Results of verifiers", ["verdict"], registry=registry),
            Counter("muster_gateway_refused_answers", "Answers that contradict their parts", registry=registry),
            Histogram(
                "muster_gateway_first_token_seconds",
                "Time from a request to the first part of its answer",
                buckets=_SECONDS,
                registry=registry,
            ),
            Gauge("muster_gateway_sessions", "Open sessions of workers", registry=registry),
            Gauge("muster_gateway_waiting_requests", "Requests that wait for a worker", registry=registry),
            Gauge("muster_gateway_requests_in_progress", "Requests that workers answer now", registry=registry),
        )
