"""The distance table of disentangled attention as each layer projects it. Free of torch.

Axes: P rows of the table.
"""

from unmask.engines.native.parts import Float32s, Weights, normalized
from unmask.spec import Disentangled, SoftmaxAttention


def projected(
    mixer: SoftmaxAttention, position: Disentangled, weights: Weights, prefix: str
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
