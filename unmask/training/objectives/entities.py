"""Train the head of GLiNER: entities of labels that are named with the text (Zaratiana et al. 2024).

Axes: S spans of a text; W words of one; T words of all texts; C labels of a text; D width of the head.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from unmask.encoder.encoder import Encoder
from unmask.spec import LabelHead
from unmask.tasks.label_spans import Pieces, PromptEncoder, window_of
from unmask.text.batch import PackedBatch
from unmask.training.data.labeled import LabeledSequence
from unmask.training.objectives.interface import Example, LossOutput, Objective
from unmask.training.objectives.specs import EntitySpec
from unmask.weights.heads.label_files import EXPANSION

TERM = "entities"
"""The term of the loss, by which its figure is named."""


class LabelLayers(nn.Module):
    """The head's layers, whose parameters have the names of gliner's files.

    `unmask.tasks.label_network.LabelNetwork` computes the same without dropout. New weights are drawn as
    gliner draws them: as torch does for each kind of layer.

    Args:
        head: the head.
        encoder_width: of the states that it reads.
        dropout: the rate after the first of two dense layers.
    """

    def __init__(self, head: LabelHead, encoder_width: int, dropout: float) -> None:
        super().__init__()
        self.head = head
        width = head.width

        def two_layers(inputs: int) -> nn.Sequential:
            wide = EXPANSION * width
            return nn.Sequential(
                nn.Linear(inputs, wide), nn.ReLU(), nn.Dropout(dropout), nn.Linear(wide, width)
            )

        self.token_rep_layer = nn.Module()
        if encoder_width != width:
            self.token_rep_layer.projection = nn.Linear(encoder_width, width)
        if head.labels_width not in (None, width):
            self.token_rep_layer.labels_projection = nn.Linear(head.labels_width, width)
        self.rnn = nn.Module()
        if head.rnn_layers:
            self.rnn.lstm = nn.LSTM(width, width // 2, head.rnn_layers, bidirectional=True, batch_first=True)
            # Beside an encoder of labels, gliner stores an LSTM and does not use it.
            self.rnn.requires_grad_(head.labels_width is None)
        if head.scores == "spans":
            ends = {name: two_layers(width) for name in ("project_start", "project_end")}
            layers = nn.ModuleDict({**ends, "out_project": two_layers(2 * width)})
            self.span_rep_layer = nn.ModuleDict({"span_rep_layer": layers})
            self.prompt_rep_layer = two_layers(width)
        else:
            out = nn.Sequential(
                nn.Linear(3 * width, EXPANSION * width),
                nn.Dropout(dropout),
                nn.ReLU(),
                nn.Linear(EXPANSION * width, 3),
            )
            parts = {name: nn.Linear(width, 2 * width) for name in ("proj_token", "proj_label")}
            self.scorer = nn.ModuleDict({**parts, "out_mlp": out})

    def project(self, states: Tensor) -> Tensor:
        """States of the encoder at the head's width, (..., D)."""
        projection: nn.Module | None = getattr(self.token_rep_layer, "projection", None)
        return states if projection is None else projection(states)

    def project_labels(self, vectors_CN: Tensor) -> Tensor:
        """Vectors of labels that their own encoder computed, at the head's width, (C, D)."""
        projection: nn.Module | None = getattr(self.token_rep_layer, "labels_projection", None)
        return vectors_CN if projection is None else projection(vectors_CN)

    def mix(self, words_TD: Tensor, lengths: Sequence[int]) -> Tensor:
        """The words of several texts, laid end to end, after the LSTM over each text; (T, D).

        Beside an encoder of labels there is none.
        """
        lstm: nn.Module | None = getattr(self.rnn, "lstm", None)
        if lstm is None or self.head.labels_width is not None:
            return words_TD
        packed, _ = lstm(pack_sequence(list(torch.split(words_TD, list(lengths))), enforce_sorted=False))
        return torch.cat(unpack_sequence(packed))

    def logits(
        self, words_TD: Tensor, labels: Sequence[Tensor], texts: Sequence[NDArray[np.int64]]
    ) -> list[Tensor]:
        """How well the spans or words of each text fit its labels.

        Args:
            words_TD: the words of all texts.
            labels: the vectors of the labels of each text, (C, D).
            texts: of each text its spans, as numbers of their first and last words among all, (S, 2); or the
                numbers of its words, (W,).

        Returns:
            Of each text those of its spans, (S, C); or of its words, (W, C, 3), as the start, the end and a
            part of an entity.
        """
        if self.head.scores == "spans":
            return self._span_logits(words_TD, labels, texts)
        return [
            self._word_logits(words_TD[torch.from_numpy(rows_W).to(words_TD.device)], labels_CD)
            for labels_CD, rows_W in zip(labels, texts, strict=True)
        ]

    def _span_logits(
        self, words_TD: Tensor, labels: Sequence[Tensor], texts: Sequence[NDArray[np.int64]]
    ) -> list[Tensor]:
        layers = self.span_rep_layer["span_rep_layer"]
        assert isinstance(layers, nn.ModuleDict)
        ends_S2 = torch.from_numpy(np.concatenate(texts)).to(words_TD.device)
        start_TD, end_TD = layers["project_start"](words_TD), layers["project_end"](words_TD)
        both = torch.cat((start_TD[ends_S2[:, 0]], end_TD[ends_S2[:, 1]]), dim=-1)
        spans = layers["out_project"](both.relu()).split([len(spans_S2) for spans_S2 in texts])
        targets = self.prompt_rep_layer(torch.cat(list(labels))).split(
            [len(labels_CD) for labels_CD in labels]
        )
        return [spans_SD @ targets_CD.T for spans_SD, targets_CD in zip(spans, targets, strict=True)]

    def _word_logits(self, words_WD: Tensor, labels_CD: Tensor) -> Tensor:
        words, words_times = self.scorer["proj_token"](words_WD)[:, None].chunk(2, dim=-1)
        labels, labels_times = self.scorer["proj_label"](labels_CD)[None].chunk(2, dim=-1)
        shape = (len(words_WD), len(labels_CD), -1)
        parts = (words.expand(shape), labels.expand(shape), words_times * labels_times)
        scores: Tensor = self.scorer["out_mlp"](torch.cat(parts, dim=-1))
        return scores


