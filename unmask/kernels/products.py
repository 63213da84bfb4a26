"""Products of one fixed matrix with many others through oneDNN, which is faster than torch's own on CPU.

oneDNN wants the fixed matrix in its packed weight layout. Packing pays off for many rows; for fewer, the
plain product is faster.
"""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from unmask.base.progress import bound_caches

LAID_OUT_FROM = 4096
"""Minimum rows of the fixed matrix, by measurement."""

ROWS_AT_ONCE = 1024
"""Rows of an outer product that are summed at a time, by measurement."""


@cache
def onednn_takes(dtype: torch.dtype) -> bool:
    """Whether this torch and processor have the operations for matrices of this dtype.

    It is asked before the first product, so this is where the caches of all products are bounded.
    """
    bound_caches()
    names = ("_linear_pointwise", "_reorder_linear_weight")
    available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not available or not all(hasattr(torch.ops.mkldnn, name) for name in names):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


class Staying:
    """A fixed matrix (N, K) for products ``x w^T`` with many x."""

    def __init__(self, w_NK: Tensor, rows: int, *, lay_out: bool) -> None:
        w_NK = w_NK.contiguous()
        self.w = torch.ops.mkldnn._reorder_linear_weight(w_NK, rows) if lay_out else w_NK

    def times(self, x_MK: Tensor, bias_N: Tensor | None = None) -> Tensor:
        """Shape (M, N), plus ``bias_N``."""
        y_MN: Tensor = torch.ops.mkldnn._linear_pointwise(x_MK, self.w, bias_N, "none", [], "none")
        return y_MN


def once(x_MK: Tensor, y_NK: Tensor) -> Tensor:
    """A product (M, N) of two matrices that are used only once."""
    return Staying(y_NK, len(x_MK), lay_out=False).times(x_MK.contiguous())


class SharedKeys:
    """Keys and values of one head, multiplied with ``rows`` queries at a time."""

    def __init__(self, k_CK: Tensor, v_CK: Tensor, rows: int) -> None:
        lay_out = len(k_CK) >= LAID_OUT_FROM
        self._keys = Staying(k_CK, rows, lay_out=lay_out)
        self._values = Staying(v_CK.T, rows, lay_out=lay_out)

    def scores(self, q_11RK: Tensor) -> Tensor:
        """Shape (1, 1, R, C)."""
        return self._keys.times(q_11RK[0, 0])[None, None]

    def mix(self, p_11RC: Tensor) -> Tensor:
        """Shape (1, 1, R, K)."""
        return self._values.times(p_11RC[0, 0])[None, None]


def takes(x: Tensor) -> bool:
    """Whether `linear` and `outer` use oneDNN for the tensor: float32 on a CPU."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and onednn_takes(torch.float32)


def linear(x_MK: Tensor, w_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """``x w^T``, (M, N), plus a bias, without autograd; `functional.linear` if that is as fast."""
    if not takes(x_MK) or not len(x_MK):
        return functional.linear(x_MK, w_NK, bias_N)
    y_MN: Tensor = torch.ops.mkldnn._linear_pointwise(x_MK, w_NK, bias_N, "none", [], "none")
    return y_MN


def outer(g_MN: Tensor, x_MK: Tensor) -> Tensor:
    """``g^T x``, (N, K), which is the gradient of a weight, without autograd."""
    if not takes(x_MK) or not len(x_MK):
        return g_MN.t() @ x_MK
    total_NK: Tensor | None = None
    for g_RN, x_RK in zip(torch.split(g_MN, ROWS_AT_ONCE), torch.split(x_MK, ROWS_AT_ONCE), strict=True):
        some_NK = torch.ops.mkldnn._linear_pointwise(g_RN.t(), x_RK.t(), None, "none", [], "none")
        total_NK = some_NK if total_NK is None else total_NK.add_(some_NK)
    assert total_NK is not None
    return total_NK
