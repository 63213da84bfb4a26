"""The Triton kernel of disentangled attention: interpreted beside the reference, its plans, its refusals."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support import plain
from tests.support.cross_compile import HOPPER_SHARED_BYTES, compile_for_hopper
from tests.support.examples import examples
from unmask.errors import KernelError
from unmask.kernels import AttentionBias, DistanceBias
from unmask.kernels.gpu.disentangled import TritonDisentangledKernel
from unmask.kernels.triton.disentangled_launch import (
    FORWARD,
    KEYS,
    LENGTHS,
    QUERIES,
    Tiles,
    add_token_gradients,
    band_ends,
    band_of,
    band_products,
    heads_together,
    launch_of,
    table_gradients,
)
from unmask.spec import Disentangled, FullAttention, SlidingWindow
from unmask.text import SequenceLayout

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")

POSITIONS = st.sampled_from(
    [
        Disentangled(1),
        Disentangled(5),
        Disentangled(1, clamped=True),
        Disentangled(7, buckets=4),
        Disentangled(9, buckets=2),
        Disentangled(40, buckets=8, clamped=True),
        Disentangled(512, buckets=256),
    ]
)


def report_of(*arguments):
    """What `tests.support.interpreted_disentangled` prints; Triton interprets from its first import on."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.interpreted_disentangled", *arguments],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def interpreted():
    return report_of()


def assert_equal_to_the_reference(cases):
    for name, found in cases.items():
        assert found.keys() >= {"result", "log-sum-exp", "queries", "keys", "values"}, name
        assert max(found.values()) <= 1e-5, (name, found)


def test_results_and_gradients_equal_the_reference(interpreted):
    cases = interpreted["cases"]
    assert_equal_to_the_reference(cases)
    assert "table as keys" not in cases["position to content"]
    assert "table as queries" not in cases["content to position"]
    assert {"table as keys", "table as queries"} <= cases["tile edges, buckets"].keys()


@pytest.mark.slow
def test_more_results_and_gradients_equal_the_reference():
    assert_equal_to_the_reference(report_of("more"))


def test_the_cases_hold_every_kind_of_tile(interpreted):
    assert min(interpreted["kinds of tiles"].values()) >= 5


def test_half_precision_stays_within_a_few_of_its_roundings(interpreted):
    assert max(interpreted["float16"].values()) <= 4 * torch.finfo(torch.float16).eps


def test_heads_in_several_runs_are_those_of_one_run(interpreted):
    assert max(interpreted["heads apart"].values()) == 0


def test_strides_of_the_inputs_do_not_matter(interpreted):
    assert max(interpreted["strided"].values()) == 0


def test_dropout_is_the_same_in_both_passes(interpreted):
    found = interpreted["dropped"]
    facts = {name: found.pop(name) for name in ("kept", "heads that differ", "another seed")}
    assert max(found.values()) <= 1e-5, found
    assert abs(facts["kept"] - 0.7) < 0.05  # of 2,048 draws: five standard deviations
    assert abs(facts["heads that differ"] - 2 * 0.7 * 0.3) < 0.1
    assert facts["another seed"] > 0.1


@examples(40)
@given(position=POSITIONS, longest=st.integers(1, 700), heads=st.integers(1, 2))
def test_a_band_holds_the_row_of_every_distance(position, longest, heads):
    band = band_of(position, longest, CPU)
    assert (
        band.columns <= 2 * max(position.max_distance, LENGTHS) + 16
        or band.columns < 2 * longest + 2 * LENGTHS
    )
    for behind in range(1 - longest, longest):
        column = min(max(band.high - behind, 0), band.last)
        assert band.rows_W[column] == plain.distance_row(behind, position)


@examples(20)
@given(position=POSITIONS, longest=st.integers(1, 90), seed=st.integers(0, 99))
def test_products_with_a_band_and_their_gradients(position, longest, seed):
    generator = torch.Generator().manual_seed(seed)
    band = band_of(position, longest, CPU)
    x_HTK = torch.randn(2, 5, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    table_PHK = torch.randn(
        2 * position.span, 2, 3, dtype=torch.float64, generator=generator, requires_grad=True
    )
    expected_HTW = 0.7 * torch.einsum("htk,whk->htw", x_HTK, table_PHK[band.rows_W])
    found_HTW = band_products(x_HTK.detach(), table_PHK.detach(), band, 0.7)
    torch.testing.assert_close(found_HTW, expected_HTW)
    assert torch.equal(band_ends(found_HTW, band)[:, 1], found_HTW[:, :, band.last])
    # The kernel writes nothing beyond the last column.
    weight_HTW = torch.randn(found_HTW.shape, dtype=torch.float64, generator=generator)
    weight_HTW[..., band.last + 1 :] = 0
    (expected_HTW * weight_HTW).sum().backward()
    sum_HTK = torch.ones(2, 5, 3, dtype=torch.float64)
    add_token_gradients(sum_HTK, weight_HTW, table_PHK.detach(), band, 0.7)
    torch.testing.assert_close(sum_HTK - 1, x_HTK.grad)
    found_PHK = table_gradients(x_HTK.detach(), weight_HTW, band, 0.7)
    torch.testing.assert_close(found_PHK.double(), table_PHK.grad, rtol=0, atol=2e-5)


def test_memory_of_bands_does_not_grow_with_the_longest_text():
    position = Disentangled(512, buckets=256)
    assert band_of(position, 8192, CPU).columns == band_of(position, 1024, CPU).columns == 1024
    runs = list(heads_together(12, 300 << 20))
    assert [head for run in runs for head in range(run.start, run.stop)] == list(range(12))
    assert {run.stop - run.start for run in runs} == {3}


@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=8), tile=st.sampled_from([16, 64, 128]))
def test_tiles_cover_every_token_once_longest_text_first(lengths, tile):
    layout = SequenceLayout.of_lengths(lengths)
    items = Tiles(layout, CPU).of(tile).tolist()
    covered = [
        start + row for start, length, first in items for row in range(first, min(first + tile, length))
    ]
    assert sorted(covered) == list(range(layout.token_count))
    assert [length for _, length, _ in items] == sorted((length for _, length, _ in items), reverse=True)
    assert all(start in layout.offsets for start, _, _ in items)


