"""What a run asks of optimizers: states that go on, masters of 16-bit parameters, norms of gradients."""

import copy
import io
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from tests.support.specs import POST_NORM, ROTARY_WINDOWS, random_encoder
from tests.training.drawn import set_gradients
from unmask.errors import InvalidRequest
from unmask.training.optim import OptimizerSpec, build_optimizer, clip_gradients
from unmask.training.table import read_table

KINDS = ("adamw", "stable_adamw", "lamb", "muon")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_saved_goes_on_bit_by_bit(kind, dtype):
    spec = OptimizerSpec(kind, 0.01, rest="stable_adamw")

    def steps(encoder, optimizer, numbers):
        for number in numbers:
            optimizer.set_learning_rate(1 / (1 + number))
            set_gradients(encoder, np.random.default_rng(number))
            optimizer.step()

    straight = random_encoder(ROTARY_WINDOWS, dtype=dtype)
    optimizer = build_optimizer(straight, spec)
    steps(straight, optimizer, range(3))
    weights = copy.deepcopy(straight.state_dict())
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    steps(straight, optimizer, range(3, 6))

    again = random_encoder(ROTARY_WINDOWS, seed=9, dtype=dtype)
    again.load_state_dict(weights)
    other = build_optimizer(again, spec)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    kept = copy.deepcopy(loaded)
    other.load_state_dict(loaded)
    assert [group["lr"] for group in other.param_groups] == [pytest.approx(0.01 / 3)] * len(
        other.param_groups
    )
    steps(again, other, range(3, 6))
    for name, one in straight.state_dict().items():
        assert torch.equal(one, again.state_dict()[name]), name
    for index, state in kept["state"].items():  # what was loaded is not what is then changed
        assert all(torch.equal(tensor, loaded["state"][index][key]) for key, tensor in state.items())


@pytest.mark.parametrize("kind", KINDS)
def test_16_bit_parameters_have_masters_that_small_steps_add_up_in(kind):
    wide, narrow = (random_encoder(ROTARY_WINDOWS, dtype=torch.bfloat16) for _ in range(2))
    wide.float()
    spec = OptimizerSpec(kind, 1e-5, weight_decay=0.0)
    pair = [build_optimizer(one, spec) for one in (wide, narrow)]
    before = copy.deepcopy(narrow.state_dict())
    first = {name: one.double().clone() for name, one in wide.named_parameters()}
    gradients = None
    for step in range(60):
        if gradients is None:
            set_gradients(narrow, np.random.default_rng(0))
            gradients = [one.grad for one in narrow.parameters()]
        for one, gradient in zip(wide.parameters(), gradients, strict=True):
            one.grad = gradient.float()
        for optimizer in pair:
            optimizer.step()
        if step == 0:
            one_step = {name: one.clone() for name, one in narrow.named_parameters()}
    norm = "layers.0.feedforward_norm.weight"  # near 1, where bfloat16 is coarser than a step
    stuck = (one_step[norm] == before[norm]).float().mean()
    assert stuck > 0.9, "a single step shows in bfloat16, so masters are not tested"
    for (name, exact), (_, rounded) in zip(wide.named_parameters(), narrow.named_parameters(), strict=True):
        master = pair[1].state[rounded]["master"]
        assert master.dtype == torch.float32
        assert torch.equal(master.bfloat16(), rounded)
        drift = (master - exact).norm() / (exact.double() - first[name]).norm()
        assert drift < 0.01, name
    assert "master" not in pair[0].state[next(wide.parameters())]


