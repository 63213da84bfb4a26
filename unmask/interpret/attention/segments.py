"""Attention within and between the two texts of a pair."""

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention.head_distances import Grouped, grouped_weights
from unmask.interpret.watch import Watch, unwatched


def segment_attention(cache: ActivationCache, *, watch: Watch | None = None) -> NDArray[np.float64]:
    """How much each text of a pair attends to itself, to the other and to special tokens: (L, H, 2, 3).

    The third axis is the text that attends, the fourth what it attends to: the first text, the second,
    special tokens, which belong to neither text. A row is the mean over the tokens of a text and sums to 1;
    it is 0 where a layer has no such head.

    Raises:
        InvalidRequest: the text is not a pair, or one of its texts has no token left.
        Cancelled: ``watch`` stopped the work.
    """
    encoding, watched, layers = cache.encoding, watch or unwatched, cache.layer_count
    if encoding.pair is None:
        raise InvalidRequest("this is a single text; attention between two texts is that of a pair")
    groups_N = np.where(encoding.special, 2, encoding.sequence_ids == 1)
    for text, name in enumerate(("first", "second")):
        if not (groups_N == text).any():
            raise InvalidRequest(f"the {name} text has no token left; truncate less, or give shorter texts")
    heads = [cache.heads(layer) for layer in range(layers)]
    chosen = np.array([0, 1])
    weights = grouped_weights(
        Grouped(cache, groups_N), chosen, 3, 0.0, lambda done: watched("reading heads", done, layers)
    )
    watched("reading heads", layers, layers)
    found = np.zeros((layers, max(heads), 2, 3))
    first = 0
    for layer, count in enumerate(heads):
        found[layer, :count] = weights[first : first + count].double().cpu().numpy()
        first += count
    return found
