"""The native library: found, matched with this processor, and proved by known products."""

import ctypes
import hashlib
import os
import platform
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from unmask.engines.native.interface import PRECISIONS, declare

HERE = Path(__file__).parent
SOURCE = HERE / "engine.cpp"
HIDDEN = "UNMASK_BACKEND"
"""Set to ``torch`` in the environment, it keeps every encoder in torch, and search in numpy."""

LIMIT = "UNMASK_ISA"
"""Set to a name of `INSTRUCTION_SETS` in the environment, it excludes those that are listed before."""


class InstructionSet(NamedTuple):
    """What products are made of on a processor."""

    level: str
    """The build of the library."""
    dots: int = 0
    """Instructions beyond the build's: sums of products of bytes (bit 1) and of bfloat16 (bit 2), and
    of both by the tiles of AMX (bit 4)."""


class Features(NamedTuple):
    """What operating systems call the instructions of a build."""

    linux: str
    """Flags in ``/proc/cpuinfo``."""
    darwin: str
    """A name for ``sysctl``."""
    windows: int
    """A number for ``IsProcessorFeaturePresent``."""


_X86 = {
    "amx": InstructionSet("x86-64-v4", 1 | 2 | 4),
    "avx512_bf16": InstructionSet("x86-64-v4", 1 | 2),
    "avx512_vnni": InstructionSet("x86-64-v4", 1),
    "avx512": InstructionSet("x86-64-v4"),
    "avx_vnni": InstructionSet("x86-64-v3", 1),
    "avx2": InstructionSet("x86-64-v3"),
}
_ARM = {
    "neon_bf16": InstructionSet("armv8-a", 1 | 2),
    "neon_dotprod": InstructionSet("armv8-a", 1),
    "neon": InstructionSet("armv8-a"),
}
_OF_MACHINES = {"x86_64": _X86, "amd64": _X86, "aarch64": _ARM, "arm64": _ARM}
SUFFIXES = {"Linux": "so", "Darwin": "dylib", "Windows": "dll"}
"""Of the library's file, by the operating systems that it is for."""
INSTRUCTION_SETS = _OF_MACHINES.get(platform.machine().lower(), {}) if platform.system() in SUFFIXES else {}
"""Those of this kind of processor, best first."""

FEATURES = {
    "x86-64-v4": Features("avx512f avx512dq avx512cd avx512bw avx512vl", "hw.optional.avx512f", 41),
    "x86-64-v3": Features("avx2 fma f16c bmi2", "hw.optional.avx2_0", 40),
}
"""Builds that not every processor can load, and what says whether this one can."""


@dataclass(frozen=True)
class Library:
    """The native library, ready to run."""

    functions: Any
    precisions: tuple[str, ...]
    """Those whose matrix products were proved here."""
    instructions: str
    """The name of its instruction set."""


def levels(machine: str) -> tuple[str, ...]:
    """The builds of the library for a kind of processor, as compilers name them."""
    instructions = _OF_MACHINES.get(machine.lower(), {}).values()
    return tuple(dict.fromkeys(each.level for each in instructions))


def file_of(level: str, system: str | None = None) -> Path:
    """Where a build of the library is, if there is one of this source; ``system``: None for this one."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    return HERE / f"engine-{level}-{digest}.{SUFFIXES[system or platform.system()]}"


def may_load(level: str) -> bool:
    """Whether this processor has the instructions of a build, as far as the operating system says.

    It is asked before the library is loaded, because what runs at loading was compiled with them.
    """
    features, system = FEATURES.get(level), platform.system()
    if features is None:
        return True
    if system == "Linux":
        try:
            flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
        except OSError:  # a sandbox may hide it
            return True
        return flags is None or set(features.linux.split()) <= set(flags[1].split())
    if system == "Darwin":
        value, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
        name = features.darwin.encode()
        ctypes.CDLL(None).sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, 0)
        return bool(value.value)
    kernel: Any = getattr(ctypes, "windll").kernel32  # noqa: B009  # only Windows has it
    return bool(kernel.IsProcessorFeaturePresent(features.windows))


def opened(level: str) -> Any:
    """The functions of a build.

    Raises:
        OSError: it was not built from this source, or cannot be loaded.
        AttributeError: it lacks a function.
    """
    return declare(ctypes.CDLL(str(file_of(level))))


def has(functions: Any, instructions: InstructionSet) -> bool:
    """Whether this processor has an instruction set, by the functions of its build."""
    here = functions.native_instructions()
    return bool(here >= 0 and here & instructions.dots == instructions.dots)


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


def call(function: str, what: ctypes.Structure) -> None:
    """Run a function of the library that computes what a structure says.

    Raises:
        KernelError: it failed.
    """
    from unmask.errors import KernelError  # not above: the package's build imports this file alone

    library = connected()
    assert not isinstance(library, str)
    if getattr(library.functions, function)(ctypes.byref(what)):
        raise KernelError(f"the native library failed: {library.functions.native_error().decode()}")


@cache
def connected() -> Library | str:
    """The library for this processor, or why there is none."""
    if not INSTRUCTION_SETS:
        return (
            "the native library is for Linux, macOS and Windows on x86-64 and 64-bit Arm, not for "
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
    for name in names:
        instructions = INSTRUCTION_SETS[name]
        if not file_of(instructions.level).exists():
            return (
                "the native library was not built from this source; install unmask again where there is a "
                "C++ compiler"
            )
        if not may_load(instructions.level):
            continue
        try:
            functions = opened(instructions.level)
        except (OSError, AttributeError) as error:
            return f"the native library cannot be loaded: {error}"
        if has(functions, instructions):
            break
    else:
        return f"this processor lacks the instruction set {names[-1].upper()}"
    proved = functions.native_connect(instructions.dots)
    if not proved:
        return "the matrix products of the native library are wrong on this processor"
    precisions = tuple(name for number, name in enumerate(PRECISIONS) if proved >> number & 1)
    return Library(functions, precisions, name)
