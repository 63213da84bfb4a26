"""Schedules at their corners, and the average of weights recomputed."""

import copy
import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from unmask.errors import InvalidRequest
from unmask.training.optim import Ema, ScheduleSpec, lr_multiplier

KINDS = ("constant", "linear", "cosine", "inverse_sqrt", "wsd")


def values(spec, steps):
    return [lr_multiplier(spec, step, steps) for step in range(steps + 1)]


def test_warm_up_stable_decay():
    spec = ScheduleSpec("wsd", warmup_steps=4, decay_steps=5, floor=0.1)
    expected = [0.25, 0.5, 0.75, 1, 1, 1, 0.82, 0.64, 0.46, 0.28, 0.1]
    assert values(spec, 10) == pytest.approx(expected)
    shares = ScheduleSpec("wsd", warmup_share=0.4, decay_share=0.5, floor=0.1)
    assert values(shares, 10) == pytest.approx(expected)


def test_the_shapes_of_a_decay():
    for shape, middle in (
        ("linear", 0.75),
        ("cosine", (1 + math.cos(math.pi / 4)) / 2),
        ("one_minus_sqrt", 0.5),
    ):
        spec = ScheduleSpec("wsd", warmup_steps=0, decay_steps=8, decay_shape=shape)
        got = values(spec, 12)
        assert got[:5] == [1.0] * 5
        assert got[6] == pytest.approx(middle)
        assert got[12] == pytest.approx(0.0)


def test_linear_cosine_inverse_root_and_constant():
    assert values(ScheduleSpec("linear", warmup_steps=2), 6) == pytest.approx([0.5, 1, 1, 0.75, 0.5, 0.25, 0])
    assert values(ScheduleSpec("cosine", warmup_steps=0, floor=0.2), 4)[2] == pytest.approx(0.6)
    roots = values(ScheduleSpec("inverse_sqrt", warmup_steps=4, floor=0.6), 20)
    assert roots[3] == 1
    assert roots[8] == pytest.approx(2 / 3)
    assert roots[20] == 0.6
    assert values(ScheduleSpec("constant", warmup_steps=0), 3) == [1.0] * 4
    cubic = ScheduleSpec("linear", warmup_steps=2, power=3.0, floor=0.2)
    assert values(cubic, 6)[1:] == pytest.approx([1, 1, 0.2 + 0.8 * 0.75**3, 0.3, 0.2125, 0.2])


def test_by_default_a_run_warms_up_over_2_and_decays_over_40_percent():
    spec = ScheduleSpec()
    assert lr_multiplier(spec, 0, 1000) == pytest.approx(1 / 20)
    assert lr_multiplier(spec, 19, 1000) == 1
    assert lr_multiplier(spec, 600, 1000) == 1
    assert lr_multiplier(spec, 800, 1000) == pytest.approx(0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_factor_is_above_0_in_every_step_and_rises_and_falls_once(kind):
    draw = random.Random(kind)
    for _ in range(200):
        steps = draw.randint(1, 60)
        warmup = draw.uniform(0, 0.5)
        rest = {"decay_share": draw.uniform(0, 0.5)} if kind == "wsd" else {}
        got = values(ScheduleSpec(kind, warmup_share=warmup, **rest), steps)[:-1]
        assert all(0 < one <= 1 for one in got)
        top = got.index(max(got))
        assert got[: top + 1] == sorted(got[: top + 1])
        assert got[top:] == sorted(got[top:], reverse=True)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "step"}, "kind"),
        ({"decay_shape": "exp"}, "decay_shape"),
        ({"warmup_steps": 5, "warmup_share": 0.1}, "one of the two"),
        ({"decay_steps": -1}, "at least 0"),
        ({"warmup_share": 1.5}, "from 0 to 1"),
        ({"floor": -0.1}, "floor"),
        ({"kind": "cosine", "decay_share": 0.2}, "kind cosine has no decay_steps or decay_share"),
        ({"kind": "cosine", "power": 2.0}, "kind cosine has no power"),
        ({"kind": "linear", "power": 0.0}, "power must be above 0"),
    ],
)
def test_schedules_refuse_what_has_no_meaning(table, message):
    with pytest.raises(InvalidRequest, match=message):
        ScheduleSpec(**table)