@dataclass(frozen=True, eq=False, kw_only=True)
class EntityText(LabeledSequence):
    """A text as tokens of words, with its entities; ``target`` is empty."""

    pieces: Pieces
    spans: tuple[tuple[int, int, str], ...]
    """The first word, the last word and the label of each entity; words without tokens are not counted."""
    labels: tuple[str, ...]
    """The labels of which those that the text does not have are drawn."""


@dataclass(frozen=True, eq=False)
class EntityExample(Example):
    """A packed batch of texts behind labels, with what is scored in each."""

    words_at: NDArray[np.int64]
    """The row of the packed batch of each word, (T,)."""
    labels: NDArray[Any]
    """The row of each label of each text; or its vector, (., N), if labels have an encoder of their own."""
    word_counts: tuple[int, ...]
    """W of each text."""
    label_counts: tuple[int, ...]
    """C of each text."""
    scored: tuple[NDArray[np.int64], ...]
    """See `LabelLayers.logits`."""
    targets: tuple[NDArray[np.float32], ...]
    """Of each text, 1 where a label fits: (S, C) or (W, C, 3)."""


class EntityObjective(Objective[EntityText, EntityExample]):
    """The binary cross-entropy, or focal loss (Lin et al. 2017), of every span or word with each label.

    It is the sum over a text that gliner takes, averaged over the texts of the global batch, where gliner
    takes the sum. A text's labels are its own and a random number of others. We draw the others from the
    labels of the training data or of the text's file, gliner from those of the batch; and a text without
    entities has one label at least, with gliner none, so that it learns nothing.

    Args:
        encoder: trained, unless it is frozen.
        layers: the head, which is trained.
        prompts: makes tokens of labels, or their vectors if they have an encoder of their own.
        spec: settings of the loss and of the labels of a text.
        max_tokens: the most tokens of a text with its labels; None for no limit.
    """

    def __init__(
        self,
        encoder: Encoder,
        layers: LabelLayers,
        *,
        prompts: PromptEncoder,
        spec: EntitySpec,
        max_tokens: int | None,
    ) -> None:
        super().__init__()
        self.encoder, self.layers = encoder, layers
        self.prompts, self.spec, self.max_tokens = prompts, spec, max_tokens

    def beside(self) -> Mapping[str, Tensor]:
        """The tensors of the head."""
        return {name: tensor.detach().contiguous() for name, tensor in self.layers.state_dict().items()}

    def prepare(
        self, items: Sequence[EntityText], draw: np.random.Generator, progress: float
    ) -> EntityExample:
        """Draw the labels of each text, and put them before its words."""
        windows, scored, targets = [], [], []
        word = 0
        for item in items:
            labels = self._drawn(item, draw)
            prompt = self.prompts.prompt(labels)
            count = self._fitting(item.pieces, len(prompt))
            windows.append(window_of(prompt, item.pieces, 0, count))
            spans = [(*span[:2], labels.index(span[2])) for span in item.spans if span[2] in labels]
            rows, wanted = self._targets(count, [span for span in spans if span[1] < count], len(labels))
            scored.append(rows + word)
            targets.append(wanted)
            word += count
        batch = PackedBatch.of_ids([it.ids for it in windows], [it.token_type_ids for it in windows])
        starts = np.cumsum([0, *map(len, windows)])
        apart = self.prompts.head.labels_width is not None
        return EntityExample(
            {TERM: len(items)},
            batch.layout.token_count,
            len(items),
            batch,
            words_at=np.concatenate([it.words_at + at for it, at in zip(windows, starts, strict=False)]),
            labels=np.concatenate(
                [it.labels + (0 if apart else at) for it, at in zip(windows, starts, strict=False)]
            ),
            word_counts=tuple(len(it.words_at) for it in windows),
            label_counts=tuple(len(it.labels) for it in windows),
            scored=tuple(scored),
            targets=tuple(targets),
        )

    def _drawn(self, item: EntityText, draw: np.random.Generator) -> list[str]:
        """The labels of a text, in random order."""
        present = sorted({label for _, _, label in item.spans})
        others = [label for label in item.labels if label not in present]
        wanted = int(draw.integers(0, self.spec.max_negative_ratio + 1)) * len(item.spans)
        wanted = min(wanted if present else max(wanted, 1), len(others))
        chosen = present + [others[index] for index in draw.permutation(len(others))[:wanted]]
        return [chosen[index] for index in draw.permutation(len(chosen))[: self.spec.max_types]]

    def _fitting(self, pieces: Pieces, fixed: int) -> int:
        """How many words of a text are read; at least one."""
        count = min(len(pieces.counts), self.prompts.head.max_words)
        if self.max_tokens is None:
            return count
        room = self.max_tokens - fixed
        return max(1, min(count, int(np.searchsorted(np.cumsum(pieces.counts), room, side="right"))))

    def _targets(
        self, count: int, spans: Sequence[tuple[int, int, int]], labels: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The spans or words of a text that are scored, and where a label fits."""
        if self.prompts.head.scores == "words":
            words_WC3 = np.zeros((count, labels, 3), dtype=np.float32)
            for first, last, label in spans:
                words_WC3[first, label, 0] = words_WC3[last, label, 1] = 1
                words_WC3[first : last + 1, label, 2] = 1
            return np.arange(count), words_WC3
        first_S, more_S = np.divmod(
            np.arange(count * self.prompts.head.max_width), self.prompts.head.max_width
        )
        inside = first_S + more_S < count
        ends_S2 = np.stack((first_S, first_S + more_S), axis=1)[inside]
        place = {ends: index for index, ends in enumerate(map(tuple, ends_S2.tolist()))}
        spans_SC = np.zeros((len(ends_S2), labels), dtype=np.float32)
        for first, last, label in spans:
            if (first, last) in place:
                spans_SC[place[first, last], label] = 1
        return ends_S2, spans_SC

    def forward(self, example: EntityExample, totals: Mapping[str, int]) -> LossOutput:
        """The sum of losses, divided by the number of texts in the global batch."""
        x_TD = self.encoder.encode(example.batch)
        x_TD = x_TD.to(next(self.layers.parameters()).dtype)

        def vectors(rows: NDArray[np.int64]) -> Tensor:
            return self.layers.project(x_TD[torch.from_numpy(rows).to(x_TD.device)])

        words_TD = self.layers.mix(vectors(example.words_at), example.word_counts)
        if self.layers.head.labels_width is None:
            labels_CD = vectors(example.labels)
        else:
            labels_CD = self.layers.project_labels(torch.from_numpy(example.labels).to(x_TD))
        labels = torch.split(labels_CD, list(example.label_counts))
        logits = self.layers.logits(words_TD, labels, example.scored)
        z = torch.cat([part.flatten() for part in logits])
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        wanted = torch.from_numpy(np.concatenate([part.ravel() for part in example.targets])).to(z)
        loss = entity_loss(z, wanted, self.spec).sum()
        return LossOutput(loss / max(1, totals[TERM]), {f"{TERM}/loss": loss.detach()})


def entity_loss(logits: Tensor, targets: Tensor, spec: EntitySpec) -> Tensor:
    """The loss of each logit: binary cross-entropy, with the factors of the focal loss if there are any."""
    losses = functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    if spec.focal_gamma:
        p = torch.sigmoid(logits)
        losses = losses * (1 - (p * targets + (1 - p) * (1 - targets))) ** spec.focal_gamma
    if spec.focal_alpha is not None:
        losses = losses * (spec.focal_alpha * targets + (1 - spec.focal_alpha) * (1 - targets))
    return losses
