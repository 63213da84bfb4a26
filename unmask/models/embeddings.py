"""Texts to sentence embeddings, and their similarities."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_callable, check_choice, check_flag, listed
from unmask.base.arguments import whole_number as whole
from unmask.errors import InvalidRequest
from unmask.models.texts import TextModel, numbered_or_the
from unmask.spec import (
    POOLING_MODES,
    PooledVector,
    PoolingMode,
    TextKind,
    UnitLength,
    UnknownOutput,
)
from unmask.spec.global_tokens import GlobalTokens
from unmask.tasks import Progress
from unmask.tasks.batches import TOKENS_PER_PASS
from unmask.tasks.embed import embed
from unmask.tasks.prompts import chosen_prompt, prompt_of, unpooled_tokens
from unmask.tasks.quantize import PRECISIONS, Precision, quantize
from unmask.tasks.similarity import METRICS, Metric, similarity
from unmask.text import Encoding, Truncation
from unmask.text.tokenizer import numbered


class EmbedOptions(TypedDict, total=False):
    """The options of `Model.embed` besides its prompt."""

    truncation: Truncation
    pooling: PoolingMode | None
    normalize: bool | None
    truncate_dim: int | None
    precision: Precision
    ranges: NDArray[np.float32] | None
    tokens_per_pass: int
    global_tokens: GlobalTokens
    progress: Progress | None


class EmbeddingModel(TextModel):
    """The methods of `unmask.models.model.Model` that give one vector for each text."""

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        truncation: Truncation = "error",
        pooling: PoolingMode | None = None,
        normalize: bool | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        truncate_dim: int | None = None,
        precision: Precision = "float32",
        ranges: NDArray[np.float32] | None = None,
        tokens_per_pass: int = TOKENS_PER_PASS,
        global_tokens: GlobalTokens = "first",
        progress: Progress | None = None,
    ) -> NDArray[Any]:
        """Sentence embeddings, float32: (S, E) for a list of texts, (E,) for one string.

        Args:
            texts: one text or several.
            truncation: see `tokenize`.
            pooling: overrides the checkpoint's pooling.
            normalize: whether to divide by the Euclidean norm; overrides the checkpoint's setting.
            prompt: the text to put before every text; "" for none, even if the checkpoint has a default.
            prompt_name: the checkpoint's prompt of this name instead. If neither is given, the checkpoint's
                default applies, if it has one.
            truncate_dim: keep only the first dimensions of each embedding, for models trained that way. The
                rest is not normalized again, unless ``normalize=True``.
            precision: of the result, see `unmask.tasks.quantize.quantize`.
            ranges: the smallest and the largest value of each dimension, (2, E), for the precisions ``int8``
                and ``uint8``; None takes those of the result.
            tokens_per_pass: the maximum number of tokens per forward pass; affects speed and memory, and
                only the last bits of the embeddings.
            global_tokens: which tokens are global, for encoders with global attention such as Longformer.
            progress: called with (texts done, texts in all).

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: neither the checkpoint nor the call specifies a pooling.
            NonFiniteResult: an embedding contains infinity or NaN.
        """
        output = self.embedding_head(pooling, normalize, truncate_dim)
        check_choice("precision", precision, PRECISIONS)
        whole("tokens_per_pass", tokens_per_pass, 1)
        check_callable("progress", progress)
        some: Any = [texts] if isinstance(texts, str) else listed("texts", texts)
        before, name = chosen_prompt(output, prompt, prompt_name, self.name), numbered_or_the(texts)
        if before:
            some = [before + text if isinstance(text, str) and text.strip() else text for text in some]
        embeddings_SE = self.embed_encodings(
            self._tokenized(some, None, truncation, name),
            output,
            prompt=before,
            tokens_per_pass=tokens_per_pass,
            global_tokens=global_tokens,
            progress=progress,
            name=name,
        )
        result = quantize(embeddings_SE, precision, ranges)
        return result[0] if isinstance(texts, str) else result

    def embed_query(self, texts: str | Sequence[str], **options: Unpack[EmbedOptions]) -> NDArray[Any]:
        """`embed` with the checkpoint's prompt for queries, if it has one, and no other."""
        return self.embed(texts, prompt=self._prompt("query"), **options)

    def embed_document(self, texts: str | Sequence[str], **options: Unpack[EmbedOptions]) -> NDArray[Any]:
        """`embed` with the checkpoint's prompt for documents, if it has one, and no other.

        It is the prompt named ``document``, else ``passage``, else ``corpus``.
        """
        return self.embed(texts, prompt=self._prompt("document"), **options)

    def _prompt(self, kind: TextKind) -> str:
        output = self.checkpoint.head
        return prompt_of(output.prompts, kind) if isinstance(output, PooledVector) else ""

    def embed_encodings(
        self,
        encodings: Sequence[Encoding],
        head: PooledVector,
        *,
        prompt: str = "",
        tokens_per_pass: int = TOKENS_PER_PASS,
        global_tokens: GlobalTokens = "first",
        progress: Progress | None = None,
        name: Callable[[int], str] = numbered,
    ) -> NDArray[np.float32]:
        """Embeddings (S, E) of already tokenized texts, computed by ``head``; see `embed`.

        ``prompt`` is the prompt that the texts begin with; its tokens are not pooled if ``head`` says so.
        ``name`` is how error messages name the text at an index.
        """
        return embed(
            self.engine,
            head,
            encodings,
            tokens_per_pass=tokens_per_pass,
            global_tokens=global_tokens,
            skipped=unpooled_tokens(self.tokenizer, head, prompt),
            progress=progress,
            name=name,
        )

    def embedding_head(
        self,
        pooling: PoolingMode | None = None,
        normalize: bool | None = None,
        truncate_dim: int | None = None,
    ) -> PooledVector:
        """How embeddings are computed: the checkpoint's settings, with the overrides given here.

        Raises:
            InvalidRequest: neither the checkpoint nor the call specifies a pooling.
        """
        published = self.checkpoint.head
        if pooling is not None:
            check_choice("pooling", pooling, POOLING_MODES)
        check_flag("normalize", normalize)
        if truncate_dim is not None:
            whole("truncate_dim", truncate_dim, 1)
        if isinstance(published, PooledVector):
            unit = published.normalize if normalize is None else normalize
            modes = published.pooling if pooling is None else (pooling,)
            if published.projections and len(modes) != len(published.pooling):
                raise InvalidRequest(
                    f"pooling is {pooling}, and the layers after pooling read {len(published.pooling)} "
                    "pooled vectors side by side; leave pooling out"
                )
            found = replace(published, pooling=modes, normalize=unit)
            if truncate_dim is None:
                return found
            if normalize is None and unit:  # the whole vector is normalized, and what is cut from it is not
                found = replace(found, projections=(*found.projections, UnitLength()), normalize=False)
            return replace(found, dimensions=truncate_dim)
        if pooling is None:
            reason = "the checkpoint gives no single vector per text"
            reason = published.reason if isinstance(published, UnknownOutput) else reason
            raise InvalidRequest(f"{reason}; name a pooling, for instance mean")
        unit = isinstance(published, UnknownOutput) and published.normalize
        return PooledVector((pooling,), unit if normalize is None else normalize, dimensions=truncate_dim)

    def similarity(self, a: Any, b: Any, *, metric: Metric = "cosine") -> NDArray[np.float32]:
        """Pairwise similarities of ``a`` and ``b``, (A, B).

        Args:
            a: texts, embedded with the checkpoint's settings, or embeddings (A, E). A single text or vector
                gives one row.
            b: texts or embeddings, as for ``a``.
            metric: ``"cosine"``, ``"dot"``, ``"euclidean"`` or ``"manhattan"``; distances are negated.

        Raises:
            InvalidRequest: there is no such metric, or the vectors do not have the same width.
        """
        check_choice("metric", metric, METRICS)
        return similarity(self._vectors("a", a), self._vectors("b", b), metric)

    def _vectors(self, name: str, given: Any) -> Any:
        if isinstance(given, np.ndarray) or hasattr(given, "__torch_function__"):  # a tensor
            return given
        some = [given] if isinstance(given, str) else listed(name, given)
        if some and not all(isinstance(one, str) for one in some):
            return some
        return self.embed(some)
