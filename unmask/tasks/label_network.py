"""The heads of GLiNER and GLiClass in numpy: from an encoder's states to scores of spans, words or texts for
each label; and the vectors of labels that an encoder of their own reads.

Its layers are small beside the encoder's, so one implementation serves every engine; it computes in the
number format of the states.

Axes: B texts of a batch; T words of all of them; W words of one; C labels; D width of the head; K widths of
spans, in words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

import numpy as np
from numpy.typing import NDArray

from unmask.engines.backend import running
from unmask.engines.engine import Engine, Floats
from unmask.engines.native.engine import native_engine
from unmask.engines.native.parts import activated
from unmask.errors import CorruptCheckpoint, InvalidRequest, TensorMismatch, quoted
from unmask.spec import ClassHead, LabelHead
from unmask.spec.heads import TextPooling
from unmask.tasks.batches import require_finite, text_batches
from unmask.weights import Checkpoint
from unmask.weights.heads.label_files import LABEL_CONFIG, class_shapes, head_shapes
from unmask.weights.read.checkpoint_tensors import StoredArrays, read_arrays, report_tensors

if TYPE_CHECKING:
    from unmask.encoder.encoder import Encoder

SPANS = "span_rep_layer.span_rep_layer."

SMALLEST = 1e-8
"""Added to lengths by which vectors of GLiClass are divided."""

MOST_LABELS = 10_000
"""Vectors of labels that are remembered; one more, and all are computed anew."""


@dataclass(frozen=True, eq=False)
class LabelNetwork:
    """The head with its weights, by their names in the file."""

    head: LabelHead
    weights: Mapping[str, Floats]

    def project(self, states: Floats) -> Floats:
        """States of the encoder at the head's width, (..., D)."""
        name = "token_rep_layer.projection"
        return self._linear(name, states) if f"{name}.weight" in self.weights else states

    def project_labels(self, vectors_CN: Floats) -> Floats:
        """Vectors of labels that their own encoder gave, at the head's width, (C, D)."""
        name = "token_rep_layer.labels_projection"
        return self._linear(name, vectors_CN) if f"{name}.weight" in self.weights else vectors_CN

    def mix(self, words_TD: Floats, lengths: Sequence[int]) -> Floats:
        """The words of several texts, laid end to end, after the LSTM over each text; (T, D).

        Beside an encoder of labels, gliner stores an LSTM and does not use it.
        """
        for layer in range(self.head.rnn_layers if self.head.labels_width is None else 0):
            words_TD = lstm(self.weights, "rnn.lstm", words_TD, np.asarray(lengths), layer)
        return words_TD

    def logits(self, words_WD: Floats, labels_CD: Floats) -> Floats:
        """How well the spans or words of a text fit each label.

        Returns:
            Of spans (W, K, C), where span k of word w has the words from w to w + k, with negative infinity
            where the text has no such words; of words (W, C, 3), as the start, the end and a part of an
            entity.
        """
        if self.head.scores == "spans":
            return self._span_logits(words_WD, labels_CD)
        return self._word_logits(words_WD, labels_CD)

    def span_vectors(self, words_WD: Floats, spans: Sequence[tuple[int, int]]) -> Floats:
        """The vector of each span by its first and last word, (..., D): what `logits` multiplies with that of
        a label, the ``span_rep`` of gliner.
        """
        firsts, lasts = np.array(spans, dtype=np.int64).reshape(-1, 2).T
        ends = [
            np.maximum(self._two_layers(f"{SPANS}project_{end}", words_WD[words]), 0)
            for end, words in (("start", firsts), ("end", lasts))
        ]
        return self._two_layers(f"{SPANS}out_project", np.concatenate(ends, axis=-1))

    def _span_logits(self, words_WD: Floats, labels_CD: Floats) -> Floats:
        targets_CD = self._two_layers("prompt_rep_layer", labels_CD)
        return span_logits(self.weights, SPANS, words_WD, targets_CD, self.head.max_width)

    def _word_logits(self, words_WD: Floats, labels_CD: Floats) -> Floats:
        width = self.head.width
        words, labels = (
            self._linear("scorer.proj_token", words_WD),
            self._linear("scorer.proj_label", labels_CD),
        )
        weight, bias = self._of("scorer.out_mlp.0")
        of_words = words[:, :width] @ weight[:, :width].T + bias
        of_labels = labels[:, :width] @ weight[:, width : 2 * width].T
        scores_WC3 = np.empty((len(words), len(labels), 3), dtype=words_WD.dtype)
        for label in range(len(labels)):
            product = words[:, width:] @ (labels[label, width:, None] * weight[:, 2 * width :].T)
            hidden = np.maximum(of_words + of_labels[label] + product, 0)
            scores_WC3[:, label] = self._linear("scorer.out_mlp.3", hidden)
        return scores_WC3

    def _two_layers(self, name: str, x: Floats) -> Floats:
        return two_layers(self.weights, name, x)

    def _linear(self, name: str, x: Floats) -> Floats:
        return linear(self.weights, name, x)

    def _of(self, name: str) -> tuple[Floats, Floats]:
        return self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]


