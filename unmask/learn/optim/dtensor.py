"""Tensors that are spread over processes (`DTensor`), told apart without importing what makes them.

The import takes more than half a second, and a tensor can only be one if it has happened.
"""

from collections.abc import Iterable

from torch import Tensor


def is_dtensor(tensor: Tensor) -> bool:
    """Whether each process holds a part of it."""
    return hasattr(tensor, "full_tensor")


def full_tensors(tensor: Tensor) -> Tensor:
    """All of it, on every process; a plain tensor as it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def local_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """What this process holds of each, in the same memory; a plain tensor is held whole.

    For what is done number by number: operations on lists know less of spread tensors than of their parts.
    """
    return [one.to_local() if hasattr(one, "to_local") else one for one in tensors]


def distribute_like(whole: Tensor, other: Tensor) -> Tensor:
    """What every process holds all of, spread as ``other`` is; nothing is sent, each keeps its share."""
    if not is_dtensor(other):
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(other, DTensor)
    return distribute_tensor(whole, other.device_mesh, other.placements, src_data_rank=None)
