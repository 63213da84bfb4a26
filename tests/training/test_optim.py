"""Optimizers against independent computations in float64."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.specs import POST_NORM, ROTARY_WINDOWS, random_encoder
from tests.training.drawn import set_gradients
from unmask.errors import InvalidRequest
from unmask.training.optim import OptimizerSpec, build_optimizer
from unmask.training.optim.updates import MomentStep, lamb, newton_schulz, orthogonalize

KINDS = ("adamw", "stable_adamw", "lamb", "muon")


def trained(spec, steps=6, dtype=torch.float64, scales=None, seed=3):
    """An encoder, its optimizer, what it began as, and the gradients it was given."""
    encoder = random_encoder(ROTARY_WINDOWS, dtype=dtype)
    optimizer = build_optimizer(encoder, spec)
    before = {name: one.detach().numpy().copy() for name, one in encoder.named_parameters()}
    draw, gradients, factors = np.random.default_rng(seed), [], []
    for step in range(steps):
        set_gradients(encoder, draw, 1.0 if scales is None else scales[step])
        gradients.append({name: one.grad.numpy().copy() for name, one in encoder.named_parameters()})
        factors.append(1.0 - step / (2 * steps))
        optimizer.set_learning_rate(factors[-1])
        optimizer.step()
    return encoder, before, gradients, factors


def decays(name):
    return not name.endswith("bias") and "norm" not in name


# --- AdamW and StableAdamW ----------------------------------------------------------------------------


def test_adamw_equals_torch_over_20_steps():
    spec = OptimizerSpec(learning_rate=3e-3, betas=(0.8, 0.95), eps=1e-7, weight_decay=0.3)
    ours, theirs = (random_encoder(POST_NORM, dtype=torch.float64) for _ in range(2))
    mine = build_optimizer(ours, spec)
    named = dict(theirs.named_parameters())
    torchs = torch.optim.AdamW(
        [
            {"params": [one for name, one in named.items() if decays(name)], "weight_decay": 0.3},
            {"params": [one for name, one in named.items() if not decays(name)], "weight_decay": 0.0},
        ],
        betas=(0.8, 0.95),
        eps=1e-7,
        foreach=False,
        fused=False,
    )
    for step in range(20):
        factor = (20 - step) / 20
        mine.set_learning_rate(factor)
        for group in torchs.param_groups:
            group["lr"] = 3e-3 * factor
        for module in (ours, theirs):
            set_gradients(module, np.random.default_rng(step))
        mine.step()
        torchs.step()
    for name, one in ours.named_parameters():
        torch.testing.assert_close(one, named[name], rtol=0, atol=1e-12)


def test_lamb_is_the_papers_algorithm():
    spec = OptimizerSpec("lamb", 0.02, (0.9, 0.98), 1e-3, 0.1)
    encoder, before, gradients, factors = trained(spec, 5)
    for name, parameter in encoder.named_parameters():
        value, first, second = before[name], np.zeros_like(before[name]), np.zeros_like(before[name])
        (b1, b2), decay = spec.betas, spec.weight_decay if decays(name) else 0.0
        for step, (of_all, factor) in enumerate(zip(gradients, factors, strict=True), 1):
            gradient = of_all[name]
            first = b1 * first + (1 - b1) * gradient
            second = b2 * second + (1 - b2) * gradient**2
            update = first / (1 - b1**step) / (np.sqrt(second / (1 - b2**step)) + spec.eps) + decay * value
            trust = np.linalg.norm(value) / np.linalg.norm(update) if decays(name) else 1.0
            value = value - spec.learning_rate * factor * trust * update
        np.testing.assert_allclose(parameter.detach().numpy(), value, rtol=0, atol=1e-12)


def test_lamb_moves_a_tensor_of_zeros():
    value, gradient, moments = torch.zeros(3), torch.ones(3), torch.zeros(2, 3).unbind()
    how = MomentStep(step=1, rate=0.1, betas=(0.9, 0.9), eps=0.0, decay=0.0)
    lamb([value], [gradient], *([moment] for moment in moments), how)
    torch.testing.assert_close(value, torch.full((3,), -0.1))


def test_lamb_has_no_decay_apart_from_its_step():
    with pytest.raises(InvalidRequest, match="decoupled is true and kind lamb"):
        OptimizerSpec("lamb", decoupled=True)


def stable_reference(value, gradients, factors, spec, decay):
    """Algorithm 2 of Wortsman et al. 2023, with its betas that change."""
    (b1, b2), first, second, shortened = spec.betas, np.zeros_like(value), np.zeros_like(value), 0
    for t, (g, factor) in enumerate(zip(gradients, factors, strict=True), 1):
        c1, c2 = (b * (1 - b ** (t - 1)) / (1 - b**t) for b in (b1, b2))
        first = c1 * first + (1 - c1) * g
        second = c2 * second + (1 - c2) * g * g
        r = max(1.0, math.sqrt(np.mean(g * g / np.maximum(second, spec.eps**2))))
        shortened += r > 1.0
        rate = spec.learning_rate * factor / r
        share = factor / r * decay if spec.decoupled else rate * decay
        value = value - share * value - rate * first / (np.sqrt(second) + spec.eps)
    return value, shortened


@pytest.mark.parametrize("decoupled", [False, True])
def test_stable_adamw_is_the_papers_algorithm(decoupled):
    spec = OptimizerSpec("stable_adamw", 0.02, (0.9, 0.98), 1e-3, 0.1, decoupled=decoupled)
    scales = (1, 0.5, 30, 1e-4, 1e-5, 2, 1)  # a spike, and gradients below eps
    encoder, before, gradients, factors = trained(spec, 7, scales=scales)
    total = 0
    for name, one in encoder.named_parameters():
        decay = spec.weight_decay if decays(name) else 0.0
        expected, shortened = stable_reference(
            before[name], [g[name] for g in gradients], factors, spec, decay
        )
        total += shortened
        np.testing.assert_allclose(one.detach().numpy(), expected, rtol=0, atol=1e-12, err_msg=name)
    assert total >= len(before), "no update was shortened, so nothing was tested"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "lamb"])
def test_fully_decoupled_decay_does_not_depend_on_the_learning_rate(kind):
    """Without gradients nothing but decay happens, and it is ``factor * weight_decay``."""
    for rate, decoupled, share in ((0.01, True, 0.25), (0.5, True, 0.25), (0.01, False, 0.0025)):
        linear = nn.Sequential(nn.Linear(3, 4))
        value = linear[0].weight.detach().clone()
        spec = OptimizerSpec(kind, rate, weight_decay=0.5, decoupled=decoupled)
        optimizer = build_optimizer(linear, spec)
        optimizer.set_learning_rate(0.5)
        linear[0].weight.grad = torch.zeros_like(value)
        optimizer.step()
        torch.testing.assert_close(linear[0].weight.detach(), value * (1 - share))


# --- Muon ---------------------------------------------------------------------------------------------


def quintic(singular, iterations=5):
    for _ in range(iterations):
        singular = 3.4445 * singular - 4.7750 * singular**3 + 2.0315 * singular**5
    return singular


def near_orthogonal(matrix, iterations=5):
    """By SVD: the polynomial acts on singular values alone."""
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    return (u * quintic(s / np.linalg.norm(s), iterations)) @ vt


@pytest.mark.parametrize("shape", [(24, 24), (13, 40), (40, 13)])
def test_newton_schulz_moves_singular_values_and_nothing_else(shape):
    x = np.random.default_rng(0).standard_normal((3, *shape))
    ours = newton_schulz(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ours, np.stack([near_orthogonal(one) for one in x]), rtol=0, atol=1e-11)
    for one, before in zip(ours, x, strict=True):
        u, s, vt = np.linalg.svd(before, full_matrices=False)
        after = np.diag(u.T @ one @ vt.T)
        assert (after[s / np.linalg.norm(s) > 2e-3] > 0.68).all()
        assert (after < 1.21).all()
        # The polar factor U V^T is where the iteration would end if its polynomial settled at 1.
        assert np.abs(one - u @ vt).max() < 0.33


def test_newton_schulz_is_a_plain_loop_of_its_polynomial():
    x = torch.randn(2, 9, 17, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    done = newton_schulz(x, 3)
    for one, got in zip(x, done, strict=True):
        y = one / one.pow(2).sum().sqrt()
        for _ in range(3):
            a = y @ y.T
            y = 3.4445 * y - 4.7750 * a @ y + 2.0315 * a @ a @ y
        torch.testing.assert_close(got, y, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-12])
def test_sixteen_bits_are_enough_for_newton_schulz(scale):
    x = scale * torch.randn(2, 48, 96, generator=torch.Generator().manual_seed(2))
    done = newton_schulz(x.bfloat16()).double()
    singular = torch.linalg.svdvals(done)
    assert singular.min() > 0.6
    assert singular.max() < 1.25
    exact = newton_schulz(x.double())
    assert (done - exact).norm() / exact.norm() < 0.05


def test_a_matrix_of_zeros_stays_one():
    for dtype in (torch.float32, torch.bfloat16):
        assert (newton_schulz(torch.zeros(1, 3, 4, dtype=dtype)) == 0).all()


def test_parts_of_a_stack_are_made_orthogonal_apart_and_shapes_may_mix():
    draw = np.random.default_rng(5)
    # 3 parts of 6 x 10; one of 10 x 6; 2 parts of 10 x 6; one square; one of 6 x 10.
    shapes, parts = ((18, 10), (10, 6), (20, 6), (7, 7), (6, 10)), (3, 1, 2, 1, 1)
    matrices = [draw.standard_normal(shape) for shape in shapes]
    done = orthogonalize([torch.from_numpy(one) for one in matrices], parts)
    for matrix, count, got in zip(matrices, parts, done, strict=True):
        expected = np.concatenate([near_orthogonal(part) for part in np.split(matrix, count)])
        np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=1e-11)
        if count > 1:
            assert np.abs(got.numpy() - near_orthogonal(matrix)).max() > 0.1


@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_steps_are_recomputed_with_svd(nesterov):
    spec = OptimizerSpec(
        "muon", 0.01, weight_decay=0.1, muon_learning_rate=0.03, muon_weight_decay=0.2, muon_nesterov=nesterov
    )
    encoder, before, gradients, factors = trained(spec, 5)
    parts = {"attention.qkv.weight": 3, "feedforward.inner.weight": 2}
    moved = 0
    for name, one in encoder.named_parameters():
        if not name.startswith("layers.") or "norm" in name:
            continue
        count = parts.get(name.split(".", 2)[2], 1)
        value, moment = before[name], 0.0
        for g, factor in zip(gradients, factors, strict=True):
            moment = 0.95 * moment + 0.05 * g[name]
            ahead = 0.95 * moment + 0.05 * g[name] if nesterov else moment
            pieces = np.split(ahead, count)
            turned = np.concatenate([0.2 * max(p.shape) ** 0.5 * near_orthogonal(p) for p in pieces])
            value = (1 - 0.03 * factor * 0.2) * value - 0.03 * factor * turned
        np.testing.assert_allclose(one.detach().numpy(), value, rtol=0, atol=1e-10, err_msg=name)
        moved += 1
    assert moved == 8


def test_muons_updates_are_as_large_as_adamws():
    encoder = random_encoder(ROTARY_WINDOWS)
    before = copy.deepcopy(encoder)
    optimizer = build_optimizer(encoder, OptimizerSpec("muon", 0.01, weight_decay=0.0))
    set_gradients(encoder, np.random.default_rng(0))
    optimizer.step()
    for name, one in encoder.layers[0].named_parameters():
        if "norm" not in name:
            size = (one - before.layers[0].get_parameter(name)).pow(2).mean().sqrt() / 0.01
            assert 0.15 < size < 0.24, name
