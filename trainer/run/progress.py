"""Progress of a run: JSON lines in `progress.jsonl` and gauges for Prometheus.

Kinds of lines: `started`, `step` (one per optimiser step), `published`, `evaluation`, `stopped`. A step repeated
after a crash has several lines; the last one counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from trainer.run.state.folder import PROGRESS_FILE

_log = get_logger(__name__)


class ProgressLog:
    """Writes progress lines and sets gauges.

    If a write fails, the line is lost and the run continues.

    Args:
        folder: The trainer's state directory, which exists.
        clock: Clock for time stamps.
    """

    def __init__(self, folder: Path, *, clock: Clock) -> None:
        self._path = folder / PROGRESS_FILE
        self._clock = clock
        self.registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}

    def record(self, kind: str, **facts: Any) -> None:  # noqa: ANN401 - any JSON value
        """Appends a line and sets the gauges of its numbers and of its time."""
        at_ms = unix_ms(self._clock.now())
        line = {"kind": kind, "at_ms": at_ms, **facts}
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(_plain(line), separators=(",", ":")) + "\n")
        except OSError as error:
            _log.warning("progress-not-written", path=str(self._path), why=error.strerror)
        self._set(f"{kind}_time_seconds", at_ms / 1000)
        for name, value in facts.items():
            self._set(f"{kind}_{name}", value)

    def _set(self, name: str, value: Any) -> None:  # noqa: ANN401 - any JSON value
        match value:
            case bool() | str() | None:
                return
            case int() | float():
                if name not in self._gauges:
                    plain = "".join(letter if letter.isalnum() else "_" for letter in name)
                    self._gauges[name] = Gauge(f"muster_trainer_{plain}", name, registry=self.registry)
                self._gauges[name].set(value)
            case Mapping():
                for key, inner in value.items():
                    self._set(f"{name}_{key}", inner)


def _plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Replaces NaN and infinities by null, because JSON has neither."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case Mapping():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case _:
            return value
