"""Every family and head in every number format on every backend: like float32 in torch, or refused.

The models are those of the contract with `transformers`, with sparse attention in use. A refusal is one
sentence when the model is loaded, before any text is read.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

import unmask
from tests.contracts.cases import cases
from tests.contracts.test_transformers import places_of, random_model, texts_of, write_vocabulary
from tests.support.command import run_here
from unmask.engines.inference import linear
from unmask.engines.inference.optimize import InferenceEncoder
from unmask.engines.native import library
from unmask.engines.native.engine import NativeEngine
from unmask.errors import InvalidRequest
from unmask.spec import role_of
from unmask.text import PackedBatch
from unmask.weights.read.checkpoint_tensors import DTYPE_NAMES

BANDS = {"float64": 1e-5, "float32": 1e-5, "bfloat16": 0.06, "float16": 0.01, "int8": 0.25}

"""The largest relative L2 distance to float32 in torch."""
BACKENDS = ("native", "torch")
CASES = cases()
FIRST = list({case.model: case for case in reversed(CASES)}.values())[::-1]
"""The first case of each class: one for each family and head."""


def band(case, dtype):
    """Which of several experts a token chooses depends on the last bits of its state."""
    return BANDS[dtype] * (2 if "PrivacyFilter" in case.model and dtype == "bfloat16" else 1)


def outputs(model, batch):
    """The last hidden states and the logits of every head."""
    found = {"states": model.engine.hidden_states(batch)}
    for head in model.spec.heads:
        found[role_of(head)] = model.engine.logits(batch, role_of(head))
    return {name: np.asarray(value, np.float64) for name, value in found.items()}


def distance(a, b):
    return np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-3)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=str(case), marks=[] if case in FIRST else [pytest.mark.slow]) for case in CASES],
)
def test_every_format_agrees_or_is_refused_by_name(case, tmp_path):
    theirs = random_model(case).float()
    theirs.save_pretrained(tmp_path)
    write_vocabulary(tmp_path, case.vocabulary)
    ids, segments = texts_of(case, theirs)
    marked = [places_of(case, len(text)) for text in ids] if case.global_tokens else None
    batch = PackedBatch.of_ids(ids, segments, marked)
    expected = outputs(unmask.load(tmp_path, backend="torch", compat=case.compat), batch)
    for dtype in (*DTYPE_NAMES, "int8"):
        for backend in BACKENDS:
            try:
                model = unmask.load(tmp_path, dtype=dtype, backend=backend, compat=case.compat)
            except InvalidRequest as refusal:
                assert backend == "native" or dtype == "int8", refusal  # noqa: PT017 - torch runs the rest
                continue
            assert model.dtype == dtype
            for name, value in outputs(model, batch).items():
                assert distance(value, expected[name]) < band(case, dtype), (dtype, backend, name)


def missing_precision(monkeypatch, precision):
    """This processor without matrix products in a number format."""
    found = library.connected()
    if isinstance(found, str):
        return
    left = tuple(name for name in found.precisions if name != precision)
    monkeypatch.setattr(library, "connected", lambda: replace(found, precisions=left))


PROCESSORS = {
    "as it is": lambda monkeypatch: None,
    "without int8": lambda monkeypatch: missing_precision(monkeypatch, "int8"),
    "without bfloat16": lambda monkeypatch: missing_precision(monkeypatch, "bfloat16"),
    "not built": lambda monkeypatch: monkeypatch.setattr(library, "connected", lambda: "it was not built"),
    "without oneDNN": lambda monkeypatch: (
        monkeypatch.setattr(library, "connected", lambda: "it was not built"),
        monkeypatch.setattr(linear, "onednn_takes", lambda dtype: False),
    ),
}


@pytest.mark.parametrize("model", ["variant/disentangled", "variant/linear", "variant/local-global"])
@pytest.mark.parametrize("processor", PROCESSORS)
def test_what_kernels_says_of_a_model_is_what_load_does(processor, model, monkeypatch):
    PROCESSORS[processor](monkeypatch)
    said = json.loads(run_here("kernels", "-m", model, "--json").out)["inference"]
    assert set(said) == {*DTYPE_NAMES, "int8"}
    for dtype, row in said.items():
        if row["backend"] == "nothing":
            with pytest.raises(InvalidRequest) as refused:
                unmask.load(model, dtype=dtype)
            assert str(refused.value) == row["reason"]
            continue
        engine = unmask.load(model, dtype=dtype).engine
        assert isinstance(engine, NativeEngine) == row["backend"].startswith("native")
        if not isinstance(engine, NativeEngine):
            packed = isinstance(engine.encoder, InferenceEncoder)
            assert packed == ("packed" in row["backend"])
            assert row["reason"]
