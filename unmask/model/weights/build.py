"""Build an encoder with its weights from a checkpoint's files, accounting for every tensor."""

from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from unmask.errors import CorruptCheckpoint, InvalidRequest, TensorMismatch
from unmask.model.encoder import Encoder
from unmask.model.finite import is_finite
from unmask.model.spec import CheckpointOutput, EncoderSpec
from unmask.model.weights.adapter_weights import add_updates, check_base
from unmask.model.weights.checkpoint import Checkpoint
from unmask.model.weights.checkpoint_tensors import report_tensors
from unmask.model.weights.row_order import in_our_order
from unmask.model.weights.stored import read_tensors

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


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
        TensorMismatch: see `unmask.model.weights.checkpoint_tensors`.
        CorruptCheckpoint: a file cannot be read, or contains a non-finite number.
    """
    if dtype not in DTYPES:
        raise InvalidRequest(f"dtype is {dtype!r}; it can be {', '.join(DTYPES)}")
    made, encoder = report_tensors(checkpoint), on_meta(checkpoint.spec, kernel, checkpoint.head)
    wanted = {name for sources in made.sources.values() for name in sources} | set(made.copies)
    stored = read_tensors(checkpoint.tensors, wanted)
    state = {
        ours: torch.cat([stored[name] for name in sources]) if len(sources) > 1 else stored[sources[0]]
        for ours, sources in made.sources.items()
    }
    if checkpoint.adapter is not None:
        check_base(checkpoint, stored, made)
    for ours, row in made.reorders.items():
        state[ours] = in_our_order(state[ours], row, checkpoint.spec)
    if checkpoint.adapter is not None:
        add_updates(checkpoint, state)
    state |= read_tensors(checkpoint.output_tensors, set(checkpoint.output_tensors))
    if checkpoint.query_weights is not None:
        missing = checkpoint.spec.embedding.vocabulary - len(checkpoint.query_weights)
        state["output.0.weight"] = torch.from_numpy(np.pad(checkpoint.query_weights, (0, missing)))
    for ours, tensor in state.items():
        state[ours] = tensor.to(device=device_named(device), dtype=DTYPES[dtype])
        if not is_finite(state[ours]):
            (name, *_) = made.sources.get(ours, (ours,))
            raise CorruptCheckpoint(f"the tensor {name} holds a number that is not finite in {dtype}")
    for name, ours in made.copies.items():
        if not torch.equal(stored[name].to(state[ours]), state[ours]):
            raise TensorMismatch(
                f"the tensor {name} differs from {made.sources[ours][0]}, of which it should be a copy"
            )
    encoder.load_state_dict(state, assign=True)
    return encoder.eval()


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