def test_the_state_goes_through_distributed_checkpoints():
    """By names of parameters, and into an optimizer that has taken no step."""
    encoder = random_encoder(ROTARY_WINDOWS)
    spec = OptimizerSpec("muon", 0.01)
    optimizer = build_optimizer(encoder, spec)
    optimizer.set_learning_rate(0.5)
    set_gradients(encoder, np.random.default_rng(0))
    optimizer.step()
    saved = get_optimizer_state_dict(encoder, optimizer)
    assert set(saved["state"]["layers.0.attention.qkv.weight"]) == {"step", "momentum"}
    assert set(saved["state"]["embedding.words.weight"]) == {"step", "first", "second"}
    fresh = copy.deepcopy(encoder)
    other = build_optimizer(fresh, spec)
    weights = copy.deepcopy(fresh.state_dict())
    set_optimizer_state_dict(fresh, other, copy.deepcopy(saved))
    assert all(torch.equal(one, weights[name]) for name, one in fresh.state_dict().items())
    for module, one in ((encoder, optimizer), (fresh, other)):
        set_gradients(module, np.random.default_rng(1))
        one.step()
    for name, one in encoder.state_dict().items():
        assert torch.equal(one, fresh.state_dict()[name]), name


def test_numbers_of_the_spec_win_over_those_of_a_state():
    encoder = random_encoder(ROTARY_WINDOWS)
    before = build_optimizer(encoder, OptimizerSpec(learning_rate=8e-4, weight_decay=1e-5))
    before.set_learning_rate(0.5)
    now = build_optimizer(encoder, OptimizerSpec(learning_rate=5e-5, weight_decay=1e-6))
    now.load_state_dict(before.state_dict())
    assert now.param_groups[0]["lr"] == pytest.approx(2.5e-5)
    assert now.param_groups[0]["weight_decay"] == 1e-6


def test_states_of_other_modules_are_refused():
    optimizer = build_optimizer(random_encoder(ROTARY_WINDOWS), OptimizerSpec())
    with pytest.raises(InvalidRequest, match="groups of parameters"):
        optimizer.load_state_dict(build_optimizer(random_encoder(POST_NORM), OptimizerSpec()).state_dict())
    for sizes in ((3, 4), (3, 5)):
        linear = nn.Linear(*sizes)
        set_gradients(linear, np.random.default_rng(0))
        one = build_optimizer(linear, OptimizerSpec())
        one.step()
        if sizes == (3, 4):
            saved = one.state_dict()
    with pytest.raises(InvalidRequest, match=r"shape \(4, 3\)"):
        one.load_state_dict(saved)


def test_states_of_other_kinds_are_refused_and_leave_no_trace():
    linear = nn.Linear(3, 4)
    set_gradients(linear, np.random.default_rng(0))
    one = build_optimizer(linear, OptimizerSpec())
    one.step()
    saved = one.state_dict()
    del saved["state"][0]["second"]
    other = build_optimizer(linear, OptimizerSpec())
    with pytest.raises(InvalidRequest, match="keeps first, second, step"):
        other.load_state_dict(saved)
    assert not other.state


def test_a_state_fits_parameters_of_another_precision():
    wide = random_encoder(ROTARY_WINDOWS)
    one = build_optimizer(wide, OptimizerSpec())
    set_gradients(wide, np.random.default_rng(0))
    one.step()
    narrow = copy.deepcopy(wide).bfloat16()
    other = build_optimizer(narrow, OptimizerSpec())
    other.load_state_dict(one.state_dict())
    for parameter, theirs in zip(narrow.parameters(), wide.parameters(), strict=True):
        state = other.state[parameter]
        assert torch.equal(state["first"], one.state[theirs]["first"])
        assert torch.equal(state["master"], parameter.float())
    set_gradients(narrow, np.random.default_rng(1))
    other.step()
    one.load_state_dict(other.state_dict())
    assert "master" not in one.state[next(wide.parameters())]


def test_gradients_of_another_memory_layout_give_the_same_step():
    results = []
    for turned in (False, True):
        linear = nn.Linear(5, 7)
        with torch.no_grad():
            linear.weight.copy_(torch.arange(35).view(7, 5) / 35)
        gradient = torch.sin(torch.arange(35.0)).view(7, 5)
        linear.weight.grad = gradient.T.contiguous().T if turned else gradient
        build_optimizer(linear, OptimizerSpec(learning_rate=0.1)).step()
        results.append(linear.weight.detach())
    assert torch.equal(*results)


