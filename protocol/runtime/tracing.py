"""OpenTelemetry traces of pieces of work, from the lease to the learned version. Off unless `[tracing]` enables them.

All services derive the trace of a piece of work from its work key, so that their spans form one trace although no trace
context is sent between them (docs/decisions/0103). OpenTelemetry's own variables set the endpoint, its headers and the
size of the queue, for example `OTEL_EXPORTER_OTLP_ENDPOINT`. The extra `otel` is imported only while tracing is on.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pydantic import Field

from protocol import __version__
from protocol.runtime.extras import MissingExtra
from protocol.runtime.logs import get_logger, redacted
from protocol.runtime.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

Attribute = str | bool | int | float
"""Value of an attribute of a span."""

FLUSH_WITHIN = timedelta(seconds=2)
"""Time in which a stopping process sends its last spans; spans that a slow collector does not take are lost."""
_LOG_EVERY = timedelta(minutes=1)
_TAG = b"muster-trace-v1"
"""Domain separation tag of trace ids."""

_log = get_logger(__name__)


class TracingSettings(Settings):
    """Settings of traces: the table `[tracing]`, or variables `MUSTER_TRACING_…`."""

    service = "tracing"

    enabled: bool = Field(
        False,
        description="Send traces by OTLP/HTTP to OTEL_EXPORTER_OTLP_ENDPOINT; needs the extra `otel`",
    )
    sample_ratio: float = Field(
        1.0, ge=0, le=1, description="Share of pieces of work that are traced; the same ones in all services"
    )


@dataclass(frozen=True, slots=True)
class TraceIds:
    """Ids of the trace of one piece of work, and of the trace's first span, which is the lease's."""

    trace: int
    root: int

    @classmethod
    def of(cls, work: str) -> TraceIds:
        """Derives the ids: the first 16 and the next 8 bytes of SHA-256(`muster-trace-v1` ‖ work key).

        Args:
            work: The work key (`WorkKey.hash`).
        """
        digest = hashlib.sha256(_TAG + bytes.fromhex(work[2:])).digest()
        return cls(int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big"))


class WorkSpans:
    """Spans of one operation, one for each piece of work; none while tracing is off.

    Args:
        spans: Spans by work key.
    """

    def __init__(self, spans: Mapping[str, Span]) -> None:
        self._spans = spans

    def note(self, **attributes: Attribute) -> None:
        """Adds attributes to all spans."""
        for span in self._spans.values():
            span.set_attributes(_named(attributes))

    def event(self, name: str, /, **attributes: Attribute) -> None:
        """Adds an event, such as the result of a check, to all spans."""
        for span in self._spans.values():
            span.add_event(name, _named(attributes))

    def fail(self, error: str, *works: str) -> None:
        """Marks the spans of some pieces of work as failed.

        Args:
            error: Code or class of the error; never its text, which may contain URLs.
            works: Work keys.
        """
        for span in [self._spans[work] for work in works if work in self._spans]:
            from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - see the module's docstring

            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR))


_NO_SPANS = WorkSpans({})


class Tracer:
    """Records operations on pieces of work as spans of their traces.

        with _tracer.span("examination", work.key, step=work.step) as span:
            span.note(outcome="accepted")

    Args:
        name: Name of the module, its `__name__`.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @contextmanager
    def span(
        self, name: str, *works: str, since: datetime | None = None, root: bool = False, **attributes: Attribute
    ) -> Iterator[WorkSpans]:
        """Records the block as a span in the trace of each piece of work.

        A span of the same piece of work that is open in this task is the parent; otherwise the lease's span is.

        Args:
            name: Name of the operation.
            works: Work keys.
            since: Start of the operation; by default now.
            root: True for the lease, whose span is the first one of a trace.
            attributes: Attributes of all spans.
        """
        if _recorder is None or not works:
            yield _NO_SPANS
            return
        with ExitStack() as stack:
            spans = {work: _recorder.start(self._name, name, work, since=since, root=root) for work in works}
            for span in spans.values():
                stack.callback(span.end)
            if len(spans) == 1:
                stack.enter_context(_current(*spans.values()))
            found = WorkSpans(spans)
            found.note(**attributes)
            try:
                yield found
            except BaseException as error:
                found.fail(str(getattr(error, "code", "") or type(error).__name__), *works)
                raise

    def record(self, name: str, *works: str, since: datetime, root: bool = False, **attributes: Attribute) -> None:
        """Records an operation that ends now; see `span`."""
        with self.span(name, *works, since=since, root=root, **attributes):
            pass


