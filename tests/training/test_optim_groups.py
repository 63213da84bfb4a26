"""Which optimizer moves which parameter."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.specs import ALIBI_SHARED, POST_NORM, ROTARY_WINDOWS, SPECS, random_encoder
from tests.training.drawn import set_gradients
from unmask.encoder.heads import TransformLayer
from unmask.spec import Classifier, MaskedLM, Transform
from unmask.training.optim import OptimizerSpec, build_optimizer
from unmask.training.optim.build import place_parameters


def groups_of(module, kind="muon"):
    names = {parameter: name for name, parameter in module.named_parameters()}
    optimizer = build_optimizer(module, OptimizerSpec(kind))
    return {group["name"]: {names[one] for one in group["params"]} for group in optimizer.param_groups}


def layer_names(layers, names):
    return {f"layers.{layer}.{name}" for layer in range(layers) for name in names}


def test_groups_of_a_modernbert():
    spec = replace(
        ROTARY_WINDOWS,
        heads=(
            MaskedLM(Transform(20, "gelu", ROTARY_WINDOWS.final_norm, bias=False)),
            Classifier("sequence", 3, "mean"),
        ),
    )
    encoder = random_encoder(spec)
    found = groups_of(encoder)
    matrices = ("attention.qkv", "attention.out", "feedforward.inner", "feedforward.outer")
    assert found["muon"] == layer_names(2, [f"{name}.weight" for name in matrices]) | {
        "heads.masked.transform.dense.weight"
    }
    assert found["decayed"] == {"embedding.words.weight", "heads.sequence.out.weight"}
    everything = {name for name, _ in encoder.named_parameters()}
    assert found["plain"] == everything - found["muon"] - found["decayed"]
    assert all("norm" in name or name.endswith("bias") for name in found["plain"])
    assert groups_of(encoder, "adamw") == {
        "decayed": found["muon"] | found["decayed"],
        "plain": found["plain"],
    }
    parts = {placed.name: placed.parts for placed in place_parameters(encoder)}
    assert parts["layers.1.attention.qkv.weight"] == 3
    assert parts["layers.1.feedforward.inner.weight"] == 2
    assert parts["layers.1.attention.out.weight"] == 1
    assert parts["embedding.words.weight"] == 0


def test_queries_of_shared_keys_are_matrices_of_their_size():
    parts = {placed.name: placed.parts for placed in place_parameters(random_encoder(SPECS["grouped"]))}
    assert [parts[f"layers.{layer}.attention.qkv.weight"] for layer in range(3)] == [5, 4, 8]


def test_groups_of_a_bert():
    encoder = random_encoder(POST_NORM)
    found = groups_of(encoder)
    matrices = ("attention.qkv", "attention.out", "feedforward.inner", "feedforward.outer")
    assert found["muon"] == layer_names(3, [f"{name}.weight" for name in matrices]) | {"pooler.dense.weight"}
    assert found["decayed"] == {f"embedding.{name}.weight" for name in ("words", "positions", "segments")}
    assert {name for name in found["plain"] if name.startswith("layers.0.")} == {
        *(f"layers.0.{name}.bias" for name in matrices),
        *(
            f"layers.0.{name}.{kind}"
            for name in ("attention_norm", "feedforward_norm")
            for kind in ("weight", "bias")
        ),
    }


@pytest.mark.parametrize("name", SPECS)
def test_every_parameter_of_every_encoder_is_moved_once_and_stacks_divide(name):
    encoder = random_encoder(SPECS[name])
    placed = place_parameters(encoder)
    assert [one.parameter for one in placed] == list(encoder.parameters())
    for one in placed:
        if one.parts:
            assert one.parameter.ndim == 2
            assert len(one.parameter) % one.parts == 0
    optimizer = build_optimizer(encoder, OptimizerSpec("muon"))
    members = [id(one) for group in optimizer.param_groups for one in group["params"]]
    assert sorted(members) == sorted(map(id, encoder.parameters()))


def test_a_weight_of_a_hidden_layer_that_is_an_output_too_is_no_matrix_of_muons():
    hidden = TransformLayer(Transform(8, "gelu", None), 8)
    alone = place_parameters(nn.ModuleDict({"hidden": hidden}))
    assert alone[0].parts == 1
    out = nn.Linear(8, 8)
    out.weight = hidden.dense.weight
    assert place_parameters(nn.ModuleDict({"hidden": hidden, "out": out}))[0].parts == 0


def test_what_is_frozen_or_has_no_gradient_stays():
    encoder = random_encoder(ALIBI_SHARED)
    encoder.embedding.requires_grad_(False)
    optimizer = build_optimizer(encoder, OptimizerSpec("muon"))
    before = copy.deepcopy(encoder.state_dict())
    set_gradients(encoder, np.random.default_rng(0))
    still = encoder.layers[0].attention.qkv.weight
    still.grad = None
    optimizer.step()
    changed = {name for name, one in encoder.state_dict().items() if not torch.equal(one, before[name])}
    trained_names = {name for name, one in encoder.named_parameters() if one.requires_grad}
    assert changed == trained_names - {"layers.0.attention.qkv.weight"}
    assert still not in optimizer.state


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_parameter_can_have_a_rate_of_its_own(kind):
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    spec = OptimizerSpec(kind=kind, learning_rate=1e-3)
    own = module[1].weight
    optimizer = build_optimizer(module, spec, {own: 0.25})
    rates = {id(one): group["lr"] for group in optimizer.param_groups for one in group["params"]}
    assert rates == {id(one): 0.25 if one is own else 1e-3 for one in module.parameters()}
    optimizer.set_learning_rate(0.5)
    own.grad = torch.ones(3)
    before = own.detach().clone()
    optimizer.step()
    torch.testing.assert_close(own.detach(), before - 0.125, rtol=0, atol=1e-4)
    state = optimizer.state_dict()
    build_optimizer(module, spec, {own: 0.5}).load_state_dict(state)
