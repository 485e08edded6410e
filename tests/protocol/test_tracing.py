"""Traces: ids from work keys, sampling, and collectors that are slow, down or missing."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from protocol.runtime import tracing as module
from protocol.runtime.extras import MissingExtra
from protocol.runtime.tracing import TraceIds, Tracer, TracingSettings, tracing
from tests.kit.collector import collecting, traced

TRACER = Tracer(__name__)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def work(number: int) -> str:
    return f"0x{number:064x}"


def test_processes_derive_the_same_ids_from_a_work_key(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = TraceIds.of(work(7))
    assert (ids.trace, ids.root) == (0x73468687C0761306C89E82513AFCBA2C, 0xD348536685AE3F21)
    for name in ("examination", "lease"):  # the order in which they come does not matter
        with traced(monkeypatch) as collector, TRACER.span(name, work(7), root=name == "lease", kind="first"):
            pass
        (span,) = collector.spans
        assert (span.trace, span.name, span.scope) == (ids.trace, name, __name__)
        assert (span.id, span.parent) == ((ids.root, 0) if name == "lease" else (span.id, ids.root))
        assert span.attributes == {
            "muster.work": work(7),
            "muster.kind": "first",
            "resource": span.attributes["resource"],
        }
        assert span.service == "muster-test"
        assert {key.partition(".")[0] for key in span.attributes["resource"]} == {"service", "telemetry"}


def test_a_trace_context_that_strangers_send_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The context of another trace may be current, for example by instrumentation of HTTP: it changes no trace."""
    stranger = NonRecordingSpan(SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1)))
    with traced(monkeypatch) as collector, use_span(stranger):
        TRACER.record("lease", work(1), since=NOW, root=True)
        TRACER.record("verdict", work(1), work(2), since=NOW)
    assert {(span.trace, span.parent) for span in collector.spans} == {
        (TraceIds.of(work(1)).trace, 0),
        *((TraceIds.of(work(each)).trace, TraceIds.of(work(each)).root) for each in (1, 2)),
    }


def test_an_error_is_recorded_by_its_class_and_secrets_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    with traced(monkeypatch) as collector:
        with pytest.raises(ValueError, match="hidden"), TRACER.span("fetch", work(1), url="http://me:pass@host/x"):
            raise ValueError("https://store/hidden?token=abc")
        with TRACER.span("verdict", work(1), work(2)) as span:
            span.fail("TooLate", work(2), work(3))
    fetch, *verdicts = sorted(collector.spans, key=lambda span: (span.name, span.attributes["muster.work"]))
    assert fetch.failed
    assert fetch.attributes["error.type"] == "ValueError"
    assert "pass" not in str(fetch)
    assert "hidden" not in str(fetch)
    assert [span.failed for span in verdicts] == [False, True]
    assert verdicts[1].attributes["error.type"] == "TooLate"


def test_services_with_the_same_ratio_trace_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    for name in ("lease", "verdict"):
        with traced(monkeypatch, ratio=0.25) as collector:
            for number in range(200):
                TRACER.record(name, work(number), since=NOW)
        chosen.append({span.trace for span in collector.spans})
    assert chosen[0] == chosen[1]
    assert 20 < len(chosen[0]) < 80


def test_a_slow_collector_loses_spans_and_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLUSH_WITHIN", timedelta(milliseconds=50))
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        collector.answers.clear()
        with tracing("test", TracingSettings(enabled=True)):
            for number in range(500):
                TRACER.record("lease", work(number), since=NOW)
        assert not collector.answers.is_set(), "the service stopped although the collector never answered"
    assert len(collector.spans) <= 3 * 8


def test_a_dead_collector_is_logged_seldom(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "FLUSH_WITHIN", timedelta(milliseconds=50))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.001")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    with caplog.at_level(logging.INFO), tracing("test", TracingSettings(enabled=True)):
        for number in range(100):
            TRACER.record("lease", work(number), since=NOW)
    said = [record for record in caplog.records if record.name.startswith("opentelemetry.exporter")]
    assert len(said) <= 1


def test_tracing_is_off_by_default_and_needs_the_extra_when_it_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("opentelemetry", "opentelemetry.exporter", "opentelemetry.sdk"):
        monkeypatch.setitem(sys.modules, name, None)
    with tracing("test", TracingSettings()), TRACER.span("lease", work(1)) as span:
        span.note(step=1)
        span.fail("TooLate", work(1))
    with pytest.raises(MissingExtra, match="opentelemetry") as caught, tracing("test", TracingSettings(enabled=True)):
        pass
    assert "pip install 'muster-network[otel]'" in caught.value.hint


SERVICE = """
import resource, sys
from datetime import UTC, datetime
from protocol.runtime.logs import configure_logs
from protocol.runtime.tracing import Tracer, TracingSettings, tracing

if sys.argv[1] == "full disk":
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
configure_logs()
with tracing("test", TracingSettings(enabled=True)):
    number = 0
    while sys.argv[1] == "kill" or number < 50:
        Tracer("test").record("lease", f"0x{number % 100:064x}", since=datetime(2026, 1, 1, tzinfo=UTC), root=True)
        number += 1
"""


@pytest.mark.parametrize("end", ["full disk", "kill"])
def test_a_process_that_is_killed_or_can_not_write_its_log_leaves_whole_spans(end: str, tmp_path: Path) -> None:
    with collecting() as collector, (tmp_path / "log").open("wb") as log:
        variables = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "10"}
        command = [sys.executable, "-c", SERVICE, end]
        with subprocess.Popen(command, env=variables, stdout=log, stderr=log) as process:
            while end == "kill" and not collector.spans:
                assert process.poll() is None
                time.sleep(0.01)
            if end == "kill":
                process.kill()
        assert process.returncode == (-signal.SIGKILL if end == "kill" else 0)
        assert {span.trace for span in collector.spans} <= {TraceIds.of(work(number)).trace for number in range(100)}
        assert len(collector.spans) == 50 or end == "kill"
        assert (tmp_path / "log").stat().st_size == 0 or end == "kill"