def test_bad_requests():
    linear = nn.Linear(2, 2)
    with pytest.raises(InvalidRequest, match="nothing can be trained"):
        build_optimizer(linear.requires_grad_(False), OptimizerSpec())
    with pytest.raises(InvalidRequest, match="closure"):
        build_optimizer(nn.Linear(2, 2), OptimizerSpec()).step(lambda: 0.0)
    sparse = nn.Embedding(4, 2, sparse=True)
    sparse(torch.tensor([1])).sum().backward()
    with pytest.raises(InvalidRequest, match="sparse=False"):
        build_optimizer(sparse, OptimizerSpec()).step()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "adam"}, "adamw, stable_adamw, lamb, muon"),
        ({"rest": "muon"}, "rest"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"learning_rate": math.inf}, "finite"),
        ({"eps": math.nan}, "eps"),
        ({"clip": -1.0}, "clip must be at least 0"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0"),
        ({"betas": (0.9, 1.0)}, "second of betas"),
        ({"betas": (0.9,)}, "it must have 2 values"),
        ({"muon_momentum": 1.0}, "muon_momentum"),
        ({"muon_iterations": 0}, "muon_iterations"),
    ],
)
def test_specs_refuse_numbers_outside_their_range(table, message):
    with pytest.raises(InvalidRequest, match=message):
        OptimizerSpec(**table)


def test_a_table_of_a_file_is_a_spec():
    table = {"kind": "muon", "betas": [0.9, 0.95], "learning_rate": 0.001, "muon_weight_decay": 0}
    spec = read_table(OptimizerSpec, table, "optimizer")
    assert spec == OptimizerSpec("muon", 0.001, (0.9, 0.95), muon_weight_decay=0.0)


# --- the norm of gradients ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_clipping_measures_all_gradients_and_shortens_them_by_one_factor(dtype):
    encoder = random_encoder(ROTARY_WINDOWS, dtype=dtype)
    set_gradients(encoder, np.random.default_rng(0))
    encoder.embedding.words.weight.grad = None
    given = [one for one in encoder.parameters() if one.grad is not None]
    before = [one.grad.double().clone() for one in given]
    exact = math.sqrt(sum(float((one**2).sum()) for one in before))
    assert float(clip_gradients(encoder.parameters(), None)) == pytest.approx(exact, rel=1e-6)
    versions = [one.grad._version for one in given]
    assert float(clip_gradients(encoder.parameters(), 2 * exact)) == pytest.approx(exact, rel=1e-6)
    assert versions == [one.grad._version for one in given], "written for nothing"
    assert all(torch.equal(one.grad.double(), old) for one, old in zip(given, before, strict=True))
    assert build_optimizer(encoder, OptimizerSpec(clip=0.5)).clip() == pytest.approx(exact, rel=1e-6)
    precision = 1e-2 if dtype == torch.bfloat16 else 1e-6
    for one, old in zip(given, before, strict=True):
        torch.testing.assert_close(one.grad.double(), old * (0.5 / exact), rtol=precision, atol=0)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_norm_that_is_not_finite_is_told_and_gradients_are_left(bad):
    linear = nn.Linear(2, 2)
    set_gradients(linear, np.random.default_rng(0))
    linear.bias.grad[0] = bad
    before = linear.weight.grad.clone()
    norm = clip_gradients(linear.parameters(), 0.1)
    assert not torch.isfinite(norm)
    assert torch.equal(linear.weight.grad, before)


def test_without_gradients_the_norm_is_0():
    assert float(clip_gradients(nn.Linear(2, 2).parameters(), 1.0)) == 0
    zero = nn.Linear(2, 2)
    for one in zero.parameters():
        one.grad = torch.zeros_like(one)
    assert float(clip_gradients(zero.parameters(), 1.0)) == 0
    assert all((one.grad == 0).all() for one in zero.parameters())


def test_a_clip_of_zero_is_no_limit():
    """TOML has no word for nothing."""
    assert OptimizerSpec(clip=0) == OptimizerSpec(clip=None)
    linear = nn.Linear(2, 2)
    for parameter in linear.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)
    assert build_optimizer(linear, OptimizerSpec(clip=0)).clip() == pytest.approx(100 * 6**0.5)
    assert all((parameter.grad == 100.0).all() for parameter in linear.parameters())
