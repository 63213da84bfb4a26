"""Masked language modeling with a second task on sentence pairs (NSP or SOP).

``next_sentence``: does the second segment follow the first, or is it from another document (Devlin et al.
2019)? ``sentence_order``: are two consecutive segments in order (Lan et al. 2020)? Label 0 means yes in both.

A chunk is split after a sentence end, chosen uniformly, or between any two words if no sentence ends inside
it. A word is never split: a chunk of a single word becomes [CLS] A [SEP], is masked like the others, and has
no pair label.

Exchanged segments must not be recognizable by their length or their beginning. Therefore chunks of different
documents are paired first, partners are split where their second parts are closest in length, and only then
is it decided at random whether they exchange them. BERT instead draws a second segment for each first one and
truncates it; here no text is read twice in a micro-batch, and its number of tokens is unchanged.

Axes: P labeled pairs of segments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from unmask.base.arguments import at_least
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.text.batch import PackedBatch
from unmask.training.data.stream import Chunk
from unmask.training.objectives.interface import LossOutput, Objective
from unmask.training.objectives.language_modeling import (
    MaskedExample,
    masked_example,
    masked_loss,
    require_masked_head,
)
from unmask.training.objectives.masking import MaskingSpec
from unmask.training.table import settings
from unmask.training.vocabulary import Vocabulary

PLACES_COMPARED = 64
"""Maximum number of random split points of a partner that are compared."""

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PairedSentences:
    """Two segments for each chunk, in the order of chunks."""

    firsts: list[Ids]
    seconds: list[Ids]
    """Empty if a chunk cannot be split."""
    labels_S: NDArray[np.int64]
    """1 where the second does not follow the first."""
    alone: int
    """Chunks that can be split but found no partner."""
    cut_tokens: int
    """Tokens truncated because a pair was too long."""


def places(ids_N: Ids, vocabulary: Vocabulary) -> NDArray[np.int64]:
    """Possible split points of a chunk, ascending: the index (at least 1) of the second segment's first
    token.

    These are after every sentence end inside the chunk or, if there is none, between all words.
    """
    between = np.flatnonzero(~vocabulary.continues_V[ids_N[1:]]) + 1
    if vocabulary.ends_V is None:
        return between
    ends = between[vocabulary.ends_V[ids_N[between - 1]]]
    # In an ellipsis or "?!" the last mark ends the sentence.
    ends = ends[~vocabulary.ends_V[ids_N[ends]]]
    return ends if len(ends) else between


def swap(
    chunks: Sequence[Chunk], vocabulary: Vocabulary, draw: np.random.Generator, *, share: float = 0.5
) -> PairedSentences:
    """Split each chunk in two, and swap the parts with probability ``share`` (label 1)."""
    firsts, seconds = [], []
    labels_S = np.zeros(len(chunks), dtype=np.int64)
    for number, chunk in enumerate(chunks):
        candidates = places(chunk.ids, vocabulary)
        first, second = _split(chunk.ids, _drawn_place(candidates, len(chunk.ids), draw))
        if len(second) and draw.random() < share:
            first, second = second, first
            labels_S[number] = 1
        firsts.append(first)
        seconds.append(second)
    return PairedSentences(firsts, seconds, labels_S, alone=0, cut_tokens=0)


def exchange(
    chunks: Sequence[Chunk],
    vocabulary: Vocabulary,
    draw: np.random.Generator,
    *,
    share: float = 0.5,
    longest: int | None = None,
) -> PairedSentences:
    """Split each chunk in two; with probability ``share`` partners exchange their second parts (label 1).

    Args:
        chunks: the chunks; those without a partner from another document are unchanged (label 0).
        vocabulary: determines where words begin and sentences end.
        draw: determines all random choices.
        share: share of the partner pairs that exchange.
        longest: maximum tokens of a pair of segments; exchanged parts that exceed it are truncated.
        None for no limit.
    """
    candidates = [places(chunk.ids, vocabulary) for chunk in chunks]
    free = [number for number, candidates_of_chunk in enumerate(candidates) if len(candidates_of_chunk)]
    partners = pair_up([chunks[number].document for number in free], draw)
    at = {number: _drawn_place(candidates[number], len(chunks[number].ids), draw) for number in free}
    exchanged: list[tuple[int, int]] = []
    for left, right in ((free[a], free[b]) for a, b in partners):
        lengths = len(chunks[left].ids), len(chunks[right].ids)
        at[left], at[right] = _like_places(candidates[left], candidates[right], lengths, draw)
        if draw.random() < share:
            exchanged.append((left, right))
    parts = [_split(chunk.ids, at.get(number, len(chunk.ids))) for number, chunk in enumerate(chunks)]
    firsts, seconds = [first for first, _ in parts], [second for _, second in parts]
    labels_S = np.zeros(len(chunks), dtype=np.int64)
    cut_tokens = 0
    for left, right in exchanged:
        seconds[left], seconds[right] = seconds[right], seconds[left]
        for number in (left, right):
            labels_S[number] = 1
            room = len(seconds[number]) if longest is None else max(1, longest - len(firsts[number]))
            cut_tokens += max(0, len(seconds[number]) - room)
            seconds[number] = seconds[number][:room]
    return PairedSentences(firsts, seconds, labels_S, len(free) - 2 * len(partners), cut_tokens)


def pair_up(documents: Sequence[int], draw: np.random.Generator) -> list[tuple[int, int]]:
    """Randomly pair as many chunks of different documents as possible; return pairs of indices.

    Sorted by document, each chunk's partner is half the list away, which is in another document once surplus
    chunks of the largest document are removed.
    """
    order = draw.permutation(len(documents))
    values, group, sizes = np.unique(
        np.asarray(documents, dtype=np.int64)[order], return_inverse=True, return_counts=True
    )
    if len(values) < 2:
        return []
    largest = int(sizes.argmax())
    surplus = max(2 * int(sizes[largest]) - len(documents), len(documents) % 2)
    ranks = draw.permutation(len(values))[group]
    sorted_N = np.argsort(ranks, kind="stable")
    kept_N = order[sorted_N[~np.isin(sorted_N, np.flatnonzero(group == largest)[:surplus])]]
    half = len(kept_N) // 2
    return list(zip(kept_N[:half].tolist(), kept_N[half:].tolist(), strict=True))


def _drawn_place(candidates: NDArray[np.int64], length: int, draw: np.random.Generator) -> int:
    """A random split point; ``length``, the chunk's end, if there is none."""
    return int(candidates[draw.integers(len(candidates))]) if len(candidates) else length


