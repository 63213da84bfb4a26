"""Which code runs the layers of an encoder on this machine, and why no faster code does."""

from dataclasses import dataclass
from typing import Literal

from unmask.base.optional import require_torch
from unmask.engines.native.library import library_reason
from unmask.engines.native.program import unsupported_encoder
from unmask.errors import InvalidRequest
from unmask.spec import BlockSparse, EncoderSpec, SlidingWindowGlobal, SoftmaxAttention

Backend = Literal["native", "torch"]
"""Which code runs the layers: the native library, or torch."""


@dataclass(frozen=True)
class Running:
    """What runs the layers of an encoder."""

    backend: Backend
    packed: bool
    """In torch: whether weights are packed for oneDNN and operations fused, which leaves no gradients."""
    reason: str | None
    """Why nothing faster runs, as the end of "... because"."""
    except_for: str | None = None
    """Texts that run in torch although the backend is native."""


def running(
    spec: EncoderSpec | None,
    dtype: str,
    *,
    device: str | None = None,
    kernel: str | None = None,
    backend: Backend | None = None,
) -> Running:
    """What runs an encoder with these arguments of `unmask.load`.

    Args:
        spec: of the encoder; None for one of which the native library computes every part.
        dtype: the number format.
        device: a torch device name; None is the CPU.
        kernel: the attention kernel; None is any.
        backend: the backend that must run; None is any.

    Raises:
        InvalidRequest: nothing here runs it.
        MissingExtra: torch would run it, and is not installed.
    """
    no_native = _no_native(spec, dtype, device, kernel, backend)
    if no_native is None:
        return Running("native", False, None, None if spec is None else _in_torch_all_the_same(spec))
    if backend == "native":
        raise InvalidRequest(f"backend is native, and {no_native}; leave it out, or take torch")
    require_torch(f"this model, because {no_native}")
    from unmask.engines.inference import unsupported_reason

    unpacked = unsupported_reason(dtype, device)
    if unpacked is None:
        return Running("torch", True, no_native)
    if dtype == "int8":
        raise InvalidRequest(f"dtype is int8, and {unpacked}; take float32 or bfloat16")
    return Running("torch", False, unpacked)


def _no_native(
    spec: EncoderSpec | None, dtype: str, device: str | None, kernel: str | None, backend: Backend | None
) -> str | None:
    if backend == "torch":
        return "backend is torch"
    if device is not None and not device.startswith("cpu"):
        return f"the native library runs on cpu, not on {device}"
    if kernel is not None:
        return f"the kernel {kernel} is one of torch"
    return library_reason(dtype) or (None if spec is None else unsupported_encoder(spec))


def _in_torch_all_the_same(spec: EncoderSpec) -> str | None:
    patterns = [layer.mixer.pattern for layer in spec.layers if isinstance(layer.mixer, SoftmaxAttention)]
    if any(isinstance(pattern, SlidingWindowGlobal) for pattern in patterns):
        return "texts with global tokens"
    if any(isinstance(pattern, BlockSparse) for pattern in patterns):
        return "texts long enough for sparse blocks"
    return None
