"""Spans of requests for OpenTelemetry, sent as OTLP over HTTP; they never hold texts.

OpenTelemetry is imported inside functions, because it is optional.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from unmask.base import optional
from unmask.errors import InvalidRequest, quoted

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from starlette.requests import Request
    from starlette.responses import Response

TRACES = "/v1/traces"
"""Where a collector takes spans, below its address (OTLP/HTTP)."""
FLUSH_SECONDS = 5
"""How long the server waits, when it stops, for a collector that takes the last spans."""
NUMBERS = {
    "x-compute-tokens": "gen_ai.usage.input_tokens",
    "x-truncated-inputs": "unmask.truncated_inputs",
    "x-queue-time": "unmask.queue_time_ms",
    "x-inference-time": "unmask.inference_time_ms",
}
"""Headers of an answer that spans repeat as attributes."""
FAILED = {424, *range(500, 600)}
"""Statuses of answers that failed at the server; TEI's clients get 424 for a model that failed."""


@dataclass
class Answered:
    """One request that is being answered."""

    trace_id: str | None = None
    """The trace that its span belongs to, in hexadecimal; None without traces."""
    response: "Response | None" = None
    """The answer, once there is one."""


class Traces:
    """One span for each request, within the trace that its client names in the header ``traceparent``.

    Names of spans and attributes are those of OpenTelemetry's semantic conventions for HTTP servers. The
    environment variables ``OTEL_SERVICE_NAME``, ``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_TRACES_SAMPLER`` and
    ``OTEL_EXPORTER_OTLP_HEADERS`` are honored.

    Args:
        exporter: where spans go.

    Make it after processes were forked: it starts a thread.
    """

    def __init__(self, exporter: "SpanExporter") -> None:
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource({SERVICE_NAME: "unmask"}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=Resource.create().merge(resource))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("unmask.serve")
        self._client_context = TraceContextTextMapPropagator()

    @contextmanager
    def span(self, route: str, request: "Request") -> Iterator[Answered]:
        """The span of a request, which ends with the block."""
        from opentelemetry.trace import SpanKind, StatusCode, format_trace_id

        answered = Answered()
        with self._tracer.start_as_current_span(
            f"{request.method} {route}",
            context=self._client_context.extract(dict(request.headers)),
            kind=SpanKind.SERVER,
            record_exception=False,  # what an exception says may hold texts
            set_status_on_exception=False,
            attributes={
                "http.request.method": request.method,
                "http.route": route,
                "url.scheme": request.url.scheme,
            },
        ) as span:
            trace = span.get_span_context()
            answered.trace_id = format_trace_id(trace.trace_id) if trace.is_valid else None
            yield answered
            assert answered.response is not None
            status = answered.response.status_code
            span.set_attribute("http.response.status_code", status)
            span.set_attributes(_numbers(answered.response.headers))
            if status in FAILED:
                span.set_attribute("error.type", str(status))
                span.set_status(StatusCode.ERROR)

    def close(self) -> None:
        """Send what has not been sent, and stop the thread."""
        self._provider.force_flush(FLUSH_SECONDS * 1000)
        self._provider.shutdown()


def _numbers(headers: Mapping[str, str]) -> dict[str, int]:
    return {attribute: int(headers[name]) for name, attribute in NUMBERS.items() if name in headers}


def otlp_exporter(endpoint: str) -> "SpanExporter":
    """What sends spans to a collector.

    Args:
        endpoint: the collector's address, for which `check_tracing` does not raise.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    address = endpoint.rstrip("/")
    return OTLPSpanExporter(endpoint=address if address.endswith(TRACES) else address + TRACES)


def check_tracing(endpoint: str | None) -> None:
    """Raise unless traces can be sent to a collector; for None none are sent.

    Raises:
        InvalidRequest: the address is not one of HTTP.
        MissingExtra: the packages are not installed.
    """
    if endpoint is None:
        return
    try:
        parts = urlsplit(endpoint)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (ValueError, AttributeError, TypeError):  # a port that is none; no string
        good = False
    if not good:
        raise InvalidRequest(
            f"the OTLP endpoint is {quoted(endpoint)}; give a collector's address, such as "
            "http://localhost:4318"
        )
    optional.require("otel")
