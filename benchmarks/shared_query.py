"""Time to score the documents of one query by a cross-encoder, with full attention and with a shared query.

    python benchmarks/shared_query.py --threads 1 --rounds 5

Both are the default model's weights with a new head, so only times mean something. Ids are random, lengths of
documents vary by a fifth. ``processor`` is the ratio of the times of all threads of this process, which other
processes disturb less than the clock.
"""

import statistics
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

import unmask
from benchmarks.rescoring import timed
from unmask.engines.inference import optimize_for_inference
from unmask.engines.torch_engine import TorchEngine
from unmask.spec import Classifier, PairScore
from unmask.tasks.pair_scores import pair_scores
from unmask.text import Encoding
from unmask.weights.build import build
from unmask.weights.write.new_checkpoint import new_encoder

SHAPES = ((16, 44), (16, 128), (16, 240), (24, 24), (64, 64), (64, 128), (128, 128), (200, 200))
"""Tokens of the query, and of a document on average."""


def pair(query: np.ndarray, document: np.ndarray) -> Encoding:
    """[CLS] query [SEP] document [SEP], as BERT reads it."""
    ids = np.concatenate(([101], query, [102], document, [102])).astype(np.int64)
    first = len(query) + 2
    of_N = np.where(np.arange(len(ids)) < first, 0, 1)
    special = np.isin(ids, (101, 102))
    return Encoding.of_arrays(
        "", "", ids=ids, token_type_ids=of_N, offsets=np.zeros((len(ids), 2), np.int64), special=special,
        sequence_ids=np.where(special, -1, of_N), pieces=[""] * len(ids),
    )  # fmt: skip


def main() -> None:
    """Print medians and ratios of the rounds."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    checkpoint = unmask.load("default").checkpoint
    spec = replace(checkpoint.spec, heads=(Classifier("sequence", 1, "pooler"),))
    encoder = new_encoder(replace(checkpoint, spec=spec, head=PairScore()), seed=0)
    encoder.load_state_dict(build(checkpoint).state_dict(), strict=False)
    engine = TorchEngine(optimize_for_inference(encoder.eval(), chosen.dtype))
    draw = np.random.default_rng(0)
    for tokens, mean in SHAPES:
        query = draw.integers(1000, 20000, tokens)
        lengths = np.clip(draw.normal(mean, mean / 5, chosen.documents).astype(int), 8, 500 - tokens)
        pairs = [pair(query, draw.integers(1000, 20000, length)) for length in lengths]
        runs: dict[str, Callable[[], object]] = {
            "full": lambda pairs=pairs: pair_scores(engine, PairScore(), pairs),
            "shared": lambda pairs=pairs: pair_scores(engine, PairScore(shared_query=True), pairs),
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        for _ in range(chosen.rounds + 1):
            for name, run in runs.items():
                times[name].append(timed(run))
        clock, processor = (
            [full[part] / shared[part] for full, shared in zip(*times.values(), strict=True)][1:]
            for part in (0, 1)
        )
        print(
            f"query {tokens:3d}, documents {mean:3d}: full "
            f"{statistics.median(one[1] for one in times['full'][1:]):6.0f} ms of processor, "
            f"{statistics.median(processor):.2f} times as long as shared ({min(processor):.2f} to "
            f"{max(processor):.2f}); by the clock {statistics.median(clock):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
