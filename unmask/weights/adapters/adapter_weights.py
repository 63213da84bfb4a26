"""Apply an adapter's low-rank updates to the stored weights of its base model."""

import hashlib
from collections.abc import Mapping

from torch import Tensor

from unmask.errors import InvalidRequest
from unmask.weights.adapters.adapter import parts_of
from unmask.weights.read.checkpoint import Checkpoint
from unmask.weights.read.checkpoint_tensors import report_tensors
from unmask.weights.read.stored import read_tensors
from unmask.weights.tensor_report import TensorReport, canonical
from unmask.weights.tensors import in_our_order


def check_base(checkpoint: Checkpoint, stored: Mapping[str, Tensor], report: TensorReport) -> None:
    """Refuse weights that are not those that the checkpoint's adapter was trained on.

    Raises:
        InvalidRequest: they are others.
    """
    adapter = checkpoint.adapter
    assert adapter is not None
    if adapter.fingerprint is not None and adapter.fingerprint != _fingerprint(checkpoint, stored, report):
        raise InvalidRequest(
            f"the adapter {adapter.name} was trained on {adapter.base}, and {checkpoint.source.folder} has "
            "other weights of the same shapes; load the adapter on the model that it was trained on"
        )


Factors = tuple[Tensor, Tensor]
"""A (R, K) and B (N, R) of a low-rank update of N x K."""


RowUpdates = list[tuple[slice, Factors]]
"""The rows of a matrix that each low-rank update changes."""


def factors_of(checkpoint: Checkpoint) -> dict[str, RowUpdates]:
    """The low-rank updates of the checkpoint's adapter, by our name of the matrix. Rows are in our order."""
    adapter, family = checkpoint.adapter, checkpoint.family
    assert adapter is not None
    stored = {
        f"{target}{end}": tensor for target, ab in adapter.updates.items() for end, tensor in enumerate(ab)
    }
    tensors = read_tensors(stored, stored)
    parts = parts_of(checkpoint.spec, family)
    factors: dict[str, RowUpdates] = {}
    for target in adapter.updates:
        part = parts[canonical(target, family.prefixes)]
        a_RK, b_NR = tensors[f"{target}0"], tensors[f"{target}1"]
        b_NR = in_our_order(b_NR, part.reorder, checkpoint.spec)
        factors.setdefault(part.ours, []).append((part.rows, (a_RK, b_NR)))
    return factors


def add_updates(checkpoint: Checkpoint, state: dict[str, Tensor]) -> None:
    """Add the updates of the checkpoint's adapter to the matrices of ``state``, computed in float64."""
    assert checkpoint.adapter is not None
    for ours, updates in factors_of(checkpoint).items():
        weight = state[ours].double()
        for rows, (a_RK, b_NR) in updates:
            weight[rows].add_(b_NR.double() @ a_RK.double(), alpha=checkpoint.adapter.scale)
        state[ours] = weight.to(state[ours].dtype)


def fingerprint(checkpoint: Checkpoint) -> str:
    """A digest by which an adapter recognizes the weights that it was trained on.

    It covers the encoder's vectors: biases and norms, which training changes and which are read quickly.
    """
    report = report_tensors(checkpoint)
    return _fingerprint(checkpoint, read_tensors(checkpoint.tensors, _vectors(checkpoint, report)), report)


def _vectors(checkpoint: Checkpoint, report: TensorReport) -> list[str]:
    return [
        name
        for ours, names in report.sources.items()
        for name in names
        if not ours.startswith(("heads.", "pooler.")) and len(checkpoint.tensors[name].shape) == 1
    ]


def _fingerprint(checkpoint: Checkpoint, stored: Mapping[str, Tensor], report: TensorReport) -> str:
    digest = hashlib.sha256()
    stored_names = {
        canonical(name, checkpoint.family.prefixes): name for name in _vectors(checkpoint, report)
    }
    for standard, name in sorted(stored_names.items()):
        digest.update(standard.encode())
        digest.update(stored[name].float().contiguous().numpy().tobytes())
    return digest.hexdigest()
