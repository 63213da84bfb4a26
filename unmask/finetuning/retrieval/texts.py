"""Tokenize queries and documents, each text once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unmask.finetuning.retrieval.records import Ranked
from unmask.finetuning.retrieval.settings import RetrievalSettings
from unmask.finetuning.settings import DataSettings
from unmask.learn.data.ranking import RankedTexts, TokenizedText
from unmask.learn.pretrain.report import counted
from unmask.model.spec import EncoderSpec
from unmask.model.spec.global_tokens import has_global_tokens
from unmask.text import Encoding, Tokenizer, Truncation

TEXTS_AT_ONCE = 4096
"""Texts that are tokenized together; their offsets and words are then dropped."""


@dataclass
class TextCounts:
    """What was read."""

    texts: int = 0
    tokens: int = 0
    longest: int = 0
    truncated: int = 0
    truncated_tokens: int = 0

    def add(self, encoding: Encoding) -> None:
        """Count a text."""
        self.texts += 1
        self.tokens += len(encoding)
        self.longest = max(self.longest, len(encoding))
        dropped = (encoding.original_tokens or len(encoding)) - len(encoding)
        self.truncated += dropped > 0
        self.truncated_tokens += dropped

    def described(self, name: str) -> list[str]:
        """Sentences about the texts."""
        found = [
            f"{name}: {counted(self.texts, 'different text')} of {self.tokens / max(1, self.texts):.0f} "
            f"tokens on average, the longest {self.longest:,}"
        ]
        if self.truncated:
            found.append(
                f"{name}: the end of {counted(self.truncated, 'text')} is dropped, "
                f"{counted(self.truncated_tokens, 'token')} in all"
            )
        return found


@dataclass
class RetrievalTexts:
    """Turns texts into tokens for one tokenizer, encoder and run file.

    Raises:
        TextTooLong: a text is longer than its limit, with ``data.long_texts = "error"``.
    """

    retrieval: RetrievalSettings
    data: DataSettings
    tokenizer: Tokenizer
    spec: EncoderSpec
    max_tokens: int | None

    def queries(self, texts: Sequence[str], counts: TextCounts | None = None) -> list[TokenizedText]:
        """Queries, with their prompt."""
        limits = [one for one in (self.retrieval.query_tokens, self.max_tokens) if one is not None]
        return self._all(texts, self.retrieval.query_prompt, min(limits, default=None), counts)

    def documents(self, texts: Sequence[str], counts: TextCounts | None = None) -> list[TokenizedText]:
        """Documents, with their prompt."""
        return self._all(texts, self.retrieval.document_prompt, self.max_tokens, counts)

    def items(
        self, records: Sequence[Ranked], queries: TextCounts, documents: TextCounts
    ) -> list[RankedTexts]:
        """What is trained on: a query with its documents for each record."""
        if self.retrieval.kind == "reranker":
            return self._pairs(records, documents)
        asked = [one.query for one in records]
        found = [text for one in records for text in one.documents]
        query_of = dict(zip(asked, self.queries(asked, queries), strict=True))
        document_of = dict(zip(found, self.documents(found, documents), strict=True))
        return [
            RankedTexts(
                query_of[one.query],
                tuple(document_of[text] for text in one.documents),
                None if one.scores is None else np.array(one.scores, dtype=np.float32),
            )
            for one in records
        ]

    def _pairs(self, records: Sequence[Ranked], counts: TextCounts) -> list[RankedTexts]:
        empty = np.empty(0, dtype=np.int64)
        return [
            RankedTexts(
                TokenizedText(empty, empty, one.query),
                tuple(self.pairs([one.query] * len(one.documents), one.documents, counts)),
                None if one.scores is None else np.array(one.scores, dtype=np.float32),
            )
            for one in records
        ]

    def pairs(
        self, queries: Sequence[str], documents: Sequence[str], counts: TextCounts | None = None
    ) -> list[TokenizedText]:
        """Each query with its document, as a reranker reads them."""
        encodings = self.tokenizer.encode_batch(
            [self.retrieval.query_prompt + query for query in queries],
            list(documents),
            max_tokens=self.max_tokens,
            truncation=self._truncation,
        )
        if counts is not None:
            for encoding in encodings:
                counts.add(encoding)
        return [
            tokenized(encoding, document, self.spec)
            for encoding, document in zip(encodings, documents, strict=True)
        ]

    @property
    def _truncation(self) -> Truncation:
        return "error" if self.data.long_texts == "error" else "end"

    def _all(
        self, texts: Sequence[str], prompt: str, limit: int | None, counts: TextCounts | None
    ) -> list[TokenizedText]:
        made: dict[str, TokenizedText] = {}
        different = list(dict.fromkeys(texts))
        for start in range(0, len(different), TEXTS_AT_ONCE):
            some = different[start : start + TEXTS_AT_ONCE]
            encodings = self.tokenizer.encode_batch(
                [prompt + text for text in some],
                max_tokens=limit,
                truncation=self._truncation,
            )
            for text, encoding in zip(some, encodings, strict=True):
                if counts is not None:
                    counts.add(encoding)
                made[text] = tokenized(encoding, text, self.spec)
        return [made[text] for text in texts]


def tokenized(encoding: Encoding, key: str, spec: EncoderSpec) -> TokenizedText:
    """The ids of a text. The first token is global in encoders that have such."""
    marks = (0,) if has_global_tokens(spec) else ()
    return TokenizedText(encoding.ids, encoding.token_type_ids, key, marks)
