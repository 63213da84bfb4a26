"""Choose a kernel: the first that supports the request, or an error with every kernel's reason."""

from functools import lru_cache

from unmask.errors import KernelError
from unmask.kernels.binned import BinnedKernel
from unmask.kernels.disentangled.kernel import DisentangledKernel
from unmask.kernels.gpu.disentangled import TritonDisentangledKernel
from unmask.kernels.gpu.flex import FlexKernel
from unmask.kernels.gpu.packed import TritonPackedKernel
from unmask.kernels.gpu.varlen import VarlenKernel
from unmask.kernels.interface import AttentionRequest, Kernel
from unmask.kernels.reference import ReferenceKernel, RowsKernel
from unmask.kernels.sdpa import MaskedSdpaKernel, SdpaKernel
from unmask.kernels.tiled.kernel import TiledKernel

GPU_KERNELS: tuple[Kernel, ...] = (
    VarlenKernel(),  # full attention and windows, for texts longer than one tile of the next kernel
    TritonPackedKernel(),  # short texts, and what torch's kernel lacks: ALiBi, gaps, log-sum-exp, float32
    TritonDisentangledKernel(),
    FlexKernel(),  # global tokens
)
"""Kernels that run only on a GPU. There, `sdpa` avoids a known fault by using no mask: with a mask, torch
2.11's SDPA has given NaN gradients for sequences of 128 n + 64 tokens."""

KERNELS: tuple[Kernel, ...] = (
    *GPU_KERNELS,
    BinnedKernel(),
    SdpaKernel(),
    MaskedSdpaKernel(),
    TiledKernel(),
    DisentangledKernel(),
    RowsKernel(),
    ReferenceKernel(),
)
"""Every kernel, fastest first within the lengths for which each is preferred."""


@lru_cache(maxsize=256)
def choose(request: AttentionRequest, name: str | None = None) -> Kernel:
    """The first kernel that can serve ``request`` and is preferred for its lengths, else the first that can.

    Everything it reads is on the host, so choosing never waits for a device and works in a captured graph.
    With ``name``, the kernel of that name or an error.

    Raises:
        KernelError: no kernel supports it, the named one does not, or there is no kernel of that name.
    """
    candidates = [kernel for kernel in KERNELS if name in (None, kernel.capability.name)]
    if not candidates:
        names = ", ".join(kernel.capability.name for kernel in KERNELS)
        raise KernelError(f"there is no kernel {name!r}; there are {names}")
    refusals = {kernel: kernel.capability.refusal(request) for kernel in candidates}
    able = [kernel for kernel, refusal in refusals.items() if refusal is None]
    if not able:
        reasons = "; ".join(f"{kernel.capability.name} {reason}" for kernel, reason in refusals.items())
        raise KernelError(f"no kernel can run this attention: {reasons}")
    return next((kernel for kernel in able if kernel.capability.is_preferred(request)), able[0])
