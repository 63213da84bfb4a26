"""What a family is: a page of values that says how its checkpoints are read and written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from unmask.errors import UnknownArchitecture
from unmask.model.families.detector import ROWS as DETECTOR_ROWS
from unmask.model.families.detector import adapting, has_none, writing
from unmask.model.spec import EncoderSpec, Head, MaskedLM, Transform, role_of
from unmask.model.spec.compat import Compat
from unmask.model.spec.rows import Row
from unmask.settings import Settings

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of a checkpoint's tensors by canonical name."""


@dataclass(frozen=True)
class Published:
    """A checkpoint that its authors published."""

    name: str
    """Its id on the hub."""
    spec: EncoderSpec
    licence: str
    paper: str
    """Where it is described, as authors and year."""
    pretraining: EncoderSpec | None = None
    """The encoder with the heads it was pretrained with."""


def number_of_layer(spec: EncoderSpec, weights: int) -> str:
    """Layers are named by their number in most layouts."""
    return str(weights)


@dataclass(frozen=True)
class Family:
    """One line of encoders that share a config and a layout of tensors.

    A family whose tensors have no names for a head that finds replaced tokens is given such names, see
    `unmask.model.families.detector`.
    """

    name: str
    model_types: tuple[str, ...]
    """Values of ``model_type`` in config.json; the first is the one written."""
    paper: str
    read: Callable[[Settings, Compat], EncoderSpec]
    """config.json to a spec, without heads."""
    adapt: Callable[[EncoderSpec, Shapes, Settings], EncoderSpec]
    """Add the heads whose tensors a checkpoint has, and leave out optional parts that it has not."""
    write: Callable[[EncoderSpec], Mapping[str, Any]]
    """A spec to the keys of config.json that decide outputs, ``architectures`` and ``model_type``."""
    prefix: str
    """What stands before the encoder's tensors in checkpoints saved with a head."""
    rows: tuple[Row, ...]
    published: tuple[Published, ...]
    marks: tuple[str, ...] = ()
    """Keys of config.json that tell it from another family of the same ``model_type``."""
    other_prefixes: tuple[str, ...] = ()
    """What older checkpoints have in the place of ``prefix``; read, never written."""
    beside: tuple[str, ...] = ("heads.",)
    """How names of ours begin that stand beside the encoder in such checkpoints, without ``prefix``."""
    layer_name: Callable[[EncoderSpec, int], str] = number_of_layer
    """What ``{l}`` stands for in their names: where the set of weights of that number is kept."""
    differs: str = ""
    """What ``compat="hf"`` changes; empty where nothing does."""

    def __post_init__(self) -> None:
        if has_none(self.rows):
            object.__setattr__(self, "rows", (*self.rows, *DETECTOR_ROWS))
            object.__setattr__(self, "adapt", adapting(self.adapt))
            object.__setattr__(self, "write", writing(self.write))

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Everything that may stand before the encoder's tensors."""
        return (self.prefix, *self.other_prefixes)


CLASSES: Mapping[frozenset[str], str] = {
    frozenset(): "Model",
    frozenset({"masked"}): "ForMaskedLM",
    frozenset({"enhanced"}): "ForMaskedLM",
    frozenset({"masked", "next_sentence"}): "ForPreTraining",
    frozenset({"masked", "sentence_order"}): "ForPreTraining",
    frozenset({"replaced"}): "ForPreTraining",
    frozenset({"next_sentence"}): "ForNextSentencePrediction",
    frozenset({"sequence"}): "ForSequenceClassification",
    frozenset({"tokens"}): "ForTokenClassification",
    frozenset({"span"}): "ForQuestionAnswering",
}
"""The end of the name of the `transformers` class that has these heads."""


def architectures(stem: str, spec: EncoderSpec) -> list[str]:
    """The value of ``architectures`` in config.json: the class of `transformers` that reads all of it."""
    roles = frozenset(role_of(head) for head in spec.heads)
    return [stem + CLASSES.get(roles, "Model")]


def classifies_tokens(config: Settings) -> bool:
    """Whether a head called ``classifier`` decides tokens: only the class it was saved from says so."""
    names = config.values.get("architectures")
    return isinstance(names, list) and any("TokenClassification" in str(name) for name in names)


def refuse_choices(config: Settings) -> None:
    """Refuse a head over several texts, whose tensors bear the names of one that decides tokens.

    Raises:
        UnknownArchitecture: the class it was saved from has such a head.
    """
    names = config.values.get("architectures")
    for name in names if isinstance(names, list) else ():
        if "MultipleChoice" in str(name):
            raise UnknownArchitecture(f"{config.name} says it was saved from {name}, whose head is not built")


def tying(spec: EncoderSpec) -> dict[str, Any]:
    """What config.json says of a predictor of words: whether its matrix is the word embedding."""
    masked = next((head for head in spec.heads if isinstance(head, MaskedLM)), None)
    return {} if masked is None else {"tie_word_embeddings": masked.tied}


def predictor(transform: Transform, config: Settings, shapes: Shapes, decoder: str) -> MaskedLM:
    """The predictor of words of a checkpoint whose own matrix, where it has one, is called ``decoder``.

    Files of `transformers` hold two biases then: that of the matrix, which is added, and one that is not.
    """
    tied = config.take("tie_word_embeddings", True)
    return MaskedLM(transform, tied, own_bias=not tied and f"{decoder}.bias" in shapes)


def present(shapes: Shapes, *heads: tuple[str, Callable[[int], Head]]) -> tuple[Head, ...]:
    """The heads whose tensor is there; each is made from the first axis of that tensor (its classes)."""
    return tuple(make(shapes[name][0]) for name, make in heads if name in shapes)


__all__ = [
    "CLASSES",
    "Compat",
    "Family",
    "Published",
    "Shapes",
    "architectures",
    "classifies_tokens",
    "number_of_layer",
    "predictor",
    "present",
    "refuse_choices",
    "tying",
]
