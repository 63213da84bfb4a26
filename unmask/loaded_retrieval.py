"""The tasks of a loaded checkpoint for search: one vector per token."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, overload

from unmask.arguments import check_callable, check_choice, listed
from unmask.arguments import whole_number as whole
from unmask.errors import InvalidRequest
from unmask.loaded_choices import ChoiceModel
from unmask.model.spec import TEXT_KINDS, MultiVector, TextKind
from unmask.tasks.batches import TOKENS_PER_PASS
from unmask.tasks.late_texts import limit_of, read_texts, with_markers
from unmask.tasks.multi_vectors import TokenVectors, multi_vectors
from unmask.tasks.progress import Progress
from unmask.text import Tokenizer, Truncation
from unmask.text.tokenizer import numbered


class RetrievalModel(ChoiceModel):
    """The methods of `unmask.loaded_model.Model` for search."""

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

    @cached_property
    def _late_tokenizer(self) -> Tokenizer:
        """The tokenizer with the markers of the checkpoint's prompts."""
        output = self.checkpoint.head
        return with_markers(self.tokenizer, output.markers if isinstance(output, MultiVector) else ())