def asked(width=32, pattern=None, dtype=torch.float32, bias=None):
    position, pattern = Disentangled(4), pattern or FullAttention()
    kernel, layout = TritonDisentangledKernel(), SequenceLayout.of_lengths([3])
    table = torch.zeros(2 * position.span, 2, width, dtype=dtype)
    bias = bias or AttentionBias(distances=DistanceBias(position, table, table))
    q = torch.zeros(3, 2, width, dtype=dtype)
    return kernel.attend(q, q, q, kernel.plan(layout, pattern, CPU), pattern=pattern, bias=bias)


@pytest.mark.parametrize(
    "wrong",
    [
        {"width": 48},
        {"pattern": SlidingWindow(2)},
        {"dtype": torch.float64},
        {"bias": AttentionBias()},
        {"bias": AttentionBias(slopes_H=torch.zeros(2))},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_it_refuses_what_its_record_does_not_list(wrong):
    pytest.importorskip("triton")
    with pytest.raises(KernelError, match="was called for something its record does not list"):
        asked(**wrong)


def test_it_refuses_a_cpu_that_does_not_interpret(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(KernelError, match="runs on cuda, not on cpu unless Triton interprets"):
        asked()


def test_without_triton_it_says_so(monkeypatch):
    monkeypatch.setattr("unmask.kernels.interface._importable", lambda module: False)
    with pytest.raises(KernelError, match="needs triton, which is not installed"):
        asked()
    assert np.all([name != "cpu" for name in TritonDisentangledKernel.capability.devices])


KINDS = {
    "lse": "*fp32",
    "delta": "*fp32",
    "seed": "*i64",
    "items": "*i32",
    "scale": "fp32",
    "dropout": "fp32",
}
NUMBERS = ("tokens", "heads", "first_head", "some_heads", "high", "last")
STRIDES = ("columns", "q_token", "q_head", "k_token", "k_head", "v_token", "v_head")


def compiled(name, width, dtype, dropping, has):
    """The report of one function as it is launched."""
    pytest.importorskip("triton")
    from unmask.kernels.triton import disentangled_backward, disentangled_forward

    how = launch_of(name, width, dtype == "fp32", dropping)
    function = getattr(disentangled_forward if name == FORWARD else disentangled_backward, name)
    constants = {"WIDTH": width, "TILE": how.tile, "STEP": how.step, "EXACT": dtype == "fp32"}
    constants |= {"HAS_C": has[0], "HAS_D": has[1], "DROPOUT": dropping}
    signature = KINDS | dict.fromkeys(NUMBERS, "i32") | dict.fromkeys(STRIDES, "i32:16")
    signature = {
        argument: signature.get(argument, f"*{dtype}")
        for argument in function.arg_names
        if argument not in constants
    }
    return compile_for_hopper(function, signature, constants, how.warps, how.stages)


@pytest.mark.parametrize("name", [FORWARD, QUERIES, KEYS])
def test_it_compiles_for_hopper_without_spills(name):
    report = compiled(name, 64, "bf16", dropping=False, has=(True, True))
    assert report.spills == 0
    assert report.has_wgmma
    assert report.shared_bytes < HOPPER_SHARED_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("name", [FORWARD, QUERIES, KEYS])
@pytest.mark.parametrize("width", sorted(TritonDisentangledKernel.capability.head_widths))
@pytest.mark.parametrize(
    ("dtype", "dropping", "has"),
    [
        ("bf16", False, (True, True)),
        ("bf16", True, (True, True)),
        ("fp16", False, (True, True)),
        ("fp32", False, (True, True)),
        ("fp32", True, (True, True)),
        ("bf16", False, (True, False)),
        ("bf16", False, (False, True)),
    ],
)
def test_every_launch_compiles_for_hopper_without_spills(name, width, dtype, dropping, has):
    report = compiled(name, width, dtype, dropping, has)
    # Heads of 128 in float32 leave nothing smaller to choose.
    assert report.spills <= (16 if (width, dtype) == (128, "fp32") else 0)
    assert report.has_wgmma == (dtype != "fp32")
    assert report.shared_bytes < HOPPER_SHARED_BYTES
