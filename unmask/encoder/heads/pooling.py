"""Pool hidden states to one vector per sequence."""

from typing import assert_never

import torch
from torch import Tensor, nn

from unmask.encoder.layers.parts import ACTIVATIONS
from unmask.errors import InvalidRequest
from unmask.spec import PooledVector, Pooler, PoolingMode, UnitLength
from unmask.text.batch import SequenceLayout, check_unpooled


class PoolerLayer(nn.Module):
    """Dense layer and activation on each sequence's first token (Devlin et al. 2019)."""

    def __init__(self, spec: Pooler, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activation = ACTIVATIONS[spec.activation]

    def forward(self, x_TD: Tensor, layout: SequenceLayout) -> Tensor:
        """Shape (T, D) in, (S, D) out."""
        return self.activation(self.dense(pool(x_TD, layout, "cls")))


def pool(x_TD: Tensor, layout: SequenceLayout, mode: PoolingMode) -> Tensor:
    """One vector per sequence, shape (S, D): see `PoolingMode`. Special tokens are included.

    Half-precision states are pooled in float32; the result has the states' dtype.
    """
    return _pool_exactly(x_TD, layout, mode).to(x_TD.dtype)


def _pool_exactly(x_TD: Tensor, layout: SequenceLayout, mode: PoolingMode, skipped: int = 0) -> Tensor:
    """`pool` in float32, or in float64 for float64, without the first ``skipped`` tokens of each sequence."""
    exact = torch.promote_types(x_TD.dtype, torch.float32)
    if mode == "last":
        return x_TD[torch.from_numpy(layout.offsets[1:] - 1).to(x_TD.device)].to(exact)
    if mode == "cls":
        return x_TD[torch.from_numpy(layout.offsets[:-1] + skipped).to(x_TD.device)].to(exact)
    if mode == "weighted_mean":
        places_T = torch.from_numpy(layout.positions_T + 1).to(x_TD.device, exact)
        places_T = torch.where(places_T > skipped, places_T, 0)
        lengths_S = torch.from_numpy(layout.lengths).to(x_TD.device)
        sums_SD = torch.segment_reduce(x_TD.to(exact) * places_T[:, None], "sum", lengths=lengths_S)
        return sums_SD / torch.segment_reduce(places_T, "sum", lengths=lengths_S)[:, None]
    if skipped:
        x_TD = x_TD[torch.from_numpy(layout.positions_T >= skipped).to(x_TD.device)]
        layout = SequenceLayout.of_lengths(layout.lengths - skipped)
    if mode == "mean" and layout.sequence_count == 1 and x_TD.device.type == "cpu":
        return x_TD.to(exact).mean(0, keepdim=True)
    lengths_S = torch.from_numpy(layout.lengths).to(x_TD.device)
    if mode == "max":
        return torch.segment_reduce(x_TD.to(exact), "max", lengths=lengths_S)
    sums_SD = torch.segment_reduce(x_TD.to(exact), "sum", lengths=lengths_S)
    counts_S1 = lengths_S[:, None].to(sums_SD.dtype)
    match mode:
        case "mean":
            divisors_S1 = counts_S1
        case "mean_sqrt_len":
            divisors_S1 = counts_S1.sqrt()
        case _:
            assert_never(mode)
    return sums_SD / divisors_S1


def pool_padded(x_BND: Tensor, present_BN: Tensor, mode: PoolingMode) -> Tensor:
    """One vector per text, (B, D); `pool` over padded texts, for graphs that are exported."""
    weight_BN1 = present_BN[..., None].to(x_BND.dtype)
    counts_B1 = weight_BN1.sum(1)
    match mode:
        case "cls":
            return x_BND[:, 0]
        case "last":
            places_B11 = (present_BN.sum(1) - 1)[:, None, None]
            return x_BND.gather(1, places_B11.expand(-1, 1, x_BND.shape[-1]))[:, 0]
        case "max":
            return x_BND.masked_fill(weight_BN1 == 0, torch.finfo(x_BND.dtype).min).amax(1)
        case "weighted_mean":
            weight_BN1 = weight_BN1 * torch.arange(1, x_BND.shape[1] + 1)[:, None]
            return (x_BND * weight_BN1).sum(1) / weight_BN1.sum(1)
        case "mean":
            return (x_BND * weight_BN1).sum(1) / counts_B1
        case "mean_sqrt_len":
            return (x_BND * weight_BN1).sum(1) / counts_B1.sqrt()
        case _:
            assert_never(mode)


def embed(
    x_TD: Tensor,
    layout: SequenceLayout,
    head: PooledVector,
    layers: nn.Sequential | None = None,
    *,
    skipped: int = 0,
) -> Tensor:
    """Sentence embeddings as the checkpoint defines them, shape (S, E), in float32 at least.

    Args:
        x_TD: the last hidden states.
        layout: where each sequence begins.
        head: how to pool them.
        layers: the modules of its ``projections``; None if it has none.
        skipped: how many tokens at the beginning of each sequence are not pooled, because they are a prompt.

    Raises:
        InvalidRequest: its dense layers are not given, or a sequence has no token to pool.
    """
    layer_count = 0 if layers is None else len(layers)
    if any(
        not isinstance(layer, UnitLength) for layer in head.projections[layer_count:]
    ) or layer_count > len(head.projections):
        raise InvalidRequest(
            f"the output has {len(head.projections)} layers after pooling and the encoder has {layer_count}; "
            "use the output of its own checkpoint"
        )
    check_unpooled(layout, skipped)
    e_SE = torch.cat([_pool_exactly(x_TD, layout, mode, skipped) for mode in head.pooling], dim=-1)
    e_SE = e_SE if layers is None else layers(e_SE)
    for _ in head.projections[layer_count:]:
        e_SE = torch.nn.functional.normalize(e_SE, dim=-1)
    e_SE = e_SE[:, : head.dimensions]
    return torch.nn.functional.normalize(e_SE, dim=-1) if head.normalize else e_SE
