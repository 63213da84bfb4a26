"""Apply an adapter's low-rank updates to the stored weights of its base model."""

import hashlib
from collections.abc import Mapping

from torch import Tensor

from unmask.errors import InvalidRequest
from unmask.model.weights.adapter import A, B
from unmask.model.weights.checkpoint import Checkpoint
from unmask.model.weights.checkpoint_tensors import report_tensors
from unmask.model.weights.stored import read_tensors
from unmask.model.weights.tensor_report import TensorReport, canonical


def updated(checkpoint: Checkpoint, stored: Mapping[str, Tensor], made: TensorReport) -> dict[str, Tensor]:
    """The stored tensors with the low-rank updates of the checkpoint's adapter added to them.

    Raises:
        InvalidRequest: the base model's weights are not those that the adapter was trained on.
    """
    adapter = checkpoint.adapter
    assert adapter is not None
    if adapter.fingerprint is not None and adapter.fingerprint != _fingerprint(checkpoint, stored, made):
        raise InvalidRequest(
            f"the adapter {adapter.name} was trained on {adapter.base}, and {checkpoint.source.folder} has "
            "other weights of the same shapes; load the adapter on the model that it was trained on"
        )
    prefixes = checkpoint.family.prefixes
    names = {canonical(name, prefixes): name for name in stored}
    low_rank = {
        f"{target}{end}": tensor
        for target, pair in adapter.updates.items()
        for end, tensor in zip((A, B), pair, strict=True)
    }
    factors = read_tensors(low_rank, low_rank)
    found = dict(stored)
    for target in adapter.updates:
        name = names[canonical(target, prefixes)]
        a_RK, b_NR = (factors[target + end].double() for end in (A, B))
        found[name] = (found[name].double() + adapter.scale * (b_NR @ a_RK)).to(found[name].dtype)
    return found


def fingerprint(checkpoint: Checkpoint) -> str:
    """A digest by which an adapter recognizes the weights that it was trained on.

    It covers the encoder's vectors: biases and norms, which training changes and which are read quickly.
    """
    made = report_tensors(checkpoint)
    return _fingerprint(checkpoint, read_tensors(checkpoint.tensors, _vectors(checkpoint, made)), made)


def _vectors(checkpoint: Checkpoint, made: TensorReport) -> list[str]:
    return [
        name
        for ours, names in made.sources.items()
        for name in names
        if not ours.startswith(("heads.", "pooler.")) and len(checkpoint.tensors[name].shape) == 1
    ]


def _fingerprint(checkpoint: Checkpoint, stored: Mapping[str, Tensor], made: TensorReport) -> str:
    digest = hashlib.sha256()
    named = {canonical(name, checkpoint.family.prefixes): name for name in _vectors(checkpoint, made)}
    for standard, name in sorted(named.items()):
        digest.update(standard.encode())
        digest.update(stored[name].float().contiguous().numpy().tobytes())
    return digest.hexdigest()
