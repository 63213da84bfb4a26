"""Hidden states of words, layer by layer, for packed sentences that are already split into words."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.encoder.finite import is_finite
from unmask.engines.engine import Engine
from unmask.errors import TextTooLong, not_finite
from unmask.models.load import Model
from unmask.text import Encoding, PackedBatch, token_budget_batches

TOKENS_PER_PASS = 4096

STATES_BYTES = 2**31
"""Bytes of states held at a time; if more layers are requested, the encoder runs several times."""


@dataclass(frozen=True, eq=False)
class ReadWords:
    """Tokenized words, sentence by sentence."""

    encodings: tuple[Encoding, ...]
    firsts: tuple[NDArray[np.int64], ...]
    """For each encoding, the index of each word's first token; -1 for a word without tokens."""
    split: int
    """Sentences that exceed the maximum length and were split into several encodings of whole words."""

    @cached_property
    def count(self) -> int:
        """M, the number of words."""
        return sum(map(len, self.firsts))

    @cached_property
    def missing(self) -> int:
        """Number of words without a token."""
        return sum(int((places < 0).sum()) for places in self.firsts)


def read_words(model: Model, sentences: Sequence[Sequence[str]], name: Callable[[int], str]) -> ReadWords:
    """Tokenize sentences given as words; ``name`` returns the name of a sentence in errors, by index.

    Raises:
        TextError: a word is blank or not valid Unicode, or no word of a sentence gives a token.
    """
    encodings: list[Encoding] = []
    firsts: list[NDArray[np.int64]] = []
    split = 0
    for index, words in enumerate(sentences):
        parts = list(_parts(model, words, name(index)))
        split += len(parts) > 1
        encodings += [encoding for encoding, _ in parts]
        firsts += [_first_tokens(encoding, count) for encoding, count in parts]
    return ReadWords(tuple(encodings), tuple(firsts), split)


def _parts(model: Model, words: Sequence[str], name: str) -> Iterator[tuple[Encoding, int]]:
    """Parts of a sentence, halved between words until they fit the model, each with its number of words."""
    encode, longest = model.tokenizer.encode_words, model.max_tokens
    try:
        yield encode(words, max_tokens=longest, name=name), len(words)
    except TextTooLong:
        if len(words) == 1:
            # If a single word exceeds the maximum length, its first token is enough.
            yield encode(words, max_tokens=longest, truncation="end", name=name), 1
            return
        middle = len(words) // 2
        yield from _parts(model, words[:middle], name)
        yield from _parts(model, words[middle:], name)


def _first_tokens(encoding: Encoding, count: int) -> NDArray[np.int64]:
    assert encoding.words is not None
    firsts = np.full(count, -1, dtype=np.int64)
    tokens = np.flatnonzero(encoding.words >= 0)[::-1]
    firsts[encoding.words[tokens]] = tokens  # in reverse order, so that the first token of each word remains
    return firsts


def layer_groups(layers: Sequence[int], words: Iterable[ReadWords], width: int) -> list[Sequence[int]]:
    """The layers in groups, each of which one run of the encoder gives within `STATES_BYTES`.

    Args:
        layers: those that are wanted.
        words: all words whose states are held together.
        width: D, the width of a state.
    """
    at_once = max(1, STATES_BYTES // (4 * width * sum(one.count for one in words)))
    return [layers[first : first + at_once] for first in range(0, len(layers), at_once)]


def word_states(
    model: Model,
    words: ReadWords,
    layers: Sequence[int],
    advance: Callable[[int], None] = lambda _: None,
    *,
    engine: Engine | None = None,
) -> Tensor:
    """The state of each word's first token, float32 of shape (layers, M, D); zeros for a word without tokens.

    Args:
        model: the model to run.
        words: see `read_words`.
        layers: from 0, the output of the embedding, to L, which includes the encoder's final norm.
        advance: called with the number of encodings read since the last call.
        engine: runs instead of the model's, of the same architecture.

    Raises:
        NonFiniteResult: a state is not finite.
    """
    states_LMD = torch.zeros(len(layers), words.count, model.width)
    starts = np.cumsum([0, *map(len, words.firsts)])
    lengths = np.array([len(one) for one in words.encodings], dtype=np.int64)
    for chosen in token_budget_batches(lengths, TOKENS_PER_PASS):
        some = [words.encodings[index] for index in chosen]
        batch = PackedBatch.of_ids([one.ids for one in some], [one.token_type_ids for one in some])
        asked, rows = [], []
        for index, offset in zip(chosen, batch.layout.offsets[:-1], strict=True):
            has = words.firsts[index] >= 0
            asked.append(words.firsts[index][has] + offset)
            rows.append(starts[index] + np.flatnonzero(has))
        places, into = (torch.from_numpy(np.concatenate(one)) for one in (asked, rows))
        states = torch.from_numpy((engine or model.engine).hidden_states(batch, "all"))
        for number, layer in enumerate(layers):
            states_LMD[number, into] = states[layer, places].float()
        advance(len(chosen))
    if not is_finite(states_LMD):
        raise not_finite("a hidden state", model.dtype)
    return states_LMD
