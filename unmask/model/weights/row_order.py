"""The order of a tensor's rows in files of a family, and in ours."""

from torch import Tensor

from unmask.model.spec import EncoderSpec
from unmask.model.spec.tensor_map import Reorder


def in_our_order(tensor: Tensor, reorder: Reorder | None, spec: EncoderSpec) -> Tensor:
    """A tensor as a file holds it, with its rows in our order; None changes nothing."""
    return tensor if reorder is None else _chosen(tensor, list(reorder.order(spec)))


def in_their_order(tensor: Tensor, reorder: Reorder | None, spec: EncoderSpec) -> Tensor:
    """The reverse of `in_our_order`."""
    if reorder is None:
        return tensor
    order = reorder.order(spec)
    return _chosen(tensor, sorted(range(len(order)), key=order.__getitem__))


def _chosen(tensor: Tensor, order: list[int]) -> Tensor:
    """The blocks of rows in an order, of which each has the same number of rows."""
    return tensor.reshape(len(order), -1, *tensor.shape[1:])[order].reshape(tensor.shape)
