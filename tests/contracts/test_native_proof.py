"""The native library proves a matrix product before it uses it: a wrong one is never taken.

The products come from a library of our own with the names that torch's have.
"""

import json
import shutil
import subprocess
import sys

import pytest

from unmask.engines.native import library

SOURCE = """
#include <cstdint>
#include <algorithm>
#define NAME(name) __asm__(name)
static int pair(int a, int b) {
    int sum = a + b;
    return SATURATES ? std::max(-32768, std::min(32767, sum)) : sum;
}
extern "C" void bytes(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add,
                      const unsigned char* a, const signed char* b, int32_t* c, bool packed)
    NAME("_ZN2at6native7cpublas6brgemmEllllllbPKhPKaPib");
extern "C" void bytes(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add,
                      const unsigned char* a, const signed char* b, int32_t* c, bool packed) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            int32_t sum = add ? c[i * ldc + j] : 0;
            for (int64_t l = 0; l < k; l += 2) {
                const signed char* two = b + (l / 4 * ldb + j) * 4 + l % 4;
                sum += pair(a[i * lda + l] * two[0], a[i * lda + l + 1] * two[1]);
            }
            c[i * ldc + j] = sum + WRONG;
        }
}
"""

CONNECT = """
import ctypes, json, sys
functions = ctypes.CDLL(sys.argv[1])
print(json.dumps(functions.native_connect(sys.argv[2].encode(), 7)))
"""
INT8 = 1 << 2


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ compiles the library of products")
@pytest.mark.skipif(isinstance(library.connected(), str), reason=f"no native library: {library.connected()}")
@pytest.mark.parametrize(
    ("saturates", "wrong", "proved"), [(0, 0, INT8), (1, 0, 0), (0, 1, 0)], ids=["exact", "saturating", "off"]
)
def test_an_int8_product_that_adds_pairs_in_16_bits_is_not_used(tmp_path, saturates, wrong, proved):
    (tmp_path / "products.cpp").write_text(SOURCE)
    made = tmp_path / "products.so"
    options = ["-shared", "-fPIC", f"-DSATURATES={saturates}", f"-DWRONG={wrong}"]
    subprocess.run(["g++", *options, tmp_path / "products.cpp", "-o", made], check=True)
    built = library.file_of(library.connected().level)
    ran = subprocess.run(
        [sys.executable, "-c", CONNECT, built, made], check=True, capture_output=True, text=True, timeout=60
    )
    assert json.loads(ran.stdout) == proved


@pytest.mark.skipif(isinstance(library.connected(), str), reason=f"no native library: {library.connected()}")
def test_the_products_of_the_library_itself_are_proved():
    built = library.file_of(library.connected().level)
    program = CONNECT.replace("sys.argv[2].encode()", "None")
    ran = subprocess.run(
        [sys.executable, "-c", program, built], check=True, capture_output=True, text=True, timeout=60
    )
    assert json.loads(ran.stdout) == 1 | INT8
