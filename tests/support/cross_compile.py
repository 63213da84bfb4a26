"""Triton kernels compiled for a Hopper GPU on a machine without one, and what the result costs there."""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOPPER_SHARED_BYTES = 227 * 1024
"""Shared memory that one program may have."""


@dataclass(frozen=True)
class Report:
    """What one compiled kernel takes of a multiprocessor."""

    registers: int
    """Of each thread; 255 at most, 65,536 for all threads together."""
    spills: int
    """Bytes of each thread's stack, where registers go that do not fit."""
    shared_bytes: int
    """Shared memory of a program."""
    has_wgmma: bool
    """Whether products run on Hopper's tensor cores by instructions of whole warp groups."""


def compile_for_hopper(
    fn: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    num_warps: int,
    num_stages: int,
) -> Report:
    """Compile a function under ``triton.jit`` for compute capability 9.0 and read what it takes.

    Args:
        fn: the jitted function; triton must not be interpreting.
        signature: Triton's type of every argument that is not a constexpr: ``*bf16``, ``i32``, ``fp32`` ...
            Pointers are taken as divisible by 16, as those of whole tensors are. Integers are not: pass a
            stride as ``i32:16`` where it is.
        constexprs: values of the others.
        num_warps: of 32 threads each.
        num_stages: how many loads a loop keeps under way.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kinds = {name: signature.get(name, "constexpr") for name in fn.arg_names}
    assert set(signature).isdisjoint(constexprs)
    assert {name for name, kind in kinds.items() if kind == "constexpr"} == set(constexprs)
    divisible = {
        (place,): [["tt.divisibility", 16]]
        for place, kind in enumerate(kinds.values())
        if kind.startswith("*") or kind.endswith(":16")
    }
    source = ASTSource(
        fn,
        {name: kind.removesuffix(":16") for name, kind in kinds.items()},
        {(fn.arg_names.index(name),): value for name, value in constexprs.items()},
        divisible,
    )
    options = {"num_warps": num_warps, "num_stages": num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    registers, stack = _resources(compiled.asm["cubin"])
    return Report(registers, stack, compiled.metadata.shared, "wgmma.mma_async" in compiled.asm["ptx"])


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack of each thread, as the bundled ``cuobjdump`` reads them."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        shown = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        )
    found = re.search(r"REG:(\d+) STACK:(\d+)", shown.stdout)
    assert found is not None, shown.stdout
    return int(found[1]), int(found[2])
