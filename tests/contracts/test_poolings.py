"""Every pooling is computed by name in every engine, and heads take states of any precision."""

from typing import get_args

import numpy as np
import pytest
import torch

from tests.support.heads import spec_with_heads
from tests.support.specs import random_encoder
from unmask.encoder.heads import pool, pool_padded
from unmask.engines.native.engine import NativeEngine
from unmask.engines.native.parts import Heads, pooled
from unmask.spec import POOLING, PoolingMode
from unmask.text.batch import PackedBatch, SequenceLayout

LAYOUT = SequenceLayout.of_lengths([3, 5])
X_TD = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)


def by_torch(mode):
    return pool(torch.from_numpy(X_TD), LAYOUT, mode).numpy()


def by_numpy(mode):
    return pooled(X_TD, LAYOUT, mode)


def by_graph(mode):
    x_BND, present_BN = torch.zeros(2, 5, 4), torch.tensor([[1, 1, 1, 0, 0], [1] * 5])
    x_BND[0, :3], x_BND[1] = torch.from_numpy(X_TD[:3]), torch.from_numpy(X_TD[3:])
    return pool_padded(x_BND, present_BN, mode).numpy()


DEFINED = {
    "cls": lambda x_ND: x_ND[0],
    "last": lambda x_ND: x_ND[-1],
    "max": lambda x_ND: x_ND.max(0),
    "mean": lambda x_ND: x_ND.mean(0),
    "mean_sqrt_len": lambda x_ND: x_ND.sum(0) / np.sqrt(len(x_ND)),
    "weighted_mean": lambda x_ND: np.average(x_ND, 0, np.arange(1, len(x_ND) + 1)),
}


def test_several_poolings_are_concatenated_in_the_order_of_sentence_transformers():
    assert list(POOLING) == ["cls", "max", "mean", "mean_sqrt_len", "weighted_mean", "last"]


@pytest.mark.parametrize("engine", [by_torch, by_numpy, by_graph])
def test_every_pooling_is_its_definition_and_another_is_an_error(engine):
    assert set(DEFINED) == set(POOLING) == set(get_args(PoolingMode))
    for mode, defined in DEFINED.items():
        expected = np.stack([defined(X_TD[:3]), defined(X_TD[3:])])
        assert engine(mode) == pytest.approx(expected, abs=1e-6), mode
    with pytest.raises(AssertionError, match="min"):
        engine("min")


@pytest.mark.parametrize("name", ["windows-globals", "blocks"])
def test_heads_read_what_torch_computes_in_another_precision(name):
    """As in int8, where attention that the library lacks runs in bfloat16, and heads are in float32."""
    spec = spec_with_heads(name)
    encoder, low = random_encoder(spec), random_encoder(spec, dtype=torch.bfloat16)

    class Layers:
        def __init__(self):
            self.spec = spec

    weights = {name: tensor.numpy() for name, tensor in encoder.state_dict().items()}
    engine = NativeEngine(Layers(), "int8", Heads(spec, weights), lambda: low)
    batch = PackedBatch.of_ids([list(range(1, 40)), [5, 6, 7]], global_tokens=[[0], [0]])
    expected = encoder.encode(batch)
    for role in ("masked", "tokens", "sequence"):
        logits = np.asarray(engine.logits(batch, role))
        assert logits.dtype == np.float32
        assert np.isfinite(logits).all()
    assert torch.nn.functional.cosine_similarity(low.encode(batch).float(), expected).min() > 0.99
