"""Every task, command and request of inference where torch is not installed, beside the same in torch."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import unmask
from tests.support.every_task import of_models
from tests.support.places import REPOSITORY
from tests.support.specs import random_encoder
from tests.support.tiny import tiny_bert, write_checkpoint, write_tokenizer
from unmask.engines.native import library
from unmask.spec import Dense, LayerNorm, MultiVector, PairScore, PooledVector, SparseVector, UnitLength
from unmask.weights.write.save import save

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        isinstance(library.connected(), str), reason=f"no native library here: {library.connected()}"
    ),
]
DENSE = (Dense(12, activation="gelu"), LayerNorm(1e-5), Dense(9, residual=True), UnitLength())
OUTPUTS = {
    "dense": ("vectors", PooledVector(("mean", "cls"), True, DENSE)),
    "colbert": ("vectors", MultiVector((Dense(7, bias=False),))),
    "splade": ("words", SparseVector()),
    "inference-free": ("words", SparseVector("sum", "log1p_log1p_relu", static_queries=True)),
    "cross": ("scores", PairScore(activation="sigmoid")),
}
"""What each model gives, and the model whose layers and heads it has."""
KINDS = {
    "vectors": ("BertModel", {}),
    "words": ("BertForMaskedLM", {}),
    "scores": ("BertForSequenceClassification", {"num_labels": 1}),
    "labels": ("BertForSequenceClassification", {"id2label": {0: "bad", 1: "good", 2: "neither"}}),
    "tags": ("BertForTokenClassification", {"id2label": {0: "O", 1: "B-A", 2: "I-A"}}),
    "answers": ("BertForQuestionAnswering", {}),
    "choices": ("BertForMultipleChoice", {}),
    "follows": ("BertForNextSentencePrediction", {}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of tiny random models, one for each task."""
    place = tmp_path_factory.mktemp("models")
    for name, (kind, changes) in KINDS.items():
        model = tiny_bert(kind, max_position_embeddings=48, **changes)
        write_checkpoint(place / name, model, sentence=False)
        write_tokenizer(place / name)
    for name, (base, output) in OUTPUTS.items():
        checkpoint = unmask.load(place / base).checkpoint
        encoder = random_encoder(checkpoint.spec, output=output)
        if isinstance(output, SparseVector):  # weights of words of about 1
            with torch.no_grad():
                encoder.heads["masked"].bias += 0.3
        save(encoder, replace(checkpoint, head=output), place / name)
    return place


def run(folder, dtype, place=""):
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.every_task", folder, dtype, place],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_task_command_and_request_runs_without_torch(folder, tmp_path):
    pytest.importorskip("httpx", reason="starlette's test client needs httpx")
    found = run(folder, "float32", tmp_path)
    wanted = of_models(folder, backend="torch", dtype="float64")
    assert found["models"].keys() == wanted.keys()
    for name, rows in wanted.items():
        # float32 through three layers with uneven attention.
        np.testing.assert_allclose(found["models"][name], rows, atol=2e-5, rtol=1e-4, err_msg=name)
    for path, (status, answer) in found["requests"].items():
        if path == "/v1/attention":
            assert status == 501, answer
            assert "torch is needed for" in answer
        else:
            assert status == 200, (path, answer)
    for name, printed in found["commands"].items():
        assert printed, name
        assert not printed.startswith("exit"), (name, printed)


BANDS = {"bfloat16": 0.1, "int8": 0.25}
"""The largest relative L2 distance: that of logits in test_precisions, and more for their probabilities."""


@pytest.mark.parametrize("dtype", BANDS)
def test_every_task_runs_in_fewer_bits_without_torch(folder, dtype):
    if dtype not in library.connected().precisions:
        pytest.skip(f"this processor has no products in {dtype}")
    found, wanted = run(folder, dtype)["models"], of_models(folder, backend="torch")
    for name, rows in wanted.items():
        distance = np.linalg.norm(np.subtract(found[name], rows)) / np.linalg.norm(rows)
        assert distance < BANDS[dtype], (name, distance)


def test_every_task_runs_in_bfloat16(folder):
    if "bfloat16" not in library.connected().precisions:
        pytest.skip("this processor has no products in bfloat16")
    found, wanted = of_models(folder, dtype="bfloat16", backend="native"), of_models(folder, backend="torch")
    for name, rows in wanted.items():
        distance = np.linalg.norm(np.subtract(found[name], rows)) / np.linalg.norm(rows)
        assert distance < BANDS["bfloat16"], (name, distance)


NEEDING_TORCH = """
import sys
sys.modules["torch"] = None
import unmask
model = unmask.load("default")
for name, call in {
    "states of all": lambda: model.engine.hidden_states(None, "all"),
    "attention": lambda: model.attention("a text"),
    "training": lambda: model.trainable_encoder(),
    "finetune": lambda: unmask.finetune,
    "interpret": lambda: unmask.interpret.AttentionView,
    "linear attention": lambda: unmask.load("variant/linear"),
    "backend": lambda: unmask.load("default", backend="torch"),
}.items():
    try:
        call()
    except unmask.errors.MissingExtra as error:
        assert str(error).startswith("torch is needed for "), error
        assert str(error).endswith(": pip install 'unmask[torch]'"), error
    else:
        raise AssertionError(name)
from unmask.cli.main import main
sys.argv = ["unmask", "kernels"]
main()
"""


def test_what_needs_torch_says_so_in_one_sentence():
    done = subprocess.run(
        [sys.executable, "-c", NEEDING_TORCH], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr.splitlines() == [
        "unmask: torch is needed for unmask kernels: pip install 'unmask[torch]'"
    ]
    assert done.returncode == 1
