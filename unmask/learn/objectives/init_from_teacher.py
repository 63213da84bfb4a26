"""A student that begins with some of its teacher's layers."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from unmask.errors import InvalidRequest
from unmask.model.encoder import Encoder
from unmask.model.spec import EncoderSpec, FullAttention, Layer, Mixer, SoftmaxAttention

DISTILBERT_LAYERS = (0, 2, 4, 7, 9, 11)
"""Of BERT's twelve, those that DistilBERT began with."""


def init_from_teacher(
    student: Encoder, teacher: Encoder, layers: Sequence[int] = DISTILBERT_LAYERS
) -> tuple[str, ...]:
    """Copy a teacher's weights into a student, in place (Sanh et al. 2019).

    The student's layer i becomes the teacher's layer ``layers[i]``; embedding, norms, positions, pooler and
    heads are copied where the student has them. Layers that share weights take those of the first of them.

    Where the student has no segments and the teacher has, the vector of segment 0 is added to the student's
    positions, so that a student of equal depth computes what its teacher does; DistilBERT left it out.

    Args:
        student: of the teacher's width.
        teacher: unchanged.
        layers: for each of the student's layers, the number of one of the teacher's, from 0.

    Returns:
        Names of the student's tensors that the teacher has not, such as a head of its own; they stay.

    Raises:
        InvalidRequest: layers are not as many as the student's, or differ from the teacher's in shape.
    """
    mine, its = student.spec, teacher.spec
    _check(mine, its, layers)
    numbers = {
        mine.weights_of_layer[layer]: its.weights_of_layer[source]
        for layer, source in reversed(list(enumerate(layers)))
    }
    given, wanted = teacher.state_dict(), student.state_dict()
    taken: dict[str, Tensor] = {}
    for name, tensor in wanted.items():
        part, _, rest = name.partition(".")
        number, _, end = rest.partition(".")
        source = f"layers.{numbers[int(number)]}.{end}" if part == "layers" else name
        if source not in given:
            if part in ("heads", "pooler"):
                continue
            raise InvalidRequest(f"the student's {name} has no counterpart: the teacher has no {source}")
        if given[source].shape != tensor.shape:
            raise InvalidRequest(
                f"the student's {name} has shape {tuple(tensor.shape)} and the teacher's {source} "
                f"{tuple(given[source].shape)}; a student that inherits weights has its teacher's sizes"
            )
        taken[name] = given[source].to(tensor)
    if its.embedding.segments and not mine.embedding.segments:
        _fold_segment(taken, given["embedding.segments.weight"], mine)
    student.load_state_dict(taken, strict=False)
    return tuple(name for name in wanted if name not in taken)


def _fold_segment(taken: dict[str, Tensor], segments: Tensor, student: EncoderSpec) -> None:
    """Add segment 0 to every position.

    Raises:
        InvalidRequest: the student adds no positions.
    """
    positions = student.embedding.positions
    if positions is None or not positions.added:
        raise InvalidRequest(
            "the teacher adds a segment to every word and the student has neither segments nor positions; "
            "give its spec segments"
        )
    name = "embedding.positions.weight"
    taken[name] = taken[name] + segments[0].to(taken[name])


def _check(student: EncoderSpec, teacher: EncoderSpec, layers: Sequence[int]) -> None:
    """Refuse a student whose layers cannot hold what they are given."""
    depth = len(teacher.layers)
    if len(layers) != len(student.layers):
        raise InvalidRequest(f"{len(layers)} layers are named for a student of {len(student.layers)}")
    for layer, source in enumerate(layers):
        if not 0 <= source < depth:
            raise InvalidRequest(f"layers names {source}; the teacher has layers 0 to {depth - 1}")
        if _plain(student.layers[layer]) != _plain(teacher.layers[source]):
            raise InvalidRequest(
                f"layer {layer} of the student and {source} of the teacher differ in their heads, network, "
                "norms or activation; a student that inherits weights has its teacher's layers"
            )


def _plain(layer: Layer) -> Layer:
    """Without what changes no tensor's meaning: how far it sees, and dropout."""
    mixer: Mixer = layer.mixer
    if isinstance(mixer, SoftmaxAttention):
        mixer = replace(mixer, pattern=FullAttention(), dropout=0.0)
    return replace(layer, mixer=mixer, dropout=0.0, attention_norm=True)
