"""Spans of a text that fit labels which the reader names (GLiNER), and what the score of one comes from.

Axes: T tokens of a pass; W words; S tokens of the span, or copies of a text; C tokens of the label; L layers;
H heads.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from unmask.base.arguments import comma_separated
from unmask.encoder.encoder import Encoder
from unmask.engines.engine import Floats
from unmask.errors import InvalidRequest
from unmask.explorer.routes.route import MAX_CELLS, Route, of_text
from unmask.explorer.sessions.texts import TextSession
from unmask.explorer.wire.binary import array_answer
from unmask.explorer.wire.page_request import Arrays, PageRequest
from unmask.http.requests import Request
from unmask.http.responses import Answer, cannot, json_answer
from unmask.http.worker import Watch
from unmask.interpret import AttentionView
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.effects.attribution import (
    Attribution,
    Baseline,
    Completeness,
    attribution,
    named_baseline,
)
from unmask.interpret.effects.target import StateFunction
from unmask.tasks.label_network import LabelNetwork, LabelVectors, sigmoid
from unmask.tasks.label_spans import (
    LabeledSpan,
    LabelText,
    PromptEncoder,
    read_texts,
    search_for,
    spans_of,
)
from unmask.tasks.tag import window_scores
from unmask.text import Encoding, Tokenizer
from unmask.text.tokenizer import spellings
from unmask.training.objectives.entities import LabelLayers
from unmask.weights.build import build

LOWEST = 0.05
"""The lowest threshold that the page can set: spans below it are not sent."""
MOST_LABELS = 50
SHARED = "A second encoder reads the labels, so no head attends between the span and its label."
MANY = "The span and its label have too many tokens for their attention to be shown."

Part = Literal["span", "text", "label", "labels", "special"]
YES = ("no", "yes")
_Named = dict[str, NDArray[np.floating]]


@dataclass(frozen=True)
class LabelWord:
    """A word of the text, and the characters between it and the word before."""

    before: str
    text: str


@dataclass(frozen=True)
class FoundSpan:
    """The words ``first`` to ``last``, a label by its number, and the probability that it fits."""

    first: int
    last: int
    label: int
    score: float


@dataclass(frozen=True)
class LabelSpans:
    """The spans of a text that fit labels with a probability above ``lowest``, best first.

    Those above a higher threshold are exactly what `unmask.models.load.Model.tag` finds there: a span is
    left out only where a better one excludes it. ``after``: the characters behind the last word.
    ``most_words``: of a span; None for any number. ``note``: what a reader must know.
    """

    labels: tuple[str, ...]
    lowest: float
    words: tuple[LabelWord, ...]
    after: str
    spans: tuple[FoundSpan, ...]
    most_words: int | None
    note: str | None


@dataclass(frozen=True)
class LabelSpansRequest(PageRequest):
    """Spans of a text for labels, with commas between them. ``nested``: spans may lie inside others."""

    path = "texts/{text}/labels"
    answer = LabelSpans
    needs = "takes_labels"

    text: str
    labels: str
    nested: Literal["no", "yes"] = "no"


@dataclass(frozen=True)
class SpanToken:
    """A token of the pass, and the ``part`` that it belongs to: the chosen span or the rest of the text, the
    chosen label or others. ``word`` is its word of the text."""

    piece: str
    part: Part
    word: int | None


@dataclass(frozen=True)
class SpanCauses:
    """Of a span and a label: ``values`` (T,), what each token adds to the logit over the baseline, by
    integrated gradients. ``to_label`` (L, H, S, C) and ``to_span`` (L, H, C, S): exact attention from the
    span's tokens to the label's and back, where one encoder reads both.

    ``explained`` says which logit it is. ``label_completeness``: of a label that a second encoder reads,
    whose tokens come last. ``others``: other labels of these words, and these words with one more or less.
    """

    tokens: tuple[SpanToken, ...]
    span: FoundSpan
    explained: str
    baseline: str
    completeness: Completeness
    label_completeness: Completeness | None
    span_tokens: tuple[str, ...]
    label_tokens: tuple[str, ...]
    others: tuple[FoundSpan, ...]
    note: str | None


@dataclass(frozen=True)
class SpanCausesRequest(PageRequest):
    """What the score of a span comes from: the words ``first`` to ``last`` and the label by its number."""

    path = "texts/{text}/labels/causes"
    answer = Arrays[SpanCauses]
    needs = "takes_labels"

    text: str
    labels: str
    label: int
    first: int
    last: int


def _labels_of(session: TextSession, request: Request) -> tuple[str, ...]:
    """The labels that the query names.

    Raises:
        Refused: the model takes no labels.
        InvalidRequest: there is none, there are too many, or one comes twice.
    """
    named = tuple(comma_separated(request.query.get("labels", "")))
    if session.model.checkpoint.label_head is None:
        name = session.place.name
        raise cannot(f"{name} takes no labels; a checkpoint of GLiNER does, or --adapter entities")
    if len(named) > MOST_LABELS:
        raise InvalidRequest(f"labels has {len(named)} labels; give at most {MOST_LABELS}")
    return search_for(named, LOWEST, nested=False, multi_label=False).labels


def _read(session: TextSession, labels: Sequence[str]) -> tuple[LabelText, list[Floats]]:
    """The windows of a text for the head of labels, and the logits of each."""
    model, name = session.model, session.place.name
    network = model.reader.checkpoint_labels
    texts = [session.encoding.text]
    (text,) = read_texts(
        model.reader,
        network.head,
        texts,
        labels,
        truncation="window",
        overlap=None,
        name=lambda _: "the text",
    )
    scores = window_scores(model.engine, network=network, encodings=text.windows, name=lambda _: name)
    return text, [window.logits for window in scores]


def label_spans(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/labels?labels=&nested=``."""
    nested = request.choice("nested", YES) == "yes"
    labels = _labels_of(session, request)

    def find(view: AttentionView, watch: Watch) -> LabelSpans:
        text, logits = _read(session, labels)
        head = session.model.reader.checkpoint_labels.head
        spans = spans_of(text, logits, search_for(labels, LOWEST, nested=nested, multi_label=False), head)
        words, after = _words(text)
        note = None if session.encoding.pair is None else "Only the first text is searched."
        most = head.max_width if head.scores == "spans" else None
        found = tuple(_found(span) for span in sorted(spans, key=lambda span: -span.score))
        return LabelSpans(labels, LOWEST, words, after, found, most, note)

    return json_answer(session.analyse(("labels", labels, nested), find))