def linear(weights: Mapping[str, Floats], name: str, x: Floats) -> Floats:
    """A dense layer with a bias."""
    values: Floats = x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
    return values


def two_layers(weights: Mapping[str, Floats], name: str, x: Floats) -> Floats:
    """The layers 0 and 3 of that name, with ReLU between them."""
    return linear(weights, f"{name}.3", np.maximum(linear(weights, f"{name}.0", x), 0))


def span_logits(
    weights: Mapping[str, Floats], name: str, words_WD: Floats, targets_CD: Floats, max_width: int
) -> Floats:
    """How well each span of words fits each target, (W, K, C); negative infinity beyond the text.

    The first of the last two layers is applied to both ends apart, and the second to the targets, which is
    the same as both on every span with K times fewer products.
    """
    weight, bias = weights[f"{name}out_project.0.weight"], weights[f"{name}out_project.0.bias"]
    start_WD = np.maximum(two_layers(weights, f"{name}project_start", words_WD), 0)
    end_WD = np.maximum(two_layers(weights, f"{name}project_end", words_WD), 0)
    width = words_WD.shape[-1]
    from_start, from_end = start_WD @ weight[:, :width].T, end_WD @ weight[:, width:].T + bias
    last, last_bias = weights[f"{name}out_project.3.weight"], weights[f"{name}out_project.3.bias"]
    targets, constant = last.T @ targets_CD.T, targets_CD @ last_bias
    count = len(words_WD)
    scores_WKC = np.full((count, max_width, len(targets_CD)), -np.inf, dtype=words_WD.dtype)
    for more in range(min(max_width, count)):
        hidden = np.maximum(from_start[: count - more] + from_end[more:], 0)
        scores_WKC[: count - more, more] = hidden @ targets + constant
    return scores_WKC


