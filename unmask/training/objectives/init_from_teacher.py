"""Initialize a student with some of its teacher's layers."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.spec import EncoderSpec, FullAttention, Layer, Mixer, SoftmaxAttention

LAYER_INPUTS = "layer_inputs.map.weight"
"""The tensor of which every layer reads rows of its own."""

DISTILBERT_LAYERS = (0, 2, 4, 7, 9, 11)
"""The layers of BERT's twelve with which DistilBERT was initialized."""


def init_from_teacher(
    student: Encoder, teacher: Encoder, layers: Sequence[int] = DISTILBERT_LAYERS
) -> tuple[str, ...]:
    """Copy a teacher's weights into a student, in place (Sanh et al. 2019).

    The student's layer i becomes the teacher's layer ``layers[i]``; embedding, norms, positions, pooler and
    heads are copied where the student has them. Layers that share weights take the weights of the first of
    them.

    If only the teacher has token types, the vector of token type 0 is added to the student's positions, so
    that a student of equal depth computes the same as its teacher; DistilBERT omitted this.

    Args:
        student: an encoder of the teacher's width.
        teacher: unchanged.
        layers: for each of the student's layers, the number of one of the teacher's, from 0.

    Returns:
        Names of the student's tensors that the teacher lacks, such as a separate head; they are unchanged.

    Raises:
        InvalidRequest: the number of layers differs from the student's, or shapes differ from the teacher's.
    """
    mine, its = student.spec, teacher.spec
    _check(mine, its, layers)
    numbers = {
        mine.weights_of_layer[layer]: its.weights_of_layer[source]
        for layer, source in reversed(list(enumerate(layers)))
    }
    teacher_state, student_state = teacher.state_dict(), student.state_dict()
    tensors: dict[str, Tensor] = {}
    for name, tensor in student_state.items():
        part, _, rest = name.partition(".")
        number, _, end = rest.partition(".")
        source = f"layers.{numbers[int(number)]}.{end}" if part == "layers" else name
        if name == LAYER_INPUTS and name in teacher_state and its.gate is not None:
            rows = teacher_state[name].unflatten(0, (-1, its.gate.width))
            teacher_state[name] = rows[list(layers)].flatten(0, 1)
        if source not in teacher_state:
            if part in ("heads", "pooler", "output"):
                continue
            raise InvalidRequest(f"the student's {name} has no counterpart: the teacher has no {source}")
        if teacher_state[source].shape != tensor.shape:
            raise InvalidRequest(
                f"the student's {name} has shape {tuple(tensor.shape)} and the teacher's {source} "
                f"{tuple(teacher_state[source].shape)}; a student initialized from a teacher must have its "
                "sizes"
            )
        tensors[name] = teacher_state[source].to(tensor)
    if its.embedding.segments and not mine.embedding.segments:
        _fold_first(tensors, teacher_state["embedding.segments.weight"], mine)
    if its.embedding.tasks and not mine.embedding.tasks:
        _fold_first(tensors, teacher_state["embedding.tasks.weight"], mine)
    student.load_state_dict(tensors, strict=False)
    return tuple(name for name in student_state if name not in tensors)


def _fold_first(tensors: dict[str, Tensor], table: Tensor, student: EncoderSpec) -> None:
    """Add token type 0, or task 0, to every position.

    Raises:
        InvalidRequest: the student adds no positions.
    """
    positions = student.embedding.positions
    if positions is None or not positions.added:
        raise InvalidRequest(
            "the teacher adds token types or tasks and the student has neither these nor positions; "
            "give its spec the teacher's token types and tasks"
        )
    name = "embedding.positions.weight"
    tensors[name] = tensors[name] + table[0].to(tensors[name])


def _check(student: EncoderSpec, teacher: EncoderSpec, layers: Sequence[int]) -> None:
    """Raise if the student's layers cannot hold the teacher's weights."""
    depth = len(teacher.layers)
    if len(layers) != len(student.layers):
        raise InvalidRequest(f"{len(layers)} layers are named for a student of {len(student.layers)}")
    for layer, source in enumerate(layers):
        if not 0 <= source < depth:
            raise InvalidRequest(f"layers names {source}; the teacher has layers 0 to {depth - 1}")
        if _plain(student.layers[layer]) != _plain(teacher.layers[source]):
            raise InvalidRequest(
                f"layer {layer} of the student and {source} of the teacher differ in their heads, network, "
                "norms or activation; a student initialized from a teacher must have its layers"
            )


def _plain(layer: Layer) -> Layer:
    """The layer without properties that do not affect tensors: attention pattern and dropout."""
    mixer: Mixer = layer.mixer
    if isinstance(mixer, SoftmaxAttention):
        mixer = replace(mixer, pattern=FullAttention(), dropout=0.0)
    return replace(layer, mixer=mixer, dropout=0.0, attention_norm=True, output_scale=1.0)
