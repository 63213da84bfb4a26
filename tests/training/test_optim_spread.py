"""Parameters spread over two processes (FSDP2) move as those of one process do."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import distributed, multiprocessing

from tests.support.specs import ROTARY_WINDOWS, random_encoder
from unmask.training.optim import OptimizerSpec, build_optimizer

SPEC = replace(ROTARY_WINDOWS, layers=ROTARY_WINDOWS.layers[1:], sharing=None)


def gradient(parameter, draw):
    return torch.from_numpy(draw.standard_normal(tuple(parameter.shape))).float()


def compare(kind):
    """Both ways side by side; an assertion that fails here fails the test."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import distribute_tensor

    spec = OptimizerSpec(kind, 0.01, weight_decay=0.1, clip=3.0)
    whole = random_encoder(SPEC)
    spread = copy.deepcopy(whole)
    fully_shard(spread)
    pair = [build_optimizer(module, spec) for module in (whole, spread)]
    draw = np.random.default_rng(0)
    for _ in range(2):
        for one, part in zip(whole.parameters(), spread.parameters(), strict=True):
            one.grad = gradient(one, draw)
            part.grad = distribute_tensor(one.grad, part.device_mesh, part.placements)
        norms = [optimizer.clip() for optimizer in pair]
        np.testing.assert_allclose(norms[0], norms[1], rtol=1e-5)
        for optimizer in pair:
            optimizer.step()
    for (name, one), part in zip(whole.named_parameters(), spread.parameters(), strict=True):
        assert part.to_local().numel() < one.numel(), "nothing is spread"
        # Sums in another order, and Muon rounds to 16 bits on the way.
        atol = 1e-3 if kind == "muon" else 1e-6
        torch.testing.assert_close(part.full_tensor(), one, rtol=0, atol=atol, msg=name)
    state = get_optimizer_state_dict(spread, pair[1])["state"]
    moments = set(state["layers.0.attention.qkv.weight"]) - {"step"}
    assert all(
        state["layers.0.attention.qkv.weight"][moment].to_local().shape == (30, 20) for moment in moments
    )


def run(rank, folder):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for kind in ("stable_adamw", "muon"):
        compare(kind)
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not distributed.is_available(), reason="torch without torch.distributed")
def test_two_processes_move_as_one(tmp_path):
    multiprocessing.spawn(run, (str(tmp_path),), nprocs=2)
