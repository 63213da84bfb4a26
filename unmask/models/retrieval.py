"""The tasks of a loaded checkpoint for search: one vector per token, weights of words, scores of pairs."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, get_args, overload

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_callable, check_choice, listed
from unmask.base.arguments import whole_number as whole
from unmask.errors import InvalidRequest
from unmask.models.choices import ChoiceModel
from unmask.spec import TEXT_KINDS, MultiVector, PairScore, SparseVector, TextKind
from unmask.spec.encoder import masked_lm_role
from unmask.tasks.batches import TOKENS_PER_PASS
from unmask.tasks.late_texts import limit_of, read_texts, with_markers
from unmask.tasks.multi_vectors import TokenVectors, multi_vectors
from unmask.tasks.pair_scores import ScoreActivation, pair_scores
from unmask.tasks.progress import Progress
from unmask.tasks.prompts import encoded_after, prompt_of, words_of
from unmask.tasks.sparse_vectors import WordWeights, sparse_vectors, weights_of_words
from unmask.text import Tokenizer, Truncation
from unmask.text.tokenizer import numbered


class RetrievalModel(ChoiceModel):
    """The methods of `unmask.models.model.Model` for search."""

    @overload
    def multi_vectors(  # type: ignore[overload-overlap]
        self,
        texts: str,
        kind: TextKind = "document",
        *,
        max_tokens: int | None = None,
        truncation: Truncation = "error",
        tokens_per_pass: int = TOKENS_PER_PASS,
        progress: Progress | None = None,
    ) -> TokenVectors: ...

    @overload
    def multi_vectors(
        self,
        texts: Sequence[str],
        kind: TextKind = "document",
        *,
        max_tokens: int | None = None,
        truncation: Truncation = "error",
        tokens_per_pass: int = TOKENS_PER_PASS,
        progress: Progress | None = None,
    ) -> list[TokenVectors]: ...

    def multi_vectors(
        self,
        texts: str | Sequence[str],
        kind: TextKind = "document",
        *,
        max_tokens: int | None = None,
        truncation: Truncation = "error",
        tokens_per_pass: int = TOKENS_PER_PASS,
        progress: Progress | None = None,
    ) -> TokenVectors | list[TokenVectors]:
        """One vector for each token of each text, for late interaction (ColBERT).

        The checkpoint's prompt of the kind is put before each text, short queries are expanded as it says,
        and tokens that it skips (often punctuation in documents) get no vector.

        Args:
            texts: one text or several.
            kind: ``"query"`` or ``"document"``.
            max_tokens: the most tokens of a text instead of the checkpoint's limit for its kind.
            truncation: ``"error"`` refuses a longer text; ``"end"`` drops its end.
            tokens_per_pass: the maximum number of tokens per forward pass.
            progress: called with (texts done, texts in all).

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint does not give one vector per token.
            NonFiniteResult: a vector contains infinity or NaN.
        """
        output = self.checkpoint.head
        if not isinstance(output, MultiVector):
            raise InvalidRequest(
                f"{self.name} does not give one vector per token; use a checkpoint of ColBERT's kind"
            )
        check_choice("kind", kind, TEXT_KINDS)
        check_choice("truncation", truncation, ("error", "end"))
        whole("tokens_per_pass", tokens_per_pass, 1)
        if max_tokens is not None:
            whole("max_tokens", max_tokens, 1)
        check_callable("progress", progress)
        some: Any = [texts] if isinstance(texts, str) else listed("texts", texts)
        name = (lambda _: "the text") if isinstance(texts, str) else numbered
        read = read_texts(
            self._late_tokenizer,
            output,
            self.spec,
            some,
            kind,
            max_tokens=limit_of(output, kind, self.max_tokens, max_tokens),
            truncation=truncation,
            name=name,
        )
        found = multi_vectors(
            self.engine, output, read, tokens_per_pass=tokens_per_pass, progress=progress, name=name
        )
        return found[0] if isinstance(texts, str) else found

    @overload
    def sparse_vectors(  # type: ignore[overload-overlap]
        self,
        texts: str,
        kind: TextKind = "document",
        *,
        truncation: Truncation = "error",
        tokens_per_pass: int = TOKENS_PER_PASS,
        progress: Progress | None = None,
    ) -> WordWeights: ...

    @overload
    def sparse_vectors(
        self,
        texts: Sequence[str],
        kind: TextKind = "document",
        *,
        truncation: Truncation = "error",
        tokens_per_pass: int = TOKENS_PER_PASS,
        progress: Progress | None = None,
    ) -> list[WordWeights]: ...

    def sparse_vectors(
        self,
        texts: str | Sequence[str],
        kind: TextKind = "document",
        *,
        truncation: Truncation = "error",
        tokens_per_pass: int = TOKENS_PER_PASS,
        progress: Progress | None = None,
    ) -> WordWeights | list[WordWeights]:
        """The weights of words of the vocabulary for each text (SPLADE), those that are not 0.

        The checkpoint's prompt of the kind is put before each text. Of a checkpoint that weights queries by a
        table, no encoder runs for them.

        Args:
            texts: one text or several.
            kind: ``"query"`` or ``"document"``.
            truncation: see `Model.tokenize`.
            tokens_per_pass: the maximum number of tokens per forward pass.
            progress: called with (texts done, texts in all).

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint does not give weights of words.
            NonFiniteResult: a weight is infinity or NaN.
        """
        output = self.checkpoint.head
        if not isinstance(output, SparseVector):
            raise InvalidRequest(
                f"{self.name} does not give weights of words; use a checkpoint of SPLADE's kind"
            )
        if not output.static_queries or kind != "query":
            masked_lm_role(self.spec, self.name)
        check_choice("kind", kind, TEXT_KINDS)
        check_choice("truncation", truncation, ("error", "end"))
        whole("tokens_per_pass", tokens_per_pass, 1)
        check_callable("progress", progress)
        some: Any = [texts] if isinstance(texts, str) else listed("texts", texts)
        name = (lambda _: "the text") if isinstance(texts, str) else numbered
        static = output.static_queries and kind == "query"
        encodings = encoded_after(
            self.tokenizer,
            prompt_of(output.prompts, kind),
            some,
            max_tokens=None if static else self.max_tokens,
            truncation=truncation,
            name=name,
        )
        if static:
            ids = [words_of(one, self.max_tokens, truncation, name(at)) for at, one in enumerate(encodings)]
            found = weights_of_words(self.engine.static_weights(), output, ids)
        else:
            found = sparse_vectors(
                self.engine, output, encodings, tokens_per_pass=tokens_per_pass, progress=progress, name=name
            )
        return found[0] if isinstance(texts, str) else found

    @overload
    def score_pairs(  # type: ignore[overload-overlap]
        self,
        queries: str,
        documents: str,
        *,
        activation: ScoreActivation = "default",
        truncation: Truncation = "error",
        tokens_per_pass: int = TOKENS_PER_PASS,
        progress: Progress | None = None,
    ) -> float: ...

    @overload
    def score_pairs(
        self,
        queries: str | Sequence[str],
        documents: Sequence[str],
        *,
        activation: ScoreActivation = "default",
        truncation: Truncation = "error",
        tokens_per_pass: int = TOKENS_PER_PASS,
        progress: Progress | None = None,
    ) -> NDArray[np.float32]: ...

    def score_pairs(
        self,
        queries: str | Sequence[str],
        documents: str | Sequence[str],
        *,
        activation: ScoreActivation = "default",
        truncation: Truncation = "error",
        tokens_per_pass: int = TOKENS_PER_PASS,
        progress: Progress | None = None,
    ) -> float | NDArray[np.float32]:
        """The relevance of each document for its query, read together by a cross-encoder: float32, (P,).

        One query and several documents make as many pairs; one query and one document give a number.

        Args:
            queries: one query, or one for each document.
            documents: one text or several.
            activation: ``"default"`` applies what the checkpoint says (often a sigmoid), ``"identity"``
                gives logits and ``"sigmoid"`` numbers between 0 and 1.
            truncation: ``"error"`` refuses a pair that is too long; ``"end"`` drops tokens from the end of
                the longer text of the pair, then of both.
            tokens_per_pass: the maximum number of tokens per forward pass.
            progress: called with (pairs done, pairs in all).

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint does not score pairs by one number.
            NonFiniteResult: a score is infinity or NaN.
        """
        output = self.checkpoint.head
        if not isinstance(output, PairScore) or output.labels != 1:
            raise InvalidRequest(f"{self.name} does not score pairs by one number; use a cross-encoder")
        check_choice("activation", activation, get_args(ScoreActivation))
        check_choice("truncation", truncation, ("error", "end"))
        whole("tokens_per_pass", tokens_per_pass, 1)
        check_callable("progress", progress)
        texts: Any = [documents] if isinstance(documents, str) else listed("documents", documents)
        asked: Any = [queries] * len(texts) if isinstance(queries, str) else listed("queries", queries)
        one = isinstance(queries, str)
        encodings = self.tokenizer.encode_batch(
            asked,
            texts,
            max_tokens=self.max_tokens,
            truncation=truncation,
            name=lambda index: "the query" if one else f"query {index + 1}",
            pair_name=lambda index: "the document" if isinstance(documents, str) else f"document {index + 1}",
        )
        scores_P = pair_scores(
            self.engine,
            output,
            encodings,
            activation,
            tokens_per_pass=tokens_per_pass,
            progress=progress,
            name=lambda index: f"pair {index + 1}",
        )
        return float(scores_P[0]) if isinstance(documents, str) and one else scores_P

    @cached_property
    def _late_tokenizer(self) -> Tokenizer:
        """The tokenizer with the markers of the checkpoint's prompts."""
        output = self.checkpoint.head
        return with_markers(self.tokenizer, output.markers if isinstance(output, MultiVector) else ())
