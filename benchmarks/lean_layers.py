"""Whole layers for inference beside the same encoder module by module, in one process, alternating.

python benchmarks/lean_layers.py --dtype bfloat16 --threads 1          # processor time, for a busy machine
python benchmarks/lean_layers.py --dtype float32 --threads 2 --wall    # wall time, for a quiet one

The modules are today's, so windows that a short text does not leave are full attention on both sides; for the
difference between two commits, run it at both and compare the column "whole".
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

import unmask
from unmask.encoder.encoder import Encoder
from unmask.text import PackedBatch

SIZES = {
    "one of 12": [12],
    "one of 30": [30],
    "one of 120": [120],
    "32 of 7 to 38": [*range(38, 6, -1)],
    "32 of 22": [22] * 32,
}


def main() -> None:
    """Print a table of medians in milliseconds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="default")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "int8"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--wall", action="store_true", help="wall time instead of processor time")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    clock = time.perf_counter_ns if chosen.wall else time.process_time_ns
    encoder = unmask.load(chosen.model, dtype=chosen.dtype).encoder
    print(
        f"{chosen.model}, {chosen.dtype}, {chosen.threads} threads, "
        f"{'wall' if chosen.wall else 'processor'} time, ms"
    )
    print(f"{platform.machine()}, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}")
    drawn = np.random.default_rng(0)
    for name, lengths in SIZES.items():
        batch = PackedBatch.of_ids([drawn.integers(5, 900, length) for length in lengths])
        ids_T, segments_T = torch.from_numpy(batch.ids_T), torch.from_numpy(batch.token_type_ids_T)

        def modules(
            batch: PackedBatch = batch, ids_T: torch.Tensor = ids_T, segments_T: torch.Tensor = segments_T
        ) -> object:
            return Encoder.forward(encoder, ids_T, batch.layout, segments_T)

        def whole(batch: PackedBatch = batch) -> object:
            return encoder.encode(batch)

        rounds = max(5, chosen.rounds * 12 // sum(lengths)) if sum(lengths) > 12 else chosen.rounds
        found = race({"modules": modules, "whole": whole}, rounds, clock)
        print(
            f"{name:16s} modules {found['modules']:9.3f}  whole {found['whole']:9.3f}  "
            f"ratio {found['modules'] / found['whole']:.2f}"
        )


def race(calls: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], int]) -> dict[str, float]:
    """The median of each call in milliseconds; the calls take turns."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    with torch.inference_mode():
        for call in calls.values():
            call()
        for _ in range(rounds):
            for name, call in calls.items():
                call()  # the caches as the call itself leaves them
                begun = clock()
                call()
                taken[name].append((clock() - begun) / 1e6)
    return {name: statistics.median(each) for name, each in taken.items()}


if __name__ == "__main__":
    main()
