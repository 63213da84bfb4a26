"""What a folder of an adapter holds, as a plain value."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.spec import ClassifierRole
from unmask.weights.tensors import StoredTensor


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter's folder, without its weights."""

    name: str
    folder: Path
    role: ClassifierRole
    config: Mapping[str, Any]
    """The keys of config.json in which the adapted model differs from its base."""
    scale: float
    """The factor of the low-rank updates."""
    tensors: Mapping[str, StoredTensor]
    """The tensors of the head, by the names that they have in a checkpoint of the adapted model."""
    updates: Mapping[str, tuple[StoredTensor, StoredTensor]]
    """A and B of every updated matrix, by its name in a checkpoint."""
    base: str | None
    """The name of its base model."""
    fingerprint: str | None
    """Of the base's weights, see `unmask.weights.adapters.adapter_weights`; None if unknown."""
