"""Distillation from a teacher with the same vocabulary: predictions, states, attention and relations.

DistilBERT (Sanh et al. 2019): soft targets, masked words and the cosine of last states, the defaults.
MiniLM (Wang et al. 2020) and MiniLMv2 (Wang et al. 2021): attention and relations of one layer, see
`MINILM` and `MINILM_V2`. TinyBERT's layer maps (Jiao et al. 2020): pairs of layers.

Terms are means over tokens, including special tokens; they are cosines and divergences where TinyBERT uses
squared differences.

Losses are sums over tokens, in nats or as 1 minus a cosine. Each is exact, computed sequence by sequence
without padding, and differentiable in the student. Large intermediate results (logits over the vocabulary and
token-by-token maps) are computed a few rows at a time and recomputed for the gradient. A student may begin
with some of its teacher's layers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import MaskedLMHead
from unmask.encoder.hooks import HookPoint
from unmask.errors import InvalidRequest
from unmask.kernels import AttentionBias, DistanceBias, MaskContext, RelativeBias, Tile, scores
from unmask.kernels.tile import key_counts
from unmask.spec import (
    AttentionPattern,
    Disentangled,
    EncoderSpec,
    FullAttention,
    Layer,
    Mixer,
    RelativePositionBias,
    SoftmaxAttention,
)
from unmask.text.batch import PackedBatch, SequenceLayout
from unmask.training.data.stream import Chunk
from unmask.training.objectives.interface import LossOutput, Objective
from unmask.training.objectives.language_modeling import (
    LOGITS_AT_ONCE,
    MaskedExample,
    masked_example,
    masked_loss,
    require_masked_head,
    wrap,
)
from unmask.training.objectives.specs import DistillationSpec, LayerPairs, relation_heads, resolve
from unmask.training.vocabulary import Vocabulary

ROWS_AT_ONCE = 256
"""Queries of a map that are held in memory at once: with 8,192 keys and 12 heads, 100 MB in float32."""

Factors = tuple[Tensor, Tensor, Tensor | None]
"""The factors of logits: states (M, E), a vector per word (V, E), a bias (V,) or None."""


@dataclass(frozen=True)
class AttentionParts:
    """The inputs of one layer's attention, for a packed batch."""

    queries_THK: Tensor
    """As used in scores, with rotary embeddings applied."""
    keys_THK: Tensor
    values_THK: Tensor
    bias: AttentionBias
    pattern: AttentionPattern


