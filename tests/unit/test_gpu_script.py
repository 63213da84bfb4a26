"""The script that checks and measures a GPU, run on the CPU at sizes that mean nothing."""

import importlib.util
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from unmask.kernels import KERNELS
from unmask.spec import FullAttention, SlidingWindow
from unmask.text import SequenceLayout

PATH = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


@pytest.fixture(scope="module")
def gpu():
    spec = importlib.util.spec_from_file_location("benchmark_gpu", PATH)
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def result(gpu, tmp_path_factory):
    out = tmp_path_factory.mktemp("gpu")
    sections = ["machine", "errors", "attention", "windows", "disentangled", "training"]
    arguments = ["--device", "cpu", "--tiny", "--seed", "1", "--out", str(out), "--sections", *sections]
    gpu.main(arguments)
    return json.loads((out / "gpu.json").read_text()), (out / "gpu.md").read_text()


def test_every_section_measures_and_none_fails(result):
    found, table = result
    rows = found["rows"]
    assert {row["section"] for row in rows} >= {"machine", "errors", "attention", "windows", "training"}
    assert [row for row in rows if "error" in row] == []
    for row in rows:
        numbers = [value for value in row.values() if isinstance(value, float)]
        assert numbers
        assert np.isfinite(numbers).all(), row
    for section in {row["section"] for row in rows}:
        assert f"## {section}" in table
    assert len([line for line in table.splitlines() if line.startswith("| ")]) > len(rows)


def test_every_kernel_of_this_device_is_compared(result):
    errors = [row for row in result[0]["rows"] if row["section"] == "errors"]
    here = {kernel.capability.name for kernel in KERNELS if "cpu" in kernel.capability.devices}
    assert {row["kernel"] for row in errors} == here - {"reference"}
    for row in errors:
        for name, value in row.items():
            if name.startswith("error_"):
                assert 0 <= value <= 1e-5, row


def test_a_case_that_fails_is_written_down_and_the_rest_goes_on(gpu):
    run = gpu.Run(torch.device("cpu"), True, np.random.default_rng(0))

    def broken():
        raise RuntimeError("out of\nmemory")

    cases = [gpu.Case({"n": 1}, broken), gpu.Case({"n": 2}, lambda: {"ms": 1.0})]
    gpu.run_section(run, "models", 60, iter(cases))
    gpu.run_section(run, "late", 0, itertools.islice(cases, 1))
    assert run.rows == [
        {"section": "models", "n": 1, "error": "RuntimeError: out of memory"},
        {"section": "models", "n": 2, "ms": 1.0},
        {"section": "late", "n": 1, "error": "not run: the section's time was up"},
    ]


def test_pairs_are_counted_as_the_definition_sees_them(gpu):
    layout = SequenceLayout.of_lengths([1, 5, 9])
    assert gpu.attended_pairs(layout, FullAttention()) == 1 + 25 + 81
    for window in (SlidingWindow(0), SlidingWindow(2), SlidingWindow(2, dilation=3), SlidingWindow(50)):
        seen = 0
        for length in layout.lengths:
            apart = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
            seen += ((apart <= window.radius * window.dilation) & (apart % window.dilation == 0)).sum()
        assert gpu.attended_pairs(layout, window) == seen


def test_a_wrong_kernel_shows_in_the_errors(gpu, monkeypatch):
    run = gpu.Run(torch.device("cpu"), True, np.random.default_rng(0))
    kernel = next(kernel for kernel in KERNELS if kernel.capability.name == "sdpa")

    class Wrong:
        capability = kernel.capability
        plan = staticmethod(kernel.plan)

        @staticmethod
        def attend(*inputs, **options):
            found = kernel.attend(*inputs, **options)
            return found._replace(o_THK=found.o_THK * 1.01)

    found = gpu.error(run, Wrong(), FullAttention(), gpu.NoPosition(), "float32")
    assert min(found.values()) > 1e-3


@pytest.mark.slow
def test_whole_models_beside_those_of_transformers(gpu, tmp_path):
    gpu.main(["--device", "cpu", "--tiny", "--out", str(tmp_path), "--sections", "models"])
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert {row["runs"] for row in rows} == {"plain", "transformers"}
    assert [row for row in rows if "error" in row] == []
