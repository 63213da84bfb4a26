"""ELMo (Peters et al. 2018): character-based words, bidirectional LSTMs, a learned mix of layers.

It is not a Transformer and shares no layer with the encoder. Texts are divided into words, and words
are rows of character ids as in its training.

Axes: G gates of an LSTM, times its cells.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unmask.errors import EmptyText, InvalidRequest, InvalidText, quoted
from unmask.spec.elmo import ElmoSpec
from unmask.text.batch import SequenceLayout
from unmask.text.borders import word_borders
from unmask.text.encoding import Encoding
from unmask.text.tokenizer import numbered

SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, PADDING = range(256, 261)
"""Ids of the marks; ids below 256 are the bytes of the word in UTF-8."""


def character_ids(words: Sequence[str], width: int = 50) -> NDArray[np.int64]:
    """One row per word, (T, ``width``): its bytes between two marks, then padding.

    Bytes past ``width - 2`` are dropped, as in training. The convolutions treat padding like any other
    character, so the width is part of the model.

    Raises:
        InvalidText: a word is not Unicode text.
    """
    ids_TC = np.full((len(words), width), PADDING, dtype=np.int64)
    for row, word in enumerate(words):
        try:
            content = word.encode("utf-8")[: width - 2]
        except UnicodeEncodeError as error:
            raise InvalidText(f"word {row} is not Unicode text: {error.reason}") from None
        mark_row(ids_TC[row], content)
    return ids_TC


def sentence_marks(width: int) -> NDArray[np.int64]:
    """The rows of the two words that surround every sentence, (2, ``width``)."""
    ids_2C = np.full((2, width), PADDING, dtype=np.int64)
    for row, mark in zip(ids_2C, (SENTENCE_BEGIN, SENTENCE_END), strict=True):
        mark_row(row, (mark,))
    return ids_2C


def mark_row(row_C: NDArray[np.int64], content: Sequence[int]) -> None:
    """Write a word's characters between its marks."""
    row_C[0] = WORD_BEGIN
    row_C[1 : len(content) + 1] = list(content)
    row_C[len(content) + 1] = WORD_END


class WordTokenizer:
    """Divides texts at word borders: words and punctuation marks apart, as in the text ELMo was trained on.

    Its encodings have one token per word, with offsets and without special tokens. There is no vocabulary, so
    their ids are only the number of the word in its text; the network reads the characters of the pieces.
    """

    def encode(self, text: str) -> Encoding:
        """One text as words."""
        return self.encode_batch([text], name=lambda _: "the text")[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        *,
        max_tokens: int | None = None,
        name: Callable[[int], str] = numbered,
    ) -> list[Encoding]:
        """Texts as words; a text may have any length, so ``max_tokens`` is not read.

        Raises:
            EmptyText: a text has no words.
            InvalidRequest: a text is not a string.
        """
        return [_encoded(text, name(index)) for index, text in enumerate(texts)]


def _encoded(text: object, name: str) -> Encoding:
    if not isinstance(text, str):
        raise InvalidRequest(f"{name} is {quoted(text)}; give a string")
    cuts = np.flatnonzero(word_borders(text)).tolist()
    spans = [span for span in pairwise(cuts) if not text[slice(*span)].isspace()]
    if not spans:
        raise EmptyText(f"{name} has no words; give a text with at least one")
    count = len(spans)
    return Encoding.of_arrays(
        text,
        ids=np.arange(count),
        token_type_ids=np.zeros(count, dtype=np.int64),
        offsets=np.array(spans, dtype=np.int64),
        special=np.zeros(count, dtype=np.bool_),
        sequence_ids=np.zeros(count, dtype=np.int64),
        pieces=[text[start:end] for start, end in spans],
    )


