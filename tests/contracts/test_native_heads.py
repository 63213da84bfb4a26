"""Heads, output layers, activations and tables of positions in numpy beside torch in float64."""

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from tests.support.specs import POST_NORM, random_encoder
from unmask.encoder import heads as modules
from unmask.encoder.layers.parts import ACTIVATIONS
from unmask.engines.native import parts as native_parts
from unmask.engines.native.parts import Heads, activated
from unmask.engines.native.tables import _biases, _rows_of_table
from unmask.errors import InvalidRequest
from unmask.kernels.distances import bucket_rows, table_rows
from unmask.spec import (
    Classifier,
    Dense,
    Disentangled,
    LayerNorm,
    MaskedLM,
    MultiVector,
    PooledVector,
    Reads,
    RelativePositionBias,
    ResidualTransform,
    RMSNorm,
    SparseVector,
    Transform,
    UnitLength,
    role_of,
)
from unmask.spec.embedding_head import output_layers
from unmask.text.batch import SequenceLayout

NORM = LayerNorm(1e-6)
HEADS = {
    "tied words": MaskedLM(Transform(24, "gelu", NORM)),
    "tied words without a bias": MaskedLM(None, bias=False),
    "separate words": MaskedLM(Transform(17, "gelu_tanh", RMSNorm(1e-5), bias=False), tied=False),
    "two biases": MaskedLM(Transform(17, "relu"), tied=False, own_bias=True),
    "its own bias": MaskedLM(Transform(17, "silu"), tied=False, bias=False, own_bias=True),
    "enhanced": MaskedLM(Transform(24, "gelu", NORM), enhanced=True),
    "pooler": Classifier("next_sentence", 2, "pooler"),
    "first": Classifier("sequence", 3, "first", Transform(11, "tanh")),
    "mean": Classifier("sequence", 3, "mean", Transform(24, "gelu", LayerNorm(1e-5, bias=False)), bias=False),
    "late": Classifier("sequence", 3, "late", Transform(11, "gelu", NORM)),
    "tokens": Classifier("tokens", 5, "tokens", input_norm=NORM),
    "tokens and first": Classifier("replaced", 1, "tokens_and_first", Transform(24, "gelu")),
    "residual": Classifier("span", 2, "tokens", ResidualTransform(31, "gelu", LayerNorm(1e-12))),
    "unit length": Classifier("choice", 1, "first", normalize=True, input_norm=RMSNorm(1e-6)),
    "last": Classifier("sequence", 3, "last"),
    "unnormed": Classifier("prune", 2, "unnormed"),
}
LAYOUT = SequenceLayout.of_lengths([5, 1, 17])
LAYERS = (
    Dense(12, activation="gelu"),
    LayerNorm(1e-5),
    Dense(12, bias=False, residual=True),
    UnitLength(),
    Dense(9, activation="tanh", residual=True),
)
CLOSE = {"rtol": 1e-5, "atol": 2e-6}
"""Sums of a few dozen float32 products of numbers around 1 have errors of 1e-6."""


def states(layout=LAYOUT, width=24):
    return np.random.default_rng(3).standard_normal((layout.token_count, width)).astype(np.float32)


def both(spec, output=None):
    """An encoder in float64, and its heads in numpy."""
    encoder = random_encoder(spec, output=output)
    weights = {name: tensor.detach().numpy() for name, tensor in encoder.state_dict().items()}
    heads = Heads(spec, {name: array.copy() for name, array in weights.items()}, output)
    return encoder.double(), heads


@pytest.mark.parametrize("name", HEADS)
def test_every_head_is_that_of_torch(name):
    head = HEADS[name]
    encoder, heads = both(replace(POST_NORM, heads=(head,)))
    x_TD, role = states(), role_of(head)
    with torch.inference_mode():
        wanted = encoder.logits(role, torch.from_numpy(x_TD).double(), LAYOUT).numpy()
    found = heads.logits(role, x_TD, LAYOUT)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, **CLOSE)
    chosen = np.array([7, 0, 22])
    if len(wanted) == LAYOUT.token_count:
        np.testing.assert_allclose(heads.logits(role, x_TD, LAYOUT, chosen), wanted[chosen], **CLOSE)
        return
    with pytest.raises(InvalidRequest, match="reads a whole sequence; leave tokens out"):
        heads.logits(role, x_TD, LAYOUT, chosen)


@pytest.mark.parametrize("name", ["tied words", "first", "mean", "tokens", "pooler"])
def test_heads_beside_one_without_the_final_norm_begin_with_it(name):
    """States are those before the norm: the other heads give what they give on an encoder that ends in it."""
    head, pruner = HEADS[name], HEADS["unnormed"]
    encoder, heads = both(replace(POST_NORM, final_norm=NORM, heads=(head, pruner)))
    ids_T = torch.arange(LAYOUT.token_count) % 90
    with torch.inference_mode():
        x_TD = encoder(ids_T, LAYOUT)
        wanted = encoder.logits(role_of(head), x_TD, LAYOUT)
        plain = random_encoder(replace(encoder.spec, heads=(head,)), dtype=torch.float64)
        plain.load_state_dict({k: v for k, v in encoder.state_dict().items() if ".prune." not in k})
        normed_TD = plain(ids_T, LAYOUT)
        assert torch.allclose(encoder.final_norm(x_TD), normed_TD)
        assert not torch.allclose(x_TD, normed_TD)
        assert torch.allclose(plain.logits(role_of(head), normed_TD, LAYOUT), wanted)
        of_pruner = encoder.logits("prune", x_TD, LAYOUT).numpy()
        assert np.allclose(of_pruner, encoder.heads["prune"](x_TD).numpy())
    x_TD = x_TD.float().numpy()
    np.testing.assert_allclose(heads.logits(role_of(head), x_TD, LAYOUT), wanted.numpy(), **CLOSE)
    np.testing.assert_allclose(heads.logits("prune", x_TD, LAYOUT), of_pruner, **CLOSE)