def test_steps_outside_a_run_and_runs_that_are_too_short():
    for step in (-1, 11):
        with pytest.raises(InvalidRequest, match="is not between 0 and the 10 steps"):
            lr_multiplier(ScheduleSpec("constant"), step, 10)
    with pytest.raises(InvalidRequest, match="11 steps of a run of 10"):
        lr_multiplier(ScheduleSpec("wsd", warmup_steps=6, decay_steps=5), 0, 10)


# --- the average of weights -----------------------------------------------------------------------------


def history(module, averages, updates, seed=0):
    draw, seen = np.random.default_rng(seed), [module.weight.detach().double().numpy().copy()]
    for _ in range(updates):
        with torch.no_grad():
            module.weight.add_(torch.from_numpy(draw.standard_normal((3, 2))).to(module.weight.dtype))
        averages.update()
        seen.append(module.weight.detach().double().numpy().copy())
    return seen


@pytest.mark.parametrize("warm_up", [True, False])
def test_the_average_is_its_formula(warm_up):
    module = nn.Linear(2, 3, dtype=torch.float64)
    averages = Ema(module, decay=0.8, warm_up=warm_up)
    seen = history(module, averages, 7)
    weights = np.array([0.8 ** (7 - t) for t in range(1, 8)])
    expected = np.tensordot(weights, np.stack(seen[1:]), 1)
    if warm_up:
        expected /= weights.sum()
    else:
        expected = 0.2 * expected + 0.8**7 * seen[0]
    np.testing.assert_allclose(averages.averages["weight"].numpy(), expected, rtol=0, atol=1e-12)


def test_swap_puts_the_average_in_and_takes_it_out_even_after_an_error():
    module = nn.Linear(2, 3).to(torch.bfloat16)
    averages = Ema(module, decay=0.5)
    assert averages.averages["weight"].dtype == torch.float32
    history(module, averages, 5)
    own = copy.deepcopy(module.state_dict())

    def evaluate():
        assert torch.equal(module.weight, averages.averages["weight"].bfloat16())
        assert not torch.equal(module.weight, own["weight"])
        with pytest.raises(InvalidRequest, match="holds its average"):
            averages.update()
        with pytest.raises(InvalidRequest, match="holds its average"), averages.swap():
            pass
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), averages.swap():
        evaluate()
    assert all(torch.equal(one, own[name]) for name, one in module.state_dict().items())
    averages.update()


def test_before_the_first_update_the_average_is_the_parameters_and_it_is_a_copy():
    module = nn.Linear(2, 3)
    before = module.weight.detach().clone()
    averages = Ema(module)
    with torch.no_grad():
        module.weight.add_(1)
    assert torch.equal(averages.averages["weight"], before)


def test_a_saved_average_goes_on_bit_by_bit():
    module, other = nn.Linear(2, 3), nn.Linear(2, 3)
    averages, again = Ema(module, decay=0.9), Ema(other, decay=0.9)
    history(module, averages, 4)
    saved = copy.deepcopy(averages.state_dict())
    assert set(saved) == {"weight", "bias", "updates"}
    other.load_state_dict(module.state_dict())
    again.load_state_dict(saved)
    for module_, one in ((module, averages), (other, again)):
        history(module_, one, 3, seed=1)
    assert torch.equal(averages.averages["weight"], again.averages["weight"])
    assert not torch.equal(saved["weight"], again.averages["weight"])


def test_averages_of_other_modules_and_bad_decays_are_refused():
    saved = Ema(nn.Linear(2, 3)).state_dict()
    for other, name in ((nn.Linear(2, 3, bias=False), "bias"), (nn.Linear(3, 3), "weight")):
        with pytest.raises(InvalidRequest, match=f"such as {name};"):
            Ema(other).load_state_dict(saved)
    for decay in (-0.1, 1.0, math.nan):
        with pytest.raises(InvalidRequest, match="decay"):
            Ema(nn.Linear(2, 2), decay=decay)
    named = nn.Module()
    named.updates = nn.Parameter(torch.zeros(2))
    with pytest.raises(InvalidRequest, match="named updates"):
        Ema(named)


def test_what_is_frozen_is_not_averaged():
    module = nn.Linear(2, 3)
    module.bias.requires_grad_(False)
    assert set(Ema(module).averages) == {"weight"}
