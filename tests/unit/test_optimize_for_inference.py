"""The rewritten encoder against the plain one, and what `Model` does with the two."""

import copy
import os

import numpy as np
import pytest
import torch

import unmask
from tests.support.specs import SPECS, global_tokens, random_encoder
from unmask.encoder.layers.parts import ACTIVATIONS, ExpertNetwork, PlainNetwork
from unmask.engines.inference import (
    QuantizedLinear,
    linear,
    optimize_for_inference,
    unsupported_reason,
)
from unmask.engines.inference.linear import OPERATIONS, PackedLinear
from unmask.errors import CorruptCheckpoint, InvalidRequest
from unmask.text import PackedBatch

LENGTHS = (12, 1, 18)
BATCH = PackedBatch.of_ids(
    [range(12), [7], range(40, 58)], None, [global_tokens(length) for length in LENGTHS]
)

BOUNDS = {"float32": 1e-5, "bfloat16": 0.06, "int8": 0.12}
"""Largest difference, as a share of the largest value. In bfloat16 both sides round after every operation,
at other places; int8 is compared with float32. Tiny random encoders are far worse than trained ones."""

TEXTS = ["a short text", "the second one is a little longer than that", "word " * 40, "x"]


def needs(dtype):
    reason = unsupported_reason(dtype)
    return pytest.mark.skipif(reason is not None, reason=str(reason))


DTYPES = [pytest.param(dtype, marks=needs(dtype)) for dtype in BOUNDS]


def refuses(name, dtype):
    """Whether a mixture of experts or a network in groups, which have no products of 8-bit integers, is
    refused."""
    experts = "a mixture of experts"
    kind = {"experts": experts, "sinks": experts, "spans": "a network in groups"}.get(name)
    if kind is None or dtype != "int8":
        return False
    with pytest.raises(InvalidRequest, match=f"{kind} has no products of 8-bit integers"):
        optimize_for_inference(random_encoder(SPECS[name]), dtype)
    return True


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECS)
def test_the_rewritten_encoder_equals_the_plain_one(name, dtype):
    if refuses(name, dtype):
        return
    plain = random_encoder(SPECS[name], dtype=torch.bfloat16 if dtype == "bfloat16" else torch.float32)
    fast = optimize_for_inference(copy.deepcopy(plain), dtype)
    kind = QuantizedLinear if dtype == "int8" else PackedLinear
    kept = sum(isinstance(block.feedforward, ExpertNetwork | PlainNetwork) for block in fast.layers)
    linears = sum(isinstance(module, kind) for module in fast.modules())
    assert linears >= 4 * len(fast.layers) - (0 if dtype == "int8" else 2 * kept)
    with torch.inference_mode():
        expected, found = plain.encode(BATCH).float(), fast.encode(BATCH).float()
    assert (found - expected).abs().max() <= BOUNDS[dtype] * expected.abs().max()


@pytest.mark.skipif(unsupported_reason("int8") is not None, reason=str(unsupported_reason("int8")))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_largest_value_of_a_token_is_never_beyond_8_bits(dtype):
    """Scales are rounded to the token's type; one more than 255 would come out as 0, with the other sign."""
    layer = QuantizedLinear(torch.eye(16), None, dtype)
    largest_T = torch.cat([(1 + torch.arange(128) / 128) * 2.0**power for power in (-20, 0, 9)])
    x_TK = largest_T[:, None] * torch.linspace(-1, 1, 16)
    with torch.inference_mode():
        y_TN = layer(x_TK.to(dtype)).float()
    assert (y_TN - x_TK.to(dtype).float()).abs().amax(1).div(largest_T).max() < 0.01


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECS)
def test_no_text_can_tell_what_it_runs_beside(name, dtype):
    if refuses(name, dtype):
        return
    # Which instructions oneDNN takes depends on the number of tokens, so sums round in another order; where
    # a text's tokens are quantized, that can move a value to the next integer.
    dtype_of = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    fast = optimize_for_inference(random_encoder(SPECS[name], dtype=dtype_of), dtype)
    other = PackedBatch.of_ids([BATCH.ids_T[:12], range(30)], None, [global_tokens(12), []])
    with torch.inference_mode():
        beside, apart = fast.encode(BATCH)[:12].float(), fast.encode(other)[:12].float()
    assert (beside - apart).abs().max() <= BOUNDS[dtype] * apart.abs().max()


