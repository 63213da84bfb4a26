"""One run in its own process: ``python -m benchmarks.ablation.one FOLDER VARIANT SEED``.

A separate process, so that its peak memory is its own.
"""

import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.ablation.budget import body_parameters
from benchmarks.ablation.figures import FIGURES, Figures, measure, write_figures
from benchmarks.ablation.plan import read_plan, run_table, toml
from benchmarks.ablation.variants import build_variant
from unmask.base.files import whole_file
from unmask.bench.memory import peak_extra_bytes
from unmask.errors import UnmaskError
from unmask.training.pretrain import Callback, Result, pretrain

RUN_FILE = "run.toml"


def folder_of(out: Path, variant: str, seed: int) -> Path:
    """The folder of a run."""
    return out / "runs" / f"{variant}-{seed}"


def train(out: Path, variant: str, seed: int) -> tuple[Result, int | None, float]:
    """Train or resume; return the result, the peak memory in bytes, and the seconds."""
    folder = folder_of(out, variant, seed)
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / RUN_FILE) as partial:
        partial.write_text(toml(run_table(read_plan(out), variant, seed)))
    results: list[Result] = []
    start = time.perf_counter()
    path, silent = folder / RUN_FILE, Callback()
    peak = peak_extra_bytes(lambda: results.append(pretrain(path, callback=silent)), torch.device("cpu"))
    return results[0], peak, time.perf_counter() - start


def finish(out: Path, variant: str, seed: int) -> Figures:
    """Train or resume, measure, and write the figures."""
    plan = read_plan(out)
    result, peak, seconds = train(out, variant, seed)
    figures = Figures(
        variant=variant,
        seed=seed,
        parameters=body_parameters(build_variant(variant, plan.sizes).encoder),
        tokens=result.tokens,
        train_seconds=seconds,
        peak_bytes=peak,
        **asdict(measure(result.folder, plan)),
    )
    with whole_file(folder_of(out, variant, seed) / FIGURES) as partial:
        write_figures(figures, partial)
    return figures


def main() -> None:
    """`finish` the run named by the arguments; exit 1 with a one-line error if that fails."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "0")) or torch.get_num_threads())
    try:
        finish(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    except UnmaskError as error:
        print(str(error), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
