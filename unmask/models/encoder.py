"""An encoder loaded from a checkpoint: the module that runs, its properties, and the trainable module."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, assert_never, get_args

from unmask.base.arguments import check_choice, check_flag
from unmask.engines.backend import Backend, running
from unmask.engines.native.engine import NativeEngine, native_engine
from unmask.engines.native.threads import tell_torch
from unmask.errors import CorruptCheckpoint, InvalidRequest
from unmask.families import Compat
from unmask.spec import EncoderSpec, PairScore
from unmask.spec.shapes import parameter_count
from unmask.text import Tokenizer
from unmask.text.literal import SpecialTokens
from unmask.weights import Checkpoint, Source, read_checkpoint
from unmask.weights.adapters.adapter import adapted, read_adapter
from unmask.weights.read.arrays import StoredArrays

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from unmask.encoder.encoder import Encoder
    from unmask.engines.torch_engine import TorchEngine

Stamps = dict[Path, tuple[int, int]]
"""The modification time and size of each weight file."""


class LoadedEncoder:
    """A checkpoint's encoder with its weights, ready to run."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        dtype: str = "float32",
        device: str | None = None,
        kernel: str | None = None,
        compat: Compat = "published",
        backend: Backend | None = None,
        engine: TorchEngine | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        """The metadata read from its folder."""
        self._options = {
            "dtype": dtype,
            "device": device,
            "kernel": kernel,
            "compat": compat,
            "backend": backend,
        }
        self._files = stamps(checkpoint)
        self._trainable = False
        self.engine: TorchEngine | NativeEngine
        """What runs."""
        if engine is not None:  # it shares the weights of other models
            self.engine = engine
            return
        chosen = running(checkpoint.spec, dtype, device=device, kernel=kernel, backend=backend)
        match chosen.backend:
            case "native":
                self.engine = self._native(dtype)
            case "torch":
                self.engine = self._in_torch(dtype, packed=chosen.packed)
            case _:
                assert_never(chosen.backend)

    def reading(self, special_tokens: SpecialTokens) -> Self:
        """This model with the same weights, for which special tokens typed in a text are ids, or text.

        Args:
            special_tokens: ``"parse"`` or ``"text"``, as for `unmask.load`.

        Raises:
            InvalidRequest: it is neither.
        """
        check_choice("special_tokens", special_tokens, get_args(SpecialTokens))
        if special_tokens == self._special_tokens:
            return self
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        vars(other).pop("_late_tokenizer", None)
        other.checkpoint = self.checkpoint.reading(special_tokens)
        return other

    @property
    def _special_tokens(self) -> SpecialTokens:
        stored = self.checkpoint.stored_tokenizer
        return "parse" if stored is None else stored.reads

    def load_arguments(self) -> dict[str, Any]:
        """The arguments of `unmask.load` that load this model in another process, from the same files.

        Weights that were changed since in this process are not among them.
        """
        adapter = self.checkpoint.adapter
        folder = None if adapter is None else adapter.folder
        return {
            "source": self.checkpoint.source.folder,
            "adapter": folder,
            "special_tokens": self._special_tokens,
            "ignore_tensors": self.checkpoint.ignored_tensors,
            **self._options,
        }

    def _native(self, dtype: str) -> NativeEngine:
        """The engine whose layers run in the native library; torch is imported for an adapter alone."""
        weights: Mapping[str, Any]
        if self.checkpoint.adapter is None:
            weights = StoredArrays(self.checkpoint)
            weights.check("float32" if dtype == "int8" else dtype)
        else:
            weights = {name: tensor.float().numpy() for name, tensor in self._build().state_dict().items()}
        return native_engine(
            self.spec,
            weights,
            dtype,
            heads=lambda: self._build_unchanged(layers=False),
            in_torch=lambda: _optimized(self._build_unchanged(), dtype),
        )

    def _in_torch(self, dtype: str, *, packed: bool) -> TorchEngine:
        """The engine of torch modules, optimized for inference if they are to be packed."""
        from unmask.engines.torch_engine import TorchEngine

        self._trainable = not packed
        encoder = self._build()
        return TorchEngine(_optimized(encoder, dtype) if packed else encoder)

    def _build(self, *, layers: bool = True) -> Encoder:
        """The plain module, read from the checkpoint's files."""
        from unmask.weights.build import build

        tell_torch()
        dtype, device, kernel = (self._options[name] for name in ("dtype", "device", "kernel"))
        plain_dtype = "float32" if dtype == "int8" else str(dtype)
        return build(self.checkpoint, dtype=plain_dtype, device=device, kernel=kernel, layers=layers)

    def _build_unchanged(self, *, layers: bool = True) -> Encoder:
        """`_build`, long after the checkpoint was loaded.

        Raises:
            CheckpointError: its files have changed since.
        """
        self._require_unchanged()
        return self._build(layers=layers)

    def _require_unchanged(self) -> None:
        if stamps(self.checkpoint) != self._files:
            raise _changed(self.name)

    @property
    def encoder(self) -> Encoder:
        """The module that runs: optimized for inference if this machine supports it, else the plain module.

        An optimized module has no gradients, and its weights use a different memory layout.
        `trainable_encoder` returns the plain module.
        """
        return self.engine.encoder

    def _refuse_shared_query(self, pairs: object) -> None:
        """Refuse a task that reads pairs with full attention.

        Raises:
            InvalidRequest: pairs are given, and the checkpoint's queries attend to themselves alone.
        """
        head = self.checkpoint.head
        if pairs is not None and isinstance(head, PairScore) and head.shared_query:
            raise InvalidRequest(
                f"in {self.checkpoint.source.name} tokens of a query do not attend to its document "
                "(shared_query), which is built for scores of pairs alone; use score_pairs"
            )

    def trainable_encoder(self, *, replace: bool = True) -> Encoder:
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
        """
        check_flag("replace", replace)
        if self._trainable:
            return self.encoder
        encoder = self._build_unchanged()
        if replace:
            from unmask.engines.torch_engine import TorchEngine

            self.engine, self._trainable = TorchEngine(encoder), True
        return encoder

    def content_digest(self) -> str:
        """A SHA-256 of what its results depend on: weights, spec, tokenizer, number format and longest text.

        Weights are read from the checkpoint's files, or from the module if it may have been trained since.

        Raises:
            CheckpointError: the checkpoint's files have changed since they were loaded.
        """
        found = hashlib.sha256()
        # Not the backend: its results differ as those of two machines do.
        options = sorted((name, value) for name, value in self._options.items() if name != "backend")
        reads = [self._special_tokens] if self._special_tokens != "parse" else []
        for part in (repr(self.spec), self.dtype, str(self.max_tokens), repr(options), *reads):
            found.update(hashlib.sha256(part.encode()).digest())
        for name, content in sorted(self.tokenizer.files.items()):
            found.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(content).digest())
        if self._trainable:
            import torch

            for name, tensor in sorted(self.encoder.state_dict().items()):
                flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
                found.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(flat).digest())
            return found.hexdigest()
        self._require_unchanged()
        for path in sorted(self._files):
            with path.open("rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
        return found.hexdigest()

    def __repr__(self) -> str:
        return (
            f"<unmask model {self.name}: {self.checkpoint.family.name}, {self.layer_count} layers, "
            f"width {self.width}, {self.parameter_count:,} parameters, {self.dtype} on {self.device}>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the model by its source, with its weights if they may have been trained."""
        weights = self.encoder.state_dict() if self._trainable else None
        adapter = self.checkpoint.adapter
        folder = None if adapter is None else adapter.folder
        ignored = self.checkpoint.ignored_tensors
        options = {**self._options, "special_tokens": self._special_tokens, "ignore_tensors": ignored}
        made = (type(self), self.checkpoint.source, folder, self._files, options)
        return loaded_again, made, weights

    def __setstate__(self, weights: dict[str, Tensor]) -> None:
        self.trainable_encoder().load_state_dict(weights)

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
        return max(layer.mixer.heads for layer in self.spec.layers)

    @property
    def width(self) -> int:
        """D."""
        return self.spec.width

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


