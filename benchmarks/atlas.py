"""The cost of complete attention statistics of a long text compared with the forward pass: time and memory.

Weights are random, in the shape of a published model; the forward pass and the atlas take turns, so that a
busy machine slows both.

    python benchmarks/atlas.py --shape modernbert-base --tokens 8192 --threads 2 --json
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from unmask.bench.benchmark_model import shortened
from unmask.bench.memory import peak_extra_bytes
from unmask.encoder.encoder import Encoder
from unmask.engines.inference import optimize_for_inference, unsupported_reason
from unmask.families import find_architecture
from unmask.interpret import AttentionStatistics, AttentionView
from unmask.text import Encoding

RECTANGLE = 256
RECTANGLES = 20


def text_of(length: int, vocabulary: int, seed: int) -> Encoding:
    """Random ids."""
    return Encoding.of_arrays(
        text="w" * length,
        ids=np.random.default_rng(seed).integers(0, vocabulary, length),
        token_type_ids=np.zeros(length, dtype=np.int64),
        offsets=np.stack([np.arange(length), np.arange(length) + 1], axis=1),
        special=np.isin(np.arange(length), (0, length - 1)),
        sequence_ids=np.zeros(length, dtype=np.int64),
        pieces=("w",) * length,
    )


def seconds(work: Callable[[], object]) -> float:
    """Wall time."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def rectangles(view: AttentionView, seed: int) -> list[float]:
    """Milliseconds of rectangles of drawn layers, heads and places, each once."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(RECTANGLES):
        layer = int(draw.integers(view.layer_count))
        head = int(draw.integers(view.cache.heads(layer)))
        rows, columns = (
            slice(int(at), int(at) + RECTANGLE) for at in draw.integers(max(1, len(view) - RECTANGLE), size=2)
        )
        found.append(1000 * seconds(lambda: view.probabilities(layer, head, rows, columns)))  # noqa: B023
    return found


def main() -> None:
    """Measure, and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--shape", default="modernbert-base")
    options.add_argument("--layers", type=int, help="the first layers alone")
    options.add_argument("--tokens", type=int, default=8192)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--repeats", type=int, default=2)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(chosen.seed)
    spec = shortened(find_architecture(chosen.shape)[1].spec, chosen.layers)
    encoder = Encoder(spec).eval()
    if unsupported_reason("float32", "cpu") is None:
        encoder = optimize_for_inference(encoder, "float32")
    encoding = text_of(chosen.tokens, spec.embedding.vocabulary, chosen.seed)
    forward, measured, peak = [], [], 0
    view = AttentionView(encoder, encoding)  # a first run, not counted
    for number in range(chosen.repeats):
        forward.append(seconds(lambda: encoder_alone(encoder, view)))

        def work() -> None:
            nonlocal view
            view = AttentionView(encoder, encoding)
            view.statistics()

        if number == 0:
            del view
            begun = time.perf_counter()
            peak = peak_extra_bytes(work, torch.device("cpu")) or 0
            measured.append(time.perf_counter() - begun)
        else:
            measured.append(seconds(work))
        forward.append(seconds(lambda: encoder_alone(encoder, view)))
    tiles = rectangles(view, chosen.seed)
    report = {
        "shape": chosen.shape,
        "layers": len(spec.layers),
        "tokens": chosen.tokens,
        "threads": chosen.threads,
        "forward_seconds": round(statistics.median(forward), 2),
        "atlas_seconds": round(statistics.median(measured), 2),
        "ratio": round(statistics.median(measured) / statistics.median(forward), 2),
        "peak_bytes_above_model": peak,
        "stated_bytes": AttentionStatistics.bytes_needed(spec, chosen.tokens),
        "rectangle_ms_median": round(statistics.median(tiles), 1),
        "rectangle_ms_worst": round(max(tiles), 1),
    }
    if chosen.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name:24} {value:,}" if isinstance(value, int) else f"{name:24} {value}")


def encoder_alone(encoder: Encoder, view: AttentionView) -> None:
    """The forward pass as it is without looking."""
    with torch.inference_mode():
        encoder.encode(view.cache.batch)


if __name__ == "__main__":
    main()
