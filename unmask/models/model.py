"""A loaded checkpoint: the one class that users hold, with every task as a method."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, Unpack, get_args, overload

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_callable, check_choice, check_flag, whole_number
from unmask.base.one_or_many import one_or_many
from unmask.base.optional import needs_torch, require_torch
from unmask.engines.engine import Layers
from unmask.engines.native.engine import NativeEngine
from unmask.engines.static import StaticEngine
from unmask.errors import InvalidRequest, InvalidText, quoted
from unmask.models.source import LoadedSource
from unmask.spec import EncoderSpec, PooledVector, PoolingMode, TextKind
from unmask.spec.global_tokens import GlobalTokens
from unmask.spec.shapes import parameter_count
from unmask.tasks import (
    Progress,
    answer,
    check_answer,
    choose,
    embed,
    every_output,
    extract,
    fill,
    follows,
    hidden_states,
    multi_vectors,
    pair_scores,
    prune,
    sparse_vectors,
    tag,
    zero_shot,
)
from unmask.tasks.answer import MAX_ANSWER_TOKENS, Answers, numbered_question
from unmask.tasks.batches import TOKENS_PER_PASS
from unmask.tasks.check_answer import AnswerCheck
from unmask.tasks.choose import Choice
from unmask.tasks.classify import THRESHOLD, Classification, refuse_shared_query
from unmask.tasks.embed import METRICS, PRECISIONS, EmbedOptions, Metric, Precision, quantize, similarity
from unmask.tasks.every_output import EveryOutput
from unmask.tasks.fill import FilledMask
from unmask.tasks.follows import Continuation
from unmask.tasks.logits import chosen_head, logits
from unmask.tasks.multi_vectors import TokenVectors
from unmask.tasks.pair_scores import ScoreActivation, ScoreOptions
from unmask.tasks.prompts import prompt_of
from unmask.tasks.prune import PrunedText
from unmask.tasks.reader import Name, Reader, Ready, called, several
from unmask.tasks.schema import Extraction
from unmask.tasks.sparse_vectors import WordWeights
from unmask.tasks.tag import Tagging, Words
from unmask.tasks.values import Aggregation, Logits, LongTexts, PromptLanguage
from unmask.tasks.zero_shot import TEMPLATE
from unmask.text import Encoding, Tokenizer, Truncation
from unmask.text.special import SpecialTokens
from unmask.text.tokenizer import numbered
from unmask.weights import Checkpoint, find, read_checkpoint

if TYPE_CHECKING:
    from torch import Tensor

    from unmask.encoder.encoder import EditFunction, Encoder
    from unmask.engines.torch_engine import TorchEngine
    from unmask.interpret import AttentionView, Watch
    from unmask.interpret.corpus.measure import CorpusStatistics
    from unmask.interpret.corpus.texts import Corpus
    from unmask.tasks.predict_tokens import TokenPredictions
    from unmask.training.objectives.masking import MaskingSpec
    from unmask.training.view.values import MaskedView, MaskEpochs, ReplacedView, SentencePairView

AnyEngine: TypeAlias = "TorchEngine | NativeEngine | StaticEngine"
Ids: TypeAlias = "Sequence[int] | NDArray[np.int64] | Tensor"
"""Token ids of one sequence."""

Texts = str | Sequence[str]
"""One text or several."""

Result = TypeVar("Result")


class Model:
    """A loaded encoder with its tokenizer. Made by `load`.

    Every method that takes a list of texts also takes one string, and then returns the result for that text
    alone. An empty list gives an empty result.

    Tasks on texts of any length read a text that is too long in windows that share ``overlap_tokens`` tokens,
    and every result says how many tokens and windows it is based on.
    """

    def __init__(self, source: LoadedSource, engine: "AnyEngine | None" = None) -> None:
        self.source = source
        """Where it comes from."""
        self.engine: AnyEngine
        """What runs."""
        self._trainable = False
        self._edits = 0
        """Blocks of `edit` that are open."""
        if engine is None:
            self.engine, self._trainable = source.engine()
        else:  # it shares the weights of other models
            self.engine = engine

    def reading(self, special_tokens: SpecialTokens) -> Self:
        """This model with the same weights, for which special tokens typed in a text are ids, or text.

        Args:
            special_tokens: ``"parse"`` or ``"text"``, as for `unmask.load`.

        Raises:
            InvalidRequest: it is neither.
        """
        check_choice("special_tokens", special_tokens, get_args(SpecialTokens))
        if special_tokens == self.source.special_tokens:
            return self
        other = type(self)(self.source.reading(special_tokens), self.engine)
        other._trainable = self._trainable
        return other

    def load_arguments(self) -> dict[str, Any]:
        """The arguments of `unmask.load` that load this model in another process, from the same files.

        Weights that were changed since in this process are not among them.
        """
        return self.source.load_arguments()

    def __repr__(self) -> str:
        return (
            f"<unmask model {self.name}: {self.checkpoint.family.name}, {self.layer_count} layers, "
            f"width {self.width}, {self.parameter_count:,} parameters, {self.dtype} on {self.device}>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the model by its source, with its weights if they may have been trained."""
        if self._edits:
            raise InvalidRequest(
                "an edited model cannot be copied or sent to another process; leave the block of model.edit"
            )
        return type(self), (self.source,), self.encoder.state_dict() if self._trainable else None

    def __setstate__(self, weights: "dict[str, Tensor]") -> None:
        self.trainable_encoder().load_state_dict(weights)

    # What it is.

    @property
    def checkpoint(self) -> Checkpoint:
        """The metadata read from its folder."""
        return self.source.checkpoint

    @cached_property
    def reader(self) -> Reader:
        """The checkpoint and tokenizer with which tasks are prepared."""
        return Reader(self.checkpoint, self.name)

    @property
    def name(self) -> str:
        """The published name if known, else the folder's name; and that of its adapter."""
        name, adapter = self.checkpoint.source.name, self.checkpoint.adapter
        return name if adapter is None else f"{name} with the adapter {adapter.name}"

    @property
    def revision(self) -> str | None:
        """The 40-digit commit on the hub; None for a local folder."""
        return self.checkpoint.source.revision

    @property
    def spec(self) -> EncoderSpec:
        """The specification of the encoder."""
        return self.checkpoint.spec

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, from text to ids."""
        return self.checkpoint.tokenizer

    @property
    def max_tokens(self) -> int | None:
        """The maximum number of tokens per text, special tokens included; None if there is no limit."""
        return self.checkpoint.max_tokens

    @property
    def layer_count(self) -> int:
        """L."""
        return len(self.spec.layers)

    @property
    def head_count(self) -> int:
        """H of the layer with the most heads."""
        return max((layer.mixer.heads for layer in self.spec.layers), default=0)

    @property
    def width(self) -> int:
        """D."""
        return self.spec.state_width

    @cached_property
    def parameter_count(self) -> int:
        """Trained numbers."""
        return parameter_count(self.spec)

    @property
    def dtype(self) -> str:
        """The number format it computes in; ``int8`` if its linear layers do."""
        return self.engine.dtype

    @property
    def device(self) -> str:
        """Where the weights are."""
        return self.engine.device

    # Its module.

    @property
    def encoder(self) -> "Encoder":
        """The module that runs: optimized for inference if this machine supports it, else the plain module.

        An optimized module has no gradients, and its weights use a different memory layout.
        `trainable_encoder` returns the plain module.
        """
        return self.engine.encoder

    @needs_torch
    def trainable_encoder(self, *, replace: bool = True) -> "Encoder":
        """The plain `torch.nn.Module`, whose weights can be trained and have the spec's names and shapes.

        It replaces the module that runs: from then on `encoder` is this module and every result of the model
        comes from it, so training takes effect at once. A second call returns the same module. The first
        call reads it from the checkpoint's files. For an ``int8`` model it is in float32.

        Args:
            replace: False leaves the model unchanged and reads a separate module, to compute gradients while
                the model keeps its speed; each call then allocates the weights again. If the plain module
                already runs, it is returned.

        Raises:
            CheckpointError: the checkpoint's files have changed since they were loaded.
            InvalidRequest: it would replace the module of an edited model.
        """
        check_flag("replace", replace)
        if self._trainable:
            return self.encoder
        if replace and self._edits:
            raise InvalidRequest(
                "the model is edited, and its module cannot be replaced meanwhile; call trainable_encoder "
                "before the block of model.edit"
            )
        encoder = self.source.encoder()
        if replace:
            from unmask.engines.torch_engine import TorchEngine

            self.engine, self._trainable = TorchEngine(encoder), True
        return encoder

    @needs_torch
    @contextmanager
    def edit(
        self, point: str, function: "EditFunction", *, layer: int | Sequence[int] | None = None
    ) -> Iterator[Self]:
        """While the block lasts, every result of the model is computed with a tensor of its layers edited.

        ::

            with model.edit("head_output", lambda o_THK, at: o_THK * keep_H[:, None], layer=3):
                model.embed(texts)

        The model runs in torch meanwhile, whatever its engine. Blocks can be nested: the edits of the outer
        one come first. The edit ends with the block, after an error too. Other threads that use this model
        see it, other models do not. Attention is not shown of an edited model.

        Args:
            point: ``"embeddings"``, the first layer's input (T, D); ``"query"``, ``"key"`` and ``"value"`` as
                attention uses them, (T, H, K), after rotary positions; ``"head_output"``, the values that
                each head mixed, (T, H, K); ``"attention_output"`` after the output projection and
                ``"feedforward_output"``, (T, D), before they are added; ``"residual"``, the layer's output
                (T, D). T counts the tokens of all texts of a pass, end to end, without padding.
            function: called as ``function(tensor, context)``; returns a tensor of the same shape, or None to
                leave it. The `unmask.encoder.encoder.EditContext` has the layer, the token ids, and the
                offsets of the texts. Rows of tokens with separate global projections follow those.
            layer: one layer from 0, several, or None for all. ``"embeddings"`` takes none.

        Raises:
            InvalidRequest: no such point or layer. In the block: the function returned something else.
        """
        from unmask.encoder.encoder import Edit, EditedEncoder
        from unmask.engines.torch_engine import TorchEngine

        before = self.engine
        edit = Edit.at(self.encoder, point, layer, function)
        self.engine, self._edits = TorchEngine(EditedEncoder(self.encoder, edit)), self._edits + 1
        try:
            yield self
        finally:
            self.engine, self._edits = before, self._edits - 1

    def content_digest(self) -> str:
        """A SHA-256 of what its results depend on: weights, spec, tokenizer, number format and longest text.

        Weights are read from the checkpoint's files, or from the module if it may have been trained since.

        Raises:
            CheckpointError: the checkpoint's files have changed since they were loaded.
        """
        return self.source.digest(self.dtype, self.encoder if self._trainable else None)

    def save(self, folder: str | Path, *, shard_bytes: int | None = None) -> None:
        """Write a checkpoint folder that `transformers` and `sentence-transformers` can also load.

        A model that runs in ``int8`` is written in float32, from the weights it was loaded from.

        Args:
            folder: the folder; it must not exist, or be empty.
            shard_bytes: the maximum bytes of weights per file; None writes a single file.

        Raises:
            InvalidRequest: ``folder`` is no name, or ``shard_bytes`` is less than 1.
            OutputError: the folder cannot be written.
        """
        if not isinstance(folder, str | Path) or not str(folder):
            raise InvalidRequest(f"folder is {quoted(folder)}; give the name of a folder to write")
        if shard_bytes is not None:
            whole_number("shard_bytes", shard_bytes, 1)
        self.source.require_labels()
        if not self.spec.layers:
            return self.source.save_static(Path(folder))
        require_torch("Model.save")
        from unmask.weights.write.save import save

        save(self.trainable_encoder(replace=False), self.checkpoint, folder, shard_bytes=shard_bytes)

    # Tokens, hidden states and logits.

    @one_or_many
    def tokenize(
        self,
        texts: Texts,
        pairs: Texts | None = None,
        *,
        truncation: Truncation = "error",
        name: Name = numbered,
    ) -> list[Encoding]:
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
        return self.reader.tokenized(texts, pairs, truncation=truncation, name=name)

    @one_or_many
    @needs_torch
    def hidden_states(
        self,
        inputs: str | Sequence[str] | Sequence[Ids],
        token_type_ids: Sequence[Ids] | None = None,
        *,
        layers: Layers = "last",
        truncation: Truncation = "error",
        global_tokens: GlobalTokens | Sequence[Sequence[int]] | None = "none",
        tokens_per_pass: int = TOKENS_PER_PASS,
    ) -> "list[Tensor]":
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
        states = self._run(
            hidden_states.prepare(
                self.reader,
                inputs,
                token_type_ids,
                layers=layers,
                truncation=truncation,
                global_tokens=global_tokens,
            ),
            tokens_per_pass=tokens_per_pass,
        )
        import torch

        return [torch.from_numpy(array) for array in states]

    def logits(
        self,
        texts: Texts,
        pairs: Texts | None = None,
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
        refuse_shared_query(self.reader, pairs)
        whole_number("tokens_per_pass", tokens_per_pass, 1)
        encodings = self.reader.tokenized(texts, pairs, truncation=truncation)
        return logits(
            self.engine,
            role,
            encodings,
            global_tokens=global_tokens,
            tokens_per_pass=tokens_per_pass,
            name=called(texts, numbered),
        )

    # Embeddings and search.

    def embed(
        self,
        texts: Texts,
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
            precision: of the result, see `unmask.tasks.embed.quantize`.
            ranges: the smallest and the largest value of each dimension, (2, E), for the precisions ``int8``
                and ``uint8``; None takes those of the result.
            tokens_per_pass: the most tokens of a forward pass; it changes only the last bits of embeddings.
            global_tokens: which tokens are global, for encoders with global attention such as Longformer.
            progress: called with (texts done, texts in all).

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: neither the checkpoint nor the call specifies a pooling.
            NonFiniteResult: an embedding contains infinity or NaN.
        """
        head = self.embedding_head(pooling, normalize, truncate_dim)
        check_choice("precision", precision, PRECISIONS)
        embeddings_SE = self._run(
            embed.prepare(
                self.reader,
                texts,
                head,
                prompt=prompt,
                prompt_name=prompt_name,
                truncation=truncation,
                global_tokens=global_tokens,
            ),
            tokens_per_pass=tokens_per_pass,
            progress=progress,
        )
        result = quantize(embeddings_SE, precision, ranges)
        return result[0] if isinstance(texts, str) else result

    def embed_query(self, texts: Texts, **options: Unpack[EmbedOptions]) -> NDArray[Any]:
        """`embed` with the checkpoint's prompt for queries, if it has one, and no other; (S, E)."""
        return self.embed(texts, prompt=self._prompt("query"), **options)

    def embed_document(self, texts: Texts, **options: Unpack[EmbedOptions]) -> NDArray[Any]:
        """`embed` with the checkpoint's prompt for documents, if it has one, and no other; (S, E).

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
        name: Name = numbered,
    ) -> NDArray[np.float32]:
        """Embeddings (S, E) of already tokenized texts, computed by ``head``; see `embed`.

        ``prompt`` is the prompt that the texts begin with; its tokens are not pooled if ``head`` says so.
        ``name`` is how error messages name the text at an index.
        """
        return self._run(
            embed.of_encodings(
                self.reader, encodings, head, prompt=prompt, global_tokens=global_tokens, name=name
            ),
            tokens_per_pass=tokens_per_pass,
            progress=progress,
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
        return embed.embedding_head(self.checkpoint.head, pooling, normalize, truncate_dim)

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

    def _vectors(self, name: str, values: Any) -> Any:
        if isinstance(values, np.ndarray) or hasattr(values, "__torch_function__"):  # a tensor
            return values
        texts = several(name, values)
        return self.embed(texts) if all(isinstance(text, str) for text in texts) else texts

    @one_or_many
    def multi_vectors(
        self,
        texts: Texts,
        kind: TextKind = "document",
        *,
        max_tokens: int | None = None,
        truncation: Truncation = "error",
        tokens_per_pass: int = TOKENS_PER_PASS,
        progress: Progress | None = None,
    ) -> list[TokenVectors]:
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
        ready = multi_vectors.prepare(self.reader, texts, kind, max_tokens=max_tokens, truncation=truncation)
        return self._run(ready, tokens_per_pass=tokens_per_pass, progress=progress)

    @one_or_many
    def sparse_vectors(
        self,
        texts: Texts,
        kind: TextKind = "document",
        *,
        truncation: Truncation = "error",
        tokens_per_pass: int = TOKENS_PER_PASS,
        progress: Progress | None = None,
    ) -> list[WordWeights]:
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
        ready = sparse_vectors.prepare(self.reader, texts, kind, truncation=truncation)
        return self._run(ready, tokens_per_pass=tokens_per_pass, progress=progress)

    @one_or_many
    def embed_all(self, texts: Texts, *, truncation: Truncation = "error") -> list[EveryOutput]:
        """One vector, weights of words and one vector for each token, of one pass of the encoder (BGE-M3).

        ``texts`` are one or several, and ``truncation`` is that of `Model.tokenize`.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no layers for words and tokens.
            CheckpointError: these layers cannot be read.
        """
        return self._run(every_output.prepare(self.reader, texts, truncation=truncation))

    @overload
    def score_pairs(  # type: ignore[overload-overlap]
        self, queries: str, documents: str, **options: Unpack[ScoreOptions]
    ) -> float: ...

    @overload
    def score_pairs(
        self, queries: Texts, documents: Sequence[str], **options: Unpack[ScoreOptions]
    ) -> NDArray[np.float32]: ...

    def score_pairs(
        self,
        queries: Texts,
        documents: Texts,
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
        ready = pair_scores.prepare(
            self.reader, queries, documents, activation=activation, truncation=truncation
        )
        scores_P = self._run(ready, tokens_per_pass=tokens_per_pass, progress=progress)
        both = isinstance(queries, str) and isinstance(documents, str)
        return float(scores_P[0]) if both else scores_P

    @one_or_many
    def prune(
        self,
        documents: Texts,
        queries: Texts,
        *,
        threshold: float | None = None,
        keep_first: bool = False,
        truncation: LongTexts = "window",
        progress: Progress | None = None,
        name: Name = numbered,
    ) -> list[PrunedText]:
        """The sentences of each document that its query needs, by a checkpoint of Provence or OpenProvence.

        `unmask.tasks.prune.prepare` says how sentences are chosen, and where we differ from their authors.

        Args:
            documents: one text or several.
            queries: one query, or one for each document.
            threshold: how much a sentence must be needed to stay; None is the checkpoint's, or 0.1.
            keep_first: keep the first sentence, such as a title, if any sentence stays.
            truncation: ``"window"`` reads long documents in windows, ``"error"`` refuses them, and ``"end"``
                leaves their end unread, whose sentences stay.
            progress: called with (windows done, windows in all).
            name: how error messages name the document at an index.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no head that prunes, or there is not a query for each document.
            NonFiniteResult: a logit is infinity or NaN.
        """
        rule = prune.rule_of(self.reader, threshold, keep_first=keep_first)
        ready = prune.prepare(self.reader, documents, queries, rule, truncation=truncation, name=name)
        return self._run(ready, progress=progress)

    # Predictions of heads.

    @one_or_many
    def classify(
        self,
        texts: Texts,
        pairs: Texts | None = None,
        *,
        threshold: float = THRESHOLD,
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Name = numbered,
        labels: Sequence[str] | None = None,
        multi_label: bool = False,
    ) -> list[Classification]:
        """The label of each text (or pair) with its probability, or the value of a regression.

        Args:
            texts: one text or several.
            pairs: the second text of each pair. Windows over a long pair cover its second text.
            threshold: the probability from which a label of a multi-label classifier, or head, applies.
            truncation: ``"window"`` reads a long text in windows, ``"error"`` refuses it, and ``"end"`` drops
                its end, which the result counts.
            overlap_tokens: tokens shared by neighboring windows.
            progress: called with (windows done, windows in all).
            name: how error messages name the text at an index.
            labels, multi_label: classes to choose from, with GLiClass or entailment, see `zero_shot`.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no classifier of texts (the error lists its heads) or labels.
            NonFiniteResult: a logit is infinity or NaN.
        """
        ready = zero_shot.prepare_classes(
            self.reader,
            texts,
            pairs,
            threshold=threshold,
            truncation=truncation,
            overlap_tokens=overlap_tokens,
            name=name,
            labels=labels,
            multi_label=multi_label,
        )
        return self._run(ready, progress=progress)

    @one_or_many
    def zero_shot(
        self,
        texts: Texts,
        candidate_labels: Sequence[str],
        *,
        hypothesis_template: str = TEMPLATE,
        multi_label: bool = False,
        threshold: float = THRESHOLD,
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Name = numbered,
    ) -> list[Classification]:
        """Classify texts by labels named here, with a checkpoint of GLiClass or one trained on entailment.

        GLiClass reads a text with all labels in one pass. Of a model that was trained on natural language
        inference, the score of a label is the probability that the text entails the label's hypothesis.

        Args:
            texts: one text or several.
            candidate_labels: the labels.
            hypothesis_template: for entailment, the hypothesis of a label, which replaces ``{}``.
            multi_label: whether several labels, or none, may apply; else the probabilities of all sum to 1.
                For entailment, each probability is then that against contradiction, and a single label is
                always treated so.
            threshold: the probability from which a label applies, with ``multi_label``.
            truncation: what to do with a text that is too long with its labels, see `choose`.
            overlap_tokens: tokens of a text shared by neighboring windows.
            progress: called with (windows done, windows in all).
            name: how error messages name the text at an index.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no head for it, or a label or the template cannot be used.
            NonFiniteResult: a logit is infinity or NaN.
        """
        ready = zero_shot.prepare(
            self.reader,
            texts,
            candidate_labels,
            hypothesis_template=hypothesis_template,
            multi_label=multi_label,
            threshold=threshold,
            truncation=truncation,
            overlap_tokens=overlap_tokens,
            name=name,
        )
        return self._run(ready, progress=progress)

    @one_or_many
    def choose(
        self,
        questions: Texts,
        choices: Sequence[str] | Sequence[Sequence[str]],
        *,
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Name = numbered,
    ) -> list[Choice]:
        """The choice that fits each question best, with the probability of every choice.

        Args:
            questions: one question (or context) or several.
            choices: the choices of the one question, at least two; or a list of choices for each question,
                which need not have the same number.
            truncation: what to do with a question that is too long with one of its choices. ``"window"``
                reads it in windows, which are the same for all choices; ``"error"`` refuses it, and ``"end"``
                drops its end, which the result counts. Choices are always read whole.
            overlap_tokens: tokens of a question shared by neighboring windows.
            progress: called with (windows done, windows in all).
            name: how error messages name the question at an index.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no multiple-choice head (the error lists the heads that it
                has), or the choices are not at least two for each question.
            NonFiniteResult: a logit is infinity or NaN.
        """
        ready = choose.prepare(
            self.reader,
            questions,
            choices,
            truncation=truncation,
            overlap_tokens=overlap_tokens,
            name=name,
        )
        return self._run(ready, progress=progress)

    @one_or_many
    def tag(
        self,
        texts: str | Sequence[str] | Sequence[Words],
        *,
        aggregation: Aggregation = "first",
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Name = numbered,
        labels: Sequence[str] | None = None,
        threshold: float | Mapping[str, float] = THRESHOLD,
        nested: bool = False,
        multi_label: bool = False,
        vectors: bool = False,
    ) -> list[Tagging]:
        """The label of each word, and the entities that words form, with offsets into the given text.

        Args:
            texts: one text or several; or lists of words, with offsets in the words joined by spaces.
            aggregation: whether a word's ``"first"`` token gives its label, or the ``"mean"`` of all tokens.
            truncation: see `classify`.
            overlap_tokens: tokens shared by neighboring windows.
            progress: called with (windows done, windows in all).
            name: how error messages name the text at an index.
            labels: types of entities to find, such as ``["person", "drug"]``, for checkpoints of GLiNER.
            threshold: with labels, what probability an entity must exceed; or that of each label, else 0.5.
            nested: with labels, whether entities may lie inside others.
            multi_label: with labels, whether the same words may have several.
            vectors: with labels, whether each entity has the vector of its span, see `EntityVector`.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no head for tokens (the error lists those it has) or labels.
            NonFiniteResult: a logit is infinity or NaN.
        """
        ready = tag.prepare(
            self.reader,
            texts,
            aggregation=aggregation,
            truncation=truncation,
            overlap_tokens=overlap_tokens,
            name=name,
            labels=labels,
            threshold=threshold,
            nested=nested,
            multi_label=multi_label,
            vectors=vectors,
        )
        return self._run(ready, progress=progress)

    @one_or_many
    def extract(
        self,
        texts: Texts,
        schema: Mapping[str, Any],
        *,
        threshold: float = THRESHOLD,
        truncation: LongTexts = "window",
        overlap_words: int | None = None,
        progress: Progress | None = None,
        name: Name = numbered,
    ) -> list[Extraction]:
        """Entities, relations, records and classes of each text, as a schema names them, by GLiNER2.

        `unmask.tasks.extract.prepare` has the arguments, `unmask.tasks.schema.schema_of` the schema's form.
        """
        ready = extract.prepare(
            self.reader,
            texts,
            schema,
            threshold=threshold,
            truncation=truncation,
            overlap_words=overlap_words,
            name=name,
        )
        return self._run(ready, progress=progress)

    @one_or_many
    def answer(
        self,
        question: Texts,
        contexts: str | Sequence[str] | Sequence[str | Sequence[str]],
        *,
        top_k: int = 1,
        max_answer_tokens: int = MAX_ANSWER_TOKENS,
        no_answer: bool = False,
        null_threshold: float = 0.5,
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Name = numbered_question,
    ) -> list[Answers]:
        """The spans of one or several contexts that answer a question, most probable first.

        Args:
            question: one question, or several that are read together.
            contexts: one text or several; a span's ``context`` is the index of its text. Of several
                questions, a list with the text (or texts) of each.
            top_k: the most answers to return.
            max_answer_tokens: the longest answer, in tokens.
            no_answer: whether the contexts may lack the answer, for models trained on such questions.
            null_threshold: with ``no_answer``, return no answer if its probability exceeds this.
            truncation: see `classify`.
            overlap_tokens: tokens of a context shared by neighboring windows.
            progress: called with (windows done, windows in all).
            name: how error messages name the question at an index, if there are several.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no head for spans, or the question leaves no room for a window.
            NonFiniteResult: a logit is infinity or NaN.
        """
        ready = answer.prepare(
            self.reader,
            question,
            contexts,
            top_k=top_k,
            max_answer_tokens=max_answer_tokens,
            no_answer=no_answer,
            null_threshold=null_threshold,
            truncation=truncation,
            overlap_tokens=overlap_tokens,
            name=name,
        )
        return self._run(ready, progress=progress)

    @one_or_many
    def check_answer(
        self,
        answer: Texts,
        contexts: str | Sequence[str] | Sequence[str | Sequence[str]],
        question: str | Sequence[str | None] | None = None,
        *,
        threshold: float = THRESHOLD,
        language: PromptLanguage = "en",
        max_tokens: int | None = None,
        truncation: LongTexts = "window",
        overlap_tokens: int | None = None,
        progress: Progress | None = None,
        name: Name | None = None,
    ) -> list[AnswerCheck]:
        """The parts of each answer that its contexts do not support, by a checkpoint of LettuceDetect.

        `unmask.tasks.check_answer.prepare` says what is read in which window, and how windows are joined.

        Args:
            answer: one answer or several.
            contexts: one text or several on which the answer should be based. Of several answers, a list with
                the text (or texts) of each.
            question: what was asked; one for all answers, or a list with one (or None) for each. None is for
                answers to no question, such as summaries.
            threshold: what probability an unsupported token must exceed.
            language: the language of the sentences around contexts and question, see `PromptLanguage`.
            max_tokens: tokens of a window with the answer; None is the most that the model reads, or was
                trained to read if it can read any number.
            truncation: ``"window"`` reads long contexts in windows, ``"error"`` refuses them, and ``"end"``
                reads the first window alone and counts the rest.
            overlap_tokens: tokens shared by neighboring parts of a context that is too long alone.
            progress: called with (windows done, windows in all).
            name: how error messages name the answer at an index.

        Raises:
            TextError: a text is empty, not Unicode text, or an answer is too long.
            InvalidRequest: the checkpoint has no token classifier with two classes, there are not as many
                contexts or questions as answers, or an argument is out of range.
        """
        ready = check_answer.prepare(
            self.reader,
            answer,
            contexts,
            question,
            threshold=threshold,
            language=language,
            max_tokens=max_tokens,
            truncation=truncation,
            overlap_tokens=overlap_tokens,
            name=name,
        )
        return self._run(ready, progress=progress)

    @one_or_many
    def follows(
        self,
        firsts: Texts,
        seconds: Texts,
        *,
        truncation: Truncation = "error",
        tokens_per_pass: int = TOKENS_PER_PASS,
        progress: Progress | None = None,
        name: Name = numbered,
    ) -> list[Continuation]:
        """Whether each second text follows its first, by the head of pretraining (BERT, ALBERT).

        Args:
            firsts: one text or several.
            seconds: for each, the text that may follow it.
            truncation: ``"error"`` refuses a pair that is too long; ``"end"`` drops tokens from the end of
                the longer text, then of both.
            tokens_per_pass: the maximum number of tokens per forward pass.
            progress: called with (pairs done, pairs in all).
            name: how error messages name the pair at an index.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no head for next sentences or their order.
            NonFiniteResult: a logit is infinity or NaN.
        """
        ready = follows.prepare(self.reader, firsts, seconds, truncation=truncation, name=name)
        return self._run(ready, tokens_per_pass=tokens_per_pass, progress=progress)

    @one_or_many
    def fill(
        self,
        text: Texts,
        *,
        top_k: int = 5,
        truncation: Truncation = "error",
        global_tokens: GlobalTokens = "none",
    ) -> list[tuple[FilledMask, ...]]:
        """Predictions for every mask token of each text, such as [MASK]; see `unmask.tasks.fill.prepare`."""
        ready = fill.prepare(
            self.reader, text, top_k=top_k, truncation=truncation, global_tokens=global_tokens
        )
        return self._run(ready)

    def predict_tokens(
        self,
        text: str,
        *,
        top_k: int = 5,
        truncation: Truncation = "error",
        tokens_per_pass: int = TOKENS_PER_PASS,
        progress: Progress | None = None,
    ) -> "TokenPredictions":
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
        encoding = self._one_text("predict_tokens reads one text, so", text, truncation)
        whole_number("tokens_per_pass", tokens_per_pass, 1)
        check_callable("progress", progress)
        from unmask.tasks.predict_tokens import predict_tokens

        return predict_tokens(
            self.engine,
            self.tokenizer,
            encoding,
            top_k=top_k,
            tokens_per_pass=tokens_per_pass,
            model=self.name,
            progress=progress,
        )

    # Attention.

    @needs_torch
    def attention(
        self,
        text: str,
        pair: str | None = None,
        *,
        truncation: Truncation = "error",
        global_tokens: GlobalTokens | None = None,
        watch: "Watch | None" = None,
    ) -> "AttentionView":
        """Exact attention of one text (or pair): any rectangle of any head, without storing an N x N matrix.

        Args:
            text: the text.
            pair: a second text, for models that read pairs.
            truncation: ``"error"`` refuses a text that is too long, ``"end"`` drops its end.
            global_tokens: which tokens are global, see `AttentionView`.
            watch: called after each layer, see `unmask.interpret.Watch`.

        Raises:
            TextError: the text cannot be read, or has more tokens than the model reads.
            InvalidRequest: several texts are given, or a pair to a model whose queries are shared.
        """
        from unmask.interpret import AttentionView

        check_callable("watch", watch)
        refuse_shared_query(self.reader, pair)
        encoding = self._one_text("attention reads one text at a time, so", text, truncation, pair)
        return AttentionView(self.encoder, encoding, global_tokens=global_tokens, watch=watch)

    @needs_torch
    def attention_over(
        self,
        corpus: "Corpus | str | Path | Sequence[str] | None" = None,
        *,
        cache: str | Path | None = None,
        watch: "Watch | None" = None,
        partial: "Callable[[CorpusStatistics], None] | None" = None,
    ) -> "CorpusStatistics":
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
        from unmask.interpret.corpus.measure import measure_corpus
        from unmask.interpret.corpus.statistics import cache_file
        from unmask.interpret.corpus.texts import corpus_of

        check_callable("watch", watch)
        check_callable("partial", partial)
        texts = corpus_of(corpus)
        file, identity = None, ""
        if cache is not None:
            identity = self.content_digest()
            file = cache_file(Path(cache), identity, texts.sha256)
        return measure_corpus(
            self.encoder,
            self.tokenizer,
            texts,
            max_tokens=self.max_tokens,
            cache=file,
            identity=identity,
            watch=watch,
            partial=partial,
        )

    # What pretraining does with a text.

    @needs_torch
    def masked_view(
        self,
        text: str,
        *,
        seed: int = 0,
        epoch: int = 1,
        masking: "MaskingSpec | Mapping[str, Any] | None" = None,
        top_k: int = 5,
    ) -> "MaskedView":
        """One step of masked language modeling on a text: what is corrupted, and the loss of each target.

        Args:
            text: one text of at most the model's maximum number of tokens.
            seed: determines the masks, together with ``epoch``.
            epoch: the pass over the text, from 1; each draws another mask.
            masking: settings of masking, or a dictionary with keys of a run file's table such as
                ``{"rate": 0.3, "mask_unit": "word"}``; None for BERT's.
            top_k: the number of predictions for each target.

        Raises:
            TextError: the text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no masked-LM head, or an argument is out of range.
            NonFiniteResult: a loss is infinity or NaN.
        """
        from unmask.training.view.steps import masked_view

        encoding = self._one_text("masked_view reads one text, so", text)
        return masked_view(
            self.engine,
            self.tokenizer,
            encoding,
            masking=masking,
            seed=seed,
            epoch=epoch,
            top_k=top_k,
            model=self.name,
        )

    @needs_torch
    def mask_epochs(
        self,
        text: str,
        *,
        epochs: int = 10,
        static_masks: int = 10,
        seed: int = 0,
        masking: "MaskingSpec | Mapping[str, Any] | None" = None,
    ) -> "MaskEpochs":
        """Which tokens of a text are predicted in each epoch, with static and with dynamic masks.

        It needs no head. See `unmask.training.view.steps.mask_epochs`.

        Args:
            text: one text.
            epochs: the number of epochs.
            static_masks: the number of fixed masks of the text (10 in BERT's data; 1 repeats one mask).
            seed: determines the masks.
            masking: see `masked_view`.

        Raises:
            TextError: the text is empty, too long, or not Unicode text.
            InvalidRequest: the tokenizer lacks a special token, or an argument is out of range.
        """
        from unmask.training.view.steps import mask_epochs

        encoding = self._one_text("mask_epochs reads one text, so", text)
        return mask_epochs(
            self.tokenizer,
            encoding,
            masking=masking,
            seed=seed,
            epochs=epochs,
            static_masks=static_masks,
        )

    @needs_torch
    def replaced_view(
        self,
        text: str,
        replacement: str | None = None,
        *,
        generator: "Model | str | Path | None" = None,
        seed: int = 0,
        epoch: int = 1,
        masking: "MaskingSpec | Mapping[str, Any] | None" = None,
    ) -> "ReplacedView":
        """The probability of every token that it was replaced, by a detector (ELECTRA, DeBERTa v3).

        Args:
            text: one text.
            replacement: the text with words replaced by the reader.
            generator: a loaded model or a folder with a masked-LM head and the same vocabulary, whose samples
                replace masked tokens as in training. With neither, nothing is replaced.
            seed: determines masks and samples, together with ``epoch``.
            epoch: the pass over the text, from 1.
            masking: settings of masking as in `masked_view`; None for ELECTRA's.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no such head, the generator has another vocabulary, or both a
                replacement and a generator are given.
            CheckpointError: the generator cannot be loaded.
            NonFiniteResult: a score is infinity or NaN.
        """
        from unmask.training.view.steps import replaced_by_generator, replaced_by_reader, require_detector

        require_detector(self.spec, self.name)
        encoding = self._one_text("replaced_view reads one text, so", text)
        if generator is None:
            why = "replaced_view reads one text, so"
            written = None if replacement is None else self._one_text(why, replacement)
            return replaced_by_reader(self.engine, self.tokenizer, encoding, written, model=self.name)
        if replacement is not None:
            raise InvalidRequest("a replacement and a generator were given; give one of them")
        if isinstance(generator, Model):
            module, tokenizer = generator.trainable_encoder(replace=False), generator.tokenizer
        else:
            from unmask.weights.build import build

            checkpoint = read_checkpoint(find(generator))
            module, tokenizer = build(checkpoint), checkpoint.tokenizer
        return replaced_by_generator(
            self.engine,
            self.tokenizer,
            encoding,
            module,
            tokenizer,
            masking=masking,
            seed=seed,
            epoch=epoch,
            model=self.name,
        )

    @needs_torch
    def sentence_pair_view(self, first: str, second: str) -> "SentencePairView":
        """Whether the second text follows the first, by a next-sentence or sentence-order head.

        The result holds both orders, and the first text before 16 unrelated sentences as a baseline.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
            InvalidRequest: the checkpoint has no such head.
            NonFiniteResult: a logit is infinity or NaN.
        """
        from unmask.training.view.steps import pair_task, sentence_pair_view

        pair_task(self.spec, self.name)
        return sentence_pair_view(
            self.engine,
            self.tokenizer,
            self._one_text("sentence_pair_view reads one text, so", first),
            self._one_text("sentence_pair_view reads one text, so", second),
            model=self.name,
        )

    def _run(
        self,
        ready: Ready[Result],
        *,
        tokens_per_pass: int = TOKENS_PER_PASS,
        progress: Progress | None = None,
    ) -> Result:
        whole_number("tokens_per_pass", tokens_per_pass, 1)
        check_callable("progress", progress)
        return ready(self.engine, tokens_per_pass=tokens_per_pass, progress=progress)

    def _one_text(
        self, why: str, text: object, truncation: Truncation = "error", pair: str | None = None
    ) -> Encoding:
        """The only text of a method that reads one."""
        if not isinstance(text, str):
            raise InvalidText(f"the text is {quoted(text)}; {why} give a string")
        (encoding,) = self.reader.tokenized(text, pair, truncation=truncation)
        return encoding
