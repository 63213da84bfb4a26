"""Counters, gauges and histograms, as text that Prometheus reads (its exposition format 0.0.4)."""

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence

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
