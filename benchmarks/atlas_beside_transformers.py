"""Attention statistics of every head from the maps of `transformers`, compared with ours.

Both read the same ids with the same weights, those of the default model, taking turns; their numbers are
compared too. The usual way gets what it needs of each map and no more: entropy, distance, attention received
and the strongest keys of every query, and a map of 128 x 128 cells.

    python benchmarks/atlas_beside_transformers.py --tokens 512 --threads 2 --json
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, adaptive_max_pool2d

import unmask
from unmask.bench.memory import peak_extra_bytes
from unmask.interpret import AttentionView
from unmask.text import Encoding

EDGES = 8
MAPS = 128


def text_of(length: int, vocabulary: int) -> Encoding:
    """Random ids."""
    return Encoding.of_arrays(
        text="w" * length,
        ids=np.random.default_rng(0).integers(1000, vocabulary, length),
        token_type_ids=np.zeros(length, dtype=np.int64),
        offsets=np.stack([np.arange(length), np.arange(length) + 1], axis=1),
        special=np.isin(np.arange(length), (0, length - 1)),
        sequence_ids=np.zeros(length, dtype=np.int64),
        pieces=("w",) * length,
    )


def usual(model: torch.nn.Module, ids: Tensor) -> dict[str, Tensor]:
    """Statistics (L, H, N) from the maps that `transformers` returns."""
    places = torch.arange(ids.shape[1])
    apart_NN = (places[None] - places[:, None]).abs().float()
    with torch.inference_mode():
        maps = model(input_ids=ids, output_attentions=True).attentions
        found: dict[str, list[Tensor]] = {}
        for (p_HNN,) in maps:
            layer = {
                "entropy": torch.special.entr(p_HNN).sum(-1),
                "distance": (p_HNN * apart_NN).sum(-1),
                "received": p_HNN.mean(-2),
                "edges": p_HNN.topk(EDGES, dim=-1).values,
                "mean": adaptive_avg_pool2d(p_HNN, min(MAPS, len(places))),
                "largest": adaptive_max_pool2d(p_HNN, min(MAPS, len(places))),
            }
            for name, values in layer.items():
                found.setdefault(name, []).append(values)
    return {name: torch.stack(values) for name, values in found.items()}


def seconds(work: Callable[[], object]) -> float:
    """Wall time."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> None:
    """Measure, and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--tokens", type=int, default=512)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    ours = unmask.load("default")
    folder = ours.checkpoint.source.folder
    theirs = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    encoding = text_of(chosen.tokens, ours.spec.embedding.vocabulary)
    ids = torch.tensor(encoding.ids)[None]

    def look() -> AttentionView:
        view = AttentionView(ours.encoder, encoding)
        view.statistics(top_k=EDGES, maps=MAPS)
        return view

    view, dense = look(), usual(theirs, ids)
    worst = {
        name: float(np.abs(getattr(view, name) - dense[name].numpy()).max())
        for name in ("entropy", "distance", "received")
    }
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(chosen.repeats):
        times["ours"].append(seconds(look))
        times["theirs"].append(seconds(lambda: usual(theirs, ids)))
    cpu = torch.device("cpu")
    report = {
        "model": ours.name,
        "tokens": chosen.tokens,
        "threads": chosen.threads,
        **{f"{name}_seconds": round(statistics.median(found), 3) for name, found in times.items()},
        "ratio": round(
            statistics.median(b / a for a, b in zip(times["ours"], times["theirs"], strict=True)), 2
        ),
        "ours_peak_bytes": peak_extra_bytes(look, cpu),
        "theirs_peak_bytes": peak_extra_bytes(lambda: usual(theirs, ids), cpu),
        "largest_differences": worst,
    }
    print(json.dumps(report, indent=None if chosen.json else 2))


if __name__ == "__main__":
    main()
