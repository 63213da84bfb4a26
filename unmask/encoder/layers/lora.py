"""Low-rank updates of linear layers (LoRA; Hu et al. 2022), added to an encoder that is already built.

Axes: P matrices that are joined in a linear layer of ours (3 for queries, keys and values), R rank, K inputs,
N outputs of all of them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.kernels.dropout import Dropout

NAME = "lora"
"""The name of the update below its linear layer."""


class LowRankUpdate(nn.Module):
    """``scale * B A x`` for each of the P matrices of a linear layer, which have an A and a B of their own.

    At first B is 0, so the layer computes what it did. A starts as that of `nn.Linear`, as in `peft`.

    Args:
        linear: the layer.
        outputs: the number of outputs of each of the P matrices.
        rank: R.
        scale: the factor, ``lora_alpha / r`` in `peft`'s names.
        dropout: of the input of A, in training.
    """

    def __init__(
        self, linear: nn.Linear, *, outputs: Sequence[int], rank: int, scale: float, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.outputs = tuple(outputs)
        self.scale = scale
        self.dropout = Dropout(dropout)
        self.a_PRK = nn.Parameter(linear.weight.new_empty(len(outputs), rank, linear.weight.shape[1]))
        self.b_NR = nn.Parameter(linear.weight.new_zeros(sum(outputs), rank))
        for part in self.a_PRK:
            nn.init.kaiming_uniform_(part, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., K) in, (..., N) out."""
        inner = functional.linear(self.dropout(x), self.a_PRK.flatten(0, 1)).chunk(len(self.a_PRK), dim=-1)
        outer = [functional.linear(part, b_MR) for part, b_MR in zip(inner, self.by_matrix(), strict=True)]
        return torch.cat(outer, dim=-1) * self.scale

    def weight(self) -> Tensor:
        """What it adds to the layer's weight, shape (N, K)."""
        parts = [b_MR @ a_RK for a_RK, b_MR in zip(self.a_PRK, self.by_matrix(), strict=True)]
        return torch.cat(parts) * self.scale

    def by_matrix(self) -> tuple[Tensor, ...]:
        """B of each of the P matrices."""
        return torch.split(self.b_NR, list(self.outputs))


def add_update(linear: nn.Linear, update: LowRankUpdate) -> None:
    """From now on the layer adds the update to its output; its class and parameters do not change."""
    linear.add_module(NAME, update)
    linear.register_forward_hook(_updated)


def _updated(linear: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
    y: Tensor = output + getattr(linear, NAME)(args[0])
    return y


def weight_of(linear: nn.Linear) -> Tensor:
    """The weight with which a layer computes: its own, and its update if it has one."""
    update = getattr(linear, NAME, None)
    return linear.weight if update is None else linear.weight + update.weight()


def updates(module: nn.Module) -> dict[str, LowRankUpdate]:
    """Every update below a module, by the name of its linear layer."""
    return {
        name.removesuffix(f".{NAME}"): submodule
        for name, submodule in module.named_modules()
        if isinstance(submodule, LowRankUpdate)
    }


@torch.no_grad()
def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """The ``state_dict`` of an equal module without updates: they are added to the weights."""
    state: Mapping[str, Tensor] = module.state_dict()
    by_layer = updates(module)
    merged = {name: tensor for name, tensor in state.items() if not _below(name, by_layer)}
    for name, update in by_layer.items():
        weight = merged[f"{name}.weight"]
        merged[f"{name}.weight"] = weight + update.weight().to(weight)
    return merged


def _below(tensor: str, linears: Iterable[str]) -> bool:
    name, _, _ = tensor.rpartition(f".{NAME}.")
    return name in linears
