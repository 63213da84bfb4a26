"""Distillation from a teacher with the same vocabulary: predictions, states, attention and relations.

DistilBERT (Sanh et al. 2019): soft targets, masked words and the cosine of last states, the defaults.
MiniLM (Wang et al. 2020) and MiniLMv2 (Wang et al. 2021): attention and relations of one layer, see
`MINILM` and `MINILM_V2`. TinyBERT's layer maps (Jiao et al. 2020): pairs of layers.

Terms are means over tokens, including special tokens; they are cosines and divergences where TinyBERT uses
squared differences.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import MaskedLMHead
from unmask.encoder.hooks import HookPoint
from unmask.errors import InvalidRequest
from unmask.kernels import AttentionBias, DistanceBias, RelativeBias
from unmask.spec import Disentangled, RelativePositionBias, SoftmaxAttention
from unmask.text.batch import PackedBatch
from unmask.training.data.batches import Chunk
from unmask.training.objectives.distillation_losses import (
    AttentionParts,
    Factors,
    attention_divergence,
    cosine_distance,
    relation_divergence,
    word_divergence,
)
from unmask.training.objectives.interface import LossOutput, Objective
from unmask.training.objectives.masked import (
    MaskedExample,
    masked_example,
    masked_loss,
    require_masked_head,
    wrap,
)
from unmask.training.objectives.specs import (
    DistillationSpec,
    LayerPairs,
    relation_heads,
    resolve,
)
from unmask.training.vocabulary import Vocabulary


@dataclass(frozen=True)
class RecordedStates:
    """Tensors kept from one forward pass; gradients flow through all of them."""

    output_TD: Tensor
    """The encoder's output."""
    states: Mapping[int, Tensor]
    """By layer, (T, D); for the last layer, the output."""
    attention: Mapping[int, AttentionParts]
    """By layer."""


def record_states(
    encoder: Encoder,
    batch: PackedBatch,
    state_layers: Iterable[int] = (),
    attention_layers: Iterable[int] = (),
) -> RecordedStates:
    """Run the encoder and keep the requested tensors.

    Args:
        encoder: any encoder.
        batch: its input.
        state_layers: layers whose states are kept.
        attention_layers: layers whose attention inputs are kept; they must use softmax attention.
    """
    states: dict[int, Tensor] = {}
    tensors: dict[tuple[HookPoint, int], Tensor] = {}
    of_states, of_attention = set(state_layers), set(attention_layers)

    def record(place: HookPoint, layer: int, tensor: Tensor) -> None:
        if place is HookPoint.LAYER and layer in of_states:
            states[layer] = tensor
        elif place is not HookPoint.LAYER and layer in of_attention:
            tensors[place, layer] = tensor

    output_TD = encoder.encode(batch, hook=record if of_states or of_attention else None)
    last = len(encoder.spec.layers) - 1
    if last in of_states:
        states[last] = output_TD
    return RecordedStates(
        output_TD, states, {layer: _parts(encoder, tensors, layer) for layer in of_attention}
    )


def _parts(encoder: Encoder, tensors: Mapping[tuple[HookPoint, int], Tensor], layer: int) -> AttentionParts:
    mixer = encoder.spec.layers[layer].mixer
    assert isinstance(mixer, SoftmaxAttention)
    if isinstance(mixer.position, Disentangled):
        tables = (tensors.get((place, layer)) for place in (HookPoint.DISTANCE_KEY, HookPoint.DISTANCE_QUERY))
        bias = AttentionBias(distances=DistanceBias(mixer.position, *tables))
    elif isinstance(mixer.position, RelativePositionBias):
        bias = AttentionBias(relative=RelativeBias(mixer.position, tensors[HookPoint.RELATIVE_BIAS, layer]))
    else:
        bias = AttentionBias.of(mixer.position, mixer.heads)
    q_THK, k_THK, v_THK = (
        tensors[place, layer] for place in (HookPoint.QUERY, HookPoint.KEY, HookPoint.VALUE)
    )
    return AttentionParts(q_THK, k_THK, v_THK, bias, mixer.pattern)


