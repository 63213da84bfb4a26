"""Which kernel runs: the first that can, or an error that lists every kernel and why it cannot."""

from functools import lru_cache

from unmask.errors import KernelError
from unmask.model.kernels.binned import BinnedKernel
from unmask.model.kernels.disentangled.kernel import DisentangledKernel
from unmask.model.kernels.gpu.disentangled import TritonDisentangledKernel
from unmask.model.kernels.gpu.flex import FlexKernel
from unmask.model.kernels.gpu.packed import TritonPackedKernel
from unmask.model.kernels.gpu.varlen import VarlenKernel
from unmask.model.kernels.interface import AttentionRequest, Kernel
from unmask.model.kernels.reference import ReferenceKernel
from unmask.model.kernels.rows import RowsKernel
from unmask.model.kernels.sdpa import SdpaKernel
from unmask.model.kernels.sdpa_masked import MaskedSdpaKernel
from unmask.model.kernels.tiled.kernel import TiledKernel

GPU_KERNELS: tuple[Kernel, ...] = (
    VarlenKernel(),  # whole and windowed texts of more tokens than one tile of the next
    TritonPackedKernel(),  # short texts, and what torch's own has not: ALiBi, gaps, log-sum-exp, float32
    TritonDisentangledKernel(),
    FlexKernel(),  # global tokens
)
"""Those that run on nothing else. On a GPU `sdpa` stays clear of a known fault by masking nothing: with a
mask, torch 2.11's SDPA has given NaN as gradients of sequences of 128 n + 64 tokens there."""

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

    Everything it reads is known on the host, so that choosing waits for no device and may stand in a
    captured graph. With ``name``, that one or an error.

    Raises:
        KernelError: none can, the named one cannot, or there is no kernel of that name.
    """
    candidates = [kernel for kernel in KERNELS if name in (None, kernel.capability.name)]
    if not candidates:
        known = ", ".join(kernel.capability.name for kernel in KERNELS)
        raise KernelError(f"there is no kernel {name!r}; there are {known}")
    refusals = {kernel: kernel.capability.refusal(request) for kernel in candidates}
    able = [kernel for kernel, refusal in refusals.items() if refusal is None]
    if not able:
        reasons = "; ".join(f"{kernel.capability.name} {reason}" for kernel, reason in refusals.items())
        raise KernelError(f"no kernel can run this attention: {reasons}")
    return next((kernel for kernel in able if kernel.capability.is_preferred(request)), able[0])
