"""Several texts of one length: their attention as one array, and what a head may do in them.

The attention is that of a packed forward pass. Patterns are pairs of query and key that stand in a relation,
found from the tokens alone.

Axes: S texts of N tokens each; P patterns; X classes of keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.progress import Watch
from unmask.encoder.encoder import Encoder
from unmask.encoder.layers.attention import SoftmaxMixer
from unmask.interpret.activation_cache import ActivationCache, states_of
from unmask.interpret.attention.layer_statistics import BEYOND, CLASSES, column_classes, set_aside
from unmask.interpret.attention.patterns import DISTANT
from unmask.interpret.attention.rows import NEVER, LayerRows
from unmask.interpret.words.words import words
from unmask.kernels import MaskContext, Tile
from unmask.kernels.tile import key_counts
from unmask.spec import EncoderSpec
from unmask.spec.attention import simplify
from unmask.spec.global_tokens import has_global_tokens, places, trained_global_tokens
from unmask.text import Encoding, PackedBatch

ROWS = 128
"""Tokens of a batch are a multiple of this. oneDNN keeps a compiled product for every number of rows that it
meets (a thousand of them, hundreds of megabytes), and memory between them cannot be used again."""


class EqualLengthBatch:
    """The residual stream of texts that have the same number of tokens; made by `run`."""

    def __init__(
        self, encoder: Encoder, encodings: Sequence[Encoding], batch: PackedBatch, states: list[Tensor]
    ) -> None:
        self.encodings = encodings
        self.length = len(encodings[0])
        self._batch = batch
        # What depends on the number of tokens and not on the text is in its tables, shared by all texts.
        self._packed = ActivationCache(encoder, encodings[0], batch, states, states[-1])

    @classmethod
    def run(cls, encoder: Encoder, encodings: Sequence[Encoding], watch: Watch) -> "EqualLengthBatch":
        """One forward pass; ``watch`` is called after each layer.

        Raises:
            NonFiniteResult: a state is infinite or not a number.
        """
        batch = _filled(encoder.spec, encodings)
        states, _ = states_of(encoder, batch, watch, "a text of the corpus")
        return cls(encoder, encodings, batch, states)

    @property
    def states(self) -> list[Tensor]:
        """The states of every level, all texts end to end, and behind them what filled the batch."""
        return self._packed.states

    @torch.no_grad()
    def attention(self, layer: int) -> tuple[Tensor, Tensor]:
        """Attention of every head, (S, H, N, N), and the number of keys each query may see, (S, H, N).

        On the CPU, in the dtype of analyses. Where every text can be evaluated at once, the scores are one
        product; other kinds of attention are evaluated text by text.
        """
        mixer, marks = self._packed.mixer(layer), self._batch.layout.globals_T
        if (
            isinstance(mixer, SoftmaxMixer)
            and mixer.spec.head_width
            and not (marks is not None and marks.any())
        ):
            bias = self._packed.bias(layer)
            if bias.distances is None:
                return self._at_once(layer, mixer)
        parts = [self._of_text(layer, text) for text in range(len(self.encodings))]
        return torch.stack([p_HNN for p_HNN, _ in parts]), torch.stack([keys_HN for _, keys_HN in parts])

    def _at_once(self, layer: int, mixer: SoftmaxMixer) -> tuple[Tensor, Tensor]:
        heads, length, dtype = mixer.spec.heads, self.length, self._packed.dtype
        q_THK, k_THK, _ = self._packed.projected(layer)
        of_texts = slice(len(self.encodings) * length)
        q_SHNK, k_SHNK = (
            x[of_texts].to(dtype).view(-1, length, *x.shape[1:]).transpose(1, 2) for x in (q_THK, k_THK)
        )
        s_SHNN = q_SHNK / mixer.spec.head_width**0.5 @ k_SHNK.mT
        tile = Tile.whole(length)
        added_HNN = self._packed.bias(layer).added(tile, s_SHNN)
        if added_HNN is not None:
            s_SHNN = s_SHNN.add_(added_HNN)
        pattern = simplify(mixer.spec.pattern, self._batch.layout)
        counts = key_counts(tile, pattern, s_SHNN.device, MaskContext(length, heads))
        keys_HN = torch.full((heads, length), length)
        if counts is not None:
            s_SHNN = s_SHNN.masked_fill_(counts == 0, NEVER) + counts.clamp(min=1).to(dtype).log()
            keys_HN = (counts > 0).sum(-1).expand(heads, length)
        return s_SHNN.softmax(-1).cpu(), keys_HN.cpu().expand(len(s_SHNN), heads, length)

    def _of_text(self, layer: int, text: int) -> tuple[Tensor, Tensor]:
        rows = LayerRows(self._cache(text), layer, norms=False)
        p_HNN = torch.zeros(rows.heads, rows.length, rows.length, dtype=rows.dtype)
        keys_HN = torch.zeros(rows.heads, rows.length, dtype=torch.int64)
        for block in rows.blocks():
            some = slice(block.first_row, block.end_row)
            p_HNN[:, some, block.first_column : block.end_column] = block.p_HRC.cpu()
            keys_HN[:, some] = torch.from_numpy(
                np.asarray(rows.keys_allowed(block.first_row, block.end_row), dtype=np.int64)
            )
        return p_HNN, keys_HN

    def _cache(self, text: int) -> ActivationCache:
        packed, rows = self._packed, self._batch.layout.rows(text)
        encoding = self.encodings[text]
        marks = self._batch.layout.globals_T
        batch = PackedBatch.of_ids(
            [encoding.ids],
            [encoding.token_type_ids],
            None if marks is None else [np.flatnonzero(marks[rows]).tolist()],
        )
        states = [x_TD[rows] for x_TD in packed.states]
        return ActivationCache(packed.encoder, encoding, batch, states, states[-1]).sharing(packed)


def _filled(spec: EncoderSpec, encodings: Sequence[Encoding]) -> PackedBatch:
    """The texts, and behind them tokens that nothing asks for, up to a multiple of `ROWS`.

    They are sequences of their own, which no text attends to.
    """
    first, length = encodings[0], len(encodings[0])
    missing = -len(encodings) * length % ROWS
    lengths = [min(length, missing - begun) for begun in range(0, missing, length)]
    chosen = trained_global_tokens(spec, paired=False)
    marks = [places(encoding, chosen) for encoding in encodings] if has_global_tokens(spec) else None
    return PackedBatch.of_ids(
        [encoding.ids for encoding in encodings] + [first.ids[:some] for some in lengths],
        [encoding.token_type_ids for encoding in encodings]
        + [first.token_type_ids[:some] for some in lengths],
        None if marks is None else marks + [()] * len(lengths),
    )


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
    """The relations of all pairs of tokens, in texts of one length."""

    patterns_SNNP: NDArray[np.bool_]
    classes_SNNX: NDArray[np.bool_]
    """Keys of each class of `CLASSES`, for every query."""
    aside_SN: NDArray[np.bool_]
    """See `unmask.interpret.attention.layer_statistics.set_aside`."""

    @cached_property
    def scoring(self) -> tuple[Tensor, NDArray[np.bool_]]:
        """The weights that score a map of a text, (S, N * N, P), and whether there is a score, (S, P).

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

    @cached_property
    def classes(self) -> Tensor:
        """What adds up attention by classes of keys, (S, N * N, X): those of `CLASSES`, then of `BEYOND`.

        The latter are of queries and keys that are not set aside.
        """
        kept_SN = ~self.aside_SN
        beyond_SNNX = self.classes_SNNX[..., [CLASSES.index(name) for name in BEYOND]]
        beyond_SNNX = beyond_SNNX & (kept_SN[:, :, None] & kept_SN[:, None])[..., None]
        return torch.from_numpy(np.concatenate([self.classes_SNNX, beyond_SNNX], axis=-1)).flatten(1, 2)

    def only(
        self, queries_SN: NDArray[np.bool_] | None, keys_SN: NDArray[np.bool_] | None
    ) -> "BatchRelations":
        """The same with fewer pairs: those of the marked queries and keys."""
        patterns = self.patterns_SNNP
        if queries_SN is not None:
            patterns = patterns & queries_SN[:, :, None, None]
        if keys_SN is not None:
            patterns = patterns & keys_SN[:, None, :, None]
        return BatchRelations(patterns, self.classes_SNNX, self.aside_SN)


def relations(encodings: Sequence[Encoding]) -> BatchRelations:
    """The relations in texts of one length."""
    parts = [_of_text(encoding) for encoding in encodings]
    return BatchRelations(
        np.stack([patterns_NNP for patterns_NNP, _ in parts]),
        np.stack([classes_NNX for _, classes_NNX in parts]),
        np.stack([set_aside(encoding.special) for encoding in encodings]),
    )


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
    patterns = {
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
        "repeat": patterns["repeat"],
    }
    named_NN = np.any(list(classes.values()), axis=0)
    return (
        np.stack([patterns[name] for name in PATTERNS], axis=-1),
        np.stack([classes.get(name, ~named_NN) for name in CLASSES], axis=-1),
    )
