"""Published weights of two families beside `sentence-transformers` and `transformers`, in both engines.

`scripts/real_weights.py` fetches the weights; without them these tests are skipped.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import unmask
from unmask.engines.native.library import library_reason

transformers = pytest.importorskip("transformers", reason="the reference implementation is not installed")

TEXTS = [
    "The river bank was muddy.",
    "Ein Wort, two words; 三個 words 🙂 and ümläute",
    "a",
    "  white\tspace\n\n around  ",
    "A longer text about the capital of France, which is Paris, and about its river. " * 4,
]
MASKED = [
    "The capital of France is [MASK].",
    "The old [MASK] opened the [MASK] and went in.",
    "[MASK]",
    "She paid the money into the [MASK] on Monday, as she had done for years.",
]

backends = pytest.mark.parametrize("backend", ["torch", "native"])


@pytest.fixture(scope="module")
def weights():
    """The folder of a model by its name."""

    def folder(name):
        into = os.environ.get("UNMASK_REAL_WEIGHTS")
        if not into:
            pytest.skip("UNMASK_REAL_WEIGHTS names no folder of weights; see scripts/real_weights.py")
        if not (path := Path(into) / name).is_dir():
            pytest.skip(f"{into} holds no {name}; scripts/real_weights.py fetches it")
        return path

    return folder


def load(folder, backend, dtype="float32"):
    if backend == "native" and (reason := library_reason(dtype)):
        pytest.skip(reason)
    return unmask.load(folder, backend=backend, dtype=dtype)


@pytest.fixture(scope="module")
def mpnet(weights):
    """MPNet's folder, and the vectors of `sentence-transformers`."""
    folder = weights("all-mpnet-base-v2")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    return folder, sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)


@backends
def test_vectors_of_mpnet_equal_those_of_sentence_transformers(mpnet, backend):
    folder, expected = mpnet
    vectors = load(folder, backend).embed(TEXTS)
    assert vectors.shape == (len(TEXTS), 768)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=2e-6)


@backends
def test_the_cosine_of_mpnet_in_other_formats(mpnet, backend):
    folder, expected = mpnet
    for dtype, least in (("bfloat16", 0.9999), ("int8", 0.99)):
        cosines = (load(folder, backend, dtype).embed(TEXTS) * expected).sum(axis=1)
        assert least <= cosines.min(), dtype
        assert cosines.max() < 1 - 1e-9, f"{dtype} computed in float32"


@pytest.fixture(scope="module")
def bert_tiny(weights):
    """BERT-tiny's folder, and for each masked text the logits of `transformers`."""
    folder = weights("bert-tiny")
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        logits = [model(**tokenizer(text, return_tensors="pt")).logits[0].numpy() for text in MASKED]
    return folder, logits


@backends
def test_logits_of_bert_tiny_with_old_names_equal_those_of_transformers(bert_tiny, backend):
    folder, expected = bert_tiny
    assert b"LayerNorm.gamma" in (folder / "model.safetensors").read_bytes()[:100_000], "the names are new"
    found = load(folder, backend).logits(MASKED)
    for text, logits_TV, expected_TV in zip(MASKED, found, expected, strict=True):
        np.testing.assert_allclose(logits_TV, expected_TV, rtol=0, atol=3e-5, err_msg=text)


@backends
def test_bert_tiny_in_int8(bert_tiny, backend):
    folder, expected = bert_tiny
    found = load(folder, backend, "int8").logits(MASKED)
    for text, logits_TV, expected_TV in zip(MASKED, found, expected, strict=True):
        lengths = np.linalg.norm(logits_TV) * np.linalg.norm(expected_TV)
        assert 0.9999 < (logits_TV * expected_TV).sum() / lengths < 1 - 1e-6, text
