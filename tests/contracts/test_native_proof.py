"""The native library's products by every instruction set: right, and never used where they are wrong."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import unmask
from unmask.engines.native import library

pytestmark = pytest.mark.long

needs_library = pytest.mark.skipif(
    isinstance(library.connected(), str), reason=f"no native library: {library.connected()}"
)
CONNECT = """
import ctypes, json, sys
print(json.dumps(ctypes.CDLL(sys.argv[1]).native_connect(int(sys.argv[2]))))
"""
FLOAT32, BFLOAT16, INT8 = 1, 2, 4
BUGS = {
    "a sum of bytes": ("{(both << 8) >> 8, both >> 8}", "{(both << 8) >> 8, both >> 7}", FLOAT32 | BFLOAT16),
    "bytes that saturate": (
        "sums + pairs(row.even, columns.even) + pairs(row.odd, columns.odd)",
        "at_most_short(pairs(row.even, columns.even) + pairs(row.odd, columns.odd)) + sums",
        FLOAT32 | BFLOAT16,
    ),
    "a half": ("row.odd * columns.odd;", "row.odd * columns.even;", FLOAT32 | INT8),
    "the last of five rows": ("case 5: tile<Kind, 5, V>", "case 5: tile<Kind, 4, V>", 0),
}
BUGS_OF_TILES = {
    "lower rows": ("load_tile<BELOW>(a + 16 * lda, lda)", "load_tile<BELOW>(a + 15 * lda, lda)"),
    "the third strip of few rows": ("Kind::template add<2, 4, 7>();", ""),
    "the number of lower rows": ("std::min<Size>(m, TALL) - 16", "std::min<Size>(m, TALL) - 17"),
    "features behind the last whole tile": ("lda, ldb, ldc, add || steps,", "lda, ldb, ldc, add,"),
}
"""Each makes the products in bfloat16 and in int8 wrong."""


def usable():
    return [
        name
        for name, needs in library.INSTRUCTION_SETS.items()
        if library.has(library.opened(needs.level), needs)
    ]


def proved(file, dots):
    ran = subprocess.run(
        [sys.executable, "-c", CONNECT, file, str(dots)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return json.loads(ran.stdout)


@needs_library
@pytest.mark.parametrize("name", library.INSTRUCTION_SETS)
def test_products_of_each_instruction_set_are_proved(name):
    if name not in usable():
        pytest.skip(f"this processor lacks {name}")
    needs = library.INSTRUCTION_SETS[name]
    assert proved(library.file_of(needs.level), needs.dots) == FLOAT32 | BFLOAT16 | INT8


def built(folder, level, right, wrong):
    """The library with an error in its source."""
    source = library.SOURCE.read_text()
    assert source.count(right) == 1
    helper = (
        "struct ByBytes {",
        "struct ByBytes {\n    static Ints at_most_short(Ints x) { return x > 32767 ? 32767 - Ints{} : x; }",
    )
    (folder / "engine.cpp").write_text(source.replace(right, wrong).replace(*helper))
    options = ["-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", f"-march={level}", "-Wno-psabi"]
    file = folder / "engine.so"
    subprocess.run(["g++", *options, folder / "engine.cpp", "-o", file], check=True)
    return file


needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="no g++ compiles the library with an error"
)


@needs_compiler
@needs_library
@pytest.mark.parametrize("bug", BUGS)
def test_a_product_with_an_error_is_not_proved(tmp_path, bug):
    right, wrong, rest = BUGS[bug]
    assert proved(built(tmp_path, "x86-64-v3", right, wrong), 0) == rest


@needs_compiler
@needs_library
@pytest.mark.parametrize("bug", BUGS_OF_TILES)
def test_a_product_by_tiles_with_an_error_is_not_proved(tmp_path, bug):
    if "amx" not in usable():
        pytest.skip("this processor lacks amx")
    assert proved(built(tmp_path, "x86-64-v4", *BUGS_OF_TILES[bug]), 7) == FLOAT32


EMBEDDED = """
import json, sys
import unmask
from unmask.engines.native import library
model = [unmask.load("default", dtype=dtype, backend="native") for dtype in library.PRECISIONS]
texts = ["a first text", "a second, longer text", "word " * 240]
print(json.dumps([library.connected().instructions, *(one.embed(texts).tolist() for one in model)]))
"""


@needs_library
@pytest.mark.parametrize("name", library.INSTRUCTION_SETS)
def test_texts_are_embedded_by_each_instruction_set(name):
    if name not in usable():
        pytest.skip(f"this processor lacks {name}")
    ran = subprocess.run(
        [sys.executable, "-c", EMBEDDED],
        env={**os.environ, library.LIMIT: name},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    instructions, *vectors = json.loads(ran.stdout)
    assert instructions == name
    texts = ["a first text", "a second, longer text", "word " * 240]
    wanted = unmask.load("default", backend="torch").embed(texts)
    for rows, least in zip(vectors, (0.999999, 0.9999, 0.985), strict=True):
        assert (np.array(rows) * wanted).sum(1).min() > least


def test_an_instruction_set_that_does_not_exist_is_refused():
    ran = subprocess.run(
        [sys.executable, "-m", "unmask", "kernels"],
        check=False,
        env={**os.environ, library.LIMIT: "avx9"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode
    assert "UNMASK_ISA is 'avx9'; it can be 'amx', " in ran.stderr.replace("\n", " ")
