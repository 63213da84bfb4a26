"""What every report holds: the machine, versions, the commit, the arithmetic peak, and what was left out."""

import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import unmask
from unmask.base.system import core_count, machine_bytes

PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "tokenizers",
    "transformers",
    "sentence-transformers",
    "onnxruntime",
    "openvino",
)
"""Packages whose versions can affect results; those not installed are left out."""

PEAK_SHAPES = {"cpu": ((512, 768, 3072), (2048, 768, 768)), "cuda": ((8192, 8192, 8192),)}
"""Rows, inner dimension and columns of the matrix products used to measure a peak."""
PEAK_CALLS = 12
COPIED_BYTES = 1 << 28
"""Bytes of the array that is copied to measure a bandwidth; no cache holds them."""


@dataclass(frozen=True)
class Machine:
    """The environment of a run."""

    processor: str
    cores: int
    """Logical cores that this process may use."""
    threads: int
    """Torch's threads."""
    memory_gib: float | None
    accelerator: str | None
    system: str
    python: str
    versions: Mapping[str, str]
    unmask: str
    commit: str | None
    """Of the checkout that the package runs from, followed by ``+`` where it was changed since; None for an
    installed package."""
    date_utc: str

    @property
    def line(self) -> str:
        """A one-line summary for pictures."""
        names = ("torch", "transformers", "sentence-transformers", "onnxruntime", "openvino")
        versions = ", ".join(f"{name} {self.versions[name]}" for name in names if name in self.versions)
        where = self.accelerator or f"{self.processor}, {self.threads} threads"
        commit = f" ({self.commit[:10]}{'+' * self.commit.endswith('+')})" if self.commit else ""
        return f"{where} · unmask {self.unmask}{commit}, {versions} · {self.date_utc[:10]}"


@dataclass(frozen=True)
class LeftOut:
    """Something that was not measured, and why."""

    name: str
    work: str
    """The part that was not measured; empty for all of it."""
    reason: str


def this_machine(device: torch.device) -> Machine:
    """Describe the current environment."""
    memory = machine_bytes()
    return Machine(
        processor=_processor(),
        cores=core_count(),
        threads=torch.get_num_threads(),
        memory_gib=None if memory is None else round(memory / 2**30, 1),
        accelerator=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        system=platform.platform(),
        python=sys.version.split()[0],
        versions={name: installed for name in PACKAGES if (installed := _version(name)) is not None},
        unmask=unmask.__version__,
        commit=_commit(),
        date_utc=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def peak_gflops(dtype: str, device: torch.device) -> float | None:
    """The best rate of a matrix product in billions of operations a second; None where torch has none.

    A multiplication and an addition are two operations. ``dtype`` can be ``int8``. For each product the
    fastest of several calls counts, with torch's own implementation and, on the CPU, also with oneDNN on
    prepacked weights, because a peak must not be exceeded.
    """
    best = None
    for rows, inner, columns in PEAK_SHAPES[device.type]:
        for product in _products(dtype, device, rows, inner, columns):
            try:
                seconds = min(_seconds(product, device) for _ in range(PEAK_CALLS))
            except RuntimeError:  # this build or device has no such product
                continue
            best = max(best or 0.0, 2 * rows * inner * columns / seconds / 1e9)
    return best


def bandwidth_gbytes(device: torch.device) -> float:
    """The best rate of a copy of `COPIED_BYTES`, each read and written, in 10^9 bytes a second."""
    source = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)  # touched: the first write to new memory is much slower
    seconds = min(_seconds(lambda: target.copy_(source), device) for _ in range(PEAK_CALLS))
    return 2 * COPIED_BYTES / seconds / 1e9


def sentence_of(error: BaseException) -> str:
    """The message of any error on one line; its class if the message is empty."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:297]}..." if text else type(error).__name__


def _products(
    dtype: str, device: torch.device, rows: int, inner: int, columns: int
) -> list[Callable[[], object]]:
    if dtype == "int8":
        a, b = (
            torch.randint(-99, 99, shape, dtype=torch.int8, device=device)
            for shape in ((rows, inner), (inner, columns))
        )
        return [lambda: torch._int_mm(a, b)]
    kind = getattr(torch, dtype)
    x, w = (torch.randn(shape, device=device).to(kind) for shape in ((rows, inner), (columns, inner)))
    plain: list[Callable[[], object]] = [lambda: torch.nn.functional.linear(x, w)]
    if device.type == "cpu" and dtype in ("float32", "bfloat16") and torch._C._has_mkldnn:
        packed = torch.ops.mkldnn._reorder_linear_weight(w, rows)
        plain.append(lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "none"))
    return plain


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    model_names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(model_names, platform.processor() or platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    root = Path(unmask.__file__).parents[1]
    if not (root / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        completed = subprocess.run(
            ["git", "-C", root, *arguments], capture_output=True, encoding="utf-8", check=True
        )
        return completed.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "unmask")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
