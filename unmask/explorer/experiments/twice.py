"""A text repeated twice: the same words and distances at other positions."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.encoder.encoder import Encoder
from unmask.encoder.hooks import HookPoint
from unmask.errors import InvalidRequest
from unmask.spec import SoftmaxAttention
from unmask.text import Encoding, PackedBatch


@dataclass(frozen=True, eq=False)
class Twice:
    """Differences between two copies of the words in one sequence; means over words or pairs of words."""

    words: int
    """Number of tokens in a copy."""
    state_difference: NDArray[np.float64]
    """(L + 1,): ||a - b|| / ||a|| of a word and its copy, in the input of each layer and the output of the
    last."""
    score_difference: NDArray[np.float64]
    """(L,): mean difference of q k / sqrt(K) between the copies of a pair, divided by its standard
    deviation."""


def twice(encoder: Encoder, encoding: Encoding) -> Twice:
    """Run the words of a text twice in one sequence and compare the copies.

    If positions enter only as distances, the first layer's products of a pair are equal in both copies up to
    rounding. In deeper layers they differ, because words have different neighbors in each copy.

    Raises:
        InvalidRequest: there are no words, two copies exceed the maximum length, or a layer has no softmax.
    """
    words = encoding.ids[~encoding.special]
    if not len(words):
        raise InvalidRequest("the text has no words to repeat; give a text with words")
    if not all(isinstance(layer.mixer, SoftmaxAttention) for layer in encoder.spec.layers):
        raise InvalidRequest(
            "this experiment compares scores, which linear attention does not have; use another encoder"
        )
    special = np.flatnonzero(encoding.special)
    before = special[special < np.flatnonzero(~encoding.special)[0]]
    after = special[special > np.flatnonzero(~encoding.special)[-1]]
    ids = np.concatenate([encoding.ids[before], words, words, encoding.ids[after]])
    kept: dict[tuple[HookPoint, int], Tensor] = {}

    def hear(place: HookPoint, layer: int, tensor: Tensor) -> None:
        kept[place, layer] = tensor.detach().to("cpu", torch.float64)

    with torch.inference_mode():
        encoder.encode(PackedBatch.of_ids([ids]), hook=hear)
    start, count, layers = len(before), len(words), range(len(encoder.spec.layers))
    first, second = slice(start, start + count), slice(start + count, start + 2 * count)
    states = [kept[HookPoint.EMBEDDED, 0], *(kept[HookPoint.LAYER, layer] for layer in layers)]
    moved = [float(((x[first] - x[second]).norm(dim=-1) / x[first].norm(dim=-1)).mean()) for x in states]
    changed = []
    for layer in layers:
        q_THK, k_THK = kept[HookPoint.QUERY, layer], kept[HookPoint.KEY, layer]
        one, other = (torch.einsum("rhk,chk->hrc", q_THK[part], k_THK[part]) for part in (first, second))
        spread = one.flatten(1).std(-1, correction=0).clamp_min(1e-300)
        changed.append(float(((one - other).abs().flatten(1).mean(-1) / spread).mean()))
    return Twice(count, np.array(moved), np.array(changed))