def test_the_heads_of_these_tests_are_of_every_kind():
    classifiers = [head for head in HEADS.values() if isinstance(head, Classifier)]
    assert {head.reads for head in classifiers} == set(get_args(Reads))
    assert {type(head.transform) for head in HEADS.values()} == {type(None), Transform, ResidualTransform}


@pytest.mark.parametrize("dimensions", [None, 4])
def test_layers_after_pooling_are_those_of_torch(dimensions):
    output = PooledVector(("mean", "cls"), True, (*LAYERS, UnitLength()), dimensions)
    encoder, heads = both(POST_NORM, output)
    x_TD = states()
    for skipped in (0, 1):
        layout = SequenceLayout.of_lengths([5, 2, 16])
        wanted = modules.embed(
            torch.from_numpy(x_TD).double(), layout, output, encoder.output, skipped=skipped
        )
        found = heads.embed(x_TD, layout, output, skipped=skipped)
        np.testing.assert_allclose(found, wanted.detach().numpy(), **CLOSE)
    plain = PooledVector(("max",))
    np.testing.assert_allclose(heads.embed(x_TD, LAYOUT, plain)[1], x_TD[5])
    with pytest.raises(InvalidRequest, match="2 layers after pooling and the encoder has 6"):
        heads.embed(x_TD, LAYOUT, replace(output, projections=LAYERS[:2]))
    assert len(output_layers(output)) == len(encoder.output)


def test_vectors_of_tokens_are_those_of_torch():
    for normalize in (True, False):
        output = MultiVector(LAYERS, normalize=normalize)
        encoder, heads = both(POST_NORM, output)
        x_MD = states()[:6]
        wanted = modules.token_vectors(torch.from_numpy(x_MD).double(), encoder.output, normalize=normalize)
        np.testing.assert_allclose(heads.token_vectors(x_MD, output), wanted.detach().numpy(), **CLOSE)


@pytest.mark.parametrize("pooling", ["max", "sum"])
@pytest.mark.parametrize("activation", ["log1p_relu", "log1p_log1p_relu"])
def test_weights_of_words_are_those_of_torch(pooling, activation, monkeypatch):
    output = SparseVector(pooling, activation)
    encoder, heads = both(replace(POST_NORM, heads=(HEADS["tied words"],)), output)
    x_ND = states()
    wanted = modules.word_weights(
        torch.from_numpy(x_ND).double(), lambda x: encoder.logits("masked", x, LAYOUT), output
    )
    for at_once in (256, 4):
        monkeypatch.setattr(native_parts, "TOKENS_AT_ONCE", at_once)
        np.testing.assert_allclose(heads.word_weights(x_ND, output), wanted.detach().numpy(), **CLOSE)
    halves = Heads(encoder.spec, heads._weights, output, in_halves=True)
    halves.read()
    found, exact = halves.word_weights(x_ND, output), wanted.detach().numpy()
    assert 1e-5 < np.linalg.norm(found - exact) / np.linalg.norm(exact) < 0.01, "bfloat16 has 8 bits"


def test_weights_of_words_for_queries():
    output = SparseVector(static_queries=True)
    encoder, heads = both(replace(POST_NORM, heads=(HEADS["tied words"],)), output)
    np.testing.assert_array_equal(heads.static_weights(), encoder.output[0].weight.detach().numpy())
    with pytest.raises(InvalidRequest, match="no weights of words for queries"):
        both(POST_NORM)[1].static_weights()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_torch(name):
    x = np.concatenate([np.linspace(-40, 40, 40_001), [0.0, -0.0, 1e-30, -1e-30, -1e30, 1e30]])
    x = x.astype(np.float32)[None]
    wanted = ACTIVATIONS[name](torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(activated(name, x), wanted, rtol=3e-7, atol=3e-7)
    odd = np.array([[np.nan, np.inf]], np.float32)
    assert np.isnan(activated(name, odd)[0, 0])


def test_gelu_has_small_values_right():
    """Far left of 0, where 1 + erf would lose all digits."""
    x = -np.linspace(0.1, 12, 500, dtype=np.float32)
    exact = [value * math.erfc(-value / math.sqrt(2)) / 2 for value in x.tolist()]
    np.testing.assert_allclose(activated("gelu", x), exact, rtol=2e-6, atol=0)


@pytest.mark.parametrize(
    "position",
    [
        Disentangled(512),
        Disentangled(512, clamped=True),
        Disentangled(512, buckets=256),
        Disentangled(64, buckets=32, clamped=True),
    ],
    ids=str,
)
def test_rows_of_disentangled_positions_are_those_of_torch(position):
    for length in (1, 2, 63, 64, 65, 700, 5000):
        wanted = table_rows(-torch.arange(1 - length, length), position)
        np.testing.assert_array_equal(_rows_of_table(position, length)[0], wanted.numpy())


@pytest.mark.parametrize("buckets", [4, 8, 32, 64, 128])
@pytest.mark.parametrize("max_distance", [40, 64, 128, 1000, 4096])
def test_buckets_of_relative_biases_are_those_of_torch(buckets, max_distance):
    position = RelativePositionBias(buckets, max_distance)
    rows = np.arange(buckets, dtype=np.float32)[:, None]
    for length in (1, 2, 33, 9000):
        wanted = bucket_rows(-torch.arange(1 - length, length), position)
        np.testing.assert_array_equal(_biases(position, rows, length)[0], wanted.numpy())
