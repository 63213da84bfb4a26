"""Which kernel runs: the first that can, or an error that lists every kernel and why it cannot."""

from functools import lru_cache

from unmask.errors import KernelError
from unmask.model.kernels.interface import Kernel, Need
from unmask.model.kernels.reference import ReferenceKernel
from unmask.model.kernels.rows import RowsKernel
from unmask.model.kernels.sdpa import SdpaKernel
from unmask.model.kernels.windows import WindowKernel

KERNELS: tuple[Kernel, ...] = (SdpaKernel(), WindowKernel(), RowsKernel(), ReferenceKernel())
"""Every kernel, fastest first."""


@lru_cache(maxsize=256)
def choose(need: Need, name: str | None = None) -> Kernel:
    """The first kernel that can do ``need``; with ``name``, that one or an error.

    Raises:
        KernelError: none can, the named one cannot, or there is no kernel of that name.
    """
    candidates = [kernel for kernel in KERNELS if name in (None, kernel.capability.name)]
    if not candidates:
        known = ", ".join(kernel.capability.name for kernel in KERNELS)
        raise KernelError(f"there is no kernel {name!r}; there are {known}")
    refusals = []
    for kernel in candidates:
        refusal = kernel.capability.refusal(need)
        if refusal is None:
            return kernel
        refusals.append(f"{kernel.capability.name} {refusal}")
    raise KernelError("no kernel can run this attention: " + "; ".join(refusals))
