"""What a head may do in a text: pairs of query and key that stand in a relation, found from the tokens alone.

Axes: S texts of N tokens each; P patterns; X classes of keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.interpret.attention.layer_statistics import CLASSES, column_classes
from unmask.interpret.attention.patterns import DISTANT
from unmask.interpret.words.words import words
from unmask.text import Encoding

PATTERNS = (
    "edge",
    "previous",
    "next",
    "self",
    "word",
    "repeat",
    "punctuation",
    "first",
    "special",
    "distant",
)
"""Relations of a key to a query. Queries are never special tokens; keys are not either, except of ``first``
(the first token of the sequence, such as [CLS]) and ``special`` (any other special token).

``edge``: any key. ``previous``, ``next``, ``self``: the token before, after, and the token itself. ``word``:
another token of the same word. ``repeat``: the same token elsewhere in the text. ``punctuation``: a token of
punctuation, from one that is not. ``distant``: at least `DISTANT` tokens away. How much the map of one
text looks like a line, a block or a link is measured in `unmask.interpret.attention.patterns`."""


@dataclass(frozen=True, eq=False)
class BatchRelations:
    """Which pairs of tokens of texts of one length stand in which relation."""

    patterns_SNNP: NDArray[np.bool_]
    classes_SNNX: NDArray[np.bool_]
    """Keys of each class of `CLASSES`, for every query."""

    @cached_property
    def scoring(self) -> tuple[Tensor, NDArray[np.bool_]]:
        """What a map is multiplied with to score a text, (S, N * N, P), and whether there is a score, (S, P).

        The score of a pattern is the attention of a query to all keys in the relation, mean over the queries
        that have one; a text without such a query has none. ``edge`` is scored by its largest value instead,
        and its column is 0.
        """
        asking_SNP = self.patterns_SNNP.any(2)
        count_SP = asking_SNP.sum(1)
        share_SP = np.where(count_SP > 0, 1 / np.maximum(count_SP, 1), 0)
        share_SP[:, PATTERNS.index("edge")] = 0
        weights_SNNP = self.patterns_SNNP * share_SP[:, None, None]
        return torch.from_numpy(weights_SNNP).flatten(1, 2), count_SP > 0

    def only(self, asked_SN: NDArray[np.bool_] | None, keys_SN: NDArray[np.bool_] | None) -> "BatchRelations":
        """The same with fewer pairs: those of the marked queries and keys."""
        patterns = self.patterns_SNNP
        if asked_SN is not None:
            patterns = patterns & asked_SN[:, :, None, None]
        if keys_SN is not None:
            patterns = patterns & keys_SN[:, None, :, None]
        return BatchRelations(patterns, self.classes_SNNX)


def relations(encodings: Sequence[Encoding]) -> BatchRelations:
    """The relations in texts of one length."""
    parts = [_of_text(one) for one in encodings]
    return BatchRelations(np.stack([one for one, _ in parts]), np.stack([one for _, one in parts]))


def _of_text(encoding: Encoding) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    length = len(encoding)
    first_N, special_N, punctuation_N = column_classes(encoding)
    added_N = np.asarray(encoding.special)
    i_N1, j_1N = np.arange(length)[:, None], np.arange(length)[None, :]
    offset_NN = j_1N - i_N1
    content_N = ~added_N
    both_NN = content_N[:, None] & content_N[None, :]
    word_N, ids_N = words(encoding).of_token, np.asarray(encoding.ids)
    apart_NN = offset_NN != 0
    found = {
        "edge": both_NN,
        "previous": both_NN & (offset_NN == -1),
        "next": both_NN & (offset_NN == 1),
        "self": both_NN & ~apart_NN,
        "word": both_NN & apart_NN & (word_N[:, None] == word_N[None, :]),
        "repeat": both_NN & apart_NN & (ids_N[:, None] == ids_N[None, :]),
        "punctuation": both_NN & punctuation_N[None, :] & ~punctuation_N[:, None],
        "first": content_N[:, None] & first_N[None, :] & apart_NN,
        "special": content_N[:, None] & special_N[None, :],
        "distant": both_NN & (np.abs(offset_NN) >= DISTANT),
    }
    every_NN = np.ones((length, length), dtype=np.bool_)
    classes = {
        "self": offset_NN == 0,
        "previous": offset_NN == -1,
        "next": offset_NN == 1,
        "first": every_NN & first_N,
        "special": every_NN & special_N,
        "punctuation": every_NN & punctuation_N,
    }
    named_NN = np.any(list(classes.values()), axis=0)
    return (
        np.stack([found[name] for name in PATTERNS], axis=-1),
        np.stack([classes.get(name, ~named_NN) for name in CLASSES], axis=-1),
    )
