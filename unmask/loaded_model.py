"""The public API of a loaded checkpoint."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack, get_args, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.arguments import check_callable, check_choice, check_flag, listed
from unmask.arguments import whole_number as whole
from unmask.deprecation import renamed_arguments, renamed_method
from unmask.errors import BeyondTraining, InvalidRequest, InvalidText, quoted
from unmask.interpret import AttentionView, Watch
from unmask.interpret.corpus.measure import CorpusStatistics, measure_corpus
from unmask.interpret.corpus.stored import cache_file
from unmask.interpret.corpus.texts import Corpus, corpus_of
from unmask.loaded_retrieval import RetrievalModel
from unmask.model.engine import Layers
from unmask.model.spec import (
    POOLING_MODES,
    PooledVector,
    PoolingMode,
    TextKind,
    UnitLength,
    UnknownOutput,
)
from unmask.model.spec.global_tokens import GlobalTokens, places
from unmask.model.weights.save import save
from unmask.tasks import Progress
from unmask.tasks.batches import TOKENS_PER_PASS
from unmask.tasks.embed import embed
from unmask.tasks.fill import FilledMask, fill
from unmask.tasks.hidden_states import checked_ids, checked_places, checked_types, hidden_states
from unmask.tasks.logits import chosen_head, logits
from unmask.tasks.predict_tokens import TokenPredictions, predict_tokens
from unmask.tasks.prompts import chosen_prompt, prompt_of, unpooled_tokens
from unmask.tasks.quantize import PRECISIONS, Precision, quantize
from unmask.tasks.similarity import METRICS, Metric, similarity
from unmask.tasks.values import Logits
from unmask.text import Encoding, Truncation
from unmask.text.tokenizer import numbered

Ids = Sequence[int] | NDArray[np.int64] | Tensor
"""Token ids of one sequence."""


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


class Model(RetrievalModel):
    """A loaded encoder with its tokenizer. Made by `load`.

    Every method that takes a list of texts also takes one string, and then returns the result for that text
    alone. An empty list gives an empty result.
    """

    @overload
    def tokenize(  # type: ignore[overload-overlap]
        self,
        texts: str,
        pairs: str | None = None,
        *,
        truncation: Truncation = "error",
        name: Callable[[int], str] = numbered,
    ) -> Encoding: ...

    @overload
    def tokenize(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        truncation: Truncation = "error",
        name: Callable[[int], str] = numbered,
    ) -> list[Encoding]: ...

    @renamed_arguments(too_long="truncation")
    def tokenize(
        self,
        texts: str | Sequence[str],
        pairs: str | Sequence[str] | None = None,
        *,
        truncation: Truncation = "error",
        name: Callable[[int], str] = numbered,
    ) -> Encoding | list[Encoding]:
        """Tokenize each text (or pair of texts), limited to the model's maximum length.

        Warns with `BeyondTraining` if a text is longer than any in training and the model can still read it.

        Args:
            texts: one text or several.
            pairs: the second text of each pair.
            truncation: ``"error"`` refuses a text of more than `max_tokens` tokens; ``"end"`` truncates it,
                and the encoding reports how many tokens were dropped.
            name: how error messages name the text at an index.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
        """
        if name is numbered:
            name = numbered_or_the(texts)
        encodings = self._tokenized(texts, pairs, truncation, name)
        return encodings[0] if isinstance(texts, str) else encodings

    def _tokenized(
        self,
        texts: str | Sequence[str],
        pairs: str | Sequence[str] | None = None,
        truncation: Truncation = "error",
        name: Callable[[int], str] = lambda _: "the text",
    ) -> list[Encoding]:
        """Like `tokenize`, but always a list.

        The stack level of its warning assumes a public caller that only `renamed_arguments` wraps.
        """
        check_choice("truncation", truncation, get_args(Truncation))
        if isinstance(texts, str):
            if not isinstance(pairs, str | None):
                raise InvalidRequest(
                    "one text and a list of pairs were given; give one pair, or lists of both"
                )
            texts, pairs = [texts], None if pairs is None else [pairs]
        encodings = self.tokenizer.encode_batch(
            listed("texts", texts),
            pairs if pairs is None else listed("pairs", pairs),
            max_tokens=self.max_tokens,
            truncation=truncation,
            name=name,
        )
        trained = self.checkpoint.trained_tokens
        longest = max(map(len, encodings), default=0)
        if trained is not None and longest > trained:
            warnings.warn(
                f"a text has {longest} tokens and the model was trained on at most {trained}; "
                "it is read in full",
                BeyondTraining,
                stacklevel=4,
            )
        return encodings

    @renamed_arguments(too_long="truncation", unit_length="normalize")
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

    @renamed_arguments(unit_length="normalize")
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
        if isinstance(given, np.ndarray | Tensor):
            return given
        some = [given] if isinstance(given, str) else listed(name, given)
        if some and not all(isinstance(one, str) for one in some):
            return some
        return self.embed(some)

    @overload
    def hidden_states(  # type: ignore[overload-overlap]
        self,
        inputs: str,
        *,
        layers: Layers = "last",
        truncation: Truncation = "error",
        global_tokens: GlobalTokens = "none",
        tokens_per_pass: int = TOKENS_PER_PASS,
    ) -> Tensor: ...

    @overload
    def hidden_states(
        self,
        inputs: Sequence[str] | Sequence[Ids],
        token_type_ids: Sequence[Ids] | None = None,
        *,
        layers: Layers = "last",
        truncation: Truncation = "error",
        global_tokens: GlobalTokens | Sequence[Sequence[int]] | None = "none",
        tokens_per_pass: int = TOKENS_PER_PASS,
    ) -> list[Tensor]: ...

    @renamed_arguments(too_long="truncation", segments="token_type_ids")
    def hidden_states(
        self,
        inputs: str | Sequence[str] | Sequence[Ids],
        token_type_ids: Sequence[Ids] | None = None,
        *,
        layers: Layers = "last",
        truncation: Truncation = "error",
        global_tokens: GlobalTokens | Sequence[Sequence[int]] | None = "none",
        tokens_per_pass: int = TOKENS_PER_PASS,
    ) -> Tensor | list[Tensor]:
        """Hidden states of each text or sequence of ids, on the CPU, float32 (float64 of a float64 model).

        A list of texts or of sequences gives a list of tensors, one string gives one tensor: (N, D) for the
        last layer, or (L + 1, N, D) for all layers, the embedding output first.

        Args:
            inputs: one text, several texts, or one list of token ids per sequence, special tokens included.
            token_type_ids: one list per sequence of ids, 0 by default. Texts get theirs from the tokenizer.
            layers: ``"last"`` or ``"all"``.
            truncation: for texts, see `tokenize`.
            global_tokens: which tokens are global, for encoders with global attention: a named choice, or
                positions for sequences of ids. The default is none, as in the headless `transformers` models.
            tokens_per_pass: the maximum number of tokens per forward pass.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: an id or token type is outside its table, or a sequence is too long.
            NonFiniteResult: a hidden state is infinity or NaN.
        """
        check_choice("layers", layers, ("last", "all"))
        whole("tokens_per_pass", tokens_per_pass, 1)
        some: list[Any] = [inputs] if isinstance(inputs, str) else listed("inputs", inputs)
        marks: Any = None if global_tokens == "none" else global_tokens
        if some and isinstance(some[0], str):
            if token_type_ids is not None:
                raise InvalidRequest(
                    "token_type_ids were given with texts, which have their own; leave them out"
                )
            encodings = self._tokenized(some, None, truncation, numbered_or_the(inputs))
            marks = None if marks is None else [places(one, marks) for one in encodings]
            some, token_type_ids = [one.ids for one in encodings], [one.token_type_ids for one in encodings]
        ids = checked_ids(self.spec, some)
        states = hidden_states(
            self.engine,
            ids,
            None if token_type_ids is None else checked_types(self.spec, token_type_ids, ids),
            layers=layers,
            global_tokens=None if marks is None else checked_places(marks, ids),
            tokens_per_pass=tokens_per_pass,
        )
        tensors = [torch.from_numpy(one) for one in states]
        return tensors[0] if isinstance(inputs, str) else tensors

    @renamed_arguments(too_long="truncation")
    def logits(
        self,
        texts: str | Sequence[str],
        pairs: str | Sequence[str] | None = None,
        *,
        head: str | None = None,
        truncation: Truncation = "error",
        tokens_per_pass: int = TOKENS_PER_PASS,
        global_tokens: GlobalTokens | None = None,
    ) -> Logits:
        """Logits of one of the encoder's heads for each text (or pair of texts).

        Args:
            texts: one text or several; one text gives the logits of a list of one.
            pairs: the second text of each pair.
            head: its role, such as ``"masked"`` or ``"sequence"``; optional if the encoder has one head.
            truncation: see `tokenize`.
            tokens_per_pass: the maximum number of tokens per forward pass.
            global_tokens: which tokens are global, for encoders with global attention; None uses those that
                heads of this role were trained with.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the encoder has no such head.
            NonFiniteResult: a logit is infinity or NaN.
        """
        role = chosen_head(self.spec, head, self.name)
        self._refuse_shared_query(pairs)
        whole("tokens_per_pass", tokens_per_pass, 1)
        encodings = self._tokenized(texts, pairs, truncation, numbered_or_the(texts))
        return logits(
            self.engine, role, encodings, global_tokens=global_tokens, tokens_per_pass=tokens_per_pass
        )

    @overload
    def fill(  # type: ignore[overload-overlap]
        self,
        text: str,
        *,
        top_k: int = 5,
        truncation: Truncation = "error",
        global_tokens: GlobalTokens = "none",
    ) -> tuple[FilledMask, ...]: ...

    @overload
    def fill(
        self,
        text: Sequence[str],
        *,
        top_k: int = 5,
        truncation: Truncation = "error",
        global_tokens: GlobalTokens = "none",
    ) -> list[tuple[FilledMask, ...]]: ...

    @renamed_arguments(too_long="truncation")
    def fill(
        self,
        text: str | Sequence[str],
        *,
        top_k: int = 5,
        truncation: Truncation = "error",
        global_tokens: GlobalTokens = "none",
    ) -> tuple[FilledMask, ...] | list[tuple[FilledMask, ...]]:
        """Predictions for every mask token of each text, such as [MASK]; see `unmask.tasks.fill.fill`."""
        name = numbered_or_the(text)
        filled = fill(
            self.engine,
            self.tokenizer,
            self._tokenized(text, None, truncation, name),
            top_k=top_k,
            global_tokens=global_tokens,
            model=self.name,
            name=name,
        )
        return filled[0] if isinstance(text, str) else filled

    def predict_tokens(
        self,
        text: str,
        *,
        top_k: int = 5,
        truncation: Truncation = "error",
        tokens_per_pass: int = TOKENS_PER_PASS,
        progress: Progress | None = None,
    ) -> TokenPredictions:
        """The loss of every token of a text and the best guesses at its place.

        From all other tokens by masking, or from the tokens before if attention is causal; see
        `unmask.tasks.predict_tokens.predict_tokens`.

        Args:
            text: one text.
            top_k: the number of guesses for each token.
            truncation: whether to refuse a text longer than the model's maximum, or to drop its end.
            tokens_per_pass: the maximum number of tokens per forward pass.
            progress: called with (tokens done, tokens in all).

        Raises:
            TextError: the text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no masked-LM head, or an argument is out of range.
            NonFiniteResult: a loss is infinity or NaN.
        """
        if not isinstance(text, str):
            raise InvalidText(f"the text is {quoted(text)}; predict_tokens reads one text, so give a string")
        whole("tokens_per_pass", tokens_per_pass, 1)
        check_callable("progress", progress)
        (encoding,) = self._tokenized(text, None, truncation)
        return predict_tokens(
            self.engine,
            self.tokenizer,
            encoding,
            top_k=top_k,
            tokens_per_pass=tokens_per_pass,
            model=self.name,
            progress=progress,
        )

    @renamed_arguments(too_long="truncation")
    def attention(
        self,
        text: str,
        pair: str | None = None,
        *,
        truncation: Truncation = "error",
        global_tokens: GlobalTokens | None = None,
        watch: Watch | None = None,
    ) -> AttentionView:
        """Exact attention of one text (or pair): any rectangle of any head, without storing an N x N matrix.

        ``global_tokens``: which tokens are global, see `AttentionView`. ``watch``: called after each layer,
        see `unmask.interpret.Watch`.
        """
        if not isinstance(text, str):
            raise InvalidText(
                f"the text is {quoted(text)}; attention reads one text at a time, so give a string"
            )
        check_callable("watch", watch)
        self._refuse_shared_query(pair)
        (encoding,) = self._tokenized(text, pair, truncation)
        return AttentionView(self.encoder, encoding, global_tokens=global_tokens, watch=watch)

    def attention_over(
        self,
        corpus: Corpus | str | Path | Sequence[str] | None = None,
        *,
        cache: str | Path | None = None,
        watch: Watch | None = None,
        partial: Callable[[CorpusStatistics], None] | None = None,
    ) -> CorpusStatistics:
        """Statistics of every head over a corpus, and the texts in which each does something most.

        Texts of more than 512 tokens, or than the model reads, are truncated and counted.

        Args:
            corpus: a ``.txt`` file with one text on each line, a ``.jsonl`` file of objects with a ``text``,
                or a list of texts; None takes 3,024 sentences of public-domain books, which come with the
                package.
            cache: a folder where results are kept, by model and corpus; they are read from there if they
                are whole. None keeps nothing.
            watch: called with the texts done and in all; it may raise `unmask.errors.Cancelled`.
            partial: called with what is known so far, several times.

        Raises:
            TextError: the file cannot be read, or has no text.
            InvalidRequest: it is not a file of texts, or there are too many.
            OutputError: the cache cannot be written.
        """
        check_callable("watch", watch)
        check_callable("partial", partial)
        found = corpus_of(corpus)
        kept, identity = None, ""
        if cache is not None:
            identity = self.content_digest()
            kept = cache_file(Path(cache), identity, found.sha256)
        return measure_corpus(
            self.encoder,
            self.tokenizer,
            found,
            max_tokens=self.max_tokens,
            cache=kept,
            identity=identity,
            watch=watch,
            partial=partial,
        )

    def save(self, folder: str | Path, *, shard_bytes: int | None = None) -> None:
        """Write a checkpoint folder that `transformers` and `sentence-transformers` can also load.

        ``shard_bytes``: the maximum bytes of weights per file; None writes a single file. A model that runs
        in ``int8`` is written in float32, from the weights it was loaded from.
        """
        if not isinstance(folder, str | Path) or not str(folder):
            raise InvalidRequest(f"folder is {quoted(folder)}; give the name of a folder to write")
        if shard_bytes is not None:
            whole("shard_bytes", shard_bytes, 1)
        save(self.trainable_encoder(replace=False), self.checkpoint, folder, shard_bytes=shard_bytes)

    encode = renamed_method("encode", "tokenize")
    hidden = renamed_method("hidden", "hidden_states")
    hidden_ids = renamed_method("hidden_ids", "hidden_states")


def numbered_or_the(texts: object) -> Callable[[int], str]:
    """The function by which error messages name a text: by its number, or "the text" if there is only one."""
    return (lambda _: "the text") if isinstance(texts, str) else numbered
