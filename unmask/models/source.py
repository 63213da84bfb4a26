"""Where a loaded model comes from: its checkpoint, its options, and its files as they were then."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, assert_never

from unmask.base.optional import require_torch
from unmask.engines.backend import Backend, running
from unmask.engines.native.engine import NativeEngine, native_engine
from unmask.engines.native.threads import tell_torch
from unmask.engines.static import StaticEngine
from unmask.errors import CorruptCheckpoint, InvalidRequest
from unmask.families import Compat
from unmask.spec import PooledVector
from unmask.text.special import SpecialTokens
from unmask.weights import Checkpoint, read_checkpoint
from unmask.weights.adapters.adapter import AdaptedArrays, adapted, read_adapter
from unmask.weights.read.checkpoint_tensors import StoredArrays, with_first_layers

if TYPE_CHECKING:
    from unmask.encoder.encoder import Encoder
    from unmask.engines.torch_engine import TorchEngine

Stamps = dict[Path, tuple[int, int]]
"""The modification time and size of each weight file."""


class LoadOptions(TypedDict):
    """Arguments of `unmask.load` on which the encoder that runs depends."""

    dtype: str
    device: str | None
    kernel: str | None
    compat: Compat
    backend: Backend | None


@dataclass(frozen=True, eq=False)
class LoadedSource:
    """A checkpoint, and what is needed to build its encoder now, later, or in another process."""

    checkpoint: Checkpoint
    options: LoadOptions
    files: Stamps = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.files:
            self.files.update(stamps(self.checkpoint))

    @property
    def special_tokens(self) -> SpecialTokens:
        """What special tokens typed in a text become."""
        stored = self.checkpoint.stored_tokenizer
        return "parse" if stored is None else stored.reads

    def reading(self, special_tokens: SpecialTokens) -> LoadedSource:
        """The source with a tokenizer for which special tokens typed in a text are ids, or text."""
        return replace(self, checkpoint=self.checkpoint.reading(special_tokens))

    def load_arguments(self) -> dict[str, Any]:
        """The arguments of `unmask.load` that load the model in another process, from the same files."""
        adapter = self.checkpoint.adapter
        return {
            "source": self.checkpoint.source.folder,
            "adapter": self.checkpoint.task if adapter is None else adapter.folder,
            "special_tokens": self.special_tokens,
            "ignore_tensors": self.checkpoint.ignored_tensors,
            "layers": self.checkpoint.first_layers,
            **self.options,
        }

    def engine(self) -> tuple[TorchEngine | NativeEngine | StaticEngine, bool]:
        """The engine that runs the model, and whether its module is the plain one, which can be trained."""
        dtype = self.options["dtype"]
        if not self.checkpoint.spec.layers:
            return self._static(), False
        chosen = running(
            self.checkpoint.spec,
            dtype,
            device=self.options["device"],
            kernel=self.options["kernel"],
            backend=self.options["backend"],
        )
        match chosen.backend:
            case "native":
                return self._native(dtype), False
            case "torch":
                from unmask.engines.torch_engine import TorchEngine

                encoder = self._build()
                return TorchEngine(
                    _optimized(encoder, dtype) if chosen.packed else encoder
                ), not chosen.packed
            case _:
                assert_never(chosen.backend)

    def encoder(self) -> Encoder:
        """The plain module, read from the checkpoint's files, long after they were read first.

        Raises:
            CheckpointError: they have changed since.
        """
        self.require_unchanged()
        return self._build()

    def require_unchanged(self) -> None:
        """Raise `CheckpointError` if the files of the weights have changed since they were loaded."""
        if stamps(self.checkpoint) != self.files:
            raise CorruptCheckpoint(
                f"the weights of {self.checkpoint.source.name} have changed on disk since they were loaded; "
                "load them again"
            )

    def digest(self, dtype: str, trained: Encoder | None) -> str:
        """See `unmask.models.model.Model.content_digest`; ``trained`` is the module that may have changed."""
        checkpoint = self.checkpoint
        digest = hashlib.sha256()
        # Not the backend: its results differ as those of two machines do. No device is the CPU.
        named = {**self.options, "device": self.options["device"] or "cpu"}
        options = sorted((name, value) for name, value in named.items() if name != "backend")
        reads: list[str] = [self.special_tokens] if self.special_tokens != "parse" else []
        reads += [checkpoint.task] if checkpoint.task else []
        for part in (repr(checkpoint.spec), dtype, str(checkpoint.max_tokens), repr(options), *reads):
            digest.update(hashlib.sha256(part.encode()).digest())
        for name, content in sorted(checkpoint.tokenizer.files.items()):
            digest.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(content).digest())
        if trained is not None:
            import torch

            for name, tensor in sorted(trained.state_dict().items()):
                flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
                digest.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(flat).digest())
            return digest.hexdigest()
        self.require_unchanged()
        for path in sorted(self.files):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the folder, which is read again."""
        arguments = self.load_arguments() | {"source": self.checkpoint.source}
        return read_again, (arguments, self.options, self.files)

    def require_labels(self) -> None:
        """Raise `CheckpointError` if the head for labels, which is read again, has changed since."""
        if self.checkpoint.label_head is not None or self.checkpoint.class_head is not None:
            self.require_unchanged()

    def save_static(self, folder: Path) -> None:
        """Write a model without layers, see `unmask.weights.write.static.save_static`."""
        from unmask.weights.write.static import save_static

        self.require_unchanged()
        save_static(self.checkpoint, folder)

    def _build(self) -> Encoder:
        require_torch("the module of an encoder")
        from unmask.weights.build import build

        tell_torch()
        dtype = "float32" if self.options["dtype"] == "int8" else self.options["dtype"]
        return build(
            self.checkpoint,
            dtype=dtype,
            device=self.options["device"],
            kernel=self.options["kernel"],
        )

    def _static(self) -> StaticEngine:
        """The engine of an encoder without layers, which is the same whatever the options.

        Raises:
            InvalidRequest: an option asks for something else.
        """
        usual = {"dtype": "float32", "device": "cpu", "kernel": None, "backend": None}
        for name, value in usual.items():
            asked = self.options[name]  # type: ignore[literal-required]
            if asked not in (value, None):
                raise InvalidRequest(
                    f"{name} is {asked}, and {self.checkpoint.source.name} is a static model, which numpy "
                    f"computes in float32 on the CPU; leave {name} out"
                )
        weights = StoredArrays(self.checkpoint)
        weights.check("float32")
        head = self.checkpoint.head
        output = head if isinstance(head, PooledVector) else None
        return StaticEngine(self.checkpoint.spec, weights, output, self.checkpoint.unpooled_id)

    def _native(self, dtype: str) -> NativeEngine:
        """The engine whose layers run in the native library, and heads in numpy."""
        checkpoint = self.checkpoint
        weights = StoredArrays(checkpoint) if checkpoint.adapter is None else AdaptedArrays(checkpoint)
        weights.check("float32" if dtype == "int8" else dtype)
        return native_engine(
            checkpoint.spec,
            weights,
            dtype,
            in_torch=lambda: _optimized(self.encoder(), dtype),
            output=checkpoint.head,
        )


