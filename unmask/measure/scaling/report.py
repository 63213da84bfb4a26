"""What a wall is: measured lengths, curves through them, where they end, and the probe that checked it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from unmask.errors import InvalidRequest
from unmask.files import read_bytes, whole_file
from unmask.measure.benchmark_model import ModelInfo
from unmask.measure.machine import Machine
from unmask.measure.scaling.fit import FittedCurve, IntervalEstimate
from unmask.measure.timing import Spread

Outcome = Literal["measured", "did not fit", "no time", "refused", "failed"]
"""Of one way at one length. ``did not fit``: memory ended; ``no time``: the budget did, before or during it;
``refused``: the way cannot do this; ``failed``: anything else."""


@dataclass(frozen=True)
class ScalingPoint:
    """One way of attending at one length, in a process of its own."""

    kernel: str
    """The way: ``chosen``, the name of a kernel, or another library's."""
    length: int
    """Tokens of the one sequence."""
    outcome: Outcome
    note: str = ""
    """Why it was not measured; empty where it was."""
    ran: tuple[str, ...] = ()
    """The kernels that did run, of all layers; empty for other libraries."""
    repeats: tuple[float, ...] = ()
    """Seconds of each timed call, after a warm-up."""
    peak_bytes: int | None = None
    """Above what the process held with the model loaded; None where the system does not tell."""
    resting_bytes: int | None = None
    """What it held with the model loaded and warm."""
    process_seconds: float = 0.0
    """From the start of the process to its end, loading included."""
    fitted_seconds: float | None = None
    fitted_bytes: float | None = None

    @property
    def seconds(self) -> Spread | None:
        """Median, lowest and highest of the timed calls."""
        return Spread.of(self.repeats) if self.repeats else None

    @property
    def measured(self) -> bool:
        """Whether there is a figure."""
        return self.outcome == "measured"


@dataclass(frozen=True)
class Within:
    """The longest text of which a call takes so long, by the curve of time."""

    seconds: float
    tokens: IntervalEstimate


@dataclass(frozen=True)
class Longest:
    """The longest text that fits, by the curve of memory."""

    tokens: int
    low: int
    high: int | None
    """Of the 95 % interval; None where that is open."""
    ends_by: Literal["memory", "positions"]
    seconds: IntervalEstimate | None
    """What a call on it would take, by the curve of time."""


@dataclass(frozen=True)
class Probe:
    """One more length, measured after the curves were fitted and not used by them."""

    point: ScalingPoint
    share_of_longest: float | None
    """Of the predicted longest text; None where none is predicted."""
    why: str
    """Why it is no nearer to `unmask.measure.scaling.settings.PROBE_SHARE` of that; empty where it is."""
    beyond_measured: bool
    """Whether it is longer than every length that the curves were fitted to."""
    predicted_seconds: IntervalEstimate | None
    predicted_bytes: IntervalEstimate | None
    seconds_error: float | None
    """Measured over predicted, less 1."""
    bytes_error: float | None
    fits_as_predicted: bool | None
    """Whether memory said of this length what the curve had said; None where time ended first."""


@dataclass(frozen=True)
class ScalingCurves:
    """What the points of one way say together."""

    kernel: str
    time: FittedCurve | None
    """In seconds."""
    memory: FittedCurve | None
    """In bytes above the loaded model."""
    why_not: str
    """Why there is no curve; empty where there is."""
    resting_bytes: int | None
    longest: Longest | None
    within: tuple[Within, ...]
    probe: Probe | None


@dataclass(frozen=True)
class ScalingReport:
    """The result of `unmask.measure.scaling.run.run_scaling`."""

    protocol: Literal["wall"]
    measured: ModelInfo
    machine: Machine
    dtype: str
    device: str
    memory_bytes: int | None
    """What one process may hold, the model included; None where unknown."""
    memory_from: str
    """Where that number is from."""
    seconds_budget: float
    seconds_spent: float
    """In this run; points that an earlier one left are not counted."""
    repeats: int
    seed: int
    points: tuple[ScalingPoint, ...]
    curves: tuple[ScalingCurves, ...]
    notes: tuple[str, ...]
    """What a reader must know that is in no number."""

    def curves_of(self, kernel: str) -> ScalingCurves:
        """Of that way."""
        return next(one for one in self.curves if one.kernel == kernel)


def to_plain(report: ScalingReport) -> dict[str, Any]:
    """JSON values; each point says its seconds as median, lowest and highest too."""
    value = asdict(report)
    for point, given in zip(value["points"], report.points, strict=True):
        point["seconds"] = None if given.seconds is None else asdict(given.seconds)
    return value


def from_plain(value: object, where: str = "the report") -> ScalingReport:
    """What `to_plain` gave.

    Raises:
        InvalidRequest: it is no report of a wall, or of another version.
    """
    made = read_value(ScalingReport, value, where)
    assert isinstance(made, ScalingReport)
    return made


def write_report(report: ScalingReport, path: Path) -> None:
    """As JSON; the file appears whole.

    Raises:
        OutputError: it cannot be written.
    """
    with whole_file(path) as partial:
        text = json.dumps(to_plain(report), indent=2, allow_nan=False)
        partial.write_text(text + "\n", encoding="utf-8")


def read_report(path: Path) -> ScalingReport:
    """A report that `write_report` wrote.

    Raises:
        InvalidRequest: there is no such file, or it is no report of a wall.
    """
    content = read_bytes(path, InvalidRequest)
    try:
        value = json.loads(content)
    except ValueError as error:
        raise InvalidRequest(f"{path} is not JSON: {error}") from None
    return from_plain(value, str(path))


def fitted(point: ScalingPoint, curves: ScalingCurves) -> ScalingPoint:
    """The point with what the curves say of its length."""
    return replace(
        point,
        fitted_seconds=None if curves.time is None else curves.time.curve(point.length),
        fitted_bytes=None if curves.memory is None else curves.memory.curve(point.length),
    )


def read_value(kind: Any, value: object, where: str) -> Any:
    """A value of any type that stands in a report; keys that are no field, such as ``seconds``, pass.

    Raises:
        InvalidRequest: it is of another type.
    """
    if get_origin(kind) in (Union, UnionType):
        if value is None and NoneType in get_args(kind):
            return None
        kind = next(one for one in get_args(kind) if one is not NoneType)
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return _read_fields(kind, value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(read_value(inner[0], one, f"{where}[{place}]") for place, one in enumerate(value))
    if not _is_plain(kind, value):
        raise InvalidRequest(f"{where} is {value!r}, so this is no report that unmask scaling wrote")
    return float(value) if kind is float else value  # type: ignore[arg-type]


def _is_plain(kind: Any, value: object) -> bool:
    """Whether JSON holds a value of this type as it is."""
    origin = get_origin(kind)
    if origin is Mapping:
        return isinstance(value, dict)
    if origin is Literal:
        return value in get_args(kind)
    return type(value) is kind or (kind is float and type(value) is int)


def _read_fields(kind: type, value: object, where: str) -> Any:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} is no JSON object, so this is no report that unmask scaling wrote")
    types = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    missing = [name for name in names if name not in value]
    if missing:
        raise InvalidRequest(
            f"{where} has no {missing[0]}, so this is no report of this version; measure again"
        )
    return kind(**{name: read_value(types[name], value[name], f"{where}.{name}") for name in names})
