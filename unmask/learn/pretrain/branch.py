"""A new run that begins with what another run has trained: weights, moments, averages, and its progress."""

from collections.abc import Callable
from pathlib import Path

from unmask.errors import InvalidRequest
from unmask.learn.pretrain.checkpoint import MANIFEST, load_snapshot
from unmask.learn.pretrain.loop import Loop
from unmask.learn.pretrain.settings import ModelSettings
from unmask.learn.pretrain.sharded import placed
from unmask.learn.pretrain.state import load_averages, load_moments, load_progress, load_weights


def start_with_moments(model: ModelSettings, base: Path, loop: Loop, say: Callable[[str], None]) -> None:
    """Bring a loop before its first step to where the checkpoint ``model.start_from`` was taken.

    The number of processes and ``distributed.kind`` may differ from those of the other run.

    Args:
        model: of the new run.
        base: the folder where paths of its settings begin.
        loop: of the new run.
        say: is told what was taken over.

    Raises:
        InvalidRequest: ``start_from`` is no checkpoint of a run, or one of another objective, other shapes,
            another optimizer or, with ``progress``, other text.
        CorruptCheckpoint: it is damaged.
    """
    assert model.start_from is not None
    folder = base / model.start_from
    if not (folder / MANIFEST).is_file():
        raise InvalidRequest(
            f"model.moments is true and {folder}, which model.start_from names, is no checkpoint of a run; "
            "name one, such as runs/first/checkpoints/step-00001000, or leave moments out"
        )
    snapshot = placed(load_snapshot(folder), loop)
    try:
        load_weights(snapshot, loop)
        load_moments(snapshot, loop)
    except (RuntimeError, KeyError, InvalidRequest) as error:
        reason = "; ".join(line.strip() for line in str(error).splitlines()[:2])
        raise InvalidRequest(
            f"{folder} was trained with another objective, other sizes or another optimizer, so its moments "
            f"do not fit this run; make them the same, or leave moments out ({reason})"
        ) from None
    kept = snapshot.state["averages"]
    if loop.averages is not None and kept:
        load_averages(snapshot, loop.averages)
    elif loop.averages is not None:
        loop.averages.restart()
    elif kept:
        say(f"{folder} has averages of its weights, and this run keeps none; they are left out")
    if model.progress:
        load_progress(snapshot, loop)
        say(f"branching off after step {snapshot.step:,} of {folder}")
    else:
        say(f"beginning with weights and moments of {folder}")