class Distillation(Objective[Chunk, MaskedExample]):
    """The weighted sum of the spec's terms, each a mean over tokens and over pairs of layers.

    Terms: ``words`` (``words/loss``: squared temperature times a divergence in nats), ``masked`` (as in
    `MaskedLanguageModel`), ``cosine`` (1 minus a cosine), ``attention`` and ``relations`` (divergences, in
    nats). The teacher is not part of the module: it is not trained, not saved, and always in evaluation mode.

    Args:
        student: the encoder that is trained.
        teacher: an encoder with the same vocabulary; its weights are frozen.
        vocabulary: the special tokens.
        spec: the settings.

    Raises:
        InvalidRequest: a term needs a head, layer or number of heads that one of them lacks.
    """

    def __init__(
        self,
        student: Encoder,
        teacher: Encoder,
        vocabulary: Vocabulary,
        spec: DistillationSpec | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec = spec or DistillationSpec()
        sizes = student.spec.embedding.vocabulary, teacher.spec.embedding.vocabulary
        if sizes[0] != sizes[1]:
            raise InvalidRequest(
                f"the student has {sizes[0]} words and the teacher {sizes[1]}; they must share a vocabulary"
            )
        if spec.hides:
            require_masked_head(student)
        if spec.words:
            require_masked_head(teacher)
        self.student = student
        self._teacher = (teacher.requires_grad_(False).eval(),)
        self.vocabulary = vocabulary
        both = student.spec, teacher.spec
        self.state_layers = resolve(spec.state_layers, *both) if spec.cosine else ()
        attends = spec.attention > 0 or spec.relations > 0
        self.attention_layers = resolve(spec.attention_layers, *both) if attends else ()
        self.relation_heads = [relation_heads(*both, *pair, spec) for pair in self.attention_layers]
        self.projections = nn.ModuleList(_between(student, teacher) for _ in self.state_layers)

    @property
    def teacher(self) -> Encoder:
        """The teacher, on the student's device."""
        (teacher,) = self._teacher
        return teacher if teacher.device == self.student.device else teacher.to(self.student.device)

    def prepare(self, chunks: Sequence[Chunk], draw: np.random.Generator, progress: float) -> MaskedExample:
        """Make [CLS] chunk [SEP] of each chunk, and mask tokens for student and teacher alike."""
        batch, spec = wrap(chunks, self.vocabulary), self.spec
        none = np.zeros(0, dtype=np.int64)
        masked = MaskedExample({}, len(batch.ids_T), batch.layout.sequence_count, batch, none, none)
        if spec.hides:
            masked = masked_example(batch, self.vocabulary, spec.masking, draw, progress)
        chosen = ("masked", "words") if spec.tokens == "chosen" else ("masked",)
        counts = {term: len(masked.chosen_M) if term in chosen else masked.tokens for term in spec.terms}
        predicted = max(masked.predicted, counts.get("words", 0))
        return replace(masked, counts=counts, predicted=predicted)

    def forward(self, example: MaskedExample, totals: Mapping[str, int]) -> LossOutput:
        """The sum of every term, divided by its count in the global batch and multiplied by its weight."""
        spec, batch = self.spec, example.batch
        mine, its = ([{pair[who] for pair in pairs} for pairs in self._pairs()] for who in (0, 1))
        ours = record_states(self.student, batch, *mine)
        with torch.no_grad():
            theirs = record_states(self.teacher, batch, *its)
        sums: dict[str, Tensor] = {}
        figures: dict[str, Tensor] = {}
        if spec.words:
            sums["words"] = self._words(example, ours, theirs)
        if spec.masked:
            sums["masked"], right = masked_loss(self.student, ours.output_TD, example)
            figures["masked/accuracy"] = right.detach()
        if spec.cosine:
            sums["cosine"] = self._cosine(ours, theirs)
        if spec.attention:
            sums["attention"] = self._attention(example, ours, theirs)
        if spec.relations:
            sums["relations"] = self._relations(example, ours, theirs)
        loss = torch.stack([getattr(spec, term) * value / totals[term] for term, value in sums.items()]).sum()
        return LossOutput(loss, {f"{term}/loss": value.detach() for term, value in sums.items()} | figures)

    def _pairs(self) -> tuple[LayerPairs, LayerPairs]:
        return self.state_layers, self.attention_layers

    def _words(self, example: MaskedExample, ours: RecordedStates, theirs: RecordedStates) -> Tensor:
        chosen: Tensor | slice = slice(None)
        if self.spec.tokens == "chosen":
            chosen = torch.from_numpy(example.chosen_M).to(ours.output_TD.device)
        with torch.no_grad():
            wanted = _factors(self.teacher, theirs.output_TD[chosen])
        return word_divergence(_factors(self.student, ours.output_TD[chosen]), wanted, self.spec.temperature)

    def _cosine(self, ours: RecordedStates, theirs: RecordedStates) -> Tensor:
        sums = [
            cosine_distance(project(ours.states[mine]), theirs.states[its])
            for project, (mine, its) in zip(self.projections, self.state_layers, strict=True)
        ]
        return torch.stack(sums).mean()

    def _attention(self, example: MaskedExample, ours: RecordedStates, theirs: RecordedStates) -> Tensor:
        sums = [
            attention_divergence(ours.attention[mine], theirs.attention[its], example.batch.layout)
            for mine, its in self.attention_layers
        ]
        return torch.stack(sums).mean()

    def _relations(self, example: MaskedExample, ours: RecordedStates, theirs: RecordedStates) -> Tensor:
        sums = [
            relation_divergence(
                getattr(ours.attention[mine], f"{what}_THK"),
                getattr(theirs.attention[its], f"{what}_THK"),
                example.batch.layout,
                heads,
            )
            for (mine, its), heads in zip(self.attention_layers, self.relation_heads, strict=True)
            for what in self.spec.related
        ]
        return torch.stack(sums).mean()

    def encoders(self) -> Mapping[str, Encoder]:
        """The student."""
        return {"": self.student}


def _between(student: Encoder, teacher: Encoder) -> nn.Module:
    """A projection from the student's width to the teacher's; the identity if they are equal."""
    width, wanted = student.spec.width, teacher.spec.width
    if width == wanted:
        return nn.Identity()
    linear = nn.Linear(width, wanted, bias=False, device=student.device)
    nn.init.normal_(linear.weight, std=width**-0.5)
    return linear


def _factors(encoder: Encoder, x_MD: Tensor) -> Factors:
    head = encoder.heads["masked"]
    assert isinstance(head, MaskedLMHead)
    return head.factors(x_MD, encoder.embedding.words.weight)