def lstm(
    weights: Mapping[str, Floats], name: str, x_TD: Floats, lengths_B: NDArray[np.int64], layer: int = 0
) -> Floats:
    """One bidirectional layer over each of several sequences laid end to end (Hochreiter & Schmidhuber 1997).

    Both directions step together.

    Args:
        weights: those of the head.
        name: how the names of the layers' tensors begin.
        x_TD: the sequences.
        lengths_B: the length of each.
        layer: the number of the layer.

    Returns:
        (T, D): half of each state from either direction.
    """
    ends = [f"_l{layer}{end}" for end in ("", "_reverse")]
    inputs = np.stack(
        [
            x_TD @ weights[f"{name}.weight_ih{end}"].T
            + weights[f"{name}.bias_ih{end}"]
            + weights[f"{name}.bias_hh{end}"]
            for end in ends
        ]
    )
    recurrent = np.stack([weights[f"{name}.weight_hh{end}"].T for end in ends])
    order = np.argsort(-lengths_B, kind="stable")
    lengths, starts = lengths_B[order], (np.cumsum(lengths_B) - lengths_B)[order]
    half = recurrent.shape[1]
    both = np.empty((2, len(x_TD), half), dtype=x_TD.dtype)
    hidden = np.zeros((2, len(lengths), half), dtype=x_TD.dtype)
    cell = np.zeros_like(hidden)
    for step in range(int(lengths.max(initial=0))):
        alive = int((lengths > step).sum())
        rows = np.stack((starts[:alive] + step, starts[:alive] + lengths[:alive] - 1 - step))
        gates = inputs[[[0], [1]], rows] + hidden[:, :alive] @ recurrent
        into, forget, update, out = np.split(gates, 4, axis=-1)
        cell = sigmoid(forget) * cell[:, :alive] + sigmoid(into) * np.tanh(update)
        hidden = sigmoid(out) * np.tanh(cell)
        both[[[0], [1]], rows] = hidden
    return np.concatenate((both[0], both[1]), axis=-1)


