"""Metrics of one validator process, for Prometheus and its status page."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from prometheus_client import CollectorRegistry, Counter, Histogram

from protocol.runtime.clock import Clock
from protocol.verdicts import Outcome, reason_name
from validator.domain.items import Item
from validator.examination.interface import Conclusion

WINDOW = timedelta(minutes=1)
"""Window of rates."""

MOST_KEPT = 10_000

MOST_CODES = 64
"""Maximum number of error codes that get a series; orchestrator and store choose codes, and could invent new ones."""
OTHER_CODE = "other"

_BUCKETS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60, 300, 1800)


class ValidatorMetrics:
    """Counters and times.

    Args:
        registry: Registry of the service.
        clock: Clock of rates.
    """

    def __init__(self, registry: CollectorRegistry, *, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._latencies: deque[float] = deque(maxlen=1000)
        self._examined: deque[tuple[float, int, int]] = deque(maxlen=MOST_KEPT)
        self._verdicts = Counter(
            "muster_validator_verdicts", "Verdicts that the ledger took", ("outcome", "reason"), registry=registry
        )
        self._seconds = Histogram(
            "muster_validator_verdict_seconds",
            "From reading a submission on the ledger to its verdict there",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._stages = Histogram(
            "muster_validator_stage_seconds", "What a stage took", ("stage",), buckets=_BUCKETS, registry=registry
        )
        self._rows = Counter("muster_validator_rows", "Rows of examined files", registry=registry)
        self._prefilled = Counter("muster_validator_prefilled_rows", "Rows that were computed again", registry=registry)
        self._tokens = Counter(
            "muster_validator_prefilled_tokens", "Output tokens that were computed again", registry=registry
        )
        self._codes: set[str] = set()
        self._troubles = Counter(
            "muster_validator_troubles",
            "Times that work could not be judged",
            ("code", "parked"),
            registry=registry,
        )

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measures the duration of a stage that succeeds."""
        began = self._clock.monotonic()
        yield
        self._stages.labels(name).observe(self._clock.monotonic() - began)

    def taken(self, item: Item) -> None:
        """Measures the time that an item waited in the queue before its first attempt."""
        if item.attempts == 0 and item.tries == 0:
            self._stages.labels("queue").observe(item.waited.total_seconds())

    def examined(self, conclusion: Conclusion) -> None:
        """Counts rows and tokens of an examination."""
        took = conclusion.timings
        if took is None:
            return
        self._rows.inc(took.rows)
        self._prefilled.inc(took.prefilled_rows)
        self._tokens.inc(took.prefilled_tokens)
        self._examined.append((self._clock.monotonic(), took.rows, took.prefilled_tokens))
        for stage, seconds in took.seconds.items():
            self._stages.labels(f"examine-{stage}").observe(seconds)

    def trouble(self, code: str, *, parked: bool) -> None:
        """Counts an item that could not be judged."""
        self._codes.add(code if len(self._codes) < MOST_CODES else OTHER_CODE)
        self._troubles.labels(code if code in self._codes else OTHER_CODE, str(parked).lower()).inc()

    def given(self, item: Item, outcome: Outcome, reason: int) -> None:
        """Counts a verdict that the ledger accepted."""
        self._verdicts.labels(outcome.name.lower(), reason_name(reason)).inc()
        seconds = item.waited.total_seconds() + self._clock.monotonic() - item.taken_at
        self._seconds.observe(seconds)
        self._latencies.append(seconds)

    def latency(self, share: float) -> float | None:
        """Returns the latency quantile of recent verdicts in seconds; None before the first."""
        return quantile(self._latencies, share)

    @property
    def judged(self) -> int:
        """Returns the number of verdicts behind the latencies."""
        return len(self._latencies)

    def rates(self) -> tuple[float, float, float]:
        """Returns files, rows and prefilled tokens per second, over the last minute."""
        now = self._clock.monotonic()
        window = max(1.0, min(WINDOW.total_seconds(), now - self._began))
        recent = [each for each in self._examined if each[0] >= now - window]
        return len(recent) / window, sum(e[1] for e in recent) / window, sum(e[2] for e in recent) / window


def quantile(values: Sequence[float], share: float) -> float | None:
    """Returns the quantile: the smallest value that at least this share of the values does not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
