"""The cost of a training step: time, interleaving the variants, and memory, in separate processes.

``python -m benchmarks.ablation.cost FOLDER VARIANT`` prints the peak memory in bytes.
"""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.ablation.plan import SPECIAL, Plan, read_plan, run_table
from benchmarks.ablation.text import read_text
from benchmarks.ablation.variants import VARIANTS
from unmask.base.files import whole_file
from unmask.base.progress import Progress
from unmask.bench.memory import peak_extra_bytes
from unmask.errors import UnmaskError
from unmask.text import Tokenizer
from unmask.training.data.stream import Chunk, ChunkStream
from unmask.training.objectives.build import build_objective
from unmask.training.objectives.interface import Objective
from unmask.training.optim import OptimizerSpec, build_optimizer, clip_gradients
from unmask.training.table import read_table
from unmask.training.vocabulary import Vocabulary
from unmask.weights.write.new_checkpoint import new_checkpoint, new_encoder, with_tokenizer

COST = "cost.json"
WARM_UP = 2
"""Rounds that are not counted."""
PROCESSES, STEPS = 3, 8
"""Processes in which memory is measured, and training steps that each takes with a variant."""


@dataclass(frozen=True)
class Cost:
    """Training speed of a variant, in tokens per second of CPU time over all threads, and its peak memory.

    CPU time excludes time in which other processes ran. On an idle machine with one thread it equals wall
    time; on a busy machine it approximates the wall time of an idle one, except for contention for caches
    and memory bandwidth.
    """

    variant: str
    tokens_per_second: float
    """From the median step."""
    lowest: float
    """From the slowest quartile of steps."""
    highest: float
    """From the fastest quartile of steps."""
    steps: int
    peak_bytes: int | None
    """Peak memory of an encoder and its first steps above what the process held before: weights,
    gradients, optimizer state and intermediate results. The median of `PROCESSES` processes, which
    had taken steps with the first variant before. None where the system does not report it."""


@dataclass(frozen=True)
class Costs:
    """The costs of all variants, measured in one process."""

    threads: int
    variants: tuple[Cost, ...]


def measure_cost(
    plan: Plan, out: Path, variants: Sequence[str], *, rounds: int = 30, progress: Progress | None = None
) -> Costs:
    """Time training steps of fresh encoders on the same text, interleaving the variants; then measure memory.

    A step is masking, forward and backward pass, clipping and the optimizer's step.

    Args:
        plan: the experiment's plan.
        out: the experiment's folder, with the text prepared.
        variants: at least one name.
        rounds: counted steps of each variant.
        progress: called after every round and every process.
    """
    total = rounds + WARM_UP + PROCESSES * len(variants)
    done = itertools.count(1)

    def advance() -> None:
        number = next(done)
        if progress is not None:
            progress(number, total)

    tokenizer, batches = _batches(plan, out, rounds + WARM_UP)
    steps = {name: _stepper(plan, name, tokenizer) for name in variants}
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number, pieces in enumerate(batches):
        tokens = sum(len(piece.ids) + SPECIAL for piece in pieces)
        # In a different order each time, so that no variant always follows the same one.
        for name in np.random.default_rng(number).permutation(list(variants)):
            start = time.process_time()
            steps[name](pieces, number)
            seconds[name].append((time.process_time() - start) / tokens)
        advance()
    made = []
    for name in variants:
        peaks = []
        for _ in range(PROCESSES):
            peaks.append(_peak_alone(out, name))
            advance()
        made.append(_cost(name, seconds[name][WARM_UP:], peaks))
    return Costs(torch.get_num_threads(), tuple(made))


def write_costs(costs: Costs, out: Path) -> None:
    """Write the costs into the experiment's folder."""
    with whole_file(out / COST) as partial:
        partial.write_text(json.dumps(asdict(costs), indent=1) + "\n")


def read_costs(out: Path) -> Costs | None:
    """Read the costs from the experiment's folder; None if they were not measured."""
    path = out / COST
    return read_table(Costs, json.loads(path.read_text()), str(path)) if path.is_file() else None


def _cost(name: str, seconds_per_token: Sequence[float], peaks: Sequence[int | None]) -> Cost:
    low, middle, high = np.quantile(seconds_per_token, [0.25, 0.5, 0.75])
    known = [peak for peak in peaks if peak is not None]
    peak = int(np.median(known)) if known else None
    return Cost(name, float(1 / middle), float(1 / high), float(1 / low), len(seconds_per_token), peak)


def _peak_alone(out: Path, variant: str) -> int | None:
    command = [sys.executable, "-m", "benchmarks.ablation.cost", str(out), variant]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise UnmaskError(f"the memory of {variant} could not be measured: {last}")
    found: int | None = json.loads(done.stdout)
    return found


def peak_of_steps(out: Path, variant: str) -> int | None:
    """Measure `Cost.peak_bytes` in this process, which should do nothing else."""
    plan = read_plan(out)
    tokenizer, batches = _batches(plan, out, STEPS)

    def work(name: str) -> None:
        step = _stepper(plan, name, tokenizer)
        for number, pieces in enumerate(batches):
            step(pieces, number)

    # Otherwise what libraries load on first use would be counted.
    work(VARIANTS[0].name)
    return peak_extra_bytes(lambda: work(variant), torch.device("cpu"))


def _batches(plan: Plan, out: Path, count: int) -> tuple[Tokenizer, list[list[Chunk]]]:
    """Return the tokenizer and the first micro-batches of the text."""
    tokenizer, sets = read_text(plan, out)
    of_step = plan.training.batch_tokens
    stream = ChunkStream([(one, 1.0) for one in sets], seed=0, micro_tokens=of_step, extra_tokens=SPECIAL)
    return tokenizer, [list(pieces) for pieces in stream.next(count)]


def _stepper(plan: Plan, variant: str, tokenizer: Tokenizer) -> Callable[[Sequence[Chunk], int], None]:
    """Return a function that takes one training step with a fresh encoder of the variant."""
    table = run_table(plan, variant, seed=0)
    checkpoint = new_checkpoint(
        with_tokenizer(table["model"]["config"], tokenizer), tokenizer.files, name=variant
    )
    encoder = new_encoder(checkpoint, seed=0)
    objective: Objective[Any, Any] = build_objective(
        table["objective"], encoder, Vocabulary.of(tokenizer), checkpoint.family
    )
    spec = read_table(OptimizerSpec, table["optimizer"], "optimizer")
    optimizer = build_optimizer(objective.train(), spec)

    def step(pieces: Sequence[Chunk], number: int) -> None:
        example = objective.prepare(pieces, np.random.default_rng(number), 0.0)
        objective(example, example.counts).loss.backward()
        clip_gradients(objective.parameters(), spec.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "0")) or torch.get_num_threads())
    print(json.dumps(peak_of_steps(Path(sys.argv[1]), sys.argv[2])))
