"""Seconds to index passages, beside sentence-transformers with faiss, by one model in one interleaved run.

    pip install faiss-cpu
    python benchmarks/indexing.py --passages 1000 --rounds 5 --threads 2

unmask reads texts, cuts them into passages, computes terms and vectors, and commits a generation with
checksums. The peer is given the passages that unmask made, encodes them (sorted by length, batches of 32, as
its `encode` does), adds the vectors to a flat index of inner products and writes that to a file. The texts
are abstracts of SciFact and pages of openstax textbooks, one half each.
"""

import importlib
import json
import lzma
import statistics
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import unmask
from unmask.models.load import Model
from unmask.search.passages import passages_of

DATA = Path(__file__).parents[2] / "shared" / "data"


def documents() -> Iterator[tuple[str, str]]:
    """Ids and texts, in turn from both collections."""
    with (
        lzma.open(DATA / "scifact" / "corpus.jsonl.xz", "rt", encoding="utf-8") as abstracts,
        lzma.open(DATA / "openstax" / "openstax_ccby.jsonl.xz", "rt", encoding="utf-8") as modules,
    ):
        for number, (abstract, module) in enumerate(zip(abstracts, modules, strict=False)):
            yield f"a{number}", json.loads(abstract)["text"]
            yield f"m{number}", " ".join(json.loads(module)["text"].split()[:600])


def ours(model: Model, chosen: list[tuple[str, str]], *, bm25: bool) -> tuple[float, list[str]]:
    """Seconds, and the passages."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        index = unmask.Index.create(Path(folder) / "index", model, bm25=bm25)
        index.add({"id": id, "text": text} for id, text in chosen)
        seconds = time.perf_counter() - began
        most = index.settings.passages.max_tokens
    whole = model.tokenizer.encode_batch([text for _, text in chosen], max_tokens=None)
    return seconds, [
        one.text[part.start : part.end] for one in whole for part in passages_of(one, max_tokens=most)
    ]


def theirs(model: Any, passages: list[str]) -> float:
    """Seconds."""
    faiss = importlib.import_module("faiss")
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        vectors = model.encode(passages, batch_size=32, normalize_embeddings=True, convert_to_numpy=True)
        flat = faiss.IndexFlatIP(vectors.shape[1])
        flat.add(np.ascontiguousarray(vectors, dtype=np.float32))
        faiss.write_index(flat, str(Path(folder) / "index.faiss"))
        return time.perf_counter() - began


def main() -> None:
    """Print the median seconds of each and the ratio to the peer in the same round."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "int8"])
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    peer = importlib.import_module("sentence_transformers")
    folder = unmask.load("default").checkpoint.source.folder
    models = {dtype: unmask.load("default", dtype=dtype) for dtype in chosen.dtypes}
    runs: dict[str, Callable[[], float]] = {}
    texts = list(islice(documents(), chosen.passages // 2))
    _, passages = ours(models[chosen.dtypes[0]], texts, bm25=False)
    for dtype, model in models.items():
        runs[f"unmask {dtype}"] = lambda model=model: ours(model, texts, bm25=False)[0]
    runs[f"unmask {chosen.dtypes[0]} with bm25"] = lambda: ours(models[chosen.dtypes[0]], texts, bm25=True)[0]
    for dtype in ("float32", "bfloat16"):
        if dtype in chosen.dtypes:
            kept = peer.SentenceTransformer(
                str(folder), device="cpu", model_kwargs={"dtype": getattr(torch, dtype)}
            )
            runs[f"sentence-transformers {dtype}"] = lambda kept=kept: theirs(kept, passages)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(chosen.rounds + 1):
        for name, run in runs.items():
            took = run()
            if round_:  # the first warms up
                seconds[name].append(took)
    print(f"{len(passages):,} passages of {len(texts):,} documents, {chosen.threads} threads")
    base = seconds["sentence-transformers float32"]
    for name, all_of_it in seconds.items():
        ratios = [other / own for other, own in zip(base, all_of_it, strict=True)]
        print(
            f"{name:34s} {statistics.median(all_of_it):8.2f} s   {statistics.median(ratios):5.2f} x "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
