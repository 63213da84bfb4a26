"""An encoder loaded from a checkpoint: the module that runs, its properties, and the trainable module."""

import hashlib
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from unmask.arguments import check_flag
from unmask.deprecation import warn_renamed
from unmask.errors import CorruptCheckpoint, InvalidRequest
from unmask.model.encoder import Encoder
from unmask.model.families import Compat
from unmask.model.inference import optimize_for_inference, unsupported_reason
from unmask.model.native.engine import native_engine, native_reason
from unmask.model.spec import EncoderSpec, PairScore
from unmask.model.torch_engine import TorchEngine
from unmask.model.weights import Checkpoint, Source, read_checkpoint
from unmask.model.weights.adapter import adapted, read_adapter
from unmask.model.weights.build import build
from unmask.model.weights.shapes import parameter_count
from unmask.text import Tokenizer

Backend = Literal["native", "torch"]
"""Which code runs the layers: the native library, or torch."""

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
        plain_dtype = "float32" if dtype == "int8" else dtype
        self._build = partial(build, checkpoint, dtype=plain_dtype, device=device, kernel=kernel)
        self._files = stamps(checkpoint)
        refusal = unsupported_reason(dtype, device)
        if dtype == "int8" and refusal is not None:
            raise InvalidRequest(f"dtype is int8, and {refusal}; take float32 or bfloat16")
        chosen = None if kernel is None else f"the kernel {kernel} is one of torch"
        no_native = refusal or chosen or native_reason(self.spec, dtype)
        if backend == "native" and no_native is not None:
            raise InvalidRequest(f"backend is native, and {no_native}; leave it out, or take torch")
        encoder = self._build()
        self._trainable = refusal is not None
        self.engine: TorchEngine
        """What runs."""
        if self._trainable:
            self.engine = TorchEngine(encoder)
        elif no_native is None and backend != "torch":
            self.engine = native_engine(encoder, dtype, partial(self._optimized, dtype))
        else:
            self.engine = TorchEngine(optimize_for_inference(encoder, dtype))

    def _optimized(self, dtype: str) -> Encoder:
        """The encoder in torch, read again from the checkpoint's files."""
        self._require_unchanged()
        return optimize_for_inference(self._build(), dtype)

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
        self._require_unchanged()
        encoder = self._build()
        if replace:
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
        for part in (repr(self.spec), self.dtype, str(self.max_tokens), repr(options)):
            found.update(hashlib.sha256(part.encode()).digest())
        for name, content in sorted(self.tokenizer.files.items()):
            found.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(content).digest())
        if self._trainable:
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
        made = (type(self), self.checkpoint.source, folder, self._files, self._options)
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

    @property
    def runner(self) -> Encoder:
        """The old name of `encoder`."""
        warn_renamed("the property", "runner", "encoder")
        return self.encoder

    def plain(self) -> Encoder:
        """The old name of `trainable_encoder` with ``replace=False``."""
        warn_renamed("the method", "plain()", "trainable_encoder(replace=False)")
        return self.trainable_encoder(replace=False)


def loaded_again(
    kind: type[LoadedEncoder], source: Source, adapter: Path | None, files: Stamps, options: dict[str, Any]
) -> LoadedEncoder:
    """Load a pickled or copied model again from its source.

    Raises:
        CheckpointError: its files are missing or have changed since they were loaded.
    """
    checkpoint = read_checkpoint(source, options["compat"])
    if adapter is not None:
        checkpoint = adapted(checkpoint, read_adapter(adapter), options["compat"])
    if stamps(checkpoint) != files:
        raise _changed(source.name)
    return kind(checkpoint, **options)


def stamps(checkpoint: Checkpoint) -> Stamps:
    """The stamps of the files that hold the checkpoint's weights."""
    stored = (*checkpoint.tensors.values(), *checkpoint.output_tensors.values())
    found = {path: path.stat() for path in {tensor.file for tensor in stored}}
    return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in found.items()}


def _changed(name: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(
        f"the weights of {name} have changed on disk since they were loaded; load them again"
    )
