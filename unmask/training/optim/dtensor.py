"""Tensors sharded over processes (`DTensor`), recognized without importing `torch.distributed.tensor`.

The import takes more than half a second, and a tensor can only be a DTensor if the module has been imported.
"""

from collections.abc import Iterable

from torch import Tensor


def is_dtensor(tensor: Tensor) -> bool:
    """Whether each process holds a shard of the tensor."""
    return hasattr(tensor, "full_tensor")


def full_tensors(tensor: Tensor) -> Tensor:
    """The full tensor, on every process; a plain tensor is returned unchanged."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def local_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """This process's shard of each tensor, sharing memory; a plain tensor is returned unchanged.

    For elementwise work: operations on lists of tensors support shards better than DTensors.
    """
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]


def distribute_like(whole: Tensor, other: Tensor) -> Tensor:
    """Shard a tensor that every process holds in full in the same way as ``other``, without communication."""
    if not is_dtensor(other):
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(other, DTensor)
    return distribute_tensor(whole, other.device_mesh, other.placements, src_data_rank=None)
