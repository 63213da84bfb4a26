"""The native library: found, matched with this processor, and proved by known products."""

import ctypes
import hashlib
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from unmask.engines.native.interface import PRECISIONS, declare

HERE = Path(__file__).parent
SOURCE = HERE / "engine.cpp"
HIDDEN = "UNMASK_BACKEND"
"""Set to ``torch`` in the environment, it keeps every encoder in torch."""

LIMIT = "UNMASK_ISA"
"""Set to a name of `INSTRUCTION_SETS` in the environment, it excludes those that are listed before."""


class InstructionSet(NamedTuple):
    """What products are made of on a processor."""

    level: str
    """The build of the library."""
    flags: frozenset[str]
    """Those of the processor that it needs, as Linux names them."""
    dots: int = 0
    """Instructions beyond the build's: sums of products of bytes (bit 1) and of bfloat16 (bit 2)."""


_AVX2 = frozenset({"avx2", "bmi2", "fma", "f16c"})
_AVX512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "fma"})
_NEON = frozenset({"asimd"})
_OF_MACHINES = {
    "x86_64": {
        "avx512_bf16": InstructionSet("x86-64-v4", _AVX512 | {"avx512_vnni", "avx512_bf16"}, 1 | 2),
        "avx512_vnni": InstructionSet("x86-64-v4", _AVX512 | {"avx512_vnni"}, 1),
        "avx512": InstructionSet("x86-64-v4", _AVX512),
        "avx_vnni": InstructionSet("x86-64-v3", _AVX2 | {"avx_vnni"}, 1),
        "avx2": InstructionSet("x86-64-v3", _AVX2),
    },
    "aarch64": {
        "neon_bf16": InstructionSet("armv8-a", _NEON | {"asimddp", "bf16"}, 1 | 2),
        "neon_dotprod": InstructionSet("armv8-a", _NEON | {"asimddp"}, 1),
        "neon": InstructionSet("armv8-a", _NEON),
    },
}
INSTRUCTION_SETS = _OF_MACHINES.get(platform.machine(), {})
"""Those of this kind of processor, best first."""
LEVELS = tuple(dict.fromkeys(instructions.level for instructions in INSTRUCTION_SETS.values()))
"""The builds of the library, as compilers name them."""


@dataclass(frozen=True)
class Library:
    """The native library, ready to run."""

    functions: Any
    precisions: tuple[str, ...]
    """Those whose matrix products were proved here."""
    instructions: str
    """The name of its instruction set."""


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
        return f"the native library's matrix products in {precision} are wrong on this processor"
    return None


@cache
def connected() -> Library | str:
    """The library for this processor, or why there is none."""
    if platform.system() != "Linux" or not INSTRUCTION_SETS:
        return (
            "the native library is for Linux on x86-64 and 64-bit Arm, not for "
            f"{platform.system()} on {platform.machine()}"
        )
    names = list(INSTRUCTION_SETS)
    limit = os.environ.get(LIMIT)
    if limit:
        from unmask.base.arguments import (
            check_choice,  # not above: the package's build imports this file alone
        )

        check_choice(LIMIT, limit, names)
        names = names[names.index(limit) :]
    flags = processor_flags()
    name = next((name for name in names if INSTRUCTION_SETS[name].flags <= flags), None)
    if name is None:
        return f"this processor lacks the instruction set {names[-1].upper()}"
    instructions = INSTRUCTION_SETS[name]
    file = file_of(instructions.level)
    if not file.exists():
        return (
            "the native library was not built from this source; install unmask again where there is a C++ "
            "compiler"
        )
    try:
        functions = declare(ctypes.CDLL(str(file)))
    except (OSError, AttributeError) as error:
        return f"the native library cannot be loaded: {error}"
    proved = functions.native_connect(instructions.dots)
    if not proved:
        return "the matrix products of the native library are wrong on this processor"
    precisions = tuple(name for number, name in enumerate(PRECISIONS) if proved >> number & 1)
    return Library(functions, precisions, name)


def processor_flags() -> frozenset[str]:
    """The instruction sets of the first processor, as Linux names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith(("flags", "Features"))), "").split())
