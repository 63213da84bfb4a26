"""The native library: found, matched with this processor, and proved by known products."""

import ctypes
import hashlib
import os
import platform
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unmask.engines.native.interface import PRECISIONS, declare

HERE = Path(__file__).parent
SOURCE = HERE / "engine.cpp"
HIDDEN = "UNMASK_BACKEND"
"""Set to ``torch`` in the environment, it keeps every encoder in torch."""

LEVELS = {
    "x86-64-v4": frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "fma"}),
    "x86-64-v3": frozenset({"avx2", "bmi2", "fma", "f16c"}),
}
"""The instruction sets that the library is compiled for, best first, and the processor flags they need."""


@dataclass(frozen=True)
class Library:
    """The native library, ready to run."""

    functions: Any
    precisions: tuple[str, ...]
    """Those whose matrix products were proved here."""
    level: str


def file_of(level: str) -> Path:
    """Where the library of an instruction set is, if it was built from this source."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    return HERE / f"engine-{level}-{digest}.so"


def library_reason(precision: str) -> str | None:
    """Why no encoder runs natively in a precision, as the end of "... because"; None if they can."""
    if os.environ.get(HIDDEN) == "torch":
        return f"{HIDDEN} is torch in the environment"
    library = connected()
    if isinstance(library, str):
        return library
    if precision not in PRECISIONS:
        return f"the native library computes in {', '.join(PRECISIONS)}, not in {precision}"
    if precision not in library.precisions:
        return (
            f"no matrix products in {precision} run here (bfloat16 needs torch, and a processor with AVX-512 "
            "BF16 that ONEDNN_MAX_CPU_ISA does not restrict)"
        )
    return None


@cache
def connected() -> Library | str:
    """The library for this processor, or why there is none."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return (
            f"the native library is for Linux on x86-64, not for {platform.system()} on {platform.machine()}"
        )
    flags = processor_flags()
    level = next((level for level, needed in LEVELS.items() if needed <= flags), None)
    if level is None:
        return "this processor lacks the instruction set AVX2"
    file = file_of(level)
    if not file.exists():
        return (
            "the native library was not built from this source; install unmask again where there is a C++ "
            "compiler"
        )
    torch_library = _torch_library() if level == "x86-64-v4" else None
    try:
        functions = declare(ctypes.CDLL(str(file)))
        proved = functions.native_connect(torch_library, (1 << len(PRECISIONS)) - 1)
        if not proved and torch_library is not None:
            proved = functions.native_connect(None, (1 << len(PRECISIONS)) - 1)
    except (OSError, AttributeError) as error:
        return f"the native library cannot be loaded: {error}"
    if not proved:
        return "the matrix products of the native library are wrong on this processor"
    precisions = tuple(name for number, name in enumerate(PRECISIONS) if proved >> number & 1)
    return Library(functions, precisions, level)


def _torch_library() -> bytes | None:
    """The path of the library of torch that has products with AVX-512; None where torch is not installed."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return None
    file = Path(torch.origin).parent / "lib" / "libtorch_cpu.so"
    return os.fsencode(file) if file.exists() else None


def processor_flags() -> frozenset[str]:
    """The instruction sets of the first processor, as Linux names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())
