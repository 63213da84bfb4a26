"""The interface that `unmask` and other libraries implement for benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unmask.spec import PooledVector

if TYPE_CHECKING:
    from torch import Tensor

Answers = Literal["texts", "documents"]
"""``texts``: embeddings of strings. ``documents``: last hidden states of ids."""

PACKAGES = {
    "accelerate": "accelerate",
    "model2vec": "model2vec",
    "nncf": "nncf",
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "sentence_transformers": "sentence-transformers",
    "transformers": "transformers",
}
"""Of the extra ``peers``: modules that must be importable, and their names on PyPI."""

TEXTS_PER_BATCH = 32
"""The default of `sentence-transformers`, used for all padded engines."""


class PeerEngine(Protocol):
    """A model loaded into one library."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embeddings (S, E) of texts in the order given; texts that are too long are truncated."""

    def hidden(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Last hidden states (N, D) of one sequence of ids."""


@dataclass(frozen=True)
class Source:
    """The checkpoint and settings that an engine is loaded from."""

    folder: Path
    """The checkpoint folder, the same for all engines."""
    head: PooledVector
    max_tokens: int | None
    work: Path
    """A folder for files that a library must convert first."""
    device: str
    calibration: tuple[str, ...] = ()
    """Texts from which a library chooses the scales of its activations, when it converts."""


@dataclass(frozen=True)
class Peer:
    """One way of running the model: a library and its settings."""

    name: str
    dtype: str
    """The dtype of its matrix products, which determines how closely its outputs should agree."""
    settings: str
    """How it is run, for people."""
    load: Callable[[Source], PeerEngine]
    modules: tuple[str, ...] = ()
    """Modules of the extra ``peers`` that must be importable."""
    answers: tuple[Answers, ...] = ("texts", "documents")
    holds_scores: bool = False
    """Whether it holds all attention scores of a layer at once: tokens x tokens for each head."""
    ours: bool = False
    only_cpu: bool = False
    """Whether it runs on the CPU whatever the device is."""

    def unavailable(self) -> str | None:
        """Why it cannot be loaded; None if it can."""
        return absent(self.modules)


def absent(modules: Iterable[str]) -> str | None:
    """Which modules of the extra ``peers`` are not installed, and how to install them; None if all are."""
    missing = [PACKAGES[module] for module in modules if find_spec(module) is None]
    return f"not installed: {' and '.join(missing)} (pip install '.[peers]')" if missing else None


Run: TypeAlias = "Callable[[dict[str, Tensor]], Tensor]"
"""Maps padded inputs (B, N) by name to last hidden states (B, N, D)."""


class PaddedEngine:
    """Runs texts in padded batches, for libraries without packed batches.

    Texts are sorted by their number of tokens, which minimizes padding, in batches of ``TEXTS_PER_BATCH``.

    Args:
        tokenizer: a tokenizer of `transformers`.
        names: names of the inputs that ``run`` accepts.
        run: the model.
        source: provides the pooling and the maximum length.
    """

    def __init__(self, tokenizer: Any, names: Sequence[str], run: Run, source: Source) -> None:
        self.tokenizer, self.names, self.run, self.source = tokenizer, tuple(names), run, source

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `PeerEngine`."""
        import torch

        head, limit = self.source.head, self.source.max_tokens
        encoded = self.tokenizer(list(texts), truncation=limit is not None, max_length=limit)
        lengths = [len(ids) for ids in encoded["input_ids"]]
        order = sorted(range(len(texts)), key=lambda index: -lengths[index])
        parts = []
        for first in range(0, len(order), TEXTS_PER_BATCH):
            chosen = order[first : first + TEXTS_PER_BATCH]
            rows = {name: [values[index] for index in chosen] for name, values in encoded.items()}
            inputs = dict(self.tokenizer.pad(rows, return_tensors="pt"))
            x_BND = self.run({name: inputs[name] for name in self.names})
            parts.append(pooled(x_BND, inputs["attention_mask"].to(x_BND.device), head))
        embeddings_SE = torch.cat(parts).float().cpu().numpy()
        return np.asarray(embeddings_SE[np.argsort(order)])

    def hidden(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """See `PeerEngine`."""
        import torch

        ids_1N = torch.from_numpy(ids)[None]
        every = {
            "input_ids": ids_1N,
            "attention_mask": torch.ones_like(ids_1N),
            "token_type_ids": torch.zeros_like(ids_1N),
        }
        return self.run({name: every[name] for name in self.names})[0].float().cpu().numpy()


def pooled(x_BND: Tensor, mask_BN: Tensor, head: PooledVector) -> Tensor:
    """Embeddings (B, E) of padded states, with the pooling of the checkpoint."""
    import torch

    seen_BN1 = mask_BN[..., None].to(x_BND.dtype)
    sums_BD, counts_B1 = (x_BND * seen_BN1).sum(1), seen_BN1.sum(1)
    poolings = {
        "mean": lambda: sums_BD / counts_B1,
        "mean_sqrt_len": lambda: sums_BD / counts_B1.sqrt(),
        "cls": lambda: x_BND[:, 0],
        "max": lambda: x_BND.masked_fill(seen_BN1 == 0, -torch.inf).amax(1),
    }
    e_BE = torch.cat([poolings[mode]() for mode in head.pooling], dim=-1)
    return torch.nn.functional.normalize(e_BE, dim=-1) if head.normalize else e_BE
