"""Renders the text of `/metrics` at most once a second."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from prometheus_client import CollectorRegistry, generate_latest

from protocol.runtime.clock import Clock

FRESH = timedelta(seconds=1)
"""Age up to which a rendered text is used again. Rendering takes 5 to 20 ms and blocks the event loop."""


class MetricsPage:
    """Renders a metrics registry as text for Prometheus.

    Args:
        registry: Registry of the metrics.
        clock: Clock that measures the age of the last text.
        refresh: Function that is called before each rendering, to set gauges that are not updated elsewhere.
    """

    def __init__(self, registry: CollectorRegistry, *, clock: Clock, refresh: Callable[[], None] | None = None) -> None:
        self._registry = registry
        self._clock = clock
        self._refresh = refresh
        self._text = b""
        self._made_at = float("-inf")

    def text(self) -> bytes:
        """Returns the text, at most a second old."""
        now = self._clock.monotonic()
        if now - self._made_at >= FRESH.total_seconds():
            if self._refresh is not None:
                self._refresh()
            self._text = generate_latest(self._registry)
            self._made_at = now
        return self._text
