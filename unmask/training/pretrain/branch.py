"""Start a run from another run's checkpoint: weights, optimizer moments, averages, and progress."""

from collections.abc import Callable
from pathlib import Path

from unmask.errors import InvalidRequest
from unmask.training.run.checkpoint import MANIFEST, load_snapshot
from unmask.training.run.loop import Loop
from unmask.training.run.settings import ModelSettings
from unmask.training.run.sharded import placed
from unmask.training.run.state import load_averages, load_moments, load_progress, load_weights


def start_with_moments(model: ModelSettings, base: Path, loop: Loop, say: Callable[[str], None]) -> None:
    """Initialize a loop before its first step from the checkpoint ``model.start_from``.

    The number of processes and ``distributed.kind`` may differ from those of the other run.

    Args:
        model: the new run's model settings.
        base: the folder that paths in the settings are relative to.
        loop: the new run's loop.
        say: called with a sentence about what was loaded.

    Raises:
        InvalidRequest: ``start_from`` is not a checkpoint of a run, or has a different objective, shapes,
        optimizer or, with ``progress``, text.
        CorruptCheckpoint: the checkpoint is damaged.
    """
    assert model.start_from is not None
    folder = base / model.start_from
    if not (folder / MANIFEST).is_file():
        raise InvalidRequest(
            f"model.moments is true and {folder}, which model.start_from names, is not a checkpoint of a "
            "run; name one, such as runs/first/checkpoints/step-00001000, or leave moments out"
        )
    snapshot = placed(load_snapshot(folder), loop)
    try:
        load_weights(snapshot, loop)
        load_moments(snapshot, loop)
    except (RuntimeError, KeyError, InvalidRequest) as error:
        reason = "; ".join(line.strip() for line in str(error).splitlines()[:2])
        raise InvalidRequest(
            f"{folder} was trained with a different objective, sizes or optimizer, so its moments "
            f"do not fit this run; make them the same, or leave moments out ({reason})"
        ) from None
    kept = snapshot.state["averages"]
    if loop.averages is not None and kept:
        load_averages(snapshot, loop.averages)
    elif loop.averages is not None:
        loop.averages.restart()
    elif kept:
        say(f"{folder} has averages of its weights, and this run keeps none; they are not loaded")
    if model.progress:
        load_progress(snapshot, loop)
        say(f"branching off after step {snapshot.step:,} of {folder}")
    else:
        say(f"starting with weights and moments of {folder}")