def word_divergence(student: Factors, teacher: Factors, temperature: float) -> Tensor:
    """Sum over tokens of ``t^2 KL(teacher || student)`` of the predictions at temperature t.

    Hinton, Vinyals & Dean 2015: logits are divided by t before the softmax, and the divergence is multiplied
    by t^2 so that gradients keep their scale.
    """
    x_ME, words_VE, bias_V = student
    y_ME, theirs_VE, theirs_V = teacher
    at_once = LOGITS_AT_ONCE if x_ME.device.type == "cpu" else 64 * LOGITS_AT_ONCE
    step = max(1, at_once // len(words_VE))

    def some(x_RE: Tensor, y_RE: Tensor) -> Tensor:
        log_RV = _exact(functional.linear(x_RE, words_VE, bias_V)).div(temperature).log_softmax(-1)
        wanted_RV = _exact(functional.linear(y_RE, theirs_VE, theirs_V)).div(temperature).log_softmax(-1)
        return temperature**2 * functional.kl_div(log_RV, wanted_RV, reduction="sum", log_target=True)

    return _added(
        x_ME, [_again(some, x_ME[at : at + step], y_ME[at : at + step]) for at in range(0, len(x_ME), step)]
    )


def cosine_distance(x_TD: Tensor, y_TD: Tensor) -> Tensor:
    """Sum over tokens of 1 minus the cosine of the student's state and the teacher's (Sanh et al. 2019)."""
    return (1 - functional.cosine_similarity(_exact(x_TD), _exact(y_TD), dim=-1)).sum()


def attention_divergence(student: AttentionParts, teacher: AttentionParts, layout: SequenceLayout) -> Tensor:
    """Sum over queries of the mean over heads of KL(teacher's attention || student's) (Wang et al. 2020).

    Both must have the same number of heads and attention pattern; each head of the student learns from the
    teacher's head with the same number.
    """
    heads = student.queries_THK.shape[1]
    sums = []
    for tile, rows, context in _tiles(layout, heads):

        def of_tile(tile: Tile = tile, rows: slice = rows, context: MaskContext = context) -> Tensor:
            ours_HRC, allowed = _log_attention(student, tile, rows, context)
            wanted_HRC, _ = _log_attention(teacher, tile, rows, context)
            apart_HRC = wanted_HRC - ours_HRC
            if allowed is not None:
                apart_HRC = torch.where(allowed, apart_HRC, 0.0)
            return (wanted_HRC.exp() * apart_HRC).sum() / heads

        sums.append(_again(of_tile))
    return _added(student.queries_THK, sums)


def relation_divergence(x_THK: Tensor, y_THK: Tensor, layout: SequenceLayout, heads: int) -> Tensor:
    """Sum over tokens of the mean over heads of KL between relations of a teacher's y and a student's x.

    A relation is ``softmax(x_i x_j / sqrt(K'))`` over all tokens j of the sequence, regardless of the layer's
    attention pattern; the features of all heads are regrouped into ``heads`` of K' each (Wang et al. 2020
    for values; Wang et al. 2021 for queries, keys and values).
    """
    x_TRK, y_TRK = (part.reshape(len(part), heads, -1) for part in (x_THK, y_THK))
    sums = []
    for tile, rows, _ in _tiles(layout, heads):

        def of_tile(tile: Tile = tile, rows: slice = rows) -> Tensor:
            ours_HRC, wanted_HRC = (
                _scores(tile, own_NRK, own_NRK, AttentionBias()).log_softmax(-1)
                for own_NRK in (x_TRK[rows], y_TRK[rows])
            )
            return functional.kl_div(ours_HRC, wanted_HRC, reduction="sum", log_target=True) / heads

        sums.append(_again(of_tile))
    return _added(x_THK, sums)


def _tiles(layout: SequenceLayout, heads: int) -> list[tuple[Tile, slice, MaskContext]]:
    """Complete rows, a few at a time: the tile, its sequence's tokens, and its mask context."""
    return [
        (
            Tile(first, min(first + ROWS_AT_ONCE, length), 0, length),
            rows,
            MaskContext.of(layout, sequence, heads),
        )
        for sequence in range(layout.sequence_count)
        for rows in [layout.rows(sequence)]
        for length in [rows.stop - rows.start]
        for first in range(0, length, ROWS_AT_ONCE)
    ]


def _log_attention(
    parts: AttentionParts, tile: Tile, rows: slice, context: MaskContext
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of a tile, (H, R, C), and a mask of visible keys; None if all are visible."""
    s_HRC = _scores(tile, parts.queries_THK[rows], parts.keys_THK[rows], parts.bias)
    counts = key_counts(tile, parts.pattern, s_HRC.device, context)
    if counts is None:
        return s_HRC.log_softmax(-1), None
    s_HRC = s_HRC + counts.to(s_HRC.dtype).log()
    return s_HRC.log_softmax(-1), counts > 0


def _scores(tile: Tile, q_NHK: Tensor, k_NHK: Tensor, bias: AttentionBias) -> Tensor:
    """Scores of a sequence's rows in float32 or better, even under autocast; (H, R, C)."""
    with torch.autocast(q_NHK.device.type, enabled=False):
        return scores(tile, _exact(q_NHK[tile.first_row : tile.end_row]), _exact(k_NHK), bias)


def _exact(x: Tensor) -> Tensor:
    """At least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _again(part: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Compute a part, and recompute it for its gradient."""
    result: Tensor = checkpoint(part, *inputs, use_reentrant=False, preserve_rng_state=False)
    return result


def _added(like: Tensor, sums: list[Tensor]) -> Tensor:
    """The sum; 0 with a gradient of 0 if there are no terms."""
    return torch.stack(sums).sum() if sums else _exact(like).sum() * 0


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
            targets = _factors(self.teacher, theirs.output_TD[chosen])
        return word_divergence(_factors(self.student, ours.output_TD[chosen]), targets, self.spec.temperature)

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
    width, teacher_width = student.spec.width, teacher.spec.width
    if width == teacher_width:
        return nn.Identity()
    linear = nn.Linear(width, teacher_width, bias=False, device=student.device)
    nn.init.normal_(linear.weight, std=width**-0.5)
    return linear


def _factors(encoder: Encoder, x_MD: Tensor) -> Factors:
    head = encoder.heads["masked"]
    assert isinstance(head, MaskedLMHead)
    return head.factors(x_MD, encoder.embedding.words.weight)


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
