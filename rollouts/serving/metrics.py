"""Metrics of the service, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rollouts.engines.interface import Completion
from rollouts.serving.backend import Backend


class ServingMetrics:
    """Counts answers and tokens, and reads the state of the backend when it is asked.

    Args:
        backend: The backend.
        registry: Registry of the service.
    """

    def __init__(self, backend: Backend, registry: CollectorRegistry) -> None:
        self._backend = backend
        self._answers = Counter("muster_serving_answers", "Answers given", ("finish",), registry=registry)
        self._tokens = Counter("muster_serving_tokens", "Tokens of answers given", registry=registry)
        registry.register(self)

    def count(self, completions: Sequence[Completion]) -> None:
        """Counts the answers to one request."""
        for one in completions:
            self._answers.labels(one.finish.value).inc()
            self._tokens.inc(len(one.tokens))

    def collect(self) -> Iterator[Metric]:
        """Yields the state of the backend; called by the registry."""
        backend = self._backend
        yield GaugeMetricFamily("muster_serving_answers_waiting", "Answers in progress or waiting", backend.answers)
        yield GaugeMetricFamily("muster_serving_answers_in_engine", "Answers in the engine", backend.unanswered)
        yield GaugeMetricFamily("muster_serving_batch_rows", "Maximum answers in a batch", backend.engine.max_batch)
        yield GaugeMetricFamily("muster_serving_paused", "1 while the service is paused", int(backend.paused))
        yield CounterMetricFamily(
            "muster_serving_engine_busy_seconds", "Time with an answer in the batch", backend.engine.usage.read().busy
        )
