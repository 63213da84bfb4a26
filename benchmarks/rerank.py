"""What a cross-encoder adds to the default model's first documents of SciFact, with paired intervals.

    python benchmarks/rerank.py runs/science --reranker runs/science/reranker/model

Ranks all documents by the default model, scores the best candidates of each query with the cross-encoder, and
prints nDCG@10 of the first stage, of the cross-encoder's order, and of a weighted sum of both scores, each
brought to the range from 0 to 1 within its query. The weight is chosen on the dev queries, which are not
trained on (see `retrieval_pairs.py science`), and then used once on the test queries. The interval of a gain
is that of bootstrap samples of queries, each with both rankings. Vectors and scores are kept in the folders.
"""

import json
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from retrieval_pairs import DATA, document, held_out, rows

import unmask
from unmask.base.intervals import percentile_interval, samples
from unmask.evaluate.retrieval.collection import Judgments, read_beir
from unmask.evaluate.retrieval.retrieval import figures

WEIGHTS = [round(0.1 * number, 1) for number in range(1, 10)]
Ranking = Mapping[str, NDArray[np.float32]]
"""For each query the scores of its candidates."""


def vectors(folder: Path, dtype: str) -> NDArray[np.float32]:
    """The vector of every document, computed once."""
    path = folder / "documents.npy"
    if not path.exists():
        texts = [document(row) for row in rows("scifact/corpus.jsonl.xz")]
        found = unmask.load("default", dtype=dtype).embed_document(texts, truncation="end")
        np.save(path, found.astype(np.float32))
    return np.load(path)


def scaled(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scores of one query from 0 to 1."""
    return (scores - scores.min()) / max(float(np.ptp(scores)), 1e-9)


def ndcg(found: Ranking, ids: Mapping[str, list[str]], judgments: Judgments) -> NDArray[np.float64]:
    """nDCG@10 of each query."""
    run = {query: dict(zip(ids[query], scores.tolist(), strict=True)) for query, scores in found.items()}
    per_query = figures(run, judgments).per_query
    return np.array([per_query[query]["nDCG@10"] for query in judgments])


def gain(after: NDArray[np.float64], before: NDArray[np.float64]) -> str:
    """The difference of two means with its paired interval."""
    change = after - before
    drawn = percentile_interval([float(change[some].mean()) for some in samples(len(change))])
    return f"{after.mean():.4f}, gain {change.mean():+.4f} ({drawn.low:+.4f} to {drawn.high:+.4f})"


class Split:
    """The candidates of judged queries, by the default model and by the cross-encoder."""

    def __init__(
        self, judgments: Judgments, queries: Mapping[str, str], folder: Path, dtype: str, candidates: int
    ) -> None:
        self.judgments, self.queries = judgments, queries
        corpus = list(rows("scifact/corpus.jsonl.xz"))
        asked = unmask.load("default", dtype=dtype).embed_query([queries[one] for one in judgments])
        scores_QP = asked.astype(np.float32) @ vectors(folder, dtype).T
        best_QC = np.argsort(-scores_QP, axis=1, kind="stable")[:, :candidates]
        self.ids = {
            one: [str(corpus[place]["_id"]) for place in places]
            for one, places in zip(judgments, best_QC, strict=True)
        }
        self.texts = [[document(corpus[place]) for place in places] for places in best_QC]
        scores_QC = np.take_along_axis(scores_QP, best_QC, axis=1)
        self.first: Ranking = dict(zip(judgments, scores_QC, strict=True))

    def scored(self, name: str, dtype: str, kept: Path) -> Ranking:
        """The cross-encoder's scores; those of candidates that the kept file has are not computed again."""
        before_QC = np.load(kept) if kept.exists() else np.empty((len(self.texts), 0), dtype=np.float32)
        done, wanted = before_QC.shape[1], len(self.texts[0])
        if done < wanted:
            asked = [self.queries[one] for one in self.judgments for _ in range(done, wanted)]
            texts = [text for some in self.texts for text in some[done:]]
            model = unmask.load(name, dtype=dtype)
            new_P = model.score_pairs(asked, texts, activation="identity", truncation="end")
            before_QC = np.concatenate((before_QC, new_P.reshape(len(before_QC), -1)), axis=1)
            np.save(kept, before_QC)
        return dict(zip(self.judgments, before_QC[:, :wanted], strict=True))

    def fused(self, second: Ranking, weight: float) -> Ranking:
        """The weighted sum of both, ``weight`` that of the cross-encoder."""
        return {
            one: weight * scaled(second[one]) + (1 - weight) * scaled(self.first[one])
            for one in self.judgments
        }


def main() -> None:
    """Print the figures of the cross-encoder that the command line names."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--reranker", type=Path, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--candidates", type=int, default=50)
    parser.add_argument("--dev-only", action="store_true")
    chosen = parser.parse_args()
    judged = read_beir(DATA / "scifact")
    held = held_out()
    dev = {one: some for one, some in judged.judgments("train").items() if judged.queries[one] in held}
    weight = 0.5
    for name, judgments in (("dev", dev), ("test", judged.judgments("test"))):
        split = Split(judgments, judged.queries, chosen.folder, chosen.dtype, chosen.candidates)
        kept = chosen.reranker / f"{name}-scores.npy"
        second = split.scored(str(chosen.reranker), chosen.dtype, kept)
        before = ndcg(split.first, split.ids, judgments)
        sums = {one: ndcg(split.fused(second, one), split.ids, judgments) for one in WEIGHTS}
        if name == "dev":
            weight = max(WEIGHTS, key=lambda one: float(sums[one].mean()))
        print(f"{name}: {len(judgments)} queries, first stage {before.mean():.4f}")
        print(f"  cross-encoder {gain(ndcg(second, split.ids, judgments), before)}")
        print(f"  sum, weight {weight} {gain(sums[weight], before)}")
        print(json.dumps({"weights": {one: round(float(values.mean()), 4) for one, values in sums.items()}}))
        if chosen.dev_only:
            break


if __name__ == "__main__":
    main()
