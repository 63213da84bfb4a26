"""The run file of a tiny retriever, and a run that is stopped once."""

import os
import signal

import pytest

from unmask.training.finetune.run import finetune
from unmask.training.run.trainer import Stopped, Trainer


def table(out, retrieval=None, **changes):
    """A run of two epochs of 8 steps."""
    return {
        "name": "tiny-retriever",
        "task": "retrieval",
        "epochs": 2,
        "batch_size": 8,
        "out": str(out),
        "model": {"start_from": "tiny"},
        "data": {"train": ["train.jsonl"], "dev": ["dev.jsonl"]},
        "optimizer": {"learning_rate": 2e-3},
        "evaluation": {"metric": "ndcg@10"},
        "log": {"every": 1},
        "retrieval": retrieval or {},
    } | changes


SHORT = {
    "data": {"train": ["short.jsonl"], "dev": ["dev.jsonl"]},
    "evaluation": {"every": 2, "metric": "ndcg@10"},
}
"""Two epochs of 4 steps, for a run that is stopped at the third."""
SHORT_SCORED = SHORT | {"data": SHORT["data"] | {"scores": "scores"}}


def stopped_and_resumed(monkeypatch, run, place, at=3):
    """The result of a run that receives SIGTERM after a step, and is started again."""
    steps = []
    step = Trainer._step

    def stop_once(self, reporter):
        step(self, reporter)
        steps.append(self.loop.step)
        if self.loop.step == at and steps.count(at) == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", stop_once)
        with pytest.raises(Stopped):
            finetune(run, base=place)
        result = finetune(run, base=place)
    assert steps == [*range(1, at + 1), *range(at + 1, result.steps + 1)]
    return result


def files(folder):
    """The bytes of the files of a model, but those that name its run."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in (".safetensors", ".json") and path.name != "training.json"
    }
