"""An adapter's low-rank updates, and the stored weights of its base model with them. Free of torch."""

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.weights.adapters.adapter import parts_of
from unmask.weights.read.checkpoint import Checkpoint
from unmask.weights.read.checkpoint_tensors import (
    Float32s,
    StoredArrays,
    not_finite_in,
    read_arrays,
    report_tensors,
    rounds_to_finite,
)
from unmask.weights.tensor_report import TensorReport, canonical
from unmask.weights.tensors import in_our_order


def check_base(checkpoint: Checkpoint) -> None:
    """Refuse weights that are not those that the checkpoint's adapter was trained on.

    Raises:
        InvalidRequest: they are others.
    """
    adapter = checkpoint.adapter
    assert adapter is not None
    if adapter.fingerprint is not None and adapter.fingerprint != fingerprint(checkpoint):
        raise InvalidRequest(
            f"the adapter {adapter.name} was trained on {adapter.base}, and {checkpoint.source.folder} has "
            "other weights of the same shapes; load the adapter on the model that it was trained on"
        )


Factors = tuple[NDArray[np.float64], NDArray[np.float64]]
"""A (R, K) and B (N, R) of a low-rank update of N x K."""


RowUpdates = list[tuple[slice, Factors]]
"""The rows of a matrix that each low-rank update changes."""


def factors_of(checkpoint: Checkpoint) -> dict[str, RowUpdates]:
    """The low-rank updates of the checkpoint's adapter, by our name of the matrix. Rows are in our order."""
    adapter, family = checkpoint.adapter, checkpoint.family
    assert adapter is not None
    arrays = read_arrays(
        {f"{target}{end}": tensor for target, ab in adapter.updates.items() for end, tensor in enumerate(ab)}
    )
    parts = parts_of(checkpoint.spec, family)
    factors: dict[str, RowUpdates] = {}
    for target in adapter.updates:
        part = parts[canonical(target, family.prefixes)]
        a_RK, b_NR = (arrays[f"{target}{end}"].astype(np.float64) for end in (0, 1))
        b_NR = in_our_order(b_NR, part.reorder, checkpoint.spec)
        factors.setdefault(part.ours, []).append((part.rows, (a_RK, b_NR)))
    return factors


def updated(weight: Float32s, updates: RowUpdates, scale: float) -> Float32s:
    """A matrix with low-rank updates, ``scale * B A`` each, which are added in float64."""
    exact = weight.astype(np.float64)
    for rows, (a_RK, b_NR) in updates:
        exact[rows] += scale * (b_NR @ a_RK)
    return exact.astype(np.float32)


class AdaptedArrays(StoredArrays):
    """`StoredArrays` of a checkpoint with an adapter: its base's weights with its updates, and its head."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        assert checkpoint.adapter is not None
        check_base(checkpoint)
        self._scale, self._updates = checkpoint.adapter.scale, factors_of(checkpoint)

    def __getitem__(self, name: str) -> Float32s:
        weight = super().__getitem__(name)
        return updated(weight, self._updates[name], self._scale) if name in self._updates else weight

    def parts(self, name: str, rows: int) -> Iterator[Float32s]:
        """See `StoredArrays`."""
        if name in self._updates:
            yield self[name]
        else:
            yield from super().parts(name, rows)

    def check(self, dtype: str) -> None:
        """See `StoredArrays`."""
        super().check(dtype)
        for name in self._updates:
            if not rounds_to_finite(self[name], dtype):
                raise not_finite_in(self._report.sources[name][0], dtype)


def fingerprint(checkpoint: Checkpoint) -> str:
    """A digest by which an adapter recognizes the weights that it was trained on.

    It covers the encoder's vectors: biases and norms, which training changes and which are read quickly.
    """
    names = _vectors(checkpoint, report_tensors(checkpoint))
    arrays = read_arrays({name: checkpoint.tensors[name] for name in names})
    digest = hashlib.sha256()
    for standard, name in sorted((canonical(name, checkpoint.family.prefixes), name) for name in names):
        digest.update(standard.encode())
        digest.update(arrays[name].astype(np.float32).tobytes())
    return digest.hexdigest()


def _vectors(checkpoint: Checkpoint, report: TensorReport) -> list[str]:
    return [
        name
        for ours, names in report.sources.items()
        for name in names
        if not ours.startswith(("heads.", "pooler.")) and len(checkpoint.tensors[name].shape) == 1
    ]