class ElmoStates(NamedTuple):
    """The representations of words."""

    layers_LTD: Tensor
    """The word vectors (concatenated with themselves), then each recurrent layer: (layers + 1, T, 2 D). The
    forward direction is the first half of the width.
    """
    mixed_TD: Tensor
    """Their learned mix, (T, 2 D)."""


class Elmo(nn.Module):
    """Contextual states of words from their characters (Peters et al. 2018).

    Sentences are packed and do not affect one another. Each starts from zero states; AllenNLP's class instead
    carries states from one batch to the next, which makes results depend on earlier batches.
    """

    def __init__(self, spec: ElmoSpec) -> None:
        super().__init__()
        self.spec = spec
        self.words = CharacterNetwork(spec)
        directions = ("ahead", "back")
        self.recurrent = nn.ModuleDict(
            {name: nn.ModuleList(ProjectedLstm(spec) for _ in range(spec.layers)) for name in directions}
        )
        self.mix = LayerMix(spec.layers + 1)

    def forward(self, characters_TC: Tensor, layout: SequenceLayout) -> ElmoStates:
        """States of every word.

        Args:
            characters_TC: `character_ids` of all sentences' words, end to end; without sentence marks.
            layout: where each sentence begins, in words.

        Raises:
            InvalidRequest: the characters do not match the layout or the spec.
        """
        shape = (layout.token_count, self.spec.word_characters)
        if characters_TC.shape != shape:
            raise InvalidRequest(f"the characters have shape {tuple(characters_TC.shape)}, not {shape}")
        device = characters_TC.device
        marks_2C = torch.from_numpy(sentence_marks(self.spec.word_characters)).to(device)
        x_TD = self.words(torch.cat([characters_TC, marks_2C]))
        rows, inner, marked = with_marks(layout)
        inner_T = torch.from_numpy(inner).to(device)
        x_TD = x_TD[torch.from_numpy(rows).to(device)]
        layers = [torch.cat([x_TD[inner_T]] * 2, dim=-1)]
        states = dict.fromkeys(self.recurrent, x_TD)
        orders = {name: time_steps(marked, name == "back", device) for name in self.recurrent}
        for layer in range(self.spec.layers):
            for name, stack in self.recurrent.items():
                assert isinstance(stack, nn.ModuleList)
                made_TD = stack[layer](states[name], orders[name])
                states[name] = made_TD + states[name] if layer else made_TD
            layers.append(torch.cat([states[name][inner_T] for name in states], dim=-1))
        layers_LTD = torch.stack(layers)
        return ElmoStates(layers_LTD, self.mix(layers_LTD))


class CharacterNetwork(nn.Module):
    """Convolutions over a word's characters, maximum over positions, highway layers, projection to D."""

    def __init__(self, spec: ElmoSpec) -> None:
        super().__init__()
        self.characters = nn.Embedding(spec.characters, spec.character_width)
        self.filters = nn.ModuleList(
            nn.Conv1d(spec.character_width, count, width) for width, count in spec.filters
        )
        inner = sum(count for _, count in spec.filters)
        self.highways = nn.ModuleList(Highway(inner) for _ in range(spec.highways))
        self.projection = nn.Linear(inner, spec.width)
        self.activation = torch.relu if spec.activation == "relu" else torch.tanh

    def forward(self, characters_TC: Tensor) -> Tensor:
        """Shape (T, C) ids in, (T, D) out."""
        x_TEC = self.characters(characters_TC).transpose(-1, -2)
        x_TF = torch.cat(
            [self.activation(convolution(x_TEC).amax(dim=-1)) for convolution in self.filters], dim=-1
        )
        for highway in self.highways:
            x_TF = highway(x_TF)
        x_TD: Tensor = self.projection(x_TF)
        return x_TD


