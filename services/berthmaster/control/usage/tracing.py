"""Send spans to an OpenTelemetry collector, by OTLP over HTTP, from a separate thread.

The queue between the service and the thread is bounded. A slow or unreachable collector costs
spans, which the metric `spans` counts. The service never waits. OpenTelemetry's own variables
(OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE) apply to the exporter.
"""

import logging
import queue
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from berthmaster.control.usage.core.traces import Span
from berthmaster.control.usage.metrics import UsageMetrics
from berthmaster.lib.runtime.errors import CannotStart

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

MAX_QUEUED: Final = 8_192  # spans waiting for the collector
MAX_BATCH: Final = 512  # spans of one request
EXPORT_LIMIT_S: Final = 10.0  # for one request, including its retries
STOP_LIMIT_S: Final = 2.0
_NS: Final = 1_000_000_000


class TraceExporter:
    """Takes spans without waiting. Call ``start`` before, and ``stop`` at the end."""

    def __init__(self, exporter: "SpanExporter", metrics: UsageMetrics, version: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._exporter = exporter
        self._metrics = metrics
        self._resource = Resource({"service.name": "berthmaster", "service.version": version})
        self._scope = InstrumentationScope("berthmaster", version)
        self._queue: queue.Queue[Span | None] = queue.Queue(MAX_QUEUED)
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, spans: Iterable[Span]) -> None:
        """Queue spans. Spans beyond the bound are dropped and counted."""
        for span in spans:
            try:
                self._queue.put_nowait(span)
            except queue.Full:
                self._metrics.spans.labels("dropped").inc()

    def stop(self) -> None:
        """Send the queued spans, within a limit."""
        try:
            self._queue.put(None, timeout=STOP_LIMIT_S)
        except queue.Full:
            return  # the collector does not answer: the daemon thread ends with the process
        self._thread.join(STOP_LIMIT_S)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            batch: list[Span] = []
            one = self._queue.get()
            while one is not None:
                batch.append(one)
                if len(batch) >= MAX_BATCH or self._queue.empty():
                    break
                one = self._queue.get()
            is_last = one is None
            if batch:
                self._send(batch)

    def _send(self, batch: list[Span]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            result = self._exporter.export([self._readable(span) for span in batch])
            is_sent = result is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001 # an exporter's error must not end the thread
            is_sent = False
        self._metrics.spans.labels("sent" if is_sent else "failed").inc(len(batch))

    def _readable(self, span: Span) -> "ReadableSpan":
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, TraceFlags
        from opentelemetry.trace.status import Status, StatusCode

        def context(span_id: int) -> SpanContext:
            flags = TraceFlags(TraceFlags.SAMPLED)
            return SpanContext(span.trace_id, span_id, is_remote=False, trace_flags=flags)

        failed = Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.OK)
        return ReadableSpan(
            span.name,
            context=context(span.span_id),
            parent=context(span.parent_id) if span.parent_id else None,
            resource=self._resource,
            instrumentation_scope=self._scope,
            attributes=span.attributes,
            status=failed,
            start_time=round(span.begin_s * _NS),
            end_time=round(span.end_s * _NS),
        )


def open_exporter(endpoint: str, metrics: UsageMetrics, version: str) -> TraceExporter:
    """Return an exporter to this endpoint. Raises CannotStart without the extra `otel`."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise CannotStart(f"traces need {error.name}: pip install 'berthmaster[otel]'") from error
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())  # the metric counts
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_LIMIT_S)
    return TraceExporter(exporter, metrics, version)
