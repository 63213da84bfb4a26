"""What retrievers trained from the default model gain on SciFact and CosQA, with seeds and paired intervals.

    python benchmarks/retrieval_pairs.py queries -o runs/cosqa
    unmask mine runs/cosqa/train.jsonl -o runs/cosqa/mined.jsonl --corpus runs/cosqa/corpus.jsonl \\
        --num-negatives 15 --range-max 40 --relative-margin none --dtype bfloat16
    unmask finetune recipes/retrieval/cosqa.toml
    python benchmarks/retrievers.py runs/cosqa/dense --collections cosqa

All documents are ranked for every test query, by one vector per text or one per token, as the trained
model has them, and nDCG@10 is compared with that of the default model's vectors. Of several seeds the figure
of a query is the mean over them. Intervals are those of bootstrap samples of queries, each with both models.
"""

import json
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from retrieval_pairs import DATA, document, rows

import unmask
from unmask.base.intervals import percentile_interval, samples
from unmask.evaluate.retrieval.collection import Judgments, read_beir
from unmask.evaluate.retrieval.retrieval import figures
from unmask.spec.embedding_head import MultiVector
from unmask.tasks.multi_vectors import TokenVectors

Gains = NDArray[np.float64]
"""A figure of each query."""


class Queries:
    """The judged queries of a part of a collection."""

    def __init__(self, name: str, split: str) -> None:
        found = read_beir(DATA / name)
        self.ids = [str(row["_id"]) for row in rows(f"{name}/corpus.jsonl.xz")]
        self.judgments: Judgments = found.judgments(split)
        self.texts = [found.queries[query] for query in self.judgments]

    def ndcg(self, scores_QP: NDArray[np.float32]) -> Gains:
        """nDCG@10 of each query."""
        best_QC = np.argsort(-scores_QP, axis=1, kind="stable")[:, :100]
        run = {
            query: {self.ids[place]: float(scores[place]) for place in best}
            for query, best, scores in zip(self.judgments, best_QC, scores_QP, strict=True)
        }
        per_query = figures(run, self.judgments).per_query
        return np.array([per_query[query]["nDCG@10"] for query in self.judgments])


def ndcg(source: str | Path, dtype: str, documents: Sequence[str], test: Queries) -> Gains:
    """nDCG@10 of the vectors that a checkpoint gives."""
    model = unmask.load(source, dtype=dtype)
    if not isinstance(model.checkpoint.head, MultiVector):
        read_PW = model.embed_document(documents, truncation="end").astype(np.float32)
        return test.ndcg(model.embed_query(test.texts, truncation="end").astype(np.float32) @ read_PW.T)
    asked = model.multi_vectors(test.texts, "query", truncation="end")
    read = model.multi_vectors(documents, "document", truncation="end")
    # Rows of zeros add nothing to a score; the best products of the tokens of a query are added.
    asked_QTW = torch.nn.utils.rnn.pad_sequence([vectors_of(text) for text in asked], batch_first=True)
    scores_QP = np.empty((len(asked), len(read)), dtype=np.float32)
    for place, text in enumerate(read):
        scores_QP[:, place] = (asked_QTW @ vectors_of(text).T).amax(2).sum(1)
    return test.ndcg(scores_QP)


def vectors_of(text: TokenVectors) -> torch.Tensor:
    """The vectors of a text in float32."""
    return torch.from_numpy(text.vectors_NE).float()


def compared(after: NDArray[np.float64], before: NDArray[np.float64]) -> dict[str, float]:
    """Both means, and the gain with its paired interval."""
    change = after - before
    drawn = percentile_interval([float(change[some].mean()) for some in samples(len(change))])
    figure = {"before": before.mean(), "after": after.mean(), "gain": change.mean()}
    return {
        name: round(float(value), 4)
        for name, value in (*figure.items(), ("low", drawn.low), ("high", drawn.high))
    }


def measured(trained: Sequence[Path], name: str, dtype: str) -> dict[str, object]:
    """The figures of every seed of a run, and of their mean."""
    documents = [document(row) for row in rows(f"{name}/corpus.jsonl.xz")]
    test = Queries(name, "test")
    before = ndcg("default", dtype, documents, test)
    after = [ndcg(path, dtype, documents, test) for path in trained]
    mean = compared(np.mean(after, axis=0), before)
    return {"queries": len(before), "each": [compared(one, before) for one in after], "mean": mean}


def main() -> None:
    """Measure the run that the command line names."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--collections", default="scifact,cosqa")
    parser.add_argument("--dtype", default="float32")
    chosen = parser.parse_args()
    seeds = sorted(chosen.folder.glob("seed-*/model"))
    trained = seeds or [chosen.folder / "model"]
    found: dict[str, object] = {"models": [str(path.relative_to(chosen.folder)) for path in trained]}
    for name in chosen.collections.split(","):
        found[name] = measured(trained, name, chosen.dtype)
        print(name, json.dumps(found[name], indent=1), flush=True)
    (chosen.folder / "figures.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
