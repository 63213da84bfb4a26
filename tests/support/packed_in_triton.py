"""Our packed Triton kernel against the definition; run as a program by Triton's interpreter, or on a GPU.

Prints a line of JSON for each case: the largest errors of the mix, of the log-sum-exp and of the gradients.
"""

import json
import sys
from dataclasses import asdict, dataclass, field

import torch

from unmask.kernels import AttentionBias
from unmask.kernels.gpu.packed import TritonPackedKernel
from unmask.kernels.reference import ReferenceKernel
from unmask.kernels.triton import packed_launch
from unmask.kernels.triton.packed_tiles import Tiles
from unmask.spec import (
    Alibi,
    AttentionPattern,
    CausalAttention,
    FullAttention,
    NoPosition,
    SlidingWindow,
)
from unmask.text import SequenceLayout


@dataclass(frozen=True)
class Case:
    """One comparison."""

    lengths: list[int]
    pattern: AttentionPattern = field(default_factory=FullAttention)
    alibi: bool = False
    heads: int = 2
    width: int = 16
    dtype: str = "float32"
    grouped: bool = True
    """False cuts short sequences into tiles too, as float32 does where groups do not fit."""
    fused: bool = True
    """Whether queries, keys and values are columns of one tensor, as the layers have them."""


CASES = (
    Case([1, 15, 16, 17, 1]),
    Case([15, 17, 33], heads=1, grouped=False),
    Case([63, 1, 64, 2], SlidingWindow(5), alibi=True),
    Case([65, 63], heads=1, fused=False),
    Case([129, 3], SlidingWindow(7), heads=1),
    Case([140, 1], SlidingWindow(9, dilation=4), alibi=True, heads=1, grouped=False),
    Case([63, 1, 64, 2], CausalAttention(), heads=1),
    Case([20, 9], width=80, heads=1),
    Case([64, 65, 1], heads=1, width=64, dtype="float16"),
)
"""In every run of the tests."""

MORE = (
    Case([1]),
    Case([127, 128], SlidingWindow(20), heads=1),
    Case([129], SlidingWindow(500), alibi=True, heads=1, width=32),
    Case([64, 20], SlidingWindow(2, dilation=3), heads=3, width=16),
    Case([33, 17], SlidingWindow(0), heads=1, grouped=False),
    Case([33, 140, 1], CausalAttention(), alibi=True, heads=1, grouped=False),
    Case([70, 200], CausalAttention(), heads=1, width=32, dtype="float16"),
    Case([33], width=128, heads=1, alibi=True),
    Case([64, 65, 1, 129], heads=1, width=64, dtype="float16"),
    Case([70, 200], SlidingWindow(64), alibi=True, heads=1, width=32, dtype="float16"),
)
"""In the long run, and on a GPU."""


def attend(kernel, case: Case, x_T3HK, device):
    """The mix, the log-sum-exp and the gradient of all that goes in."""
    layout = SequenceLayout.of_lengths(case.lengths)
    x_T3HK = x_T3HK.detach().to(device, copy=True).requires_grad_()
    parts = x_T3HK.unbind(1)
    if not case.fused:
        parts = [part.mT.contiguous().mT for part in parts]
    o_THK, lse_TH = kernel.attend(
        *parts,
        kernel.plan(layout, case.pattern, torch.device(device)),
        pattern=case.pattern,
        bias=AttentionBias.of(Alibi() if case.alibi else NoPosition(), case.heads),
        log_sum_exp=True,
    )
    draw = torch.Generator().manual_seed(1)
    upward = [torch.randn(y.shape, generator=draw, dtype=torch.float64) for y in (o_THK, lse_TH)]
    torch.autograd.backward([o_THK, lse_TH], [g.to(y) for g, y in zip(upward, (o_THK, lse_TH), strict=True)])
    return [y.detach().double().cpu() for y in (o_THK, lse_TH, x_T3HK.grad)]


def errors(case: Case, device: str) -> dict[str, float]:
    """The largest differences to the definition in float64, of the same rounded inputs."""
    dtype = getattr(torch, case.dtype)
    shape = (sum(case.lengths), 3, case.heads, case.width)
    x_T3HK = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = attend(TritonPackedKernel(), case, x_T3HK, device)
    expected = attend(ReferenceKernel(), case, x_T3HK.double(), "cpu")
    return {
        name: float((one - other).abs().max())
        for name, one, other in zip(("mix", "lse", "gradient"), found, expected, strict=True)
    }


def dropped(device: str) -> dict[str, float]:
    """Dropout: values that name their tokens show which probabilities were kept; the gradients must agree."""
    length, share = 16, 0.4
    layout = SequenceLayout.of_lengths([length])
    kernel, plan = (
        TritonPackedKernel(),
        TritonPackedKernel().plan(layout, FullAttention(), torch.device(device)),
    )
    draw = torch.Generator().manual_seed(0)
    q, k, v, upward = torch.randn(4, length, 2, 16, generator=draw)
    names = torch.eye(length)[:, None, :].expand(length, 2, length).contiguous()

    def run(q, k, v, kernel=kernel):
        torch.manual_seed(5)  # before every run, so that each drops the same
        tensors = [x.to(device) for x in (q, k, v)]
        return kernel.attend(
            *tensors, plan, pattern=FullAttention(), bias=AttentionBias(), dropout=share
        ).o_THK

    kept = run(q, k, names).cpu().permute(1, 0, 2) != 0
    gradients = []
    for by_definition in (False, True):
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        if by_definition:
            s = torch.einsum("rhk,chk->hrc", *(x.double() for x in inputs[:2])) / 4
            p = s.softmax(-1) * kept / (1 - share)
            o = torch.einsum("hrc,chk->rhk", p, inputs[2].double())
        else:
            o = run(*inputs)
        o.backward(upward.to(o))
        gradients.append(torch.stack([o.detach().cpu().double(), *(x.grad.double() for x in inputs)]))
    return {
        "dropped": float((~kept).double().mean()),
        "heads_agree": float((kept[0] == kept[1]).double().mean()),
        "gradient": float((gradients[0] - gradients[1]).abs().max()),
    }


def main(device: str, *more: str) -> None:
    """Every case (with ``more`` those of the long run too), then dropout through groups and through tiles."""
    original, original_long = packed_launch.short_tiles, packed_launch.long_tiles
    never, always = (lambda *_: None), (lambda size, *_: Tiles(size, size, 4, 1))
    for case in (*CASES, *MORE) if more else CASES:
        # An interpreter has registers enough: in float32 too it takes groups of 128 and tiles that are fewer.
        shipped = device == "cuda" or case.dtype != "float32"
        packed_launch.short_tiles = original if shipped else always
        packed_launch.long_tiles = original_long if shipped else lambda *_: Tiles(32, 64, 4, 1)
        if not case.grouped:
            packed_launch.short_tiles = never
        record = asdict(case) | {"pattern": str(case.pattern)}
        print(json.dumps({"case": record, "errors": errors(case, device)}), flush=True)
    for path, rule in (("groups", always), ("tiles", never)):
        packed_launch.short_tiles = rule
        print(json.dumps({"dropout": path, "errors": dropped(device)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
