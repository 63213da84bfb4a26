"""Heads as families store them: the tensor that identifies each, its spec, and its tensor names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unmask.base.json_settings import JsonSettings
from unmask.errors import UnknownArchitecture
from unmask.families.common import activation_of
from unmask.spec import (
    ROLES,
    Activation,
    Classifier,
    ClassifierRole,
    EncoderSpec,
    Head,
    MaskedLM,
    Transform,
    role_of,
)
from unmask.spec.tensor_map import Copy, Rename, Same, TensorRule

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of a checkpoint's tensors by canonical name."""


@dataclass(frozen=True)
class CheckpointInfo:
    """What is known of a checkpoint: the encoder's spec, the shapes of its tensors, its config.json."""

    encoder: EncoderSpec
    shapes: Shapes
    config: JsonSettings

    @property
    def has_weights(self) -> bool:
        """Whether there is a checkpoint at all; for an encoder that is still to be made, only the shapes by
        which its heads are detected are known.
        """
        return any(name.endswith("word_embeddings.weight") for name in self.shapes)

    def saved_from(self, suffix: str) -> bool:
        """Whether the class it was saved from has ``suffix`` in its name."""
        return self.class_with(suffix) is not None

    def class_with(self, suffix: str) -> str | None:
        """The name of the class it was saved from, if it contains ``suffix``."""
        names = self.config.values.get("architectures")
        matching = [str(name) for name in names if suffix in str(name)] if isinstance(names, list) else []
        return matching[0] if matching else None


@dataclass(frozen=True)
class HeadLayout:
    """One head, or one of several that share a tensor's name."""

    tensor: str
    """The tensor that identifies a checkpoint with this head."""
    roles: tuple[str, ...]
    """The possible roles of the head."""
    make: Callable[[CheckpointInfo, int], Head | None]
    """Makes the head, given the tensor's first axis; None if the tensor belongs to another head."""
    rows: tuple[TensorRule, ...]
    write: Callable[[Any], Mapping[str, Any]] = lambda head: {}
    """The keys of config.json that describe the head."""
    of_class: str | None = None
    """Part of the name of the class that a checkpoint with this head was saved from. The tensor then belongs
    to this head alone, and in checkpoints of other classes to the other heads."""


def tying(head: MaskedLM) -> Mapping[str, Any]:
    """The config.json key of an MLM head: whether its matrix is the word embedding."""
    return {"tie_word_embeddings": head.tied}


def masked_words(
    dense: str,
    norm: str,
    bias: str,
    decoder: str,
    *,
    activation: Activation | None = None,
    write: Callable[[MaskedLM], Mapping[str, Any]] = tying,
) -> HeadLayout:
    """An MLM head with a transform, by the names of its parts.

    In the files of most `transformers` classes an untied matrix has its own bias in addition to ``bias``: the
    former is added, the latter is kept. ``activation`` is None if the encoder's activation is used.
    """
    second = f"{decoder}.bias" != bias

    def make(info: CheckpointInfo, width: int) -> MaskedLM:
        tied = info.config.get("tie_word_embeddings", True)
        own_bias = second and not tied and f"{decoder}.bias" in info.shapes
        transform = Transform(width, activation or activation_of(info.encoder), info.encoder.layers[0].norm)
        return MaskedLM(transform, tied, own_bias=own_bias)

    return HeadLayout(
        f"{dense}.weight",
        ("masked",),
        make,
        (
            Rename(dense, "heads.masked.transform.dense"),
            Rename(norm, "heads.masked.transform.norm"),
            Rename(bias, "heads.masked.bias"),
            Rename(decoder, "heads.masked.decoder"),
            Copy(f"{decoder}.weight", "embedding.words.weight"),
            *([Copy(f"{decoder}.bias", "heads.masked.bias")] if second else []),
        ),
        write,
    )


def classifier(
    role: ClassifierRole, name: str, make: Callable[[CheckpointInfo, int], Head | None], dense: str = ""
) -> HeadLayout:
    """A classifier whose last matrix is ``name`` and whose transform, if any, is ``dense``."""
    transform = (Rename(dense, f"heads.{role}.transform.dense"),) if dense else ()
    return HeadLayout(f"{name}.weight", (role,), make, (*transform, Rename(name, f"heads.{role}.out")))


def pooled(role: ClassifierRole, name: str) -> HeadLayout:
    """A classifier of the pooler's state."""
    return classifier(role, name, lambda info, classes: Classifier(role, classes, "pooler"))


def dense_sequence(activation: Activation | None, *, dense: str, name: str) -> HeadLayout:
    """A classifier of the first token's state with a dense layer; None: the encoder's activation."""

    def make(info: CheckpointInfo, classes: int) -> Head:
        used = activation or activation_of(info.encoder)
        return Classifier("sequence", classes, "first", Transform(info.encoder.width, used))

    return classifier("sequence", name, make, dense)


CHOICE_CLASS = "MultipleChoice"
PRUNED_CLASS = "ForCompressionAndRanking"
"""The suffix of the class of the authors of Provence (Chirkova et al. 2025) whose second head prunes."""