def _like_places(
    left: NDArray[np.int64], right: NDArray[np.int64], lengths: tuple[int, int], draw: np.random.Generator
) -> tuple[int, int]:
    """Split points in two chunks whose second parts are closest in length; ties are broken at random."""
    left, right = (
        side if len(side) <= PLACES_COMPARED else draw.choice(side, PLACES_COMPARED, replace=False)
        for side in (left, right)
    )
    apart_LR = np.abs((lengths[0] - left)[:, None] - (lengths[1] - right)[None, :])
    best = np.flatnonzero(apart_LR == apart_LR.min())
    row, column = divmod(int(best[draw.integers(len(best))]), len(right))
    return int(left[row]), int(right[column])


def _split(ids_N: Ids, place: int) -> tuple[Ids, Ids]:
    return ids_N[:place], ids_N[place:]


PairTask = Literal["next_sentence", "sentence_order"]


@settings
class SentencePairSpec:
    """The sentence-pair task and its weight."""

    task: PairTask = "next_sentence"
    masking: MaskingSpec = field(default_factory=MaskingSpec)
    share: float = 0.5
    """Share of the pairs that are exchanged or swapped."""
    weight: float = 1.0
    """Weight of the pair loss, which is added to the masked-LM loss."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise InvalidRequest(f"share is {self.share}; it must lie between 0 and 1")
        at_least("weight", self.weight, 0)


@dataclass(frozen=True, eq=False)
class PairExample(MaskedExample):
    """Pairs of segments with masked tokens, and the label of each pair."""

    pairs_P: NDArray[np.int64]
    """The sequences that are pairs; the others hold a single word."""
    labels_P: NDArray[np.int64]
    """1 where the second segment does not follow the first."""
    alone: int
    """Pairs left unchanged because the micro-batch has no other document."""
    cut_tokens: int
    """Tokens truncated at the end of exchanged segments because of the position limit."""


class SentencePairs(Objective[Chunk, PairExample]):
    """Masked language modeling plus ``weight`` times a sentence-pair task, each a mean cross-entropy.

    Terms: ``masked`` as in `MaskedLanguageModel`, and the pair task's, a mean over pairs: its ``loss`` and
    ``accuracy``, and shares of the pairs: ``negative`` (label 1), ``alone`` (see `PairExample`) and
    ``cut_tokens``, per pair. The input of its head is defined by the spec; in BERT and ALBERT it is the
    pooler.

    Token types are 0 and 1 if the encoder has a table of two, else 0.

    Raises:
        InvalidRequest: the encoder has no MLM head, or no head of two classes for the pair task.
    """

    extra_tokens = 3

    def __init__(
        self, encoder: Encoder, vocabulary: Vocabulary, spec: SentencePairSpec | None = None
    ) -> None:
        super().__init__()
        self.spec = spec = spec or SentencePairSpec()
        require_masked_head(encoder)
        heads = {getattr(head, "role", None): head for head in encoder.spec.heads}
        if getattr(heads.get(spec.task), "classes", None) != 2:
            raise InvalidRequest(
                f"the encoder has no {spec.task} head of two classes (heads: "
                f'{", ".join(encoder.heads)}); add Classifier("{spec.task}", 2, "pooler") to its spec'
            )
        self.encoder = encoder
        self.vocabulary = vocabulary

    def prepare(self, chunks: Sequence[Chunk], draw: np.random.Generator, progress: float) -> PairExample:
        """Make [CLS] A [SEP] B [SEP] of each chunk, exchange or swap some pairs, and mask tokens."""
        spec, limit = self.spec, self.encoder.spec.max_tokens
        if spec.task == "next_sentence":
            longest = None if limit is None else limit - self.extra_tokens
            pairs = exchange(chunks, self.vocabulary, draw, share=spec.share, longest=longest)
        else:
            pairs = swap(chunks, self.vocabulary, draw, share=spec.share)
        batch = wrap_pairs(pairs, self.vocabulary, typed=self.encoder.spec.embedding.segments >= 2)
        masked = masked_example(batch, self.vocabulary, spec.masking, draw, progress)
        pairs_P = np.flatnonzero([len(second) > 0 for second in pairs.seconds])
        return masked.extended(
            PairExample,
            counts={**masked.counts, spec.task: len(pairs_P)},
            pairs_P=pairs_P,
            labels_P=pairs.labels_S[pairs_P],
            alone=pairs.alone,
            cut_tokens=pairs.cut_tokens,
        )

    def forward(self, example: PairExample, totals: Mapping[str, int]) -> LossOutput:
        """Both sums, each divided by its count in the global batch, the pair task's times its weight."""
        x_TD, term = self.encoder.encode(example.batch), self.spec.task
        masked, right = masked_loss(self.encoder, x_TD, example)
        pair_loss, sums = self._ask(x_TD, example)
        # In a global batch without pairs the pair loss is 0.
        loss = masked / totals["masked"] + self.spec.weight * pair_loss / max(1, totals[term])
        return LossOutput(loss, {"masked/loss": masked.detach(), "masked/accuracy": right.detach(), **sums})

    def _ask(self, x_TD: Tensor, example: PairExample) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum of cross-entropies over pairs, and what to report."""
        term = self.spec.task
        pairs_P, labels_P = (
            torch.from_numpy(array).to(x_TD.device) for array in (example.pairs_P, example.labels_P)
        )
        logits_PC = self.encoder.logits(term, x_TD, example.batch.layout)[pairs_P]
        logits_PC = logits_PC.to(torch.promote_types(logits_PC.dtype, torch.float32))
        loss = functional.cross_entropy(logits_PC, labels_P, reduction="sum")
        return loss, {
            f"{term}/loss": loss.detach(),
            f"{term}/accuracy": (logits_PC.argmax(-1) == labels_P).sum(),
            f"{term}/negative": labels_P.sum(),
            f"{term}/alone": torch.tensor(example.alone, device=x_TD.device),
            f"{term}/cut_tokens": torch.tensor(example.cut_tokens, device=x_TD.device),
        }


def wrap_pairs(pairs: PairedSentences, vocabulary: Vocabulary, *, typed: bool) -> PackedBatch:
    """[CLS] A [SEP] B [SEP], or [CLS] A [SEP] if there is no B; B's token type is 1 with ``typed``."""
    ids, segments = [], []
    for first, second in zip(pairs.firsts, pairs.seconds, strict=True):
        parts = [np.concatenate(([vocabulary.cls_id], first, [vocabulary.sep_id]))]
        if len(second):
            parts.append(np.append(second, vocabulary.sep_id))
        ids.append(np.concatenate(parts))
        segments.append(np.repeat((0, int(typed))[: len(parts)], [len(part) for part in parts]))
    return PackedBatch.of_ids(ids, segments)