@pytest.mark.parametrize("activation", [name for name in OPERATIONS if name])
def test_a_fused_activation_is_the_activation(activation):
    layer = torch.nn.Linear(7, 5)
    x = torch.randn(9, 7) * 3
    found = PackedLinear(layer.weight, layer.bias, activation)(x)
    torch.testing.assert_close(found, ACTIVATIONS[activation](layer(x)), rtol=1e-5, atol=1e-5)


def test_integers_are_scaled_by_row_and_by_token():
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(6, 40, generator=generator), torch.randn(6, generator=generator)
    weight[0] *= 1000  # neither a great row nor a great token takes precision from the others
    x = torch.randn(5, 40, generator=generator)
    x[1], x[2] = x[1] * 1e4, 0.0
    layer = QuantizedLinear(weight, bias, torch.float32)
    found, expected = layer(x), x.double() @ weight.double().T + bias.double()
    w_scale = weight.abs().amax(1).double() / linear.largest_weight()
    x_scale = x.abs().amax(1).double() / 127
    # Rounding is off by half a step on either side.
    bound = (
        x_scale[:, None] * weight.abs().sum(1).double() / 2
        + w_scale * x.abs().sum(1, keepdim=True).double() / 2
        + 40 * x_scale[:, None] * w_scale / 4
    )
    assert ((found - expected).abs() <= bound * 1.001 + 1e-6).all()
    assert torch.equal(found[2], bias)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_default_model_embeds_as_the_plain_one(dtype):
    model = unmask.load("default", dtype=dtype)
    assert model.dtype == dtype
    found = model.embed(TEXTS)
    expected = unmask.load("default", dtype="float64").embed(TEXTS)
    cosines = (found * expected).sum(1)
    assert cosines.min() > {"float32": 1 - 1e-6, "bfloat16": 0.999, "int8": 0.96}[dtype]
    running = model.encoder
    assert running is not model.trainable_encoder()


def test_the_plain_encoder_takes_over_once_it_is_asked_for():
    model = unmask.load("default")
    assert any(isinstance(module, PackedLinear) for module in model.encoder.modules())
    before = model.embed(TEXTS)
    plain = model.trainable_encoder()
    assert model.encoder is plain is model.trainable_encoder()
    np.testing.assert_allclose(model.embed(TEXTS), before, rtol=0, atol=1e-6)
    with torch.no_grad():
        plain.embedding.words.weight.mul_(1.5).add_(0.1 * torch.randn_like(plain.embedding.words.weight))
    assert np.abs(model.embed(TEXTS) - before).max() > 1e-3


def test_saving_writes_the_plain_weights(tmp_path):
    model = unmask.load("default", dtype="int8")
    model.save(tmp_path / "saved")
    assert model.dtype == "int8"
    again = unmask.load(tmp_path / "saved")
    np.testing.assert_array_equal(again.embed(TEXTS), unmask.load("default").embed(TEXTS))


def test_weights_that_changed_on_disk_are_not_mixed_with_those_that_run(tmp_path):
    unmask.load("default").save(tmp_path / "model")
    model = unmask.load(tmp_path / "model")
    unmask.load("default", dtype="bfloat16").save(tmp_path / "other")
    os.replace(tmp_path / "other" / "model.safetensors", tmp_path / "model" / "model.safetensors")
    assert model.embed(TEXTS).shape == (4, 384)
    with pytest.raises(CorruptCheckpoint, match="have changed on disk"):
        model.trainable_encoder()


def test_types_without_a_fast_path_run_plainly(monkeypatch):
    model = unmask.load("default", dtype="float64")
    assert model.encoder is model.trainable_encoder()
    monkeypatch.setattr(linear, "onednn_takes", lambda dtype: False)
    assert unmask.load("default", backend="torch").encoder.spec == model.spec
    with pytest.raises(InvalidRequest, match=r"dtype is int8, and this torch was built without oneDNN; take"):
        unmask.load("default", dtype="int8", backend="torch")
    assert "runs on cpu, not on cuda" in (unsupported_reason("float32", "cuda") or "")
    with pytest.raises(InvalidRequest, match="dtype is 'int4'"):
        unmask.load("default", dtype="int4")
