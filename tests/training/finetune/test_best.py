"""Which weights of a run are the best, and what a resumed run knows of it."""

import json
import math
from pathlib import Path

from unmask.training.finetune.supervised import BestModel


def best(written: list[Path], patience: int = 0) -> BestModel:
    return BestModel("accuracy", patience, Path("best"), written.append)


def test_a_figure_that_is_no_number_is_never_the_best():
    written: list[Path] = []
    follows = best(written, patience=2)
    for step, value in enumerate((math.nan, 0.5, math.nan, 0.9, math.nan, math.nan), start=1):
        follows.evaluated({"accuracy": value}, step)
    assert (follows.best, follows.step, len(written), follows.stop) == (0.9, 4, 2, True)


def test_a_resumed_run_ignores_evaluations_after_its_checkpoint(tmp_path):
    log = tmp_path / "log.jsonl"
    lines = [{"event": "held_out", "step": step, "dev/accuracy": step / 10} for step in (0, 1, 2, 3)]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    follows = best([])
    follows.restore(log, 2)
    assert (follows.best, follows.step) == (0.2, 2)
