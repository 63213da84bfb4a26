"""Build an encoder with its weights from a checkpoint's files, accounting for every tensor."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.overrides import TorchFunctionMode

from unmask.encoder.encoder import Encoder, is_finite
from unmask.errors import InvalidRequest
from unmask.spec import CheckpointOutput, EncoderSpec
from unmask.spec.embedding_head import QUERY_WEIGHTS
from unmask.weights.adapters.adapter import check_base, factors_of
from unmask.weights.read.checkpoint import Checkpoint
from unmask.weights.read.checkpoint_tensors import (
    DTYPE_NAMES,
    damaged,
    differs_from_copy,
    not_finite_in,
    report_tensors,
)
from unmask.weights.tensors import StoredTensor, in_our_order

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}


class _NoInitialization(TorchFunctionMode):
    """Skip the initialization of new tensors; on the meta device it would import much of the compiler."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return function(*args, **(kwargs or {}))


def on_meta(spec: EncoderSpec, kernel: str | None = None, output: CheckpointOutput | None = None) -> Encoder:
    """The encoder on the meta device, without memory for tensors: for shapes, counts, and loading weights."""
    with torch.device("meta"), _NoInitialization():
        return Encoder(spec, kernel=kernel, output=output)


def build(
    checkpoint: Checkpoint,
    *,
    dtype: str = "float32",
    device: str | None = None,
    kernel: str | None = None,
) -> Encoder:
    """The encoder with its weights, in evaluation mode.

    Args:
        checkpoint: the result of `read_checkpoint`.
        dtype: a name in `DTYPES`; stored weights are converted to it.
        device: a torch device name; None is the CPU.
        kernel: the attention kernel to use; None uses the first that supports the model.

    Raises:
        TensorMismatch: see `unmask.weights.read.checkpoint_tensors`.
        CorruptCheckpoint: a file cannot be read, or contains a non-finite number.
    """
    if dtype not in DTYPES:
        raise InvalidRequest(f"dtype is {dtype!r}; it can be {', '.join(DTYPES)}")
    checkpoint.require_task()
    report, encoder = report_tensors(checkpoint), on_meta(checkpoint.spec, kernel, checkpoint.head)
    stored = read_tensors(
        checkpoint.tensors, {name for names in report.sources.values() for name in names} | set(report.copies)
    )
    state = {
        ours: torch.cat([stored[name] for name in names]) if len(names) > 1 else stored[names[0]]
        for ours, names in report.sources.items()
    }
    if checkpoint.adapter is not None:
        check_base(checkpoint)
    for ours, row in report.reorders.items():
        state[ours] = in_our_order(state[ours], row, checkpoint.spec)
    if checkpoint.adapter is not None:
        _add_updates(checkpoint, state)
    state |= read_tensors(checkpoint.output_tensors, set(checkpoint.output_tensors))
    if checkpoint.query_weights is not None:
        missing = checkpoint.spec.embedding.vocabulary - len(checkpoint.query_weights)
        state[QUERY_WEIGHTS] = torch.from_numpy(np.pad(checkpoint.query_weights, (0, missing)))
    for ours, tensor in state.items():
        state[ours] = tensor.to(device=device_named(device), dtype=DTYPES[dtype])
        if not is_finite(state[ours]):
            (name, *_) = report.sources.get(ours, (ours,))
            raise not_finite_in(name, dtype)
    for name, ours in report.copies.items():
        if not torch.equal(stored[name].to(state[ours]), state[ours]):
            raise differs_from_copy(name, report.sources[ours][0])
    encoder.load_state_dict(state, assign=True)
    return encoder.eval()


def _add_updates(checkpoint: Checkpoint, state: dict[str, Tensor]) -> None:
    """Add the updates of the checkpoint's adapter to the matrices of ``state``, in float64."""
    assert checkpoint.adapter is not None
    for ours, updates in factors_of(checkpoint).items():
        weight = state[ours].double()
        for rows, (a_RK, b_NR) in updates:
            weight[rows] += torch.from_numpy(checkpoint.adapter.scale * (b_NR @ a_RK))
        state[ours] = weight.to(state[ours].dtype)


def device_named(name: str | None) -> torch.device:
    """The device of that name; None is the CPU.

    Raises:
        InvalidRequest: torch has no such device type, or this machine has no such device.
    """
    try:
        device = torch.device(name or "cpu")
    except RuntimeError:
        raise InvalidRequest(f"device is {name!r}; give one that torch knows, such as cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest("device is cuda, and torch finds no CUDA device here; use cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidRequest(f"device is {name}, and torch finds {torch.cuda.device_count()} here")
    return device


def read_tensors(stored: Mapping[str, StoredTensor], names: Collection[str]) -> dict[str, Tensor]:
    """The tensors of these names.

    Raises:
        CorruptCheckpoint: a file cannot be read.

    A tensor with an update is read in float32, with the update; its factors are in the same file.
    """
    tensors: dict[str, Tensor] = {}
    for path in sorted({stored[name].file for name in names}):
        try:
            with safe_open(path, framework="pt") as file:
                for name in names:
                    if stored[name].file == path:
                        tensors[name] = file.get_tensor(stored[name].key or name)
                        update = stored[name].update
                        if update is not None:
                            factors = (update.left, update.right)
                            left_NR, right_RK = (
                                file.get_slice(str(one.key))[update.index].float() for one in factors
                            )
                            tensors[name] = tensors[name].float() + update.scale * (left_NR @ right_RK)
        except (SafetensorError, OSError) as error:
            raise damaged(path, error) from None
    return tensors