@contextmanager
def tracing(service: str, settings: TracingSettings) -> Iterator[None]:
    """Sends the spans of this process to the collector within the block, if the settings say so.

    A collector that is slow or down costs nothing but its spans: they wait in a queue of fixed size, whose oldest spans
    are dropped, and another thread sends them.

    Args:
        service: Name of the service, unless `OTEL_SERVICE_NAME` is set.
        settings: Settings of traces.

    Raises:
        MissingExtra: Tracing is enabled, and the extra `otel` is not installed.
    """
    global _recorder  # noqa: PLW0603 - one exporter per process, as for logs
    if not settings.enabled:
        yield
        return
    try:
        recorder = _OpenTelemetry(service, settings.sample_ratio)
    except ModuleNotFoundError as error:
        raise MissingExtra(
            error.name or "opentelemetry", "otel", alternative="set `enabled` of [tracing] to false"
        ) from error
    before, _recorder = _recorder, recorder
    _log.info("tracing", service=service, sample_ratio=settings.sample_ratio)
    try:
        yield
    finally:
        _recorder = before
        recorder.close(within=FLUSH_WITHIN)


class _OpenTelemetry:
    """OpenTelemetry's spans of this process.

    Args:
        service: Name of the service.
        ratio: Share of pieces of work that are traced.
    """

    def __init__(self, service: str, ratio: float) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - as above
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator  # noqa: PLC0415
        from opentelemetry.sdk.trace.sampling import TraceIdRatioBased  # noqa: PLC0415

        class Ids(RandomIdGenerator):
            def generate_trace_id(self) -> int:
                return super().generate_trace_id() if (ids := _root_ids.get()) is None else ids.trace

            def generate_span_id(self) -> int:
                return super().generate_span_id() if (ids := _root_ids.get()) is None else ids.root

        name = os.environ.get("OTEL_SERVICE_NAME") or f"muster-{service}"
        self._exporter: SpanExporter = OTLPSpanExporter()
        _limit_log(OTLPSpanExporter.__module__)
        self._provider = TracerProvider(
            sampler=TraceIdRatioBased(ratio),
            resource=Resource.create({"service.name": name, "service.version": __version__}),
            id_generator=Ids(),
            shutdown_on_exit=False,  # `close` does it, with a time limit
        )
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))

    def start(self, scope: str, name: str, work: str, *, since: datetime | None, root: bool) -> Span:
        """Starts a span in the trace of a piece of work."""
        from opentelemetry.context import Context  # noqa: PLC0415
        from opentelemetry.trace import (  # noqa: PLC0415
            NonRecordingSpan,
            SpanContext,
            TraceFlags,
            get_current_span,
            set_span_in_context,
        )

        ids, outer = TraceIds.of(work), get_current_span()
        if root:
            parent = Context()
        elif outer.get_span_context().trace_id == ids.trace:
            parent = set_span_in_context(outer, Context())
        else:
            first = SpanContext(ids.trace, ids.root, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
            parent = set_span_in_context(NonRecordingSpan(first), Context())
        token = _root_ids.set(ids if root else None)
        try:
            span = self._provider.get_tracer(scope, __version__).start_span(
                name, parent, start_time=None if since is None else round(since.timestamp() * 1e9)
            )
        finally:
            _root_ids.reset(token)
        span.set_attribute("muster.work", work)
        return span

    def close(self, *, within: timedelta) -> None:
        """Sends the last spans; gives up after a time limit."""
        # The SDK's own limit is 30 s. The thread does not keep the process alive.
        last = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        last.start()
        last.join(within.total_seconds())
        if last.is_alive():
            _log.warning("spans-lost", why=f"the collector did not take the last spans within {within}")
            self._exporter.shutdown()  # ends the retries of an export in progress


_recorder: _OpenTelemetry | None = None
_root_ids: ContextVar[TraceIds | None] = ContextVar("root_ids", default=None)
"""Ids for the span that is being started, if it is the first one of its trace."""


def _current(span: Span) -> AbstractContextManager[Span]:
    """Makes a span the parent of spans of the same piece of work that start within the block."""
    from opentelemetry.trace import use_span  # noqa: PLC0415

    return use_span(span, record_exception=False, set_status_on_exception=False)


def _named(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """Returns attributes with Muster's prefix, and without secrets."""
    return {
        f"muster.{name}": str(redacted(value, name=name)) if isinstance(value, str) else value
        for name, value in attributes.items()
    }


def _limit_log(module: str) -> None:
    """Lets the exporter log one failure a minute: while a collector is down, it would log several for each export."""
    logger = logging.getLogger(module)
    logger.setLevel(logging.ERROR)
    if not any(isinstance(one, _OneAMinute) for one in logger.filters):
        logger.addFilter(_OneAMinute())


class _OneAMinute(logging.Filter):
    _last = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether the last record was long enough ago."""
        if record.created - self._last < _LOG_EVERY.total_seconds():
            return False
        self._last = record.created
        return True
