"""The run's log, one JSON object per line, and its figures for TensorBoard, Weights & Biases and MLflow.

Lines of the log are complete, even if the process is killed.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from unmask.base.files import unwritable, whole_file
from unmask.base.optional import require
from unmask.errors import InvalidRequest, OutputError
from unmask.training.run.settings import LogSettings


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Read the events of a log in order; a last line truncated by a kill is skipped.

    Raises:
        InvalidRequest: another line is not an event.
    """
    if not path.exists():
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                continue
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            if not isinstance(event, dict):
                raise InvalidRequest(
                    f"line {number} of {path} is not an event; move the log elsewhere to resume"
                )
            yield event


LOWER_IS_BETTER = ("loss", "mean_squared_error", "brier", "ece")
"""Figures of which a smaller one is better, by the last parts of their names."""


@dataclass(frozen=True)
class CurvePoint:
    """A figure of a run after a step."""

    step: int
    seconds: float
    """Seconds of training up to it, of all processes that the run was resumed in; evaluations are not
    counted."""
    tokens: int
    value: float


@dataclass(frozen=True)
class TrainingCurve:
    """One figure of a run over its training."""

    run: str
    """The folder of the run."""
    metric: str
    points: tuple[CurvePoint, ...]

    @property
    def lower_is_better(self) -> bool:
        """Whether the figure falls as the model becomes better."""
        return self.metric.rpartition("/")[2] in LOWER_IS_BETTER

    @property
    def best(self) -> CurvePoint:
        """The first point with the best value."""
        choose = min if self.lower_is_better else max
        return choose(self.points, key=lambda point: point.value)

    def reached(self, value: float) -> CurvePoint | None:
        """The first point that is as good as a value, without interpolation; None if there is none."""
        if self.lower_is_better:
            return next((point for point in self.points if point.value <= value), None)
        return next((point for point in self.points if point.value >= value), None)


def read_curve(run: Path, metric: str, event: Literal["held_out", "step"] = "held_out") -> TrainingCurve:
    """Read a figure over the training of a run from its log.

    Args:
        run: the folder of a run.
        metric: the name of the figure, such as "masked/loss" or "dev/accuracy".
        event: figures of evaluations, or of the texts that were trained on.

    Raises:
        InvalidRequest: the folder has no log, or its events do not have the figure.
    """
    path = run / "log.jsonl"
    if not path.is_file():
        raise InvalidRequest(f"{run} has no log.jsonl; name the folder of a training run")
    events = list(read_events(path))
    steps = [found for found in events if found.get("event") == "step"]
    tokens = np.array([0, *(found["tokens"] for found in steps)], dtype=np.float64)
    speeds = np.array([found["tokens_per_second"] for found in steps])
    seconds = np.concatenate([[0.0], np.cumsum(np.diff(tokens) / speeds)])
    measured = [found for found in events if found.get("event") == event]
    points = [
        CurvePoint(
            step=found["step"],
            seconds=float(np.interp(found["tokens"], tokens, seconds)),
            tokens=found["tokens"],
            value=float(found[metric]),
        )
        for found in measured
        if metric in found
    ]
    if not points:
        names = sorted({name for found in measured for name in found if "/" in name})
        raise InvalidRequest(
            f"{path} has no figure {metric!r} of {event} events; "
            + (f"name one of: {', '.join(names)}" if names else "it has no such events")
        )
    return TrainingCurve(str(run), metric, tuple(points))


class EventLog:
    """Appends events to a file; each has been handed to the operating system when `write` returns.

    Args:
        path: the log; created if it does not exist.
        step: events of later steps are removed, because a resumed run writes them again.

    Raises:
        InvalidRequest: see `read_events`.
        OutputError: the disk is full or read-only.
    """

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        try:
            events = [event for event in read_events(path) if event.get("step", 0) <= step]
            with whole_file(path) as partial:
                partial.write_bytes(b"".join(map(_line, events)))
            # Windows writes \r\n unless it is told to write bytes.
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise unwritable(path, error) from None

    def write(self, kind: str, step: int, **figures: Any) -> None:
        """Append one event; ``figures`` are numbers and short texts with units in their names.

        Raises:
            OutputError: the disk is full; a partially written event is removed.
        """
        line = _line({"event": kind, "step": step, **figures})
        before = os.fstat(self._file).st_size
        written = 0
        try:
            # Usually one call; a full disk accepts a part of the line and refuses the rest.
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, before)
            raise unwritable(self.path, error) from None

    def sync(self) -> None:
        """Wait until every event is on disk."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise unwritable(self.path, error) from None

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event, ensure_ascii=False).encode() + b"\n"


IDS = "trackers.json"
"""The file in a run's folder with the names that trackers know the run by, so that it can resume."""

LONGEST_PARAMETER = 500
"""Characters of a setting that every version of MLflow accepts."""

MOST_PARAMETERS = 100
"""Settings that MLflow accepts at once."""


class Tracker(Protocol):
    """Where figures go beside the log."""

    id: str
    """The name that it knows the run by."""

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Send the figures of a step."""

    def close(self, *, complete: bool) -> None:
        """End the run there; ``complete`` says whether it has taken all its steps."""


class Wandb:
    """A run of Weights & Biases. Figures of steps that it has already are ignored there, and those of a
    resumed run are equal."""

    def __init__(self, project: str, name: str, settings: Mapping[str, Any], out: Path, run_id: str | None):
        wandb = importlib.import_module("wandb")
        self._run: Any = wandb.init(
            project=project,
            name=name,
            id=run_id,
            resume="allow" if run_id else None,
            dir=str(out),
            config=dict(settings),
        )
        self.id = str(self._run.id)

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Send the figures of a step."""
        self._run.log(dict(figures), step=step)

    def close(self, *, complete: bool) -> None:
        """End the run there."""
        self._run.finish(exit_code=0 if complete else 1)


