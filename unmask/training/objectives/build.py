"""An objective from the table of a run file: ``kind`` and the keys of that kind."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.families import Family
from unmask.spec import EncoderSpec
from unmask.training.objectives.distillation import Distillation, init_from_teacher
from unmask.training.objectives.generator import discriminator_spec
from unmask.training.objectives.interface import Objective
from unmask.training.objectives.language_modeling import (
    CausalLanguageModel,
    CausalSpec,
    EnhancedMaskedLanguageModel,
    MaskedLanguageModel,
)
from unmask.training.objectives.masking import MaskingSpec
from unmask.training.objectives.replaced import DEBERTA_V3, ReplacedSpec, ReplacedTokenDetection
from unmask.training.objectives.sentence_pairs import SentencePairs, SentencePairSpec
from unmask.training.objectives.specs import MINILM, MINILM_V2, DistillationSpec, TeacherChoice
from unmask.training.table import read_table
from unmask.training.vocabulary import Vocabulary
from unmask.weights import find, read_checkpoint
from unmask.weights.build import build as build_encoder

Spec = TypeVar("Spec", DistillationSpec, ReplacedSpec)


@dataclass(frozen=True)
class _Kind:
    """How the table of one ``kind`` of objective is read and built."""

    read: Callable[[Mapping[str, Any]], Any]
    heads: Callable[[Any], frozenset[str]]
    """Roles of the encoder's heads that are trained, given the settings read."""
    build: Callable[[Any, Encoder, Vocabulary, Family | None], Objective[Any, Any]]
    saved: Callable[[EncoderSpec, Family], EncoderSpec] = lambda spec, _: spec
    """The spec of the encoder as the objective trains it, which is saved."""


def _masked(
    masking: MaskingSpec, encoder: Encoder, vocabulary: Vocabulary, _: Family | None
) -> Objective[Any, Any]:
    """Use the enhanced mask decoder if the encoder has one and no plain head."""
    if "enhanced" in encoder.heads and "masked" not in encoder.heads:
        return EnhancedMaskedLanguageModel(encoder, vocabulary, masking)
    return MaskedLanguageModel(encoder, vocabulary, masking)


def _read_distillation(table: Mapping[str, Any]) -> tuple[DistillationSpec, TeacherChoice]:
    keys = dict(table)
    choices = {key: keys.pop(key) for key in ("teacher", "init_from_teacher") if key in keys}
    presets = {"minilm": MINILM, "minilm-v2": MINILM_V2}
    return _preset(keys, DistillationSpec(), presets), read_table(TeacherChoice, choices, "objective")


def _distillation(
    settings: tuple[DistillationSpec, TeacherChoice],
    encoder: Encoder,
    vocabulary: Vocabulary,
    _: Family | None,
) -> Objective[Any, Any]:
    spec, chosen = settings
    teacher = build_encoder(read_checkpoint(find(chosen.teacher)))
    if chosen.init_from_teacher is not None:
        init_from_teacher(encoder, teacher, chosen.init_from_teacher)
    return Distillation(encoder, teacher, vocabulary, spec)


def _preset(table: Mapping[str, Any], plain: Spec, presets: Mapping[str, Spec]) -> Spec:
    """Apply the keys of a table to the ``preset`` that it names, or to ``plain``."""
    keys = dict(table)
    name = keys.pop("preset", None)
    if name is not None and name not in presets:
        raise InvalidRequest(f"objective.preset is {name!r}; it can be {', '.join(presets)}")
    defaults = dataclasses.asdict(plain if name is None else presets[name])
    if isinstance(keys.get("masking"), Mapping):  # missing keys are as in the objective's default
        keys["masking"] = {**defaults["masking"], **keys["masking"]}
    return read_table(type(plain), {**defaults, **keys}, "objective")


def _heads_of_masked(_: Any) -> frozenset[str]:
    return frozenset({"masked"})


OBJECTIVES: Mapping[str, _Kind] = {
    "masked": _Kind(lambda table: read_table(MaskingSpec, table, "objective"), _heads_of_masked, _masked),
    "causal": _Kind(
        lambda table: read_table(CausalSpec, table, "objective"),
        _heads_of_masked,
        lambda _, encoder, vocabulary, family: CausalLanguageModel(encoder, vocabulary),
    ),
    "sentence_pairs": _Kind(
        lambda table: read_table(SentencePairSpec, table, "objective"),
        lambda spec: frozenset({"masked", spec.task}),
        lambda spec, encoder, vocabulary, _: SentencePairs(encoder, vocabulary, spec),
    ),
    "distillation": _Kind(
        _read_distillation,
        lambda settings: frozenset({"masked"} if settings[0].hides else ()),
        _distillation,
    ),
    "replaced": _Kind(
        lambda table: _preset(table, ReplacedSpec(), {"deberta-v3": DEBERTA_V3}),
        lambda _: frozenset(),  # the objective itself adds a head
        lambda spec, encoder, vocabulary, family: ReplacedTokenDetection(
            encoder, vocabulary, spec, family=family
        ),
        discriminator_spec,
    ),
}
"""All objectives, by the ``kind`` in a run file."""


def trained_heads(table: Mapping[str, Any]) -> frozenset[str]:
    """The roles of the heads that an encoder must have for a run file's ``[objective]``.

    Raises:
        InvalidRequest: see `build_objective`.
    """
    kind, settings = read_objective(table)
    return kind.heads(settings)


def saved_spec(table: Mapping[str, Any], spec: EncoderSpec, family: Family) -> EncoderSpec:
    """The spec of the encoder that a run with this ``[objective]`` saves, from that of its config.

    Raises:
        InvalidRequest: see `build_objective`.
    """
    return read_objective(table)[0].saved(spec, family)


def build_objective(
    table: Mapping[str, Any], encoder: Encoder, vocabulary: Vocabulary, family: Family | None = None
) -> Objective[Any, Any]:
    """The objective that a run file's ``[objective]`` describes; a head that it adds is of the family.

    Raises:
        InvalidRequest: there is no such kind, a key is not one of its keys, or the objective is not for an
            encoder with causal attention.
    """
    kind, settings = read_objective(table)
    if encoder.spec.causal and table["kind"] != "causal":
        raise InvalidRequest(
            f"objective.kind is {table['kind']!r}, and the encoder's attention is causal; such an encoder is "
            'trained to predict the next token: kind = "causal"'
        )
    return kind.build(settings, encoder, vocabulary, family)


def read_objective(table: Mapping[str, Any]) -> tuple[_Kind, Any]:
    """The kind and the settings that a run file's ``[objective]`` describes.

    Raises:
        InvalidRequest: see `build_objective`.
    """
    keys = dict(table)
    kind = keys.pop("kind", None)
    if kind not in OBJECTIVES:
        raise InvalidRequest(f"objective.kind is {kind!r}; it can be {', '.join(OBJECTIVES)}")
    return OBJECTIVES[kind], OBJECTIVES[kind].read(keys)