def _found(span: LabeledSpan) -> FoundSpan:
    return FoundSpan(span.first, span.last, span.label, span.score)


def _words(text: LabelText) -> tuple[tuple[LabelWord, ...], str]:
    words, end = [], 0
    for start, stop in text.bounds.tolist():
        words.append(LabelWord(text.text[end:start], text.text[start:stop]))
        end = stop
    return tuple(words), text.text[end:]


def causes(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/labels/causes?labels=&label=&first=&last=``: values, to_label, to_span."""
    label = request.number("label", None, 0, MOST_LABELS - 1)
    last = request.number("last", None, 0, len(session.encoding.text))
    first = request.number("first", None, 0, last)
    labels = _labels_of(session, request)
    if label >= len(labels):
        raise InvalidRequest(f"label is {label}, and there are labels 0 to {len(labels) - 1}")

    def explain(view: AttentionView, watch: Watch) -> tuple[_Named, SpanCauses]:
        return _Span(session, labels, label, first, last).causes(watch)

    arrays, meta = session.analyse(("label causes", labels, label, first, last), explain)
    return array_answer(arrays, meta)


class _Span:
    """A span and a label, in the window in which the span has the most context."""

    def __init__(
        self, session: TextSession, labels: Sequence[str], label: int, first: int, last: int
    ) -> None:
        self.session, self.labels, self.label, self.first, self.last = session, labels, label, first, last
        text, logits = _read(session, labels)
        self.network = session.model.reader.checkpoint_labels
        self.head, at = self.network.head, _window_of(text, first, last)
        self.window, self.logits = text.windows[at], logits[at]
        if self.head.scores == "spans" and last - first >= self.head.max_width:
            raise InvalidRequest(
                f"the span has {last - first + 1} words and the model finds spans of at most "
                f"{self.head.max_width}; choose fewer words"
            )
        self.prompt = PromptEncoder(session.model.reader, self.head).prompt(labels)
        self.word_starts = [*self.window.words_at.tolist(), len(self.window) - len(self.prompt.after)]
        self.encoder: Encoder = session.place.plain()

    def causes(self, watch: Watch) -> tuple[_Named, SpanCauses]:
        """Attribution and attention."""
        parts, words_N = self._parts()
        view = AttentionView(self.encoder, self._encoding(parts))
        layers = _layers_of(self.network, view.cache.final_ND)
        z, names = self._logits(self.first, self.last)
        which = int(z[:, self.label].argmin())
        baseline, baseline_words = self._baseline(self.session.model.tokenizer)
        first, last = self.first - self.window.first, self.last - self.window.first

        def words_of(x_SND: Tensor) -> Tensor:
            words_SWD = layers.project(x_SND[:, torch.from_numpy(self.window.words_at).to(x_SND.device)])
            mixed = layers.mix(words_SWD.flatten(0, 1), [words_SWD.shape[1]] * len(words_SWD))
            return mixed.view(words_SWD.shape)

        def score(words_SWD: Tensor, labels_SD: Tensor) -> Tensor:
            return _logit(layers, words_SWD, labels_SD, (first, last), which)

        def of_text(x_SND: Tensor) -> Tensor:
            x_SND = x_SND.to(layers_dtype)
            if self.vectors is None:
                label_SD = layers.project(x_SND[:, int(self.window.labels[self.label])])
            else:
                vector_1D = self.network.project_labels(self.window.labels[self.label][None])
                label_SD = torch.from_numpy(vector_1D).to(x_SND).expand(len(x_SND), -1)
            return score(words_of(x_SND), label_SD)

        layers_dtype = next(layers.parameters()).dtype
        reads = [] if self.vectors is not None else [int(self.window.labels[self.label])]
        target = StateFunction(of_text, (*self.window.words_at.tolist(), *reads))
        text = attribution(view.cache, target, method="integrated_gradients", baseline=baseline, watch=watch)
        assert text.completeness is not None
        pieces = [
            SpanToken(piece, part, None if word < 0 else word)
            for piece, part, word in zip(self._pieces(), parts, words_N.tolist(), strict=True)
        ]
        values, of_label, note = [text.values], None, None
        arrays: _Named = {}
        if self.vectors is None:
            arrays = self._attention(view, parts)
            note = None if arrays else MANY
        else:
            note = SHARED
            with torch.no_grad():
                words_1WD = words_of(view.cache.final_ND[None].to(layers_dtype))
            label, more = self._of_label(
                lambda label_SD: score(words_1WD.expand(len(label_SD), -1, -1), label_SD), watch
            )
            values.append(label.values)
            of_label, pieces = label.completeness, pieces + more
        meta = SpanCauses(
            tuple(pieces),
            FoundSpan(self.first, self.last, self.label, float(sigmoid(z[which, self.label]))),
            names[which],
            baseline_words,
            text.completeness,
            of_label,
            tuple(piece.piece for piece in pieces if piece.part == "span"),
            tuple(piece.piece for piece in pieces if piece.part == "label"),
            self._others(),
            note,
        )
        return {"values": np.concatenate(values), **arrays}, meta

    @property
    def vectors(self) -> LabelVectors | None:
        """The second encoder, if one reads the labels."""
        return self.session.model.reader.label_vectors

    def _pieces(self) -> list[str]:
        return _pieces_of(self.session.model.tokenizer, self.window.ids)

    def _parts(self) -> tuple[list[Part], NDArray[np.int64]]:
        """The part of the pass that each token belongs to, and its word of the text or -1."""
        parts: list[Part] = ["special"] * len(self.window)
        words_N = np.full(len(self.window), -1)
        for index, (start, stop) in enumerate(itertools.pairwise(self.word_starts)):
            word = index + self.window.first
            inside = self.first <= word <= self.last
            parts[start:stop] = ["span" if inside else "text"] * (stop - start)
            words_N[start:stop] = word
        if self.vectors is None:
            for label, (start, stop) in enumerate(self._label_ranges()):
                parts[start:stop] = ["label" if label == self.label else "labels"] * (stop - start)
        return parts, words_N

    def _label_ranges(self) -> list[tuple[int, int]]:
        """The marker and the tokens of each label; the separator stands behind the last."""
        starts = [int(at) - (0 if self.head.reads_entity else 1) for at in self.window.labels]
        return list(itertools.pairwise([*starts, len(self.prompt.before) - 1]))

    def _encoding(self, parts: Sequence[Part]) -> Encoding:
        """The window as an encoding; its special tokens are those that a baseline keeps, markers too."""
        special_N = np.array([part == "special" for part in parts])
        if self.vectors is None:
            special_N[[start for start, _ in self._label_ranges()]] = True
        count = len(self.window)
        return Encoding.of_arrays(
            self.session.encoding.text,
            ids=self.window.ids,
            token_type_ids=self.window.token_type_ids,
            offsets=np.zeros((count, 2), dtype=np.int64),
            special=special_N,
            sequence_ids=np.where(special_N, -1, 0),
            pieces=self._pieces(),
        )

    def _baseline(self, tokenizer: Tokenizer) -> tuple[Baseline, str]:
        mask = tokenizer.special_tokens.get("mask")
        if mask is None or tokenizer.token_to_id(mask) is None:
            return "zero", "vectors of zeros"
        return named_baseline("mask", tokenizer), f"{mask} in place of every word and label"

    def _logits(self, first: int, last: int) -> tuple[Floats, list[str]]:
        """What the score of a span with each label is the least of, (parts, labels), and what they are."""
        start, stop = first - self.window.first, last - self.window.first
        if self.head.scores == "spans":
            return self.logits[start, stop - start][None], ["the logit of the span"]
        z_WC3 = self.logits
        inside = [f"the logit of word {word + 1} of the span as a part" for word in range(last - first + 1)]
        rows = (z_WC3[start, :, 0][None], z_WC3[stop, :, 1][None], z_WC3[start : stop + 1, :, 2])
        return np.concatenate(rows), ["the logit of the start", "the logit of the end", *inside]

    def _others(self) -> tuple[FoundSpan, ...]:
        """Every label on these words, and this label on words with one more or less at an end."""
        low, high = self.window.first, self.window.first + len(self.window.words_at) - 1
        first, last = self.first, self.last
        ends = [(first - 1, last), (first + 1, last), (first, last - 1), (first, last + 1)]
        most = self.head.max_width if self.head.scores == "spans" else len(self.window)
        spans = [(first, last, label) for label in range(len(self.labels)) if label != self.label]
        spans += [
            (start, stop, self.label)
            for start, stop in ends
            if low <= start <= stop <= high and stop - start < most
        ]
        return tuple(
            FoundSpan(start, stop, label, float(sigmoid(self._logits(start, stop)[0][:, label].min())))
            for start, stop, label in spans
        )

    def _attention(self, view: AttentionView, parts: Sequence[Part]) -> _Named:
        """Attention between the tokens of the span and of the label; nothing where it has too many cells."""
        span, label = (_range_of(parts, name) for name in ("span", "label"))
        heads = [view.cache.heads(layer) for layer in range(view.layer_count)]
        shape = (view.layer_count, max(heads), span.stop - span.start, label.stop - label.start)
        if np.prod(shape) > MAX_CELLS:
            return {}
        to_label_LHSC = np.zeros(shape, dtype=np.float32)
        to_span_LHCS = np.zeros((*shape[:2], shape[3], shape[2]), dtype=np.float32)
        for layer, count in enumerate(heads):
            for head in range(count):
                to_label_LHSC[layer, head] = view.probabilities(layer, head, span, label)
                to_span_LHCS[layer, head] = view.probabilities(layer, head, label, span)
        return {"to_label": to_label_LHSC, "to_span": to_span_LHCS}

    def _of_label(
        self, score: Callable[[Tensor], Tensor], watch: Watch
    ) -> tuple[Attribution, list[SpanToken]]:
        """The same number by the tokens of a label that the second encoder reads, its words unchanged."""
        assert self.vectors is not None
        checkpoint = self.vectors.checkpoint
        encoding = checkpoint.tokenizer.encode(self.labels[self.label])
        cache = ActivationCache.of(build(checkpoint), encoding)
        name = "token_rep_layer.labels_projection"
        weight, bias = (
            torch.from_numpy(self.network.weights[f"{name}.{kind}"])
            if f"{name}.{kind}" in self.network.weights
            else None
            for kind in ("weight", "bias")
        )

        def of_label(x_SND: Tensor) -> Tensor:
            vectors_SN = x_SND.mean(1)
            return score(vectors_SN if weight is None else functional.linear(vectors_SN, weight, bias))

        target = StateFunction(of_label, tuple(range(len(encoding))))
        baseline, _ = self._baseline(checkpoint.tokenizer)
        found = attribution(cache, target, method="integrated_gradients", baseline=baseline, watch=watch)
        parts: list[Part] = ["special" if special else "label" for special in encoding.special]
        pieces = _pieces_of(checkpoint.tokenizer, encoding.ids)
        return found, [SpanToken(piece, part, None) for piece, part in zip(pieces, parts, strict=True)]


def _window_of(text: LabelText, first: int, last: int) -> int:
    """The window in which a span has the most context, which gives its score.

    Raises:
        InvalidRequest: the text has no such words, or they are in no window together.
    """
    count = len(text.bounds)
    if last >= count:
        raise InvalidRequest(f"last is {last}, and the text has words 0 to {count - 1}")
    contexts = []
    for window in text.windows:
        end = window.first + len(window.words_at)
        left = count if window.first == 0 else first - window.first
        right = count if end == count else end - 1 - last
        contexts.append(min(left, right) if window.first <= first and last < end else -1)
    if max(contexts) < 0:
        raise InvalidRequest(f"the words {first} to {last} are in no window together; choose fewer words")
    return int(np.argmax(contexts))


def _pieces_of(tokenizer: Tokenizer, ids_N: NDArray[np.int64]) -> list[str]:
    return [spellings(tokenizer, id_)[1].strip() for id_ in ids_N.tolist()]


def _range_of(parts: Sequence[Part], name: Part) -> slice:
    at = [index for index, part in enumerate(parts) if part == name]
    return slice(at[0], at[-1] + 1)


def _layers_of(network: LabelNetwork, states: Tensor) -> LabelLayers:
    """The head in torch, on the device of the states; beside an encoder of labels it has no LSTM."""
    head = network.head if network.head.labels_width is None else replace(network.head, rnn_layers=0)
    layers = LabelLayers(head, states.shape[-1], 0.0).eval().requires_grad_(False)
    layers.load_state_dict({name: torch.from_numpy(network.weights[name]) for name in layers.state_dict()})
    return layers.to(states.device)


def _logit(
    layers: LabelLayers, words_SWD: Tensor, labels_SD: Tensor, span: tuple[int, int], which: int
) -> Tensor:
    """The logit of a span with one label in every copy, (S,); of word scores the one at that place."""
    (first, last), starts = span, range(0, words_SWD.shape[0] * words_SWD.shape[1], words_SWD.shape[1])
    labels = list(labels_SD[:, None])
    words_TD = words_SWD.flatten(0, 1)
    if layers.head.scores == "spans":
        ends = [np.array([[start + first, start + last]]) for start in starts]
        return torch.stack([z[0, 0] for z in layers.logits(words_TD, labels, ends)])
    rows = [np.arange(start + first, start + last + 1) for start in starts]
    row, kind = {0: (0, 0), 1: (-1, 1)}.get(which, (which - 2, 2))
    return torch.stack([z[row, 0, kind] for z in layers.logits(words_TD, labels, rows)])


ROUTES = (
    Route.get(LabelSpansRequest, of_text(label_spans)),
    Route.get(SpanCausesRequest, of_text(causes)),
)
