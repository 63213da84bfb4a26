"""The native engine under the compiler's sanitizers, and deliberate bugs that they must report."""

import os
import platform
import shutil
import subprocess

import pytest

from tests.contracts.test_native_processors import HARNESS
from unmask.engines.native import library

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
]
BUILT = library.levels(platform.machine())
LEVELS = ("x86-64-v3", "x86-64-v4", "x86-64") if "x86-64-v3" in BUILT else ("armv8-a",)
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=0",  # threads and the pool live as long as the process
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "die_after_fork=0 halt_on_error=1",
}
BUGS = {
    "a state too many": (
        "address",
        "state, sizeof(float) * encoder.width);\n        }",
        "state, sizeof(float) * (encoder.width + 1));\n        }",
        "heap-buffer-overflow",
    ),
    "a weight too many": ("address", "i < k; i++) place[", "i <= k; i++) place[", "heap-buffer-overflow"),
    "an encoder freed while helpers use it": (
        "address",
        "owner(std::move(given))",
        "owner(given.get(), [](Encoder*) {})",
        "heap-use-after-free",
    ),
    "an overflow": (
        "undefined",
        "uint32_t bits;\n    memcpy(&bits, &x, 4);\n    return (uint16_t)((bits",
        "int32_t bits;\n    memcpy(&bits, &x, 4);\n    return (uint16_t)((bits * 64",
        "signed integer overflow",
    ),
    "a load that is not aligned": (
        "undefined",
        "    uint32_t bits;\n    memcpy(&bits, from, 4);\n    return bits;",
        "    return *(const uint32_t*)((const char*)from + 1);",
        "misaligned address",
    ),
    "buffers kept without a lock": (
        "thread",
        "std::lock_guard<std::mutex> held(kept_lock);\n        kept.push_back",
        "kept.push_back",
        "data race",
    ),
    "a part that is done too early": (
        "thread",
        "done.fetch_add(1, std::memory_order_release);\n        return true;",
        "done.fetch_add(1, std::memory_order_relaxed);\n        return true;",
        "data race",
    ),
}


def run_under(sanitizer, source, folder, level=LEVELS[0], dots=0):
    """The harness with one sanitizer; its result."""
    file = folder / sanitizer
    options = ("-std=c++17", "-O1", "-g", "-pthread", "-Wno-psabi", f"-march={level}")
    checks = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", f'-DENGINE="{source}"')
    subprocess.run(["g++", *options, *checks, HARNESS, "-o", file], check=True)
    return subprocess.run(
        [file, str(dots)],
        check=False,
        capture_output=True,
        text=True,
        timeout=500,
        env=os.environ | ENVIRONMENT,
    )


@pytest.mark.parametrize(
    ("sanitizer", "level"),
    [(sanitizer, level) for sanitizer in ("address", "undefined") for level in LEVELS]
    + [("thread", LEVELS[0])],
)
def test_many_threads_do_nothing_undefined(sanitizer, level, tmp_path):
    dots = library.opened(level).native_instructions() if level in BUILT else 0
    if dots < 0:
        pytest.skip(f"this processor lacks {level}")
    ran = run_under(sanitizer, library.SOURCE, tmp_path, level, dots)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "0 differ\n"


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_reported(bug, tmp_path):
    sanitizer, right, wrong, reported = BUGS[bug]
    text = library.SOURCE.read_text()
    assert text.count(right) == 1
    source = tmp_path / "engine.cpp"
    source.write_text(text.replace(right, wrong))
    ran = run_under(sanitizer, source, tmp_path)
    assert ran.returncode
    assert reported in ran.stderr
