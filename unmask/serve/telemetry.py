"""What can be observed of a server. None of it ever holds texts.

Metrics: counters, gauges and histograms, as text that Prometheus reads (its exposition format 0.0.4). Traces:
spans of requests for OpenTelemetry, sent as OTLP over HTTP; OpenTelemetry is imported inside functions,
because it is optional.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
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


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of a duration."""
SIZES = tuple(float(2**power) for power in range(15))
"""Upper bounds of the buckets of a number of tokens or texts."""


class Counter:
    """A number that only grows, for each combination of its labels' values."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name, self.text, self.labels = name, text, tuple(labels)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}
        self._lock = threading.Lock()

    def add(self, amount: float = 1, *values: str) -> None:
        """Add to the number with these values of the labels."""
        with self._lock:
            self._values[values] = self._values.get(values, 0.0) + amount

    def value(self, *values: str) -> float:
        """The number with these values of the labels."""
        return self._values.get(values, 0.0)

    def lines(self) -> list[str]:
        """Its samples."""
        with self._lock:
            return [f"{self.name}{_labels(self.labels, at)} {_number(n)}" for at, n in self._values.items()]


class Gauge:
    """A number that is read when the metrics are."""

    kind = "gauge"

    def __init__(self, name: str, text: str, read: Callable[[], float]) -> None:
        self.name, self.text, self._read = name, text, read

    def lines(self) -> list[str]:
        """Its sample."""
        return [f"{self.name} {_number(self._read())}"]


class Histogram:
    """How often a value was at most each of some bounds, with the sum of all values."""

    kind = "histogram"

    def __init__(self, name: str, text: str, bounds: Sequence[float] = SECONDS) -> None:
        self.name, self.text, self._bounds = name, text, tuple(bounds)
        self._counts, self._sum = [0] * (len(self._bounds) + 1), 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count one value."""
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def lines(self) -> list[str]:
        """Its samples; buckets count all smaller ones too."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        lines, below = [], 0
        for bound, count in zip((*map(_number, self._bounds), "+Inf"), counts, strict=True):
            below += count
            lines.append(f'{self.name}_bucket{{le="{bound}"}} {below}')
        return [*lines, f"{self.name}_sum {_number(total)}", f"{self.name}_count {below}"]


class Metrics:
    """All numbers of one server."""

    def __init__(self) -> None:
        self.requests = Counter("unmask_requests_total", "Requests that were answered.", ("route", "code"))
        self.request_seconds = Histogram(
            "unmask_request_duration_seconds", "From the head of a request to its answer."
        )
        self.queue_seconds = Histogram(
            "unmask_queue_duration_seconds", "From the admission of a request to the pass of its first text."
        )
        self.tokenize_seconds = Histogram(
            "unmask_tokenize_duration_seconds", "Tokenization of the texts of one request."
        )
        self.pass_seconds = Histogram("unmask_pass_duration_seconds", "One forward pass.")
        self.pass_tokens = Histogram("unmask_pass_tokens", "Tokens of one forward pass.", SIZES)
        self.pass_texts = Histogram("unmask_pass_texts", "Texts of one forward pass.", SIZES)
        self.tokens = Counter("unmask_tokens_total", "Tokens that forward passes read.")
        self.texts = Counter("unmask_texts_total", "Texts that forward passes read.")
        self.truncated = Counter("unmask_truncated_texts_total", "Texts whose end was dropped, as asked.")
        self.rejected = Counter(
            "unmask_rejected_total", "Requests that were refused or given up.", ("reason",)
        )
        self.failed_passes = Counter("unmask_failed_passes_total", "Forward passes that raised an error.")
        self.restarts = Counter(
            "unmask_worker_restarts_total",
            "Ends of a process or thread that runs models; another one then starts.",
        )
        self.log_lines_lost = Counter(
            "unmask_log_lines_lost_total", "Lines of the log of requests that could not be written."
        )
        self._all: list[Counter | Gauge | Histogram] = [*vars(self).values()]

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a number that is read with the metrics."""
        self._all.append(Gauge(name, text, read))

    def text(self) -> str:
        """All samples with their descriptions and kinds."""
        lines = []
        for metric in self._all:
            lines += [
                f"# HELP {metric.name} {metric.text}",
                f"# TYPE {metric.name} {metric.kind}",
                *metric.lines(),
            ]
        return "\n".join(lines) + "\n"


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    return "{" + ",".join(f'{n}="{_escaped(v)}"' for n, v in zip(names, values, strict=True)) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else repr(float(value))


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
