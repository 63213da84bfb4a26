"""What `unmask.load` returns: a checkpoint ready for inference."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import BeyondTraining, CorruptCheckpoint, InvalidRequest
from unmask.model.encoder import Encoder
from unmask.model.families import Compat
from unmask.model.fast import QuantizedLinear, rewrite, why_not
from unmask.model.spec import EmbeddingHead, EncoderSpec, PoolingMode
from unmask.model.spec.global_tokens import GlobalTokens
from unmask.model.tap import Place
from unmask.model.weights import Checkpoint, find, read_checkpoint
from unmask.model.weights.build import build
from unmask.model.weights.save import save
from unmask.model.weights.shapes import parameter_count
from unmask.see import AttentionView, Watch
from unmask.tasks import Progress
from unmask.tasks.embed import TOKENS_PER_PASS, embed
from unmask.tasks.fill import FilledMask, fill
from unmask.text import Encoding, PackedBatch, Tokenizer, TooLong
from unmask.text.tokenizer import numbered

Layers = Literal["last", "all"]


class Model:
    """A loaded encoder with its tokenizer. Made by `load`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        dtype: str = "float32",
        device: str | None = None,
        kernel: str | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        """What its folder says."""
        plain_dtype = "float32" if dtype == "int8" else dtype
        self._build = partial(build, checkpoint, dtype=plain_dtype, device=device, kernel=kernel)
        self._files = _stamps(checkpoint)
        refusal = why_not(dtype, device)
        if dtype == "int8" and refusal is not None:
            raise InvalidRequest(f"dtype is int8, and {refusal}; take float32 or bfloat16")
        self._plain: Encoder | None = self._build() if refusal else None
        self._rewritten = None if refusal else rewrite(self._build(), dtype)
        self.device = str(self.runner.device)
        """Where the weights are."""

    @property
    def runner(self) -> Encoder:
        """The encoder that runs: rewritten for speed where this machine has a way, else the plain one.

        It is for inference only, and some of its weights are in an order of their own.
        """
        running = self._rewritten or self._plain
        assert running is not None
        return running

    @property
    def encoder(self) -> Encoder:
        """The plain `torch.nn.Module`, for training and for reading.

        Where another one ran until now, this one is read from the checkpoint, takes its place and runs from
        then on, so that whoever trains it gets the results of what was trained. For ``int8`` it is float32.

        Raises:
            CheckpointError: the checkpoint's files are not those that were loaded.
        """
        if self._plain is None:
            self._plain, self._rewritten = self._read_again(), None
        return self._plain

    def plain(self) -> Encoder:
        """A plain `torch.nn.Module` that gives gradients, beside the one that runs.

        `encoder` without taking its place: where another one runs, this is read from the checkpoint at each
        call and belongs to the caller, as much memory again. For ``int8`` it is float32.

        Raises:
            CheckpointError: the checkpoint's files are not those that were loaded.
        """
        return self._read_again() if self._plain is None else self._plain

    def _read_again(self) -> Encoder:
        if _stamps(self.checkpoint) != self._files:
            raise CorruptCheckpoint(
                f"the weights of {self.name} have changed on disk since they were loaded; load them again"
            )
        return self._build()

    def __repr__(self) -> str:
        return (
            f"<unmask model {self.name}: {self.checkpoint.family.name}, {self.layer_count} layers, "
            f"width {self.width}, {self.parameter_count:,} parameters, {self.dtype} on {self.device}>"
        )

    @property
    def name(self) -> str:
        """The published name where it is known, else the folder's."""
        return self.checkpoint.source.name

    @property
    def revision(self) -> str | None:
        """The hub's 40-digit commit; None for a local folder."""
        return self.checkpoint.source.revision

    @property
    def spec(self) -> EncoderSpec:
        """The encoder as a value."""
        return self.checkpoint.spec

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids."""
        return self.checkpoint.tokenizer

    @property
    def max_tokens(self) -> int | None:
        """The longest text it reads, special tokens included; None where nothing sets a limit."""
        return self.checkpoint.max_tokens

    @property
    def layer_count(self) -> int:
        """L."""
        return len(self.spec.layers)

    @property
    def head_count(self) -> int:
        """H of the layer with most heads."""
        return max(layer.mixer.heads for layer in self.spec.layers)

    @property
    def width(self) -> int:
        """D."""
        return self.spec.width

    @property
    def parameter_count(self) -> int:
        """Trained numbers."""
        return parameter_count(self.spec)

    @property
    def dtype(self) -> str:
        """The number format it computes in; ``int8`` where linear layers do."""
        if any(isinstance(module, QuantizedLinear) for module in self.runner.modules()):
            return "int8"
        return str(self.runner.embedding.words.weight.dtype).removeprefix("torch.")

    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        too_long: TooLong = "error",
        name: Callable[[int], str] = numbered,
    ) -> list[Encoding]:
        """Tokens of each text, within what the model reads; see `Tokenizer.encode_batch`.

        Warns with `BeyondTraining` of texts longer than any in training, where the model can read them.
        """
        encodings = self.tokenizer.encode_batch(
            _listed(texts), pairs, max_tokens=self.max_tokens, too_long=too_long, name=name
        )
        self._warn_beyond_training(encodings)
        return encodings

    def _warn_beyond_training(self, encodings: Sequence[Encoding]) -> None:
        trained = self.checkpoint.trained_tokens
        longest = max(map(len, encodings), default=0)
        if trained is not None and longest > trained:
            warnings.warn(
                f"a text has {longest} tokens and the model was trained on at most {trained}; "
                "it is read whole",
                BeyondTraining,
                stacklevel=3,
            )

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        too_long: TooLong = "error",
        pooling: PoolingMode | None = None,
        unit_length: bool | None = None,
        tokens_per_pass: int = TOKENS_PER_PASS,
        global_tokens: GlobalTokens = "first",
        progress: Progress | None = None,
    ) -> NDArray[np.float32]:
        """Sentence embeddings, float32: (S, E) for a list of texts, (E,) for one string.

        Args:
            texts: one text or several.
            too_long: what to do with a text of more than `max_tokens` tokens; see `Encoding`.
            pooling: instead of what the checkpoint says, if it says anything.
            unit_length: whether to divide by the Euclidean length, likewise.
            tokens_per_pass: the most tokens that run together; changes speed and memory, and of the
                embeddings the last bits alone.
            global_tokens: which tokens are global where the encoder, as Longformer, has a use for such.
            progress: called with (texts done, texts in all).

        Raises:
            TextError: a text is empty, too long, or no text.
            InvalidRequest: the checkpoint does not say how to pool, and neither does the call.
        """
        head = self.embedding_head(pooling, unit_length)
        encodings = self.encode([texts] if isinstance(texts, str) else texts, too_long=too_long)
        embeddings_SE = self.embed_encodings(
            encodings,
            head,
            tokens_per_pass=tokens_per_pass,
            global_tokens=global_tokens,
            progress=progress,
        )
        return embeddings_SE[0] if isinstance(texts, str) else embeddings_SE

    def embed_encodings(
        self,
        encodings: Sequence[Encoding],
        head: EmbeddingHead,
        *,
        tokens_per_pass: int = TOKENS_PER_PASS,
        global_tokens: GlobalTokens = "first",
        progress: Progress | None = None,
        name: Callable[[int], str] = numbered,
    ) -> NDArray[np.float32]:
        """Embeddings (S, E) of texts that are tokens already, made by ``head``; see `embed`.

        ``name`` is how an error calls the text at an index.
        """
        return embed(
            self.runner,
            head,
            encodings,
            tokens_per_pass=tokens_per_pass,
            global_tokens=global_tokens,
            progress=progress,
            name=name,
        )

    def embedding_head(
        self, pooling: PoolingMode | None = None, unit_length: bool | None = None
    ) -> EmbeddingHead:
        """How embeddings are made: what the checkpoint says, or what is asked for instead.

        Raises:
            InvalidRequest: neither says how to pool.
        """
        published = self.checkpoint.head
        if isinstance(published, str):
            if pooling is None:
                raise InvalidRequest(f"{published}, for instance mean")
            return EmbeddingHead((pooling,), bool(unit_length))
        return EmbeddingHead(
            published.pooling if pooling is None else (pooling,),
            published.unit_length if unit_length is None else unit_length,
        )

    def hidden(
        self, texts: Sequence[str], *, layers: Layers = "last", too_long: TooLong = "error"
    ) -> list[Tensor]:
        """Hidden states of each text; see `hidden_ids`."""
        encodings = self.encode(texts, too_long=too_long)
        return self.hidden_ids(
            [one.ids for one in encodings], [one.segments for one in encodings], layers=layers
        )

    def hidden_ids(
        self,
        ids: Sequence[Sequence[int] | NDArray[np.int64]],
        segments: Sequence[Sequence[int] | NDArray[np.int64]] | None = None,
        *,
        layers: Layers = "last",
        global_tokens: Sequence[Sequence[int]] | None = None,
    ) -> list[Tensor]:
        """Hidden states of sequences of token ids, which run packed as one pass.

        Args:
            ids: one list of ids a sequence, special tokens included.
            segments: one list of segments a sequence; 0 everywhere where not given.
            layers: ``"last"`` gives a tensor (N, D) a sequence; ``"all"`` gives (L + 1, N, D), the
                embedding's output first.
            global_tokens: the places of each sequence's global tokens, where the encoder has a use for such;
                none where not given, as in the classes of `transformers` without a head.

        Raises:
            InvalidRequest: no ids, an id or segment outside its table, or a sequence too long.
        """
        batch = PackedBatch.of_ids(ids, segments, global_tokens)
        _check_range("token id", batch.ids_T, self.spec.embedding.vocabulary)
        _check_range("segment", batch.segments_T, max(1, self.spec.embedding.segments))
        states: list[Tensor] = []

        def listen(place: Place, layer: int, tensor: Tensor) -> None:
            if place in (Place.EMBEDDED, Place.LAYER):
                states.append(tensor)

        with torch.inference_mode():
            x_TD = self.runner.encode(batch, tap=listen if layers == "all" else None)
            kept = torch.stack([*states[:-1], x_TD]) if layers == "all" else x_TD
        return [kept[..., batch.layout.rows(s), :] for s in range(batch.layout.sequence_count)]

    def fill(
        self,
        text: str,
        *,
        top_k: int = 5,
        too_long: TooLong = "error",
        global_tokens: GlobalTokens = "none",
    ) -> tuple[FilledMask, ...]:
        """Predictions for every mask token of a text, such as [MASK]; see `unmask.tasks.fill.fill`."""
        (encoding,) = self.encode([text], too_long=too_long, name=lambda _: "the text")
        return fill(
            self.runner, self.tokenizer, encoding, top_k=top_k, global_tokens=global_tokens, name=self.name
        )

    def attention(
        self,
        text: str,
        pair: str | None = None,
        *,
        too_long: TooLong = "error",
        global_tokens: GlobalTokens | None = None,
        watch: Watch | None = None,
    ) -> AttentionView:
        """Exact attention of one text (or pair), any rectangle of any head; no N x N is held.

        ``global_tokens``: which tokens are global, see `AttentionView`. ``watch``: called after each layer,
        see `unmask.see.Watch`.
        """
        encoding = self.tokenizer.encode(text, pair, max_tokens=self.max_tokens, too_long=too_long)
        self._warn_beyond_training([encoding])
        return AttentionView(self.runner, encoding, global_tokens=global_tokens, watch=watch)

    def save(self, folder: str | Path, *, shard_bytes: int | None = None) -> None:
        """Write a checkpoint folder that `transformers` and `sentence-transformers` load too.

        ``shard_bytes``: the most bytes of weights in one file; None writes a single one. A model that runs
        in ``int8`` is written in float32, from the weights it was loaded from.
        """
        save(self.plain(), self.checkpoint, folder, shard_bytes=shard_bytes)


def load(
    source: str | Path,
    *,
    dtype: str = "float32",
    device: str | None = None,
    kernel: str | None = None,
    compat: Compat = "published",
    revision: str | None = None,
    verify: bool | None = None,
) -> Model:
    """Load an encoder for inference.

    Args:
        source: ``"default"``, ``"unmask-mini"``, a checkpoint folder, or a hub id such as ``owner/model``;
            ``"design/alibi"`` and its like are tiny ones that each show one mechanism.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"`` or ``"float64"``; stored weights are
            converted to it. ``"int8"`` runs linear layers on 8-bit integers, on a CPU; what that costs
            in accuracy, ``unmask bench accuracy`` measures.
        device: as torch names it; None is the CPU.
        kernel: the attention kernel to use (see ``unmask kernels``); None takes the first that can.
        compat: whose outputs are meant where two differ: the authors' own code, or ``"hf"``,
            `transformers`.
        revision: a branch, tag or commit of the hub; the commit it stands for is recorded.
        verify: whether to compare the SHA-256 of every file with those that `Model.save` wrote; None does
            so for folders of up to 64 MB, where it takes about 0.15 s. Sizes are always compared.

    Raises:
        CheckpointError: the checkpoint cannot be found, read or trusted.
        KernelError: there is no such kernel.
        MissingExtra: "default" is asked for and its package is not installed.
    """
    checkpoint = read_checkpoint(find(source, revision), compat, verify=verify)
    return Model(checkpoint, dtype=dtype, device=device, kernel=kernel)


def _stamps(checkpoint: Checkpoint) -> dict[Path, tuple[int, int]]:
    """When each file of weights was last written, and its size."""
    found = {path: path.stat() for path in {tensor.file for tensor in checkpoint.tensors.values()}}
    return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in found.items()}


def _listed(texts: Sequence[str]) -> Sequence[str]:
    if isinstance(texts, str):
        raise InvalidRequest("one string was given where a list of texts is read; put it in a list")
    return texts


def _check_range(what: str, values: NDArray[np.int64], size: int) -> None:
    if values.min() < 0 or values.max() >= size:
        worst = int(values.max()) if values.max() >= size else int(values.min())
        raise InvalidRequest(f"a {what} is {worst}; this model has 0 to {size - 1}")
