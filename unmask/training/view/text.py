"""One text as training reads it, and how frequent its tokens are."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import whole_number
from unmask.errors import InvalidRequest
from unmask.interpret.corpus.texts import corpus_of
from unmask.text import Encoding, Tokenizer
from unmask.training.data.batches import Chunk
from unmask.training.vocabulary import Vocabulary

_VOCABULARIES: "WeakKeyDictionary[Tokenizer, Vocabulary]" = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class TextChunk:
    """A text without the special tokens that its tokenizer adds, and where its tokens are from."""

    chunk: Chunk
    encoding: Encoding
    places_N: NDArray[np.int64]
    """For each token of [CLS] chunk [SEP], its position in the encoding."""


def text_chunk(encoding: Encoding) -> TextChunk:
    """The tokens between the first and the last that belong to the text.

    Raises:
        InvalidRequest: the text has no token.
    """
    own_tokens = np.flatnonzero(~encoding.special)
    if not len(own_tokens):
        raise InvalidRequest("the text has no token that could be predicted; give one that is not empty")
    first, stop = int(own_tokens[0]), int(own_tokens[-1]) + 1
    return TextChunk(Chunk(encoding.ids[first:stop], 0), encoding, np.arange(first - 1, stop + 1))


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """What objectives know of the tokenizer, worked out once.

    Raises:
        InvalidRequest: it has no CLS, SEP or mask token.
    """
    vocabulary = _VOCABULARIES.get(tokenizer)
    if vocabulary is None:
        vocabulary = _VOCABULARIES[tokenizer] = Vocabulary.of(tokenizer)
    return vocabulary


def draw_of(seed: int, epoch: int) -> np.random.Generator:
    """What all random choices of one epoch are drawn from."""
    return np.random.default_rng(
        [whole_number("seed", seed, 0, 2**63 - 1), whole_number("epoch", epoch, 1, 1_000_000)]
    )


_COUNTS: "WeakKeyDictionary[Tokenizer, NDArray[np.int64]]" = WeakKeyDictionary()


def frequency_losses(tokenizer: Tokenizer, ids_M: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """-log of the relative frequency of tokens, in nats, one added to the count of each of ``size`` tokens.

    The frequencies are those of 3,024 sentences of public-domain books.
    """
    counts_V = _COUNTS.get(tokenizer)
    if counts_V is None or len(counts_V) < size:
        texts = [text.text for text in corpus_of(None).texts]
        ids = np.concatenate([encoding.ids for encoding in tokenizer.encode_batch(texts)])
        special_V = vocabulary_of(tokenizer).special_V
        counts_V = np.bincount(ids[~special_V[ids]], minlength=size)
        _COUNTS[tokenizer] = counts_V
    losses_M: NDArray[np.float64] = -np.log((counts_V[ids_M] + 1) / (counts_V.sum() + size))
    return losses_M
