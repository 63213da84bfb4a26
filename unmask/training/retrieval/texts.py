"""Tokenize queries and documents, each text once.

Axes: Q texts with a teacher's vector.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from unmask.base.progress import counted
from unmask.errors import quoted
from unmask.spec import EncoderSpec, MultiVector, PooledVector, SparseVector
from unmask.spec.global_tokens import has_global_tokens
from unmask.tasks.late_texts import with_markers
from unmask.tasks.prompts import prompt_of, words_of
from unmask.text import Encoding, Truncation
from unmask.text.batch import query_places
from unmask.text.tokenizer import numbered
from unmask.training.data.labeled import LabeledSequence
from unmask.training.data.ranking import RankedTexts, TokenizedText
from unmask.training.finetune.settings import FinetuneSettings
from unmask.training.retrieval.records import Ranked
from unmask.weights import Checkpoint

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
        self.add_tokens(len(encoding), encoding.original_tokens or len(encoding))

    def add_tokens(self, kept: int, original: int) -> None:
        """Count a text of which so many tokens are read, and so many there are."""
        self.texts += 1
        self.tokens += kept
        self.longest = max(self.longest, kept)
        dropped = original - kept
        self.truncated += dropped > 0
        self.truncated_tokens += dropped

    def described(self, name: str) -> list[str]:
        """Sentences about the texts."""
        sentences = [
            f"{name}: {counted(self.texts, 'different text')} of {self.tokens / max(1, self.texts):.0f} "
            f"tokens on average, the longest {self.longest:,}"
        ]
        if self.truncated:
            sentences.append(
                f"{name}: the end of {counted(self.truncated, 'text')} is dropped, "
                f"{counted(self.truncated_tokens, 'token')} in all"
            )
        return sentences


class RetrievalTexts:
    """Turns texts into tokens as a checkpoint reads them.

    Args:
        settings: settings of the run.
        checkpoint: the one that is saved in the end: its tokenizer, prompts and limits.
        progress: called with the texts (or pairs) and tokens of training data that are tokenized so far.
    """

    def __init__(
        self,
        settings: FinetuneSettings,
        checkpoint: Checkpoint,
        progress: Callable[[int, int], None] = lambda texts, tokens: None,
    ) -> None:
        assert settings.retrieval is not None
        self._progress = progress
        self.retrieval, self.spec = settings.retrieval, checkpoint.spec
        self.tokenizer, head = checkpoint.tokenizer, checkpoint.head
        if isinstance(head, MultiVector):
            self.tokenizer = with_markers(self.tokenizer, head.markers)
        self.prompts = head.prompts if isinstance(head, PooledVector | MultiVector | SparseVector) else ()
        self.static_queries = isinstance(head, SparseVector) and head.static_queries
        self.lower_case = isinstance(head, PooledVector) and head.lower_case
        self.max_tokens = checkpoint.max_tokens
        self.query_tokens = _least(self.retrieval.query_tokens, self.max_tokens)
        self.document_tokens = self.max_tokens
        if isinstance(head, MultiVector):
            self.query_tokens = _least(self.query_tokens, head.query_tokens)
            self.document_tokens = _least(self.max_tokens, head.document_tokens)
        self._truncation: Truncation = "error" if settings.data.long_texts == "error" else "end"

    def queries(self, texts: Sequence[str], counts: TextCounts | None = None) -> list[TokenizedText]:
        """Queries, with their prompt.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
        """
        prompt = prompt_of(self.prompts, "query")
        if self.static_queries:
            return self._words(texts, prompt, counts)
        return self._all(texts, prompt, self.query_tokens, counts)

    def documents(self, texts: Sequence[str], counts: TextCounts | None = None) -> list[TokenizedText]:
        """Documents, with their prompt; see `queries`."""
        return self._all(texts, prompt_of(self.prompts, "document"), self.document_tokens, counts)

    def items(
        self, records: Sequence[Ranked], queries: TextCounts, documents: TextCounts
    ) -> list[RankedTexts]:
        """What is trained on: a query with its documents for each record."""
        if self.retrieval.kind == "reranker":
            return self._pairs(records, documents)
        query_texts = [record.query for record in records]
        answers = [text for record in records for text in record.documents]
        query_of = dict(zip(query_texts, self.queries(query_texts, queries), strict=True))
        document_of = dict(zip(answers, self.documents(answers, documents), strict=True))
        return [
            RankedTexts(
                query_of[record.query],
                tuple(document_of[text] for text in record.documents),
                None if record.scores is None else np.array(record.scores, dtype=np.float32),
            )
            for record in records
        ]

    def taught(
        self, texts: Sequence[str], vectors_QE: NDArray[np.float32], counts: TextCounts
    ) -> list[LabeledSequence]:
        """Texts with their teacher's vectors."""
        return [
            LabeledSequence(text.ids, text.token_type_ids, vector_E, text.global_tokens)
            for text, vector_E in zip(self._all(texts, "", self.max_tokens, counts), vectors_QE, strict=True)
        ]

    def _pairs(self, records: Sequence[Ranked], counts: TextCounts) -> list[RankedTexts]:
        empty = np.empty(0, dtype=np.int64)
        both = [(record, document) for record in records for document in record.documents]
        texts: list[TokenizedText] = []
        for start in range(0, len(both), TEXTS_AT_ONCE):
            queries, documents = zip(*both[start : start + TEXTS_AT_ONCE], strict=True)
            where = [record.where for record in queries]
            texts += self.pairs(
                [record.query for record in queries], documents, counts, name=where.__getitem__
            )
            self._report(counts)
        rest = iter(texts)
        return [
            RankedTexts(
                TokenizedText(empty, empty, record.query),
                tuple(islice(rest, len(record.documents))),
                None if record.scores is None else np.array(record.scores, dtype=np.float32),
            )
            for record in records
        ]

    def pairs(
        self,
        queries: Sequence[str],
        documents: Sequence[str],
        counts: TextCounts | None = None,
        *,
        name: Callable[[int], str] = numbered,
    ) -> list[TokenizedText]:
        """Each query with its document, as a reranker reads them; ``name`` is how errors name the pair.

        Raises:
            TextError: a text is empty or not Unicode text, or a pair is too long.
        """
        encodings = self.tokenizer.encode_batch(
            list(queries),
            list(documents),
            max_tokens=self.max_tokens,
            truncation=self._truncation,
            name=name,
            pair_name=lambda index: f"a document of {name(index)}",
        )
        if counts is not None:
            for encoding in encodings:
                counts.add(encoding)
        texts = [
            tokenized(encoding, document, self.spec)
            for encoding, document in zip(encodings, documents, strict=True)
        ]
        if not self.retrieval.shared_query:
            return texts
        return [
            replace(text, query=query_places(encoding))
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def _words(self, texts: Sequence[str], prompt: str, counts: TextCounts | None) -> list[TokenizedText]:
        """Texts without special tokens, as a table of weights reads them."""
        by_text: dict[str, TokenizedText] = {}
        different = list(dict.fromkeys(texts))
        for start in range(0, len(different), TEXTS_AT_ONCE):
            block = different[start : start + TEXTS_AT_ONCE]
            encodings = self.tokenizer.encode_batch([prompt + text for text in block])
            for text, encoding in zip(block, encodings, strict=True):
                ids = words_of(encoding, self.query_tokens, self._truncation, quoted(text))
                if counts is not None:
                    counts.add_tokens(len(ids), int((~encoding.special).sum()))
                by_text[text] = TokenizedText(ids, np.zeros_like(ids), text)
            self._report(counts)
        return [by_text[text] for text in texts]

    def _all(
        self, texts: Sequence[str], prompt: str, limit: int | None, counts: TextCounts | None
    ) -> list[TokenizedText]:
        by_text: dict[str, TokenizedText] = {}
        different = list(dict.fromkeys(texts))
        for start in range(0, len(different), TEXTS_AT_ONCE):
            block = different[start : start + TEXTS_AT_ONCE]
            encodings = self.tokenizer.encode_batch(
                [self._as_read(prompt + text) for text in block],
                max_tokens=limit,
                truncation=self._truncation,
            )
            for text, encoding in zip(block, encodings, strict=True):
                if counts is not None:
                    counts.add(encoding)
                by_text[text] = tokenized(encoding, text, self.spec)
            self._report(counts)
        return [by_text[text] for text in texts]

    def _report(self, counts: TextCounts | None) -> None:
        if counts is not None:
            self._progress(counts.texts, counts.tokens)

    def _as_read(self, text: str) -> str:
        return text.lower() if self.lower_case else text


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def tokenized(encoding: Encoding, key: str, spec: EncoderSpec) -> TokenizedText:
    """The ids of a text. The first token is global in encoders that have such."""
    marks = (0,) if has_global_tokens(spec) else ()
    return TokenizedText(encoding.ids, encoding.token_type_ids, key, marks)