def choice(
    dense: str = "", *, make: Callable[[CheckpointInfo, int], Head | None] | None = None
) -> HeadLayout:
    """A multiple-choice head: a number for a question with one choice. By default it reads the pooler.

    Its last matrix has the name of a token classifier's, so only the class it was saved from determines it.
    """
    layout = classifier(
        "choice",
        "classifier",
        make or (lambda info, classes: Classifier("choice", classes, "pooler")),
        dense,
    )
    return replace(layout, of_class=CHOICE_CLASS)


CHOICE = choice()
TOKENS = classifier("tokens", "classifier", lambda info, classes: Classifier("tokens", classes, "tokens"))
SPAN = classifier("span", "qa_outputs", lambda info, classes: Classifier("span", classes, "tokens"))

POOLED_OR_TOKENS = HeadLayout(
    "classifier.weight",
    ("sequence", "tokens"),
    lambda info, classes: (
        Classifier("tokens", classes, "tokens")
        if info.saved_from("TokenClassification")
        else Classifier("sequence", classes, "pooler")
    ),
    (Rename("classifier", "heads.sequence.out"), *TOKENS.rows),
)
"""Only the class it was saved from determines the role of a head called ``classifier``."""

DENSE_OR_TOKENS = (
    dense_sequence("tanh", dense="classifier.dense", name="classifier.out_proj"),
    TOKENS,
)


def find_heads(layouts: Sequence[HeadLayout], info: CheckpointInfo) -> tuple[Head, ...]:
    """The heads whose tensor is present, each made from the first axis of that tensor.

    Raises:
        UnknownArchitecture: it was saved from a class with a multiple-choice head, or with one of relevance
            and one that prunes, and the family has none; its tensors would be taken for another head's.
    """
    _refuse(info, CHOICE_CLASS, built=any(layout.of_class == CHOICE_CLASS for layout in layouts))
    present = [layout for layout in layouts if layout.tensor in info.shapes]
    claimed = {
        layout.tensor
        for layout in present
        if layout.of_class is not None and info.saved_from(layout.of_class)
    }
    candidates = (
        layout.make(info, info.shapes[layout.tensor][0])
        for layout in present
        if (layout.of_class is not None) == (layout.tensor in claimed)
    )
    heads = tuple(head for head in candidates if head is not None)
    _refuse(info, PRUNED_CLASS, built=any(role_of(head) == "sequence" for head in heads))
    return heads


def _refuse(info: CheckpointInfo, of_class: str, *, built: bool) -> None:
    name = info.class_with(of_class)
    if name is not None and not built:
        raise UnknownArchitecture(
            f"{info.config.name} says it was saved from {name}, whose head is not built"
        )


def write_heads(layouts: Sequence[HeadLayout], encoder: EncoderSpec) -> dict[str, Any]:
    """The keys of config.json that describe an encoder's heads."""
    by_role = {role: layout for layout in layouts for role in layout.roles}
    written: dict[str, Any] = {}
    for head in encoder.heads:
        if role_of(head) in by_role:
            written |= by_role[role_of(head)].write(head)
    return written


def pretrained(encoder: EncoderSpec, layouts: Sequence[HeadLayout], *roles: str) -> EncoderSpec:
    """The encoder with the heads of these roles, and with its pooler only if one of them reads it."""
    info = CheckpointInfo(encoder, {}, JsonSettings("config.json", {}))
    candidates = [
        layout.make(info, ROLES[role].classes or encoder.embedding.width)
        for role in roles
        for layout in layouts
        if role in layout.roles
    ]
    heads = tuple(head for head in candidates if head is not None)
    read = any(isinstance(head, Classifier) and head.reads == "pooler" for head in heads)
    return replace(encoder, pooler=encoder.pooler if read else None, heads=heads)


# --- heads that files of every family can have, in classes that `transformers` does not have: it loads the
# encoder and ignores the head. Replaced-token detection (Clark et al. 2020) has ELECTRA's names, for families
# whose own classes have no such head.

CLASS = "ForReplacedTokenDetection"
"""The suffix of the class name."""

OUT = "discriminator_predictions.dense_prediction"


def _make(info: CheckpointInfo, count: int) -> Classifier:
    """A dense layer with the layers' activation, then one number for each token."""
    transform = Transform(info.encoder.width, activation_of(info.encoder))
    return Classifier("replaced", count, "tokens", transform)


DETECTOR = HeadLayout(
    f"{OUT}.weight",
    ("replaced",),
    _make,
    (
        Rename("discriminator_predictions.dense", "heads.replaced.transform.dense"),
        Rename(OUT, "heads.replaced.out"),
    ),
)


PRUNER = classifier(
    "prune",
    "token_classifier",
    lambda info, classes: Classifier("prune", 2, "tokens") if classes == ROLES["prune"].classes else None,
)


def names_every_tensor(encoder_rows: tuple[TensorRule, ...]) -> bool:
    """Whether files have our names for all tensors, those of heads included."""
    return any(isinstance(row, Same) for row in encoder_rows)


def has_detector(encoder_rows: tuple[TensorRule, ...], heads: tuple[HeadLayout, ...]) -> bool:
    """Whether a family already has names for such a head; a native checkpoint needs none."""
    return names_every_tensor(encoder_rows) or any("replaced" in head.roles for head in heads)
