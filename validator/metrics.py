"""Metrics of one validator process, for Prometheus and `muster validator status`."""

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
"""Time over which rates are computed."""

MOST_KEPT = 10_000
"""Maximum number of examinations that are stored for the rates."""

MOST_CODES = 64
"""Maximum number of error codes with a Prometheus series of their own.

The orchestrator and the object store can send any error code; without this maximum, they could create any number of
series.
"""
OTHER_CODE = "other"
"""Label of all error codes beyond `MOST_CODES`."""

_BUCKETS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60, 300, 1800)


class ValidatorMetrics:
    """Counters and durations of one validator process.

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
            "muster_validator_verdicts", "Verdicts that the ledger accepted", ("outcome", "reason"), registry=registry
        )
        self._seconds = Histogram(
            "muster_validator_verdict_seconds",
            "Seconds from reading a submission on the ledger to its verdict there",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._stages = Histogram(
            "muster_validator_stage_seconds",
            "Seconds that a stage took",
            ("stage",),
            buckets=_BUCKETS,
            registry=registry,
        )
        self._rows = Counter("muster_validator_rows", "Rows of examined files", registry=registry)
        self._prefilled = Counter("muster_validator_prefilled_rows", "Recomputed rows", registry=registry)
        self._tokens = Counter("muster_validator_prefilled_tokens", "Recomputed output tokens", registry=registry)
        self._codes: set[str] = set()
        self._troubles = Counter(
            "muster_validator_troubles",
            "Attempts that ended without a verdict because of an error",
            ("code", "parked"),
            registry=registry,
        )

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measures the duration of the block; a block that raises is not counted."""
        began = self._clock.monotonic()
        yield
        self._stages.labels(name).observe(self._clock.monotonic() - began)

    def taken(self, item: Item) -> None:
        """Records how long an item waited in the queue before its first attempt; ignores later attempts."""
        if item.attempts == 0 and item.tries == 0:
            self._stages.labels("queue").observe(item.waited.total_seconds())

    def examined(self, conclusion: Conclusion) -> None:
        """Counts rows, tokens and stage durations of an examination."""
        took = conclusion.timings
        if took is None:
            return
        self._rows.inc(took.rows)
        self._prefilled.inc(took.prefilled_rows)
        self._tokens.inc(took.prefilled_tokens)
        self._examined.append((self._clock.monotonic(), took.rows, took.prefilled_tokens))
        for stage, seconds in took.seconds.items():
            self._stages.labels(f"examine-{stage}").observe(seconds)

    def count_error(self, code: str, *, parked: bool) -> None:
        """Counts an attempt at an item that ended with an error.

        Args:
            code: Code of the error.
            parked: True if the item was parked for a person.
        """
        self._codes.add(code if len(self._codes) < MOST_CODES else OTHER_CODE)
        self._troubles.labels(code if code in self._codes else OTHER_CODE, str(parked).lower()).inc()

    def given(self, item: Item, outcome: Outcome, reason: int) -> None:
        """Counts a verdict that the ledger accepted, and records its latency.

        Args:
            item: The judged item.
            outcome: Outcome of the verdict.
            reason: Reason code of the verdict.
        """
        self._verdicts.labels(outcome.name.lower(), reason_name(reason)).inc()
        seconds = item.waited.total_seconds() + self._clock.monotonic() - item.taken_at
        self._seconds.observe(seconds)
        self._latencies.append(seconds)

    def latency(self, share: float) -> float | None:
        """Returns a quantile of the latency of the last 1000 verdicts in seconds; None before the first verdict.

        Args:
            share: The quantile, 0 to 1; 0.5 is the median.
        """
        return quantile(self._latencies, share)

    @property
    def judged(self) -> int:
        """Number of verdicts from which `latency` is computed, at most 1000."""
        return len(self._latencies)

    def rates(self) -> tuple[float, float, float]:
        """Returns examined files, their rows, and prefilled tokens per second, over the last minute."""
        now = self._clock.monotonic()
        window = max(1.0, min(WINDOW.total_seconds(), now - self._began))
        recent = [each for each in self._examined if each[0] >= now - window]
        return len(recent) / window, sum(e[1] for e in recent) / window, sum(e[2] for e in recent) / window


def quantile(values: Sequence[float], share: float) -> float | None:
    """Returns the smallest value v such that at least `share` of the values are <= v; None if there are no values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