class MLflow:
    """A run of an experiment of MLflow, at the tracking URI of its own settings."""

    def __init__(
        self, experiment: str, name: str, settings: Mapping[str, Any], out: Path, run_id: str | None
    ):
        mlflow = importlib.import_module("mlflow")
        self._entities: Any = importlib.import_module("mlflow.entities")
        self._client: Any = mlflow.MlflowClient()
        if run_id is not None:
            self.id = run_id
            self._client.update_run(run_id, status="RUNNING")
            return
        there = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if there is None else there.experiment_id
        self.id = str(self._client.create_run(number, run_name=name).info.run_id)
        parameters = [
            self._entities.Param(_accepted(key), str(value)[:LONGEST_PARAMETER])
            for key, value in _flat(settings, "")
        ]
        for start in range(0, len(parameters), MOST_PARAMETERS):
            self._client.log_batch(self.id, params=parameters[start : start + MOST_PARAMETERS])

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Send the figures of a step."""
        now = int(time.time() * 1000)
        metrics = [
            self._entities.Metric(_accepted(name), float(value), now, step) for name, value in figures.items()
        ]
        self._client.log_batch(self.id, metrics=metrics)

    def close(self, *, complete: bool) -> None:
        """End the run there."""
        self._client.set_terminated(self.id, "FINISHED" if complete else "KILLED")


TRACKERS: Mapping[str, Callable[..., Tracker]] = {"wandb": Wandb, "mlflow": MLflow}
"""The key of ``[log]``, which is the name of the extra too -> what it starts."""


class Trackers:
    """All trackers that a run file names. A tracker that fails later than at the start does not end the run,
    whose figures are in its log.

    Args:
        log: names a project or experiment for each.
        settings: the settings of the run, a dataclass with a ``name``.
        out: the run's folder.
        resumed: whether the run continues, and so do the runs of its trackers.
        say: receives a sentence about a tracker that fails.

    Raises:
        MissingExtra: a tracker is named and not installed.
        OutputError: a tracker cannot start.
    """

    def __init__(
        self, log: LogSettings, settings: Any, out: Path, *, resumed: bool, say: Callable[[str], None]
    ) -> None:
        self._say, self._failed = say, set[str]()
        self._trackers: dict[str, Tracker] = {}
        ids = _known(out / IDS) if resumed else {}
        for name, start in TRACKERS.items():
            place = getattr(log, name)
            if place is None:
                continue
            require(name)
            try:
                table = dataclasses.asdict(settings)
                self._trackers[name] = start(place, settings.name, table, out, ids.get(name))
            except Exception as error:
                self.close(complete=False)
                raise OutputError(
                    f"{name} cannot start ({_said(error)}); mend that, or leave log.{name} out"
                ) from None
        if self._trackers:
            with whole_file(out / IDS) as partial:
                partial.write_text(
                    json.dumps({name: tracker.id for name, tracker in self._trackers.items()}) + "\n",
                    encoding="utf-8",
                    newline="\n",
                )

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Send the figures of a step to all."""
        for name, tracker in self._trackers.items():
            self._try(name, lambda tracker=tracker: tracker.write(figures, step))  # type: ignore[misc]

    def close(self, *, complete: bool) -> None:
        """End the run everywhere."""
        for name, tracker in self._trackers.items():
            self._try(name, lambda tracker=tracker: tracker.close(complete=complete))  # type: ignore[misc]

    def _try(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            if name not in self._failed:
                self._say(f"note: {name} did not accept figures ({_said(error)}); log.jsonl has all of them")
            self._failed.add(name)


def _known(path: Path) -> dict[str, str]:
    try:
        ids = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return ids if isinstance(ids, dict) else {}


def _said(error: Exception) -> str:
    """The first line of another program's error, with its kind."""
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def _flat(table: Mapping[str, Any], before: str) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat += _flat(value, f"{before}{key}.")
        else:
            flat.append((f"{before}{key}", value))
    return flat


def _accepted(name: str) -> str:
    """A name in the characters that MLflow accepts; others, such as those around a label, become ``_``."""
    return re.sub(r"[^\w\-. :/]", "_", name)


class Board:
    """Writes one event file; each event has been handed to the operating system when `write` returns.

    Args:
        folder: TensorBoard's log folder; created if it does not exist.
        step: events of earlier processes for later steps are hidden, because those steps are taken again.

    Raises:
        MissingExtra: TensorBoard is not installed.
        OutputError: the disk is full or read-only.
    """

    def __init__(self, folder: Path, step: int) -> None:
        require("tensorboard")
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event: Any = Event
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("wb")
        except OSError as error:
            raise unwritable(self.path, error) from None
        self._records: Any = RecordWriter(self._file)
        self._add(file_version="brain.Event:2", step=step + 1)
        self._add(session_log=SessionLog(status=SessionLog.START), step=step + 1)

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write the figures of a step.

        Raises:
            OutputError: the disk is full.
        """
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        self._add(summary=Summary(value=values), step=step)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _add(self, **fields: Any) -> None:
        try:
            self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
            self._records.flush()
        except OSError as error:
            # Otherwise closing the file would retry what could not be written.
            with contextlib.suppress(OSError):
                self._file.close()
            raise unwritable(self.path, error) from None
