"""Dropout: the kept share, its scale, gradients, and draws that do not depend on one another."""

import math

import pytest
import torch

from unmask.kernels.dropout import Dropout, apply_keep_mask, dropout, keep_mask, kept_share

CPU = torch.device("cpu")


@pytest.mark.parametrize("rate", [0.0, 1e-6, 0.1, 0.5, 0.9, 1.0])
def test_the_kept_share_is_the_nearest_of_16_bits(rate):
    torch.manual_seed(1)
    mask = keep_mask(torch.Size([1000, 1001]), rate, CPU)
    share = kept_share(rate)
    assert abs(share - (1 - rate)) <= 2**-17
    spread = math.sqrt(share * (1 - share) / mask.numel())
    assert abs(mask.double().mean().item() - share) <= 5 * spread


def test_each_of_the_four_elements_of_a_draw_is_kept_as_often_and_alone():
    torch.manual_seed(2)
    rate, count = 0.3, 1 << 18
    mask_N4 = keep_mask(torch.Size([count, 4]), rate, CPU).double()
    spread = math.sqrt(rate * (1 - rate) / count)
    assert (mask_N4.mean(0) - (1 - rate)).abs().max() <= 5 * spread
    correlation = torch.corrcoef(torch.cat([mask_N4, mask_N4.roll(1, 0)], 1).T)
    assert (correlation - torch.eye(8)).abs().max() <= 5 / math.sqrt(count)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7), (0, 4)])
def test_kept_elements_and_gradients_have_one_factor(dtype, shape):
    torch.manual_seed(3)
    x = torch.randn(shape, dtype=dtype).requires_grad_()
    y = dropout(x, 0.25)
    y.sum().backward()
    assert y.dtype == dtype
    assert y.shape == x.shape
    dropped = y == 0
    factor = torch.where(dropped, 0.0, 1 / 0.75).to(dtype)
    torch.testing.assert_close(x.grad, factor)
    torch.testing.assert_close(y.detach(), x.detach() * factor)


def test_the_factor_is_that_of_the_kept_share_and_not_of_the_rate():
    y = dropout(torch.ones(1000, dtype=torch.float64), 0.1)
    assert set(y.unique().tolist()) == {0.0, 65536 / 58982}


def test_the_same_seed_draws_the_same_for_every_number_format():
    masks = [
        apply_keep_mask(torch.ones(999, dtype=dtype), keep_mask(torch.Size([999]), 0.4, CPU, generator), 0.4)
        != 0
        for dtype in (torch.float64, torch.bfloat16)
        for generator in [torch.Generator().manual_seed(7)]
    ]
    assert torch.equal(*masks)
    other = keep_mask(torch.Size([999]), 0.4, CPU, torch.Generator().manual_seed(8))
    assert not torch.equal(masks[0], other)


def test_the_default_generator_is_used_and_nothing_is_drawn_without_a_rate():
    torch.manual_seed(4)
    first = dropout(torch.ones(64), 0.5)
    torch.manual_seed(4)
    assert dropout(torch.ones(64), 0.0).eq(1).all()
    assert torch.equal(dropout(torch.ones(64), 0.5), first)


def test_everything_dropped_is_zero_with_a_gradient_of_zero():
    x = torch.randn(10, requires_grad=True)
    y = dropout(x, 1.0)
    y.sum().backward()
    assert x.grad is not None
    assert y.eq(0).all()
    assert x.grad.eq(0).all()


def test_the_module_drops_only_in_training():
    layer, x = Dropout(0.5), torch.ones(4096)
    assert layer.eval()(x) is x
    y = layer.train()(x)
    assert set(y.unique().tolist()) == {0.0, 2.0}
    with pytest.raises(ValueError, match="probability"):
        Dropout(1.5)


def test_compiled_code_drops_as_torch_does():
    compiled = torch.compile(lambda x: dropout(x, 0.5), backend="eager", fullgraph=True)
    y = compiled(torch.ones(4096))
    assert set(y.unique().tolist()) == {0.0, 2.0}
