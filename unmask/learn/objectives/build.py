"""An objective from the table of a run file: ``kind`` and the keys of that kind."""

from collections.abc import Callable, Mapping
from typing import Any

from unmask.deprecation import renamed_keys
from unmask.errors import InvalidRequest
from unmask.learn.objectives.decoder import EnhancedMaskedLanguageModel
from unmask.learn.objectives.distillation import Distillation
from unmask.learn.objectives.distillation_spec import DistillationSpec, TeacherChoice
from unmask.learn.objectives.inherit import initialise_from_teacher
from unmask.learn.objectives.interface import Objective
from unmask.learn.objectives.masked import MaskedLanguageModel
from unmask.learn.objectives.masking import MaskingSpec
from unmask.learn.objectives.replaced import ReplacedSpec, ReplacedTokenDetection
from unmask.learn.objectives.segments import SegmentPairs, SegmentSpec
from unmask.learn.table import read_table
from unmask.learn.vocabulary import Vocabulary
from unmask.model.decoder import why_no_decoder
from unmask.model.encoder import Encoder
from unmask.model.weights import find, read_checkpoint
from unmask.model.weights.build import build as build_encoder

Builder = Callable[[Mapping[str, Any], Encoder, Vocabulary], Objective[Any, Any]]


def _masked(table: Mapping[str, Any], encoder: Encoder, vocabulary: Vocabulary) -> Objective[Any, Any]:
    """Through the enhanced mask decoder where the encoder has one and no plain head."""
    masking = read_table(MaskingSpec, table, "objective")
    if "masked" not in encoder.heads and why_no_decoder(encoder.spec) is None:
        return EnhancedMaskedLanguageModel(encoder, vocabulary, masking)
    return MaskedLanguageModel(encoder, vocabulary, masking)


def _segments(table: Mapping[str, Any], encoder: Encoder, vocabulary: Vocabulary) -> Objective[Any, Any]:
    return SegmentPairs(encoder, vocabulary, read_table(SegmentSpec, table, "objective"))


def _distillation(table: Mapping[str, Any], encoder: Encoder, vocabulary: Vocabulary) -> Objective[Any, Any]:
    """The keys of `DistillationSpec` and those of `TeacherChoice`."""
    keys = dict(table)
    named = {key: keys.pop(key) for key in ("teacher", "inherit") if key in keys}
    spec = read_table(DistillationSpec, keys, "objective")
    chosen = read_table(TeacherChoice, named, "objective")
    teacher = build_encoder(read_checkpoint(find(chosen.teacher)))
    if chosen.inherit is not None:
        initialise_from_teacher(encoder, teacher, chosen.inherit)
    return Distillation(encoder, teacher, vocabulary, spec)


def _replaced(table: Mapping[str, Any], encoder: Encoder, vocabulary: Vocabulary) -> Objective[Any, Any]:
    masking = table.get("masking", {})
    if isinstance(masking, Mapping):  # what a table leaves out is as in the objective's own default
        masking = {"replacement": ReplacedSpec().masking.replacement, **renamed_keys("MaskingSpec", masking)}
    spec = read_table(ReplacedSpec, {**table, "masking": masking}, "objective")
    return ReplacedTokenDetection(encoder, vocabulary, spec)


OBJECTIVES: Mapping[str, Builder] = {
    "masked": _masked,
    "segments": _segments,
    "distillation": _distillation,
    "replaced": _replaced,
}
"""Every objective by the ``kind`` of a run file."""


def build_objective(
    table: Mapping[str, Any], encoder: Encoder, vocabulary: Vocabulary
) -> Objective[Any, Any]:
    """The objective that a run file's ``[objective]`` describes.

    Raises:
        InvalidRequest: there is no such kind, or a key is not one of its.
    """
    keys = dict(table)
    kind = keys.pop("kind", None)
    if kind not in OBJECTIVES:
        raise InvalidRequest(f"objective.kind is {kind!r}; it can be {', '.join(OBJECTIVES)}")
    return OBJECTIVES[kind](keys, encoder, vocabulary)
