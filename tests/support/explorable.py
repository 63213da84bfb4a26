"""A small real model with random weights: everything the explorer shows, and ready in no time."""

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

import unmask
from tests.support.tiny import VOCABULARY
from unmask.models.load import Model
from unmask.weights.write.new_checkpoint import new_checkpoint, new_encoder
from unmask.weights.write.save import save

LAYERS, HEADS, WIDTH = 3, 4, 16
NAME = "fake"
FILES = {"vocab.txt": ("\n".join(VOCABULARY) + "\n").encode()}
"""Words of letters; what is not in it, such as an emoji, is unknown to it."""

CONFIG = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "vocab_size": len(VOCABULARY),
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "initializer_range": 0.5,
}


def FakeModel(name: str = NAME, *, max_tokens: int = 32, seed: int = 0, **config: object) -> Model:
    """A BERT of 3 layers of 4 heads that reads ``max_tokens`` tokens and predicts masked words.

    ``config``: other keys of its config.json; ``architectures=["BertModel"]`` takes its head away.
    """
    made = CONFIG | {"max_position_embeddings": max_tokens} | config
    return unmask.load(folder_of(name, seed, json.dumps(made, sort_keys=True)))


@cache
def folder_of(name: str, seed: int, config: str) -> Path:
    """The checkpoint's folder, which is gone when the tests have ended."""
    root = Path(tempfile.mkdtemp(prefix="unmask-fake-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    checkpoint = new_checkpoint(json.loads(config), FILES, name=name)
    save(new_encoder(checkpoint, seed=seed), checkpoint, root / name)
    return root / name