def read_again(arguments: Mapping[str, Any], options: LoadOptions, files: Stamps) -> LoadedSource:
    """The source of a pickled or copied model.

    Raises:
        CheckpointError: its files are missing or have changed since they were loaded.
    """
    checkpoint = read_checkpoint(
        arguments["source"], options["compat"], ignore_tensors=arguments["ignore_tensors"]
    )
    if checkpoint.tasks:
        checkpoint = checkpoint.of_task(arguments["adapter"])
    elif arguments["adapter"] is not None:
        checkpoint = adapted(checkpoint, read_adapter(arguments["adapter"]), options["compat"])
    checkpoint = with_first_layers(checkpoint, arguments["layers"])
    loaded = LoadedSource(checkpoint.reading(arguments["special_tokens"]), options, files)
    loaded.require_unchanged()
    return loaded


def stamps(checkpoint: Checkpoint) -> Stamps:
    """The stamps of the files that hold the checkpoint's weights."""
    stored = (*checkpoint.tensors.values(), *checkpoint.output_tensors.values())
    stats = {path: path.stat() for path in {tensor.file for tensor in stored}}
    return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in stats.items()}


def _optimized(encoder: Encoder, dtype: str) -> Encoder:
    from unmask.engines.inference import optimize_for_inference

    return optimize_for_inference(encoder, dtype)