class Highway(nn.Module):
    """Srivastava, Greff & Schmidhuber 2015: ``g relu(a(x)) + (1 - g) x`` with ``g = sigmoid(b(x))``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)

    def forward(self, x_TF: Tensor) -> Tensor:
        """Shape (T, F) in and out."""
        share_TF = torch.sigmoid(self.gate(x_TF))
        return share_TF * torch.relu(self.transform(x_TF)) + (1 - share_TF) * x_TF


class ProjectedLstm(nn.Module):
    """An LSTM whose cell is wider than its state, both clipped (Sak et al. 2014; Peters et al. 2018).

    Row order of the gate matrices: input, forget, new content, output.
    """

    def __init__(self, spec: ElmoSpec) -> None:
        super().__init__()
        self.cell_clip, self.state_clip = spec.cell_clip, spec.state_clip
        self.inputs = nn.Linear(spec.width, 4 * spec.cell_width, bias=False)
        self.state = nn.Linear(spec.width, 4 * spec.cell_width)
        self.projection = nn.Linear(spec.cell_width, spec.width, bias=False)
        with torch.no_grad():  # forget gates start open (Jozefowicz et al. 2015)
            self.state.bias.zero_()[spec.cell_width : 2 * spec.cell_width] = 1.0

    def forward(self, x_TD: Tensor, steps: list[Tensor]) -> Tensor:
        """Shape (T, D) in and out; ``steps`` are the rows that run together, from `time_steps`."""
        gates_TG = self.inputs(x_TD)
        state_SD = x_TD.new_zeros(len(steps[0]), x_TD.shape[-1])
        cell_SC = x_TD.new_zeros(len(steps[0]), self.projection.in_features)
        states = []
        for rows in steps:
            # The longest sentences come first, so finished ones are at the end.
            state_SD, cell_SC = state_SD[: len(rows)], cell_SC[: len(rows)]
            admit, keep, new, show = (gates_TG[rows] + self.state(state_SD)).chunk(4, dim=-1)
            cell_SC = keep.sigmoid() * cell_SC + admit.sigmoid() * new.tanh()
            cell_SC = cell_SC.clamp(-self.cell_clip, self.cell_clip)
            state_SD = self.projection(show.sigmoid() * cell_SC.tanh())
            state_SD = state_SD.clamp(-self.state_clip, self.state_clip)
            states.append(state_SD)
        return torch.cat(states)[torch.cat(steps).argsort()]


class LayerMix(nn.Module):
    """``gamma * sum(softmax(weights) * layers)``; a task learns both (Peters et al. 2018, equation 1)."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers_LTD: Tensor) -> Tensor:
        """Shape (layers, T, D) in, (T, D) out."""
        mixed_TD: Tensor = torch.tensordot(self.weights.softmax(dim=0), layers_LTD, dims=1)
        return self.gamma * mixed_TD


def with_marks(layout: SequenceLayout) -> tuple[NDArray[np.int64], NDArray[np.int64], SequenceLayout]:
    """Put each sentence between its two marks, which are rows T and T + 1 of the words.

    Returns the words' rows in the new order, the positions of the real words among them, and their layout.
    """
    marked = SequenceLayout.of_lengths(layout.lengths + 2)
    rows = np.empty(marked.token_count, dtype=np.int64)
    inner = np.arange(layout.token_count) + 2 * layout.sequence_of_T + 1
    rows[inner] = np.arange(layout.token_count)
    rows[marked.offsets[:-1]] = layout.token_count
    rows[marked.offsets[1:] - 1] = layout.token_count + 1
    return rows, inner, marked


def time_steps(layout: SequenceLayout, backward: bool, device: torch.device) -> list[Tensor]:
    """For each step of time, the row of every sentence that is still running, longest sentences first."""
    order = np.argsort(-layout.lengths, kind="stable")
    lengths, starts = layout.lengths[order], layout.offsets[:-1][order]
    steps = []
    for step in range(int(lengths[0])):
        running = int((lengths > step).sum())
        rows = starts[:running] + (lengths[:running] - 1 - step if backward else step)
        steps.append(torch.from_numpy(rows).to(device))
    return steps
