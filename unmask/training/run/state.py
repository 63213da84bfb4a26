"""Capture and restore a loop's state, and check which settings may change when a run resumes."""

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from unmask.errors import CorruptCheckpoint, InvalidRequest
from unmask.training.data.labeled import check_unchanged
from unmask.training.optim import Ema
from unmask.training.run.checkpoint import Snapshot, flattened
from unmask.training.run.loop import Loop, MetricAccumulator
from unmask.training.table import read_table

FREE = frozenset(
    {
        "steps",
        "evaluation",
        "faults",
        "checkpoints",
        "log",
        "device",
        "distributed",
        "compile",
        "gradient_checkpointing",
        "model.config.gradient_checkpointing",
        "out",
        "card",
        "export_dtype",
        "export_shard_bytes",
        "data.cache",
        "data.local_cache",
        "data.local_cache_bytes",
        "data.held_out",
    }
)
"""Settings that may be changed when a run resumes, because they do not affect completed steps. All others
do."""


def capture_state(loop: Loop, metrics: MetricAccumulator, settings: Any) -> Snapshot:
    """Capture everything that determines how the run continues; ``settings`` is a dataclass stored with
    it."""
    optimizer = loop.optimizer.state_dict()
    moments, rest = flattened(optimizer["state"], "optimizer.")
    tensors = {f"objective.{name}": value for name, value in loop.objective.state_dict().items()}
    averages = {} if loop.averages is None else loop.averages.state_dict()
    means = {f"averages.{name}": average for name, average in averages.items() if isinstance(average, Tensor)}
    return Snapshot(
        loop.step,
        {**tensors, **moments, **means},
        {
            "micro_batches": loop.micro_batches,
            "tokens": loop.tokens,
            "stream": loop.data_state,
            "inputs": dict(loop.inputs),
            "skipped": loop.skipped,
            "loss": loop.loss,
            "lowest_loss": loop.lowest_loss,
            "diverged": loop.diverged,
            "optimizer": {"rest": rest, "param_groups": optimizer["param_groups"]},
            "averages": {
                name: average for name, average in averages.items() if not isinstance(average, Tensor)
            },
            "tally": metrics.state(),
            "settings": _plain(settings),
        },
    )


def restore_state(snapshot: Snapshot, loop: Loop) -> MetricAccumulator:
    """Restore a loop to the snapshot's state; return the sums since the last line of the log.

    Raises:
        CorruptCheckpoint: the snapshot does not match the loop.
        InvalidRequest: the snapshot was made with other data or other first weights.
    """
    state = snapshot.state
    check_unchanged(state.get("inputs", {}), loop.inputs)
    try:
        load_weights(snapshot, loop)
        load_moments(snapshot, loop)
        if loop.averages is not None:
            load_averages(snapshot, loop.averages)
        load_progress(snapshot, loop)
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise CorruptCheckpoint(
            f"the checkpoint of step {snapshot.step} is of a different model than the run file's: {reason}"
        ) from None
    return (
        MetricAccumulator(**state["tally"], began=time.perf_counter())
        if "tally" in state
        else MetricAccumulator()
    )


def load_weights(snapshot: Snapshot, loop: Loop) -> None:
    """Load all trained weights.

    Raises:
        RuntimeError: names or shapes differ.
    """
    loop.objective.load_state_dict(_below(snapshot.tensors, "objective."))


def load_moments(snapshot: Snapshot, loop: Loop) -> None:
    """Load the optimizer's state; learning rates and decay stay those of the loop.

    Raises:
        InvalidRequest: the state belongs to another optimizer, or to other parameters.
    """
    moments: dict[int, dict[str, Any]] = {}
    for name, tensor in _below(snapshot.tensors, "optimizer.").items():
        index, key = name.split(".", 1)
        moments.setdefault(int(index), {})[key] = tensor
    stored = snapshot.state["optimizer"]
    for index, values in stored["rest"].items():
        moments.setdefault(int(index), {}).update(values)
    loop.optimizer.load_state_dict({"state": moments, "param_groups": stored["param_groups"]})


def load_averages(snapshot: Snapshot, averages: Ema) -> None:
    """Load the averages of the weights.

    Raises:
        KeyError: the snapshot has none.
        InvalidRequest: the averages belong to other parameters.
    """
    averages.load_state_dict({**_below(snapshot.tensors, "averages."), **snapshot.state["averages"]})


def load_progress(snapshot: Snapshot, loop: Loop) -> None:
    """Load the run's progress.

    Raises:
        InvalidRequest: the data differ.
    """
    state = snapshot.state
    loop.batches.restore(state["stream"])
    loop.step, loop.tokens, loop.micro_batches = snapshot.step, state["tokens"], state["micro_batches"]
    loop.skipped = state.get("skipped", 0)
    loop.loss, loop.lowest_loss = state.get("loss"), state.get("lowest_loss")


def refuse_changes(settings: Any, stored: Mapping[str, Any], out: Path, free: frozenset[str] = FREE) -> None:
    """Refuse to resume a run whose current settings would have produced different results.

    Args:
        settings: the current settings, a dataclass.
        stored: the settings in the checkpoint; missing keys have their defaults.
        out: the run's folder.
        free: keys that may have changed.

    Raises:
        InvalidRequest: a key has changed; the message names all of them.
    """
    try:
        steps = {"steps": settings.steps} if hasattr(settings, "steps") else {}
        before = _decisive(read_table(type(settings), {**steps, **stored}, ""), free)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"the run in {out} was started by another version of this program ({error}); "
            "resume it with that version, or name another folder with out"
        ) from None
    now = _decisive(settings, free)
    changed = sorted(key for key in now.keys() | before.keys() if now.get(key) != before.get(key))
    if changed:
        what = ", ".join(f"{key} was {before.get(key)!r} and is {now.get(key)!r}" for key in changed[:4])
        more = f" and {len(changed) - 4} more" if len(changed) > 4 else ""
        raise InvalidRequest(
            f"the run in {out} was started with other settings: {what}{more}; "
            "restore the run file, or name another folder with out"
        )


def _decisive(settings: Any, free: frozenset[str]) -> dict[str, Any]:
    """The settings that must not change, by dotted key."""
    return {
        key: value
        for key, value in _flat(_plain(settings), "")
        if not any(key == setting or key.startswith((f"{setting}.", f"{setting}[")) for setting in free)
    }


def _plain(settings: Any) -> dict[str, Any]:
    """The settings as JSON values; dates, which TOML has and JSON lacks, as text."""
    table: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings), default=str))
    return table


def _flat(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, entry in value.items():
            yield from _flat(entry, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value):
        for number, entry in enumerate(value):
            yield from _flat(entry, f"{key}[{number}]")
    else:
        yield key, value


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
