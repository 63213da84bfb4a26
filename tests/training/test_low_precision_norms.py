"""LayerNorms in the dtype of autocast, as an option of training runs."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support.specs import SPECS, random_encoder
from tests.training.runs import Instead, write_run, write_texts
from unmask.encoder.layers.parts import AutocastLayerNorm, lower_norms
from unmask.engines.native.training import normalized_sum
from unmask.errors import InvalidRequest
from unmask.text import PackedBatch
from unmask.training.pretrain import pretrain
from unmask.training.pretrain import run as pretraining


def computed(encoder):
    """The dtypes that the norms of an encoder give under autocast."""
    dtypes = set()
    norms = [part for part in encoder.modules() if isinstance(part, nn.LayerNorm)]
    assert norms
    for norm in norms:
        norm.register_forward_hook(lambda _module, _inputs, output: dtypes.add(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        encoder.encode(PackedBatch.of_ids([[3, 4, 5], [6, 7]]))
    return dtypes


def test_norms_are_computed_in_float32_unless_they_are_lowered():
    encoder = random_encoder(SPECS["post-norm"]).train()
    assert computed(encoder) == {torch.float32}
    assert lower_norms(encoder) == sum(isinstance(part, nn.LayerNorm) for part in encoder.modules())
    assert computed(encoder) == {torch.bfloat16}


def test_a_teacher_keeps_its_norms():
    encoder = random_encoder(SPECS["post-norm"]).requires_grad_(False)
    assert lower_norms(encoder) == 0
    assert computed(encoder) == {torch.float32}


def test_a_lowered_norm_is_that_of_rounded_numbers_under_autocast_only():
    torch.manual_seed(0)
    norm = AutocastLayerNorm(32, eps=1e-5)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(5, 32)
    plain = norm(x)
    lower_norms(norm)
    assert norm(x).equal(plain)
    with torch.autocast("cpu", torch.bfloat16):
        low = norm(x)
    rounded = functional.layer_norm(x.bfloat16(), (32,), norm.weight.bfloat16(), norm.bias.bfloat16(), 1e-5)
    assert low.equal(rounded)
    assert not low.float().equal(plain)
    torch.testing.assert_close(low.float(), plain, atol=3e-2, rtol=2e-2)


def test_the_native_sum_leaves_a_lowered_norm_to_torch():
    norm = AutocastLayerNorm(32)
    x = torch.randn(4, 32)
    norm.low_precision = True
    assert normalized_sum(x, x, norm, 0.0) is None


def test_a_run_lowers_its_norms(tmp_path, monkeypatch):
    write_texts(tmp_path)
    numbers = []

    def counted(module):
        numbers.append(lower_norms(module))
        return numbers[-1]

    monkeypatch.setattr(pretraining, "lower_norms", counted)
    losses = {}
    for low in (False, True):
        run = {"precision": "autocast", "low_precision_norms": low, "out": f"run-{low}", "steps": 6}
        losses[low] = pretrain(write_run(tmp_path, **run)).held_out["masked/loss"]
    assert numbers == [4]  # of the embedding, two of the layer, one of the head
    assert losses[True] != losses[False]
    assert losses[True] == pytest.approx(losses[False], abs=0.02)


def test_what_lowers_nothing_is_refused(tmp_path):
    write_texts(tmp_path)
    with pytest.raises(InvalidRequest, match='low_precision_norms is true and precision is "float32"'):
        pretrain(write_run(tmp_path, low_precision_norms=True))
    neobert = {"model_type": "neobert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    run = {"precision": "autocast", "model": Instead({"config": neobert})}
    with pytest.raises(InvalidRequest, match="the encoder has no LayerNorm"):
        pretrain(write_run(tmp_path, low_precision_norms=True, **run))
