"""How frequent the tokens of a vocabulary are in the sentences that come with the package."""

from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from unmask.interpret.corpus.texts import corpus_of
from unmask.text import Tokenizer
from unmask.training.view.chunk import vocabulary_of

_COUNTS: "WeakKeyDictionary[Tokenizer, NDArray[np.int64]]" = WeakKeyDictionary()


def frequency_losses(tokenizer: Tokenizer, ids_M: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """-log of the relative frequency of tokens, in nats, one added to the count of each of ``size`` tokens.

    The frequencies are those of 3,024 sentences of public-domain books.
    """
    counts_V = _COUNTS.get(tokenizer)
    if counts_V is None or len(counts_V) < size:
        texts = [one.text for one in corpus_of(None).texts]
        ids = np.concatenate([one.ids for one in tokenizer.encode_batch(texts)])
        special_V = vocabulary_of(tokenizer).special_V
        counts_V = np.bincount(ids[~special_V[ids]], minlength=size)
        _COUNTS[tokenizer] = counts_V
    losses_M: NDArray[np.float64] = -np.log((counts_V[ids_M] + 1) / (counts_V.sum() + size))
    return losses_M
