"""The order of a tensor's rows in files of a family, and in ours. Free of torch."""

from typing import Any, TypeVar

from unmask.spec import EncoderSpec
from unmask.spec.tensor_map import Reorder

Array = TypeVar("Array", bound=Any)
"""A torch tensor or a numpy array."""


def in_our_order(tensor: Array, reorder: Reorder | None, spec: EncoderSpec) -> Array:
    """A tensor as a file holds it, with its rows in our order; None changes nothing."""
    return tensor if reorder is None else _chosen(tensor, list(reorder.order(spec)))


def in_their_order(tensor: Array, reorder: Reorder | None, spec: EncoderSpec) -> Array:
    """The reverse of `in_our_order`."""
    if reorder is None:
        return tensor
    order = reorder.order(spec)
    return _chosen(tensor, sorted(range(len(order)), key=order.__getitem__))


def _chosen(tensor: Array, order: list[int]) -> Array:
    """The blocks of rows in an order, of which each has the same number of rows."""
    reordered: Array = tensor.reshape(len(order), -1, *tensor.shape[1:])[order].reshape(tensor.shape)
    return reordered
