"""Layer-wise decay of learning rates, and the unit of weight decay, against tables and updates made here."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.specs import ALIBI_SHARED, POST_NORM, SPECS, random_encoder
from tests.training.drawn import set_gradients
from unmask.errors import InvalidRequest
from unmask.spec import Classifier, MaskedLM
from unmask.training.optim import OptimizerSpec, build_optimizer

HEAD = (Classifier("sequence", 3, "mean"),)


def depth(name, layers, sharing):
    """Depth in ELECTRA's sense: embeddings 0, layer i has i + 1, all above the layers has layers + 2."""
    if name.startswith(("embedding.", "distances.", "layer_inputs.")):
        return 0
    if name.startswith("convolution."):
        return 1
    if found := re.match(r"layers\.(\d+)\.", name):
        return max(layer + 1 for layer, weights in enumerate(sharing) if weights == int(found[1]))
    return layers + 2


def rates(optimizer, encoder):
    names = {parameter: name for name, parameter in encoder.named_parameters()}
    found = [(names[one], group["lr"]) for group in optimizer.param_groups for one in group["params"]]
    assert len(found) == len(names) == len(dict(found)), "every parameter is in one group"
    return dict(found)


@pytest.mark.parametrize("kind", ["electra", "plain"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("name", SPECS)
def test_every_parameter_has_the_rate_of_its_layer(name, optimizer, kind):
    encoder = random_encoder(replace(SPECS[name], heads=HEAD))
    count = len(SPECS[name].layers)
    sharing = SPECS[name].sharing or tuple(range(count))
    spec = OptimizerSpec(optimizer, 0.5, layer_decay=0.8, layer_decay_kind=kind)
    built = build_optimizer(encoder, spec)
    found = rates(built, encoder)
    for parameter, rate in found.items():
        exponent = count + 2 - depth(parameter, count, sharing)
        if kind == "plain" and exponent:
            exponent -= 1
        assert rate == pytest.approx(0.5 * 0.8**exponent, rel=1e-12), parameter
    built.set_learning_rate(0.25)
    assert rates(built, encoder) == pytest.approx({one: rate / 4 for one, rate in found.items()})
    assert built.param_groups[0]["lr"] == 0.125, "the log shows the full rate"


def test_published_numbers():
    """12 layers at 0.8: ELECTRA's top layer has 0.64 of the rate and its embeddings 0.044."""
    spec = OptimizerSpec(layer_decay=0.8)
    assert spec.rate_factor(0) == 1
    assert spec.rate_factor(1) == pytest.approx(0.64)
    assert spec.rate_factor(13) == pytest.approx(0.044, abs=5e-4)
    plain = replace(spec, layer_decay_kind="plain")
    assert [plain.rate_factor(level) for level in (0, 1, 2)] == pytest.approx([1, 0.8, 0.64])


def test_weights_shared_by_layers_have_the_rate_of_the_highest():
    encoder = random_encoder(replace(ALIBI_SHARED, heads=HEAD))
    found = rates(build_optimizer(encoder, OptimizerSpec("adamw", 1.0, layer_decay=0.5)), encoder)
    assert found["layers.0.attention.qkv.weight"] == 0.5**4  # layers 0 and 1 of 4
    assert found["layers.1.attention.qkv.weight"] == 0.5**2  # layers 2 and 3


def test_pooler_and_final_norm_have_the_full_rate():
    for spec, names in ((POST_NORM, ["pooler.dense.weight"]), (SPECS["performer"], ["final_norm.weight"])):
        encoder = random_encoder(replace(spec, heads=HEAD))
        found = rates(build_optimizer(encoder, OptimizerSpec("adamw", 0.1, layer_decay=0.5)), encoder)
        for name in (*names, "heads.sequence.out.weight", "heads.sequence.out.bias"):
            assert found[name] == 0.1


@pytest.mark.parametrize("decoupled", [False, True])
def test_the_unit_of_weight_decay(decoupled):
    """AdamW of torch scales decay by the step's rate; DecoupledAdamW of Composer by rate / first rate."""
    peak, decay, steps = 0.02, 0.3, 5
    spec = OptimizerSpec("adamw", peak, (0.9, 0.98), 1e-6, decay, decoupled=decoupled, layer_decay=0.5)
    encoder = random_encoder(replace(POST_NORM, heads=HEAD), dtype=torch.float64)
    optimizer = build_optimizer(encoder, spec)
    values = {name: one.detach().numpy().copy() for name, one in encoder.named_parameters()}
    first = {name: np.zeros_like(one) for name, one in values.items()}
    second = {name: np.zeros_like(one) for name, one in values.items()}
    for step in range(1, steps + 1):
        factor = 1 - step / 10
        set_gradients(encoder, np.random.default_rng(step))
        optimizer.set_learning_rate(factor)
        for name, one in encoder.named_parameters():
            g = one.grad.numpy()
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.98 * second[name] + 0.02 * g * g
            below = 5 - depth(name, 3, (0, 1, 2))
            rate = peak * 0.5**below * factor
            share = 0.0
            if one.ndim > 1:
                share = factor * decay if decoupled else rate * decay
            m, v = first[name] / (1 - 0.9**step), second[name] / (1 - 0.98**step)
            values[name] = (1 - share) * values[name] - rate * m / (np.sqrt(v) + 1e-6)
        optimizer.step()
    for name, one in encoder.named_parameters():
        np.testing.assert_allclose(one.detach().numpy(), values[name], rtol=0, atol=1e-12, err_msg=name)


def test_a_published_decay_of_one_unit_in_the_other():
    """5e-6 of Composer at a rate of 5e-5 is 0.1 of torch."""
    moved = []
    for decay, decoupled in ((5e-6, True), (5e-6 / 5e-5, False)):
        linear = nn.Linear(3, 4, dtype=torch.float64)
        nn.init.ones_(linear.weight)
        spec = OptimizerSpec("adamw", 5e-5, weight_decay=decay, decoupled=decoupled)
        optimizer = build_optimizer(linear, spec)
        for step in range(10):
            set_gradients(linear, np.random.default_rng(step))
            optimizer.set_learning_rate(1 - step / 10)
            optimizer.step()
        moved.append(linear.weight.detach())
    torch.testing.assert_close(*moved, rtol=0, atol=1e-15)


def test_what_has_no_layers_is_refused():
    with pytest.raises(InvalidRequest, match="no layer of an encoder is trained"):
        build_optimizer(nn.Linear(2, 2), OptimizerSpec(layer_decay=0.9))
    for given, sentence in (
        ({"layer_decay": 0.0}, "layer_decay must be above 0 and at most 1, not 0"),
        ({"layer_decay": 1.5}, "layer_decay must be above 0 and at most 1, not 1.5"),
        ({"layer_decay_kind": "other"}, "layer_decay_kind is 'other'; it can be electra, plain"),
    ):
        with pytest.raises(InvalidRequest, match=sentence):
            OptimizerSpec(**given)


@pytest.mark.parametrize("decay", [None, 0.5])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("name", SPECS)
def test_heads_have_a_rate_of_their_own(name, optimizer, decay):
    encoder = random_encoder(replace(SPECS[name], heads=HEAD))
    objective = nn.ModuleDict({"encoder": encoder, "added": nn.Linear(2, 2)})
    spec = OptimizerSpec(optimizer, 0.5, layer_decay=decay)
    before = rates(build_optimizer(objective, spec), objective)
    after = rates(build_optimizer(objective, replace(spec, head_learning_rate=3.0)), objective)
    heads = {one for one in after if one.startswith(("encoder.heads.", "added."))}
    assert {one: rate for one, rate in after.items() if one not in heads} == {
        one: rate for one, rate in before.items() if one not in heads
    }
    assert {after[one] for one in heads} == {3.0}
    assert len(heads) == 4


def test_an_output_that_shares_the_table_of_words_has_the_rate_of_the_encoder():
    encoder = random_encoder(replace(POST_NORM, heads=(MaskedLM(None),)))
    found = rates(build_optimizer(encoder, OptimizerSpec(head_learning_rate=3.0)), encoder)
    assert found["embedding.words.weight"] == OptimizerSpec().learning_rate
    assert {one for one, rate in found.items() if rate == 3.0} == {
        one for one in found if one.startswith("heads.")
    }


def test_a_rate_of_heads_where_no_head_is_trained_is_refused():
    with pytest.raises(
        InvalidRequest, match=r"head_learning_rate is 0.1, and no head is trained; leave it out"
    ):
        build_optimizer(random_encoder(POST_NORM), OptimizerSpec(head_learning_rate=0.1))
    with pytest.raises(InvalidRequest, match=r"head_learning_rate must be above 0 and finite, not 0"):
        OptimizerSpec(head_learning_rate=0.0)
    encoder = random_encoder(replace(POST_NORM, heads=HEAD)).requires_grad_(False)
    encoder.heads.requires_grad_(True)
    with pytest.raises(InvalidRequest, match=r"no layer of an encoder is trained"):
        build_optimizer(encoder, OptimizerSpec(layer_decay=0.9, head_learning_rate=0.1))


def test_a_state_of_other_levels_is_refused():
    encoder = random_encoder(replace(POST_NORM, heads=HEAD))
    state = build_optimizer(encoder, OptimizerSpec(layer_decay=0.9)).state_dict()
    build_optimizer(encoder, OptimizerSpec(layer_decay=0.8)).load_state_dict(state)
    with pytest.raises(InvalidRequest, match="the state has groups"):
        build_optimizer(encoder, OptimizerSpec()).load_state_dict(state)
