"""Masked language modeling with a second task on sentence pairs (NSP or SOP).

``next_sentence``: does the second segment follow the first, or is it from another document (Devlin et al.
2019)? ``sentence_order``: are two consecutive segments in order (Lan et al. 2020)? Label 0 means yes in both.

Chunks are split by `unmask.training.objectives.splitting`. A chunk of a single word cannot be split: it
becomes [CLS] A [SEP], is masked like the others, and has no pair label.

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

from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.text.batch import PackedBatch
from unmask.training.data.batches import Chunk
from unmask.training.objectives.interface import LossOutput, Objective
from unmask.training.objectives.masked import (
    MaskedExample,
    masked_example,
    masked_loss,
    require_masked_head,
)
from unmask.training.objectives.masking import MaskingSpec
from unmask.training.objectives.splitting import PairedSentences, exchange, swap
from unmask.training.vocabulary import Vocabulary

PairTask = Literal["next_sentence", "sentence_order"]


@dataclass(frozen=True)
class SentencePairSpec:
    """The sentence-pair task and its weight."""

    task: PairTask = "next_sentence"
    masking: MaskingSpec = field(default_factory=MaskingSpec)
    share: float = 0.5
    """Share of the pairs that are exchanged or swapped."""
    weight: float = 1.0
    """Weight of the pair loss, which is added to the masked-LM loss."""

    def __post_init__(self) -> None:
        if self.task not in ("next_sentence", "sentence_order"):
            raise InvalidRequest(f"task is {self.task!r}; it can be next_sentence, sentence_order")
        if not 0 < self.share < 1:
            raise InvalidRequest(f"share is {self.share}; it must lie between 0 and 1")
        if not self.weight >= 0:
            raise InvalidRequest(f"weight is {self.weight}; it must be at least 0")


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
        return PairExample(
            counts={**masked.counts, spec.task: len(pairs_P)},
            tokens=masked.tokens,
            sequences=masked.sequences,
            batch=masked.batch,
            chosen_M=masked.chosen_M,
            targets_M=masked.targets_M,
            pairs_P=pairs_P,
            labels_P=pairs.labels_S[pairs_P],
            alone=pairs.alone,
            cut_tokens=pairs.cut_tokens,
            predicted=masked.predicted,
        )

    def forward(self, example: PairExample, totals: Mapping[str, int]) -> LossOutput:
        """Both sums, each divided by its count in the global batch, the pair task's times its weight."""
        x_TD, term = self.encoder.encode(example.batch), self.spec.task
        masked, right = masked_loss(self.encoder, x_TD, example)
        asked, sums = self._ask(x_TD, example)
        # In a global batch without pairs the pair loss is 0.
        loss = masked / totals["masked"] + self.spec.weight * asked / max(1, totals[term])
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
