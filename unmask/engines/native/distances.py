"""The distance table of disentangled attention as each layer projects it. Free of torch.

Axes: P rows of the table.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from unmask.spec import Disentangled, LayerNorm, Norm, SoftmaxAttention

Float32s = NDArray[np.float32]


def projected(
    mixer: SoftmaxAttention, position: Disentangled, weights: Mapping[str, Float32s], prefix: str
) -> tuple[Float32s | None, Float32s | None]:
    """One layer's projections of the table, to keys and to queries, (P, H * K); None for a term it lacks.

    Args:
        mixer: the layer's attention.
        position: its positions.
        weights: the tensors of the encoder.
        prefix: of the names of the layer's tensors.
    """
    table_PD = normalized(position.table_norm, "distances.norm", weights["distances.table.weight"], weights)
    inner, shared = mixer.heads * mixer.head_width, position.shared_projections

    def project(part: int, side: str) -> Float32s:
        name, rows = (f"{prefix}.attention.distances.{side}", slice(None))
        if shared:
            name, rows = f"{prefix}.attention.qkv", slice(part * inner, (part + 1) * inner)
        product = table_PD @ weights[f"{name}.weight"][rows].T
        bias = f"{name}.bias"
        return product + weights[bias][rows] if bias in weights else product

    return (
        project(1, "key") if position.content_to_position else None,
        project(0, "query") if position.position_to_content else None,
    )


def normalized(norm: Norm | None, name: str, x: Float32s, weights: Mapping[str, Float32s]) -> Float32s:
    """The rows of a table after its norm."""
    if norm is None:
        return x
    centered = x.astype(np.float64)
    if isinstance(norm, LayerNorm):
        centered -= centered.mean(1, keepdims=True)
    centered /= np.sqrt((centered**2).mean(1, keepdims=True) + norm.eps)
    centered *= weights[f"{name}.weight"]
    if isinstance(norm, LayerNorm) and norm.bias:
        centered += weights[f"{name}.bias"]
    return centered.astype(np.float32)
