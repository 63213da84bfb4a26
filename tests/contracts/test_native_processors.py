"""The native engine on processors that are not this one: portable products, and 64-bit Arm in an emulator."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from unmask.engines.native import library

HARNESS = Path(__file__).with_name("native_harness.cpp")
OPTIONS = (
    *("-std=c++17", "-O2", "-static", "-pthread", "-ffp-contract=fast", "-fno-math-errno"),
    *("-fno-trapping-math", "-Wno-psabi", "-Wall", "-Werror", f'-DENGINE="{library.SOURCE}"'),
)
WIDTH = 72
BUILDS = {
    "x86-64": ("g++", "x86-64", (), (0,)),
    "armv8-a": ("aarch64-linux-gnu-g++", "armv8-a", ("qemu-aarch64-static", "-cpu", "max"), (0, 1, 3)),
}
"""Compiler, processor, what runs its programs, and the instructions beyond the build's that are tried."""


def built(folder, compiler, processor):
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no compiler {compiler}")
    file = folder / processor
    subprocess.run([compiler, *OPTIONS, f"-march={processor}", HARNESS, "-o", file], check=True)
    return file


def states(program, precision, instructions, threads):
    arguments = (str(precision), str(instructions), str(threads))
    ran = subprocess.run([*program, *arguments], check=True, capture_output=True, text=True, timeout=120)
    return np.array(ran.stdout.split(), np.float64).reshape(-1, WIDTH)


@pytest.mark.parametrize("name", BUILDS)
def test_another_processor_computes_the_same(name, tmp_path):
    """As AVX2 does, which the contract tests compare with float64; `bfdot` rounds its sums otherwise."""
    if "avx2" not in library.processor_flags():
        pytest.skip("the reference is computed with AVX2")
    reference = built(tmp_path, "g++", "x86-64-v3")
    compiler, processor, emulator, tried = BUILDS[name]
    if emulator and shutil.which(emulator[0]) is None:
        pytest.skip(f"there is no emulator {emulator[0]}")
    program = (*emulator, built(tmp_path, compiler, processor))
    exact = states((reference,), 0, 0, 1)
    for precision, least in enumerate((0.999999, 0.9999, 0.9999)):
        wanted = states((reference,), precision, 0, 1)
        for instructions in tried:
            alone = states(program, precision, instructions, 1)
            assert cosines(alone, wanted).min() > least
            assert cosines(alone, exact).min() > 0.9999
            np.testing.assert_array_equal(states(program, precision, instructions, 3), alone)
        if precision == 0:
            np.testing.assert_allclose(alone, wanted, atol=5e-6)


def cosines(a_TD, b_TD):
    return (a_TD * b_TD).sum(1) / (np.linalg.norm(a_TD, axis=1) * np.linalg.norm(b_TD, axis=1))
