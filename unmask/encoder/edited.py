"""An encoder with functions of the user at named points of its layers (activation engineering).

The names are those of analyses: of the residual stream, what a block reads and adds. In TransformerLens they
are called resid_post, q, k, v, z, attn_out and mlp_out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.base.arguments import check_choice, one_of
from unmask.encoder.encoder import Encoder
from unmask.encoder.hooks import Hook, HookPoint, hooked
from unmask.errors import InvalidRequest, quoted
from unmask.text.batch import SequenceLayout

POINTS = {
    "embeddings": HookPoint.EMBEDDED,
    "query": HookPoint.QUERY,
    "key": HookPoint.KEY,
    "value": HookPoint.VALUE,
    "head_output": HookPoint.MIXED,
    "attention_output": HookPoint.ATTENTION,
    "feedforward_output": HookPoint.FEEDFORWARD,
    "residual": HookPoint.LAYER,
}
"""The points at which an encoder can be edited; `HookPoint` says what each tensor is, and its shape."""

_WEIGHTS = ("probabilities", "attention_probabilities", "attention", "pattern", "scores")
"""What people call the matrix of a head."""


@dataclass(frozen=True, eq=False)
class EditContext:
    """Where in which batch the function of an edit is called."""

    point: str
    """One of `POINTS`."""
    layer: int
    """From 0; 0 for ``embeddings``."""
    ids_T: NDArray[np.int64]
    """The token ids of all sequences, end to end."""
    offsets: NDArray[np.int64]
    """Where each sequence begins, and the end of the last: shape (sequences + 1,). Sequence s has the rows
    ``offsets[s]`` to ``offsets[s + 1]`` of the tensor."""


EditFunction = Callable[[Tensor, EditContext], Tensor | None]
"""Given a tensor, whose first axis is the tokens of all sequences, and where it comes from; returns a tensor
of the same shape to go on with in its place, or None to leave it. It must not change its argument."""


@dataclass(frozen=True, eq=False)
class Edit:
    """A function at one point of some layers."""

    point: str
    layers: frozenset[int]
    function: EditFunction

    def reaches(self, layer: int) -> bool:
        """Whether something in the layer is edited."""
        return self.point != "embeddings" and layer in self.layers

    @classmethod
    def at(
        cls, encoder: Encoder, point: str, layer: int | Sequence[int] | None, function: EditFunction
    ) -> "Edit":
        """The edit of one layer, of several, or of all for None.

        Raises:
            InvalidRequest: there is no such point or layer, or the function cannot be called.
        """
        if isinstance(point, str) and point in _WEIGHTS:
            raise InvalidRequest(
                f"point is {quoted(point)}, and no kernel holds the weights of attention as a matrix; edit "
                "'query', 'key' or 'head_output'"
            )
        check_choice("point", point, tuple(POINTS))
        if not callable(function):
            raise InvalidRequest(
                f"function is {quoted(function)}; give a function of a tensor and its context"
            )
        count = len(encoder.spec.layers)
        if point == "embeddings":
            if layer is not None:
                raise InvalidRequest(f"layer is {layer}, and embeddings come before all layers; leave it out")
            return cls(point, frozenset({0}), function)
        if layer is None:
            return cls(point, frozenset(range(count)), function)
        chosen = layer if isinstance(layer, Sequence) else (layer,)
        return cls(
            point,
            frozenset(one_of("layer", number, count, "this encoder has layers") for number in chosen),
            function,
        )


class EditedEncoder(Encoder):
    """An encoder whose every forward pass calls the function of an edit. It shares the encoder's modules,
    which stay as they are.

    Args:
        encoder: any encoder, edited or not: the edits of an edited one come first.
        edit: what is called where.

    Raises:
        InvalidRequest: the encoder's layers are compiled.
    """

    def __init__(self, encoder: Encoder, edit: Edit) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(encoder.__dict__)
        if any("after_attention" in block.__dict__ for block in encoder.layers):
            raise InvalidRequest("compiled layers cannot be edited; edit the encoder before it is compiled")
        # In a list, so that it is not registered as a submodule, under whose name weights would appear twice.
        self._unedited = [encoder]
        self.edit = edit

    def edits(self) -> tuple[Edit, ...]:
        """Every edit, in the order in which they are made."""
        (encoder,) = self._unedited
        return (*(encoder.edits() if isinstance(encoder, EditedEncoder) else ()), self.edit)

    def forward(
        self,
        ids_T: Tensor,
        layout: SequenceLayout,
        segments_T: Tensor | None = None,
        *,
        layers: int | None = None,
        hook: Hook | None = None,
    ) -> Tensor:
        """See `Encoder.forward`; ``hook`` is called with tensors as they were edited."""
        edit, ids = self.edit, ids_T.numpy(force=True)

        def editing(point: HookPoint, layer: int, tensor: Tensor) -> Tensor:
            if point is POINTS[edit.point] and layer in edit.layers:
                context = EditContext(edit.point, layer, ids, layout.offsets)
                tensor = _checked(edit.function(tensor, context), tensor, context)
            return hooked(hook, point, layer, tensor)

        (encoder,) = self._unedited
        return encoder.forward(ids_T, layout, segments_T, layers=layers, hook=editing)


def _checked(other: object, tensor: Tensor, context: EditContext) -> Tensor:
    """What the function returned, in the type of the tensor that it was given."""
    if other is None:
        return tensor
    where = "embeddings" if context.point == "embeddings" else f"{context.point} of layer {context.layer}"
    if not isinstance(other, Tensor):
        raise InvalidRequest(
            f"the function at {where} returned a {type(other).__name__}; it must return a tensor or None"
        )
    if other.shape != tensor.shape:
        raise InvalidRequest(
            f"the function at {where} returned a tensor of shape {tuple(other.shape)}; it must have the "
            f"shape {tuple(tensor.shape)} of the one that it was given"
        )
    return other.to(tensor)