class LabelVectors:
    """The second encoder, which reads each label by itself, and the vectors that it has given.

    It computes in float32 on the CPU, whatever the model's number format and device: labels are few and
    short, and each is read once.

    Args:
        checkpoint: of the second encoder.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._engine: Engine | None = None
        self._vectors: dict[str, Floats] = {}

    def of(self, labels: Sequence[str]) -> Floats:
        """The mean of the last hidden states of each label's tokens, special tokens included; (C, N).

        Raises:
            TextError: a label is longer than the encoder reads, or is not Unicode text.
            CheckpointError: the weights or the tokenizer of the encoder are missing or damaged.
            NonFiniteResult: a hidden state is infinity or NaN.
        """
        known = self._vectors
        new = [label for label in labels if label not in known]
        if new:
            if len(known) + len(new) > MOST_LABELS:
                known, new = {}, list(labels)
            # Not in place: another thread may be reading the vectors.
            known = self._vectors = known | dict(zip(new, self._read(new), strict=True))
        return np.stack([known[label] for label in labels])

    def _read(self, labels: Sequence[str]) -> list[Floats]:
        if self.checkpoint.stored_tokenizer is None:
            raise CorruptCheckpoint(
                f"{self.checkpoint.source.folder} holds no tokenizer, so labels cannot be read; make this "
                f"folder with the tokenizer's files of the model that labels_encoder in {LABEL_CONFIG} names"
            )
        if self._engine is None:
            self._engine = _float32_engine(self.checkpoint)

        def name(index: int) -> str:
            return f"the label {quoted(labels[index])}"

        encodings = self.checkpoint.tokenizer.encode_batch(
            labels, max_tokens=self.checkpoint.max_tokens, name=name
        )
        vectors: dict[int, Floats] = {}
        for chosen, batch in text_batches(self.checkpoint.spec, encodings, "none"):
            x_TD, layout = self._engine.hidden_states(batch, "last"), batch.layout
            require_finite(
                x_TD, chosen, layout.sequence_of_T, "a hidden state", name=name, dtype=self._engine.dtype
            )
            vectors |= {int(index): x_TD[layout.rows(at)].mean(0) for at, index in enumerate(chosen)}
        return [vectors[index] for index in range(len(labels))]


def _float32_engine(checkpoint: Checkpoint) -> Engine:
    """What runs an encoder without its heads in float32 on the CPU."""
    report_tensors(checkpoint)
    if running(checkpoint.spec, "float32").backend == "native":
        weights = StoredArrays(checkpoint)
        weights.check("float32")
        return native_engine(checkpoint.spec, weights, "float32", in_torch=lambda: _module(checkpoint))
    from unmask.engines.torch_engine import TorchEngine

    return TorchEngine(_module(checkpoint))


def _module(checkpoint: Checkpoint) -> "Encoder":
    from unmask.weights.build import build

    return build(checkpoint)


def sigmoid(x: Floats) -> Floats:
    """Probabilities of logits, in the same number format."""
    with np.errstate(over="ignore"):
        p: Floats = 1 / (1 + np.exp(-x))
    return p


def label_network(checkpoint: Checkpoint) -> LabelNetwork:
    """The head of a checkpoint that finds entities of labels named with the text.

    Raises:
        InvalidRequest: the checkpoint has no such head.
        TensorMismatch: a tensor is missing, unexpected, or has another shape.
        CorruptCheckpoint: a number is not finite, or the file cannot be read.
    """
    head, name = checkpoint.label_head, checkpoint.source.name
    if head is None:
        raise InvalidRequest(
            f"{name} has no head for labels that are named with the text; leave labels out, use a checkpoint "
            "of GLiNER, or the default model with adapter='entities' (--adapter entities)"
        )
    return LabelNetwork(
        head, head_weights(checkpoint, head_shapes(head, checkpoint.spec.state_width), LABEL_CONFIG)
    )


def head_weights(
    checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]], config: str
) -> dict[str, Floats]:
    """The tensors of a head for labels that are named with the text, in float32.

    Args:
        checkpoint: what holds them.
        shapes: the shape of each, by its name.
        config: the file that asks for them, for messages.

    Raises:
        TensorMismatch: a tensor is missing, unexpected, or has another shape.
        CorruptCheckpoint: a number is not finite, or the file cannot be read.
    """
    stored, name = checkpoint.label_tensors, checkpoint.source.name
    if unexpected := sorted(stored.keys() - shapes.keys()):
        raise TensorMismatch(
            f"{name} has the tensor {unexpected[0]}, which neither its encoder nor its head of labels has; "
            "name it in ignore_tensors (--ignore-tensors) if no result depends on it"
        )
    for tensor, shape in shapes.items():
        if tensor not in stored:
            raise TensorMismatch(f"{name} lacks the tensor {tensor} of its head of labels")
        if stored[tensor].shape != shape:
            raise TensorMismatch(
                f"the tensor {tensor} of {name} has shape {stored[tensor].shape}, and {config} asks for "
                f"{shape}"
            )
    weights = {key: values.astype(np.float32) for key, values in read_arrays(stored).items()}
    for tensor, values in weights.items():
        if not np.isfinite(values).all():
            raise CorruptCheckpoint(f"the tensor {tensor} of {name} holds a number that is not finite")
    return weights


@dataclass(frozen=True, eq=False)
class ClassNetwork:
    """The head in numpy with its weights, by their names in the file; it computes in the states' format.

    The states are those of one text alone. gliclass pools over the padding of the texts read with it, too.
    """

    head: ClassHead
    weights: Mapping[str, Floats]
    marker_id: int | None

    def logits(
        self, states_ND: Floats, ids_N: NDArray[np.int64], markers_C: NDArray[np.int64], separator: int
    ) -> Floats:
        """How well each class fits the text, (C,).

        Args:
            states_ND: of the text with the names of classes.
            ids_N: its tokens.
            markers_C: the places of the tokens before each name, also counted from the end.
            separator: that of the token after the last name.
        """
        head = self.head
        separator, markers_C = separator % len(states_ND), markers_C % len(states_ND)
        classes_CD = self._classes(states_ND, ids_N, markers_C, separator)
        text_MD = states_ND[separator:] if head.text_alone else states_ND
        empty = separator if head.text_alone else 0
        if head.recurrent:
            text_MD, empty = lstm(self.weights, "lstm.lstm", text_MD, np.array([len(text_MD)])), 0
        text_D = self._projected("text_projector", pooled(text_MD, head.pooling, empty))
        classes_CD = self._projected("classes_projector", classes_CD)
        if not head.unit_length:
            return self._scores(text_D, classes_CD)
        text_D = text_D / (np.linalg.norm(text_D) + SMALLEST)
        classes_CD = classes_CD / (np.linalg.norm(classes_CD, axis=-1, keepdims=True) + SMALLEST)
        return self._scores(text_D, classes_CD) * self.weights["logit_scale"]

    def _classes(
        self, states_ND: Floats, ids_N: NDArray[np.int64], markers_C: NDArray[np.int64], separator: int
    ) -> Floats:
        firsts_C = markers_C if self.head.reads_marker else markers_C + 1
        if not self.head.reads_name:
            return states_ND[firsts_C]
        last = len(states_ND)
        if self.head.text_alone:
            last = separator
        else:  # what the text has of the marker ends the last name, as gliclass counts
            typed = np.flatnonzero(ids_N[markers_C[-1] + 1 :] == self.marker_id)
            last = last if not len(typed) else int(markers_C[-1] + 1 + typed[0])
        ends_C = [*markers_C[1:].tolist(), last]
        return np.stack([states_ND[first:end].mean(0) for first, end in zip(firsts_C, ends_C, strict=True)])

    def _scores(self, text_D: Floats, classes_CD: Floats) -> Floats:
        match self.head.scorer:
            case "dot":
                products: Floats = classes_CD @ text_D
                return products
            case "weighted_dot":
                text = self._linear("scorer.proj_text", text_D)
                of_classes, width = self._linear("scorer.proj_label", classes_CD), len(text_D)
                both = np.concatenate(
                    (
                        np.broadcast_to(text[:width], classes_CD.shape),
                        of_classes[:, :width],
                        text[width:] * of_classes[:, width:],
                    ),
                    axis=-1,
                )
                layers = ["scorer.out_mlp.0", "scorer.out_mlp.3"]
            case "network":
                both = np.concatenate((np.broadcast_to(text_D, classes_CD.shape), classes_CD), axis=-1)
                layers = ["scorer.mlp.0", "scorer.mlp.2", "scorer.mlp.4"]
            case _:
                assert_never(self.head.scorer)
        for layer in layers[:-1]:
            both = np.maximum(self._linear(layer, both), 0)
        return self._linear(layers[-1], both)[:, 0]

    def _projected(self, name: str, x: Floats) -> Floats:
        hidden = activated(self.head.activation, self._linear(f"{name}.linear_1", x)).astype(x.dtype)
        return self._linear(f"{name}.linear_2", hidden)

    def _linear(self, name: str, x: Floats) -> Floats:
        values: Floats = x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        return values


def pooled(states_MD: Floats, pooling: TextPooling, empty: int = 0) -> Floats:
    """What `TextPooling` names of M states and ``empty`` places that hold zeros, (D,).

    gliclass moves a text that is pooled alone to the beginning of an array as long as the whole, and counts
    the places that stay empty.
    """
    count = len(states_MD) + empty
    values: Floats
    match pooling:
        case "first":
            values = states_MD[0]
        case "last":
            values = states_MD[-1]
        case "mean":
            values = states_MD.sum(0) / count
        case "sum":
            values = states_MD.sum(0)
        case "max":
            values = states_MD.max(0)
            values = np.maximum(values, 0) if empty else values
        case "root_mean_square":
            values = np.sqrt((states_MD**2).sum(0) / count)
        case "max_size":
            values = np.abs(states_MD).max(0)
        case "mean_size":
            values = np.abs(states_MD).sum(0) / count
        case _:
            assert_never(pooling)
    return values


def class_network(checkpoint: Checkpoint) -> ClassNetwork:
    """The head of a checkpoint that scores classes named with the text.

    Raises:
        InvalidRequest: the checkpoint has no such head.
        CheckpointError: its tensors do not fit config.json, or cannot be read.
    """
    head, name = checkpoint.class_head, checkpoint.source.name
    if head is None:
        raise InvalidRequest(f"{name} has no head for classes that are named with the text")
    shapes = class_shapes(head, checkpoint.spec.state_width)
    weights = head_weights(checkpoint, shapes, "config.json")
    return ClassNetwork(head, weights, checkpoint.tokenizer.token_to_id(head.marker))
