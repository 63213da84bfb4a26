"""Milliseconds to score 200 candidates by many vectors, beside MaxSim in plain torch, query by query.

    python benchmarks/rescoring.py --index rescoring --documents 2000 --queries 50 --threads 2

The index has BM25, which finds the candidates, and a vector of width 96 for each token. Those of passages are
drawn at random, because times do not depend on them; queries are encoded by the default model with a random
projection. The index is made at the first run and reused. Passages are those of SciFact and openstax, in
turn; the queries are SciFact's.

``search`` is one call of `Index.search` with ten hits and their texts; ``its query`` computes the query's
vectors alone, and ``its scores`` the scores alone. ``torch`` is MaxSim of the same query with the same
candidates from a padded float32 tensor that is ready in memory, which needs no reading, gathering or
conversion. All run in turns: a busy machine slows all of them, so compare ratios and read the load.
``processor`` is the time of all threads of this process.
"""

import os
import statistics
import time
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import unmask
from benchmarks.indexing import DATA, documents
from unmask.evaluate.retrieval.collection import read_beir
from unmask.models.load import Model
from unmask.spec import Dense, MultiVector
from unmask.text import PackedBatch
from unmask.weights.build import build
from unmask.weights.write.new_checkpoint import new_encoder
from unmask.weights.write.save import save

WIDTH = 96


def projected(folder: Path) -> None:
    """Write the default model with a random projection of each token's state."""
    checkpoint = unmask.load("default").checkpoint
    spec = replace(checkpoint.spec, pooler=None, heads=())
    head = MultiVector((Dense(WIDTH, bias=False),), query_tokens=32)
    many = replace(checkpoint, spec=spec, head=head, sentence_files={})
    encoder = new_encoder(many, seed=0)
    encoder.load_state_dict(build(checkpoint).state_dict(), strict=False)
    save(encoder, many, folder)


class Drawn:
    """Stands for an engine whose token vectors are random directions."""

    dtype = "float32"

    def __init__(self) -> None:
        self._draw = np.random.default_rng(0)

    def token_vectors(
        self, batch: PackedBatch, output: MultiVector, tokens: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """One unit vector for each token."""
        drawn_ME = self._draw.standard_normal((len(tokens), WIDTH), dtype=np.float32)
        return drawn_ME / np.linalg.norm(drawn_ME, axis=1, keepdims=True)


def opened(folder: Path, count: int, passage_tokens: int) -> tuple[unmask.Index, Model]:
    """The index, made if it does not exist, and the model that reads queries in float32."""
    if not (folder / "model").exists():
        projected(folder / "model")
    name = f"index-{count}-{passage_tokens}"
    if not (folder / name).exists():
        stand_in = unmask.load(folder / "model")
        stand_in.engine = Drawn()  # type: ignore[assignment]
        index = unmask.Index.create(folder / name, stand_in, passage_tokens=passage_tokens)
        index.add(
            ({"id": id, "text": text} for id, text in islice(documents(), count)),
            progress=lambda done, _: print(f"{done:,} passages", flush=True),
        )
    model = unmask.load(folder / "model")
    return unmask.Index.open(folder / name, model), model


def vectors_of(index: unmask.Index, passages: NDArray[np.int64]) -> list[torch.Tensor]:
    """The vectors of each passage, float32."""
    segments = [segment.arrays for segment in index._contents.segments]
    starts = np.cumsum([0, *(len(one["vectors/offsets"]) - 1 for one in segments)])
    found = []
    for passage in passages.tolist():
        number = int(np.searchsorted(starts, passage, side="right")) - 1
        start, end = segments[number]["vectors/offsets"][passage - starts[number] :][:2]
        found.append(torch.from_numpy(segments[number]["vectors/values"][start:end].astype(np.float32)))
    return found


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds by the clock and of all threads."""
    began, used = time.perf_counter(), time.process_time()
    run()
    return 1e3 * (time.perf_counter() - began), 1e3 * (time.process_time() - used)


def maxsim(query_QE: torch.Tensor, padded_CNE: torch.Tensor) -> torch.Tensor:
    """The score of each candidate, (C,); a padded place is a zero vector, which costs the same."""
    return (padded_CNE @ query_QE.T).amax(dim=1).sum(dim=-1)


def main() -> None:
    """Print medians and the ratio to the peer."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--index", type=Path, required=True, help="a folder that is kept")
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--passage-tokens", type=int, default=256)
    parser.add_argument("--candidates", type=int, default=200)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    index, model = opened(chosen.index, chosen.documents, chosen.passage_tokens)
    texts = list(read_beir(DATA / "scifact").queries.values())[: chosen.queries]
    searcher = index._searcher
    times: dict[str, list[tuple[float, float]]] = {
        name: [] for name in ("search", "its query", "its scores", "torch")
    }
    counts = []
    load = os.getloadavg()[0]
    for text in (texts[0], *texts):
        query_QE = searcher.query(text, "end").tokens.vectors_QE
        first, _ = searcher.rank(searcher.query(text, "end"), "bm25", chosen.candidates)
        candidates = np.sort(first.passages)
        vectors = vectors_of(index, candidates)
        counts.append(sum(map(len, vectors)))
        padded_CNE = torch.nn.utils.rnn.pad_sequence(vectors, batch_first=True)
        runs: dict[str, Callable[[], object]] = {
            "search": lambda text=text: index.search(
                text, 10, "multi_vector", candidates=chosen.candidates, truncation="end"
            ),
            "its query": lambda text=text: model.multi_vectors([text], "query", truncation="end"),
            "its scores": lambda q=query_QE, c=candidates: searcher.vectors.scores(q, c),
            "torch": lambda q=query_QE, p=padded_CNE: maxsim(torch.from_numpy(q), p),
        }
        for name, run in runs.items():
            times[name].append(timed(run))
    print(
        f"{index.passages:,} passages, {chosen.candidates} candidates with {statistics.median(counts):,} "
        f"vectors, {chosen.threads} threads, load {load:.1f} before and {os.getloadavg()[0]:.1f} after"
    )
    for name, all_of_it in times.items():
        clock, used = (sorted(one[part] for one in all_of_it[1:]) for part in (0, 1))  # the first warms up
        print(
            f"{name:12s} median {statistics.median(clock):7.1f} ms, least {clock[0]:6.1f}, processor "
            f"{statistics.median(used):7.1f}"
        )
    ratios = [ours[0] / peer[0] for ours, peer in zip(times["its scores"], times["torch"], strict=True)][1:]
    print(f"its scores take {statistics.median(ratios):.2f} times as long as torch's, median of queries")


if __name__ == "__main__":
    main()
