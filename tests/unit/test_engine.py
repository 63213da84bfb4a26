"""Tasks ask an engine and nothing else: here one in numpy, whose answers are known."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.support.heads import decoded_spec
from tests.support.specs import SPECS, random_encoder
from tests.support.tokenizers_built import of_pieces
from unmask.engines.engine import Engine
from unmask.engines.torch_engine import TorchEngine
from unmask.errors import InvalidRequest
from unmask.spec import Classifier, MaskedLM, PooledVector
from unmask.spec.encoder import head_of, logit_count
from unmask.spec.heads import is_per_token
from unmask.tasks.embed import embed
from unmask.tasks.fill import of_encodings
from unmask.tasks.hidden_states import hidden_states
from unmask.tasks.logits import logits
from unmask.text import PackedBatch

BATCH = PackedBatch.of_ids([[1, 2, 3], [4], [5, 6]])
HEADS = (
    MaskedLM(None),
    Classifier("tokens", 4, "tokens_and_first"),
    Classifier("sequence", 2, "mean"),
    Classifier("next_sentence", 3, "first"),
)
SPEC = replace(SPECS["post-norm"], heads=HEADS)


class Counting:
    """The state of a token is its id; of words, the one after a token is the most probable."""

    dtype, device, outputs = "float32", "nowhere", (PooledVector,)

    def __init__(self, spec):
        self.spec, self.batches = spec, []

    def hidden_states(self, batch, layers="last"):
        self.batches.append(batch.layout.lengths.tolist())
        x_TD = np.repeat(batch.ids_T[:, None], self.spec.width, axis=1).astype(np.float32)
        return np.stack([x_TD] * (len(self.spec.layers) + 1)) if layers == "all" else x_TD

    def logits(self, batch, role, tokens=None):
        ids = batch.ids_T if tokens is None else batch.layout.positions_T[tokens]
        return np.eye(self.spec.embedding.vocabulary, dtype=np.float32)[ids + 1] * 9

    def embed(self, batch, output, *, skipped=0):
        sums = np.add.reduceat(batch.ids_T, batch.layout.offsets[:-1]) / batch.layout.lengths
        return np.repeat(sums[:, None], output.width(self.spec), axis=1).astype(np.float32)


def test_tasks_run_on_any_engine():
    engine: Engine = Counting(SPEC)
    tokenizer = of_pieces()
    encodings = tokenizer.encode_batch(["the river", "bank", "the [MASK] bank [MASK]"])
    ids = [one.ids for one in encodings]
    vectors = embed(engine, PooledVector(), encodings, tokens_per_pass=6)
    np.testing.assert_allclose(vectors[:, 0], [one.mean() for one in ids])
    for states, one in zip(hidden_states(engine, ids, tokens_per_pass=7), ids, strict=True):
        np.testing.assert_array_equal(states[:, 0], one)
    assert engine.batches == [[6], [4, 3]]
    for scores, one in zip(logits(engine, "masked", encodings), ids, strict=True):
        np.testing.assert_array_equal(scores.argmax(1), one + 1)
    reader = SimpleNamespace(spec=SPEC, tokenizer=tokenizer, name="the model")
    (masks,) = of_encodings(reader, encodings[2:], top_k=1)(engine)
    assert [mask.predictions[0].id for mask in masks] == [3, 5]


def test_the_torch_engine_gives_what_the_encoder_does():
    encoder = random_encoder(SPEC, dtype=torch.float64)
    engine = TorchEngine(encoder)
    x_TD = encoder.encode(BATCH).detach().numpy()
    np.testing.assert_array_equal(engine.hidden_states(BATCH), x_TD)
    every = engine.hidden_states(BATCH, "all")
    assert every.shape == (len(engine.spec.layers) + 1, *x_TD.shape)
    np.testing.assert_array_equal(every[-1], x_TD)
    assert (engine.dtype, engine.device) == ("float64", "cpu")
    assert len(encoder.heads) == len(HEADS)
    for role in encoder.heads:
        found = engine.logits(BATCH, role)
        head = head_of(engine.spec, role)
        assert found.shape == (6 if is_per_token(head) else 3, logit_count(engine.spec, head))
        if is_per_token(head):
            some = np.array([4, 0])
            np.testing.assert_allclose(engine.logits(BATCH, role, some), found[some], rtol=1e-9)
        else:
            with pytest.raises(InvalidRequest, match="reads a whole sequence; leave tokens out"):
                engine.logits(BATCH, role, np.array([0]))
    with pytest.raises(InvalidRequest, match="the encoder has no nothing head; it has: "):
        engine.logits(BATCH, "nothing")


def test_words_are_predicted_through_the_enhanced_mask_decoder():
    engine = TorchEngine(random_encoder(decoded_spec(), dtype=torch.float64))
    every, some = engine.logits(BATCH, "enhanced"), np.array([4, 0])
    assert every.shape == (6, 97)
    np.testing.assert_allclose(engine.logits(BATCH, "enhanced", some), every[some], rtol=1e-9)
    direct = TorchEngine(random_encoder(replace(engine.spec, heads=(MaskedLM(None),)), dtype=torch.float64))
    assert np.abs(direct.logits(BATCH, "masked") - every).max() > 1e-3


def test_results_of_narrow_formats_are_float32():
    engine = TorchEngine(random_encoder(SPEC, dtype=torch.bfloat16))
    assert engine.dtype == "bfloat16"
    assert engine.hidden_states(BATCH).dtype == engine.embed(BATCH, PooledVector()).dtype == np.float32
