"""Gradients that are drawn, for tests of what becomes of them."""

import torch


def set_gradients(module, draw, scale=1.0):
    for parameter in module.parameters():
        noise = torch.from_numpy(draw.standard_normal(tuple(parameter.shape)))
        parameter.grad = (scale * noise).to(parameter.dtype)
