"""A collector of OpenTelemetry traces: an HTTP server on loopback that decodes what services send to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from protocol.runtime.tracing import TracingSettings, tracing


@dataclass(frozen=True, kw_only=True)
class ReceivedSpan:
    """A span as the collector got it."""

    service: str
    scope: str
    name: str
    trace: int
    id: int
    parent: int
    attributes: dict[str, Any]
    events: list[dict[str, Any]]
    failed: bool
    began_ns: int
    ended_ns: int


@dataclass
class Collector:
    """What arrived."""

    url: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """Paths of the requests."""
    answers: threading.Event = field(default_factory=threading.Event)
    """While it is not set, requests wait for their answers."""

    def of(self, trace: int) -> dict[str, list[ReceivedSpan]]:
        """The spans of a trace by name."""
        found: dict[str, list[ReceivedSpan]] = {}
        for span in self.spans:
            if span.trace == trace:
                found.setdefault(span.name, []).append(span)
        return found


@contextmanager
def traced(monkeypatch: pytest.MonkeyPatch, *, ratio: float = 1.0) -> Iterator[Collector]:
    """A collector that has all spans of the block when the block ends."""
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        with tracing("test", TracingSettings(enabled=True, sample_ratio=ratio)):
            yield collector


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that runs within the block."""
    collector = Collector()
    collector.answers.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.requests.append(self.path)
            collector.spans += _decoded(body)
            collector.answers.wait(60)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        collector.answers.set()
        server.shutdown()
        server.server_close()
        thread.join(60)


def _decoded(body: bytes) -> list[ReceivedSpan]:
    request = ExportTraceServiceRequest()
    request.ParseFromString(body)
    return [
        ReceivedSpan(
            service=_values(resource.resource.attributes)["service.name"],
            scope=scope.scope.name,
            name=span.name,
            trace=int.from_bytes(span.trace_id, "big"),
            id=int.from_bytes(span.span_id, "big"),
            parent=int.from_bytes(span.parent_span_id, "big"),
            attributes=_values(span.attributes) | {"resource": _values(resource.resource.attributes)},
            events=[{"name": event.name, **_values(event.attributes)} for event in span.events],
            failed=span.status.code == 2,
            began_ns=span.start_time_unix_nano,
            ended_ns=span.end_time_unix_nano,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
