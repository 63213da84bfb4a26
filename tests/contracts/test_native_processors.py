"""The native engine on processors and systems that are not this one.

Portable products, 64-bit Arm in an emulator, musl in place of glibc, Windows in Wine, lesser processors.
For macOS it is only compiled.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import hatch_build
from unmask.engines.native import library

pytestmark = pytest.mark.long

HARNESS = Path(__file__).with_name("native_harness.cpp")
OPTIONS = (
    *("-std=c++17", "-O2", "-static", "-pthread", "-ffp-contract=fast", "-fno-math-errno"),
    *("-fno-trapping-math", "-Wno-psabi", "-Wall", "-Werror", f'-DENGINE="{library.SOURCE}"'),
)
WIDTH = 72
WINE = shutil.which("wine64", path=f"{os.environ['PATH']}:/usr/lib/wine") or "wine64"
ZIG = [sys.executable, "-m", "ziglang", "c++", "-target"]
BUILDS = {
    "x86-64": (["g++"], "x86-64", (), (0,)),
    "armv8-a": (["aarch64-linux-gnu-g++"], "armv8-a", ("qemu-aarch64-static", "-cpu", "max"), (0, 1, 3)),
    "musl": ([*ZIG, "x86_64-linux-musl"], "x86_64_v3", (), (0,)),
    "windows": ([*ZIG, "x86_64-windows-gnu"], "x86_64_v3", (WINE,), (0,)),
}
"""Compiler, processor, what runs its programs, and the instructions beyond the build's that are tried."""
ZIG_IS_SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]
"""It compiles its standard library for each target first."""


def needs_compiler(command):
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no compiler {command[0]}")
    if "ziglang" in command and find_spec("ziglang") is None:
        pytest.skip("there is no package ziglang, whose compiler makes programs for other systems")


def built(folder, compiler, processor):
    needs_compiler(compiler)
    file = folder / f"{processor}.exe"
    subprocess.run([*compiler, *OPTIONS, f"-march={processor}", HARNESS, "-o", file], check=True)
    return file


def states(program, precision, instructions, threads):
    arguments = (str(instructions), str(precision), str(threads), "0")
    ran = subprocess.run([*program, *arguments], check=True, capture_output=True, text=True, timeout=120)
    return np.array(ran.stdout.split(), np.float64).reshape(-1, WIDTH)


@pytest.mark.parametrize(
    "name",
    ["x86-64", "armv8-a", *(pytest.param(name, marks=ZIG_IS_SLOW) for name in ("musl", "windows"))],
)
def test_another_processor_computes_the_same(name, tmp_path, monkeypatch):
    """As AVX2 does, which the contract tests compare with float64; `bfdot` rounds its sums otherwise."""
    if "avx2" not in cpuinfo():
        pytest.skip("the reference is computed with AVX2")
    reference = built(tmp_path, ["g++"], "x86-64-v3")
    compiler, processor, emulator, tried = BUILDS[name]
    if emulator and shutil.which(emulator[0]) is None:
        pytest.skip(f"there is no emulator {emulator[0]}")
    monkeypatch.setenv("WINEPREFIX", str(tmp_path / "wine"))
    monkeypatch.setenv("WINEDEBUG", "-all")
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


def cpuinfo():
    """The instructions of this processor, as Linux names them."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return set(next((line for line in lines if line.startswith(("flags", "Features"))), "").split())


def instructions(python):
    """What each build of the library says of the processor on which a Python runs."""
    files = [str(library.file_of(level)) for level in library.levels(platform.machine())]
    code = f"import ctypes; print([ctypes.CDLL(file).native_instructions() for file in {files}])"
    ran = subprocess.run([*python, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    return dict(zip(library.levels(platform.machine()), json.loads(ran.stdout), strict=True))


x86_library = pytest.mark.skipif(
    isinstance(library.connected(), str) or platform.machine() != "x86_64",
    reason="no library for x86-64 here",
)


@x86_library
def test_instructions_are_those_that_linux_names():
    flags = cpuinfo()
    wanted = {}
    for level, needs, dots in (
        (
            "x86-64-v4",
            {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
            ("avx512_vnni", "avx512_bf16"),
        ),
        ("x86-64-v3", {"avx2", "bmi2", "fma", "f16c"}, ("avx_vnni",)),
    ):
        has = sum(1 << bit for bit, flag in enumerate(dots) if flag in flags)
        if level == "x86-64-v4" and {"amx_tile", "amx_int8", "amx_bf16"} <= flags:
            has |= 4
        wanted[level] = has if needs <= flags else -1
    assert instructions([sys.executable]) == wanted


@x86_library
@pytest.mark.parametrize(
    ("processor", "wanted"), [("Nehalem", (-1, -1)), ("Haswell", (-1, 0)), ("Haswell,-bmi2", (-1, -1))]
)
def test_a_lesser_processor_can_ask_every_build(processor, wanted):
    """Nothing that a build is compiled for is executed before it says what the processor lacks."""
    emulator = shutil.which("qemu-x86_64-static")
    if emulator is None:
        pytest.skip("there is no emulator qemu-x86_64-static")
    python = [emulator, "-cpu", processor, sys.executable]
    assert instructions(python) == dict(zip(("x86-64-v4", "x86-64-v3"), wanted, strict=True))


@pytest.mark.parametrize(
    ("target", "system", "level"),
    [
        pytest.param("x86_64-windows-gnu", "Windows", "x86-64-v4", marks=ZIG_IS_SLOW),
        pytest.param("x86_64-macos", "Darwin", "x86-64-v4", marks=ZIG_IS_SLOW),
        pytest.param("aarch64-macos", "Darwin", "armv8-a", marks=ZIG_IS_SLOW),
        pytest.param("aarch64-linux-gnu", "Linux", "armv8-a", marks=ZIG_IS_SLOW),
    ],
)
def test_other_systems_can_compile_it(target, system, level, tmp_path):
    compiler = [*ZIG, target]
    needs_compiler(compiler)
    command = hatch_build.command_of(compiler, level, system)
    subprocess.run([*command, library.SOURCE, "-o", tmp_path / "engine"], check=True)
    assert b"native_run" in (tmp_path / "engine").read_bytes()
