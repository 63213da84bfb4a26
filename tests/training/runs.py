"""Tiny pretraining runs: a run file's table, its text, and what to compare of finished ones."""

import copy
import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from unmask.training.data.train_tokenizer import train_tokenizer
from unmask.training.run.callbacks import Callback

SENTENCE = "the river bank was muddy and a boat went down with many small stones that nobody saw in winter"
WORDS = SENTENCE.split()

BLOCKS = {"format": "paragraphs"}
"""Documents of a text file are what blank lines separate."""

RUN = {
    "name": "tiny",
    "steps": 12,
    "seed": 3,
    "out": "run",
    "model": {
        "config": {
            "model_type": "bert",
            "architectures": ["BertForMaskedLM"],
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 48,
            "max_position_embeddings": 64,
        }
    },
    "tokenizer": {"folder": "tokenizer"},
    "data": {
        "sources": [
            {
                "name": "first",
                "files": ["first.txt"],
                "format": "paragraphs",
                "max_tokens": 30,
                "weight": 2.0,
            },
            {
                "name": "second",
                "files": ["second.txt"],
                "format": "paragraphs",
                "max_tokens": 20,
                "split_by": "sentence",
            },
        ],
        "held_out": [{"name": "held", **BLOCKS, "files": ["held.txt"], "max_tokens": 30}],
    },
    "objective": {"kind": "masked"},
    "batch": {"tokens": 512, "micro_tokens": 256, "start_tokens": 256, "ramp_share": 0.5},
    "optimizer": {"learning_rate": 3e-3},
    "evaluation": {"every": 6, "tokens": 600},
    "checkpoints": {"every": 4, "minutes": 0},
    "log": {"every": 3},
}
"""BERT with its dropout, two sources, a batch that grows."""

EVERYTHING = {
    "precision": "bfloat16",
    "optimizer": {"kind": "muon", "learning_rate": 3e-3},
    "averaging": {"decay": 0.9},
}
"""What has the most state: masters, momenta, moments, averages."""

OF_THE_MACHINE = ("tokens_per_second", "peak_share", "memory_bytes")


def write_texts(folder: Path) -> None:
    """Texts and a tokenizer, from the same seed every time."""
    draw = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    everything = []
    for name, count in (("first", 300), ("second", 200), ("held", 40)):
        texts = [
            " ".join(draw.choices(WORDS, k=draw.randint(4, 12)))
            + ". The "
            + " ".join(draw.choices(WORDS, k=draw.randint(2, 9)))
            + "."
            for _ in range(count)
        ]
        (folder / f"{name}.txt").write_text("\n\n".join(texts) + "\n")
        everything += texts
    (folder / "tokenizer").mkdir(exist_ok=True)
    for name, content in train_tokenizer(everything, "wordpiece", 60).items():
        (folder / "tokenizer" / name).write_bytes(content)


class Instead(dict):
    """A table that is not merged into the one that is there."""


def changed(table: dict, **changes) -> dict:
    """A copy with keys replaced; a dict is merged into the one that is there, None takes a key away."""
    made = copy.deepcopy(table)
    for key, value in changes.items():
        if value is None:
            made.pop(key, None)
        elif isinstance(value, Instead):
            made[key] = dict(value)
        elif isinstance(value, dict) and isinstance(made.get(key), dict):
            made[key] = changed(made[key], **value)
        else:
            made[key] = value
    return made


def to_toml(table: dict) -> str:
    """As a run file writes it; tables within tables are written inline."""
    return "\n".join(f"{key} = {_inline(value)}" for key, value in table.items()) + "\n"


def _inline(value) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_inline(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value)


def write_run(folder: Path, **changes) -> Path:
    """A run file in ``folder``, where the texts are; returns its path."""
    path = folder / "run.toml"
    path.write_text(to_toml(changed(RUN, **changes)))
    return path


def lines(out: Path, *, kinds=("step", "held_out")) -> list[dict]:
    """Lines of the log without what differs from one machine and moment to the next."""
    events = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    return [
        {key: value for key, value in event.items() if key not in OF_THE_MACHINE}
        for event in events
        if event["event"] in kinds
    ]


def last_tensors(out: Path) -> dict:
    """Everything of the newest checkpoint: weights, moments, masters, averages."""
    newest = max((out / "checkpoints").glob("step-*"))
    return load_file(newest / "tensors.safetensors")


def same_tensors(one: dict, other: dict) -> None:
    """Bit by bit."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype, name
        assert torch.equal(tensor.reshape(-1).view(torch.uint8), other[name].reshape(-1).view(torch.uint8)), (
            name
        )


def last_state(out: Path) -> dict:
    """The numbers of the newest checkpoint, without the run's settings and what depends on the clock."""
    newest = max((out / "checkpoints").glob("step-*"))
    state = json.loads((newest / "state.json").read_text())
    return {key: value for key, value in state.items() if key not in ("settings", "tally")}


def same_run(one: Path, other: Path) -> None:
    """Two folders of runs: log and everything of the newest checkpoint."""
    assert lines(one) == lines(other)
    assert last_state(one) == last_state(other)
    same_tensors(last_tensors(one), last_tensors(other))


class Heard(Callback):
    """A watcher that remembers."""

    def __init__(self):
        self.sentences, self.figures, self.tokenized = [], [], []

    def say(self, sentence):
        self.sentences.append(sentence)

    def tokenizing(self, source, documents, tokens):
        self.tokenized.append((source, documents, tokens))

    def step(self, figures):
        self.figures.append(dict(figures))


class Ended(Exception):
    """As good as a kill: nothing in the program catches it."""


def ended(path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """A run that ends, in an exception of its own, just before the step after so many."""
    from unmask.training.pretrain import pretrain
    from unmask.training.run.loop import Loop

    one_step = Loop.one_step

    def ending(self, metrics):
        if self.step == steps:
            raise Ended
        return one_step(self, metrics)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "one_step", ending)
        with pytest.raises(Ended):
            pretrain(path)