def _optimized(encoder: Encoder, dtype: str) -> Encoder:
    from unmask.engines.inference import optimize_for_inference

    return optimize_for_inference(encoder, dtype)


def loaded_again(
    kind: type[LoadedEncoder],
    source: Source,
    adapter: Path | None,
    files: Stamps,
    options: dict[str, Any],
) -> LoadedEncoder:
    """Load a pickled or copied model again from its source.

    Raises:
        CheckpointError: its files are missing or have changed since they were loaded.
    """
    ignored, reads = options.pop("ignore_tensors"), options.pop("special_tokens")
    checkpoint = read_checkpoint(source, options["compat"], ignore_tensors=ignored)
    if adapter is not None:
        checkpoint = adapted(checkpoint, read_adapter(adapter), options["compat"])
    if stamps(checkpoint) != files:
        raise _changed(source.name)
    return kind(checkpoint.reading(reads), **options)


def stamps(checkpoint: Checkpoint) -> Stamps:
    """The stamps of the files that hold the checkpoint's weights."""
    stored = (*checkpoint.tensors.values(), *checkpoint.output_tensors.values())
    found = {path: path.stat() for path in {tensor.file for tensor in stored}}
    return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in found.items()}


def _changed(name: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(
        f"the weights of {name} have changed on disk since they were loaded; load them again"
    )
