"""What a number format costs: scores of tasks, and cosines of what they are computed from with float32.

    python benchmarks/formats.py embeddings default
    python benchmarks/formats.py tasks runs/splits
    python benchmarks/formats.py reranker runs/science/reranker/model

- embeddings: a model on STS-B's test part (Spearman) and on all documents of SciFact (nDCG@10, test queries).
- tasks: the shipped adapters `sentiment`, `names` and `answers` on the data of docs/scores.md, which
  `scripts/splits.py` wrote.
- reranker: the order of a cross-encoder (see `benchmarks/rerank.py`) on the documents that BM25 has first for
  SciFact's test queries.

Cosines are of embeddings, or of each token's last hidden state where a head follows. Each result is a line of
JSON with the seconds of processor time, printed as soon as it is there; comparisons
with float32 are printed at the end.
"""

import json
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
from numpy.typing import NDArray
from rerank import ndcg
from retrieval_pairs import DATA, document, rows

import unmask
from unmask.bench.benchmark_model import spearman, sts_b
from unmask.bench.speed.accuracy import agreement
from unmask.evaluate.protocols.scores import entity_scores
from unmask.evaluate.protocols.squad import Answered, scored_answers
from unmask.evaluate.retrieval.collection import Judgments, read_beir
from unmask.training.finetune.records import Labeled, read_labeled
from unmask.training.finetune.settings import DataSettings

Vectors = NDArray[np.float32]
LABELS = {"0": "negative", "1": "positive"}
COMPARED = 100
"""Texts whose hidden states are compared."""


class Beside:
    """Results as they come, and what they are computed from, by number format, to be compared at the end."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}
        self.start = time.process_time()

    def tell(self, dtype: str, data: str, vectors: Vectors, values: Sequence[Any], **scores: object) -> None:
        """Print the scores of a number format, and keep its vectors and the values that it leads to."""
        self.kept.setdefault(data, {})[dtype] = (vectors, values)
        seconds, self.start = time.process_time() - self.start, time.process_time()
        print(json.dumps({"dtype": dtype, "data": data, **scores, "seconds": round(seconds, 1)}), flush=True)

    def compare(self) -> None:
        """Print the mean cosine of vectors with those in float32, and how many values are others."""
        for data, by_dtype in self.kept.items():
            expected, right = by_dtype["float32"]
            for dtype, (vectors, values) in by_dtype.items():
                apart = sum(a != b for a, b in zip(right, values, strict=True))
                cosine = round(agreement(vectors, expected).cosine_mean, 6)
                told = {"dtype": dtype, "data": data, "cosine": cosine, "others": f"{apart} of {len(right)}"}
                print(json.dumps(told), flush=True)


def states(model: unmask.Model, texts: Sequence[str]) -> Vectors:
    """The last hidden state of each token."""
    return np.concatenate([x.numpy() for x in model.hidden_states(list(texts[:COMPARED]), truncation="end")])


def embeddings(name: str, count: int | None, dtypes: Sequence[str]) -> None:
    """STS-B and SciFact."""
    beside, pairs = Beside(), sts_b(DATA)
    judgments, queries, ids, texts = science()
    chosen = np.arange(len(ids)) if count is None else nearest(count, judgments, queries, ids, texts)
    ids, texts = [ids[place] for place in chosen], [texts[place] for place in chosen]
    for dtype in dtypes:
        model = unmask.load(name, dtype=dtype)
        left, right = (model.embed(list(side), normalize=True) for side in (pairs.left, pairs.right))
        cosines = (left * right).sum(1, dtype=np.float64)
        score = round(spearman(cosines, np.array(pairs.scores)), 4)
        beside.tell(dtype, "STS-B", np.concatenate((left, right)), [], spearman=score)
        asked = model.embed_query(queries, normalize=True)
        vectors = model.embed_document(texts, truncation="end", normalize=True)
        values = ranked(asked @ vectors.T, ids, judgments)
        name_of = f"SciFact, {len(ids)} documents"
        beside.tell(dtype, name_of, vectors, values.round(6).tolist(), ndcg_at_10=round(values.mean(), 4))
    beside.compare()


def science() -> tuple[Judgments, list[str], list[str], list[str]]:
    """Judgments of SciFact's test queries, these queries, and ids and texts of all documents."""
    judged = read_beir(DATA / "scifact")
    judgments = judged.judgments("test")
    corpus = list(rows("scifact/corpus.jsonl.xz"))
    ids, texts = [str(row["_id"]) for row in corpus], list(map(document, corpus))
    return judgments, [judged.queries[query] for query in judgments], ids, texts


def nearest(
    count: int, judgments: Judgments, queries: Sequence[str], ids: Sequence[str], texts: Sequence[str]
) -> NDArray[np.int64]:
    """The judged documents of all queries, and of the others those that BM25 ranks best for any query."""
    best_QC = np.argsort(-bm25_scores(queries, texts), axis=1, kind="stable")[:, :100]
    judged = {document for some in judgments.values() for document in some}
    order = [place for place, id_ in enumerate(ids) if id_ in judged] + best_QC.T.ravel().tolist()
    return np.array(sorted(list(dict.fromkeys(order))[:count]))


def bm25_scores(queries: Sequence[str], texts: Sequence[str]) -> Vectors:
    """Of every document for every query."""
    index = bm25s.BM25()
    index.index(bm25s.tokenize(list(texts), show_progress=False, return_ids=False), show_progress=False)
    asked = bm25s.tokenize(list(queries), show_progress=False, return_ids=False)
    return np.stack([index.get_scores(words) for words in asked])


def ranked(scores_QP: Vectors, ids: Sequence[str], judgments: Judgments) -> NDArray[np.float64]:
    """nDCG@10 of each query."""
    best_QC = np.argsort(-scores_QP, axis=1, kind="stable")[:, :100]
    return ndcg(
        {
            query: scores_QP[place, best]
            for place, (query, best) in enumerate(zip(judgments, best_QC, strict=True))
        },
        {query: [ids[place] for place in best] for query, best in zip(judgments, best_QC, strict=True)},
        judgments,
    )


def tasks(splits: Path, dtypes: Sequence[str]) -> None:
    """The adapters."""
    beside = Beside()
    sentences = read(DATA / "glue/SST-2/dev.tsv.xz", text="sentence")
    texts = [str(record.text) for record in sentences]
    for dtype in dtypes:
        model = unmask.load("default", adapter="sentiment", dtype=dtype)
        found = [one.label for one in model.classify(texts)]
        right = [LABELS[record.label] == label for record, label in zip(sentences, found, strict=True)]
        accuracy = round(100 * float(np.mean(right)), 2)
        beside.tell(dtype, "SST-2", states(model, texts), found, accuracy=accuracy)
        model = unmask.load("default", adapter="names", dtype=dtype)
        for name in ("wikiann", "wnut17"):
            path = splits / f"names/{name}-test.conll"
            words = [record.text for record in read(path)]
            found = [word.label for one in model.tag(words) for word in one.words]
            scores = entity_scores(model, DataSettings((str(path),), dev=(str(path),)))
            beside.tell(dtype, name, states(model, list(map(" ".join, words))), found, f1=round(scores.f1, 4))
        model = unmask.load("default", adapter="answers", dtype=dtype)
        records = read(splits / "squad/dev-8.json", format="squad")
        asked, contexts = ([str(getattr(record, side)) for record in records] for side in ("text", "pair"))
        found = [one.answers[0].text for one in model.answer(asked, contexts)]
        answered = [
            Answered(tuple(text for text, _ in record.label.answers), text, 0.0)
            for record, text in zip(records, found, strict=True)
        ]
        f1 = round(scored_answers(answered).f1, 2)
        beside.tell(dtype, "SQuAD", states(model, list(dict.fromkeys(contexts))), found, f1=f1)
    beside.compare()


def read(path: Path, **columns: Any) -> list[Labeled]:
    """The records of a file."""
    return list(read_labeled([str(path)], DataSettings((str(path),), **columns), Path(), offsets=False))


def reranker(name: str, candidates: int, count: int | None, dtypes: Sequence[str]) -> None:
    """The order of a cross-encoder. What is compared by query is its best document."""
    beside = Beside()
    judgments, queries, ids, texts = science()
    judgments, queries = dict(list(judgments.items())[:count]), queries[:count]
    first_QP = bm25_scores(queries, texts)
    best_QC = np.argsort(-first_QP, axis=1, kind="stable")[:, :candidates]
    print(json.dumps({"first_stage": round(ranked(first_QP, ids, judgments).mean(), 4)}), flush=True)
    scores_of: dict[str, Vectors] = {}
    for dtype in dtypes:
        model = unmask.load(name, dtype=dtype)
        scores_P = model.score_pairs(
            [query for query in queries for _ in range(candidates)],
            [texts[place] for places in best_QC for place in places],
            activation="identity",
            truncation="end",
        )
        scores_QC = scores_of[dtype] = scores_P.reshape(best_QC.shape)
        scores_QP = np.full(first_QP.shape, -np.inf, dtype=np.float32)
        np.put_along_axis(scores_QP, best_QC, scores_QC, axis=1)
        score = round(ranked(scores_QP, ids, judgments).mean(), 4)
        vectors = states(model, texts)
        beside.tell(dtype, "SciFact", vectors, scores_QP.argmax(1).tolist(), ndcg_at_10=score)
    beside.compare()
    for dtype, scores_QC in scores_of.items():
        turned = round(disorder(scores_QC, scores_of["float32"]), 5)
        apart = float(np.abs(scores_QC - scores_of["float32"]).max())
        print(json.dumps({"dtype": dtype, "pairs_in_another_order": turned, "largest_difference": apart}))


def disorder(scores_QC: Vectors, expected_QC: Vectors) -> float:
    """The share of pairs of candidates of a query that are in another order than expected."""
    upper = np.triu_indices(scores_QC.shape[1], 1)
    signs = [np.sign(some[:, :, None] - some[:, None])[:, *upper] for some in (expected_QC, scores_QC)]
    return float(np.mean(signs[0] != signs[1]))


def main() -> None:
    """Measure what the command line names."""
    parser = ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    parser.add_argument("--dtypes", default="float32,bfloat16,int8", help="with commas")
    embedder = kinds.add_parser("embeddings")
    embedder.add_argument("model")
    embedder.add_argument("--documents", type=int, help="of SciFact: judged ones, and BM25's best")
    kinds.add_parser("tasks").add_argument("splits", type=Path)
    scorer = kinds.add_parser("reranker")
    scorer.add_argument("model")
    scorer.add_argument("--candidates", type=int, default=10)
    scorer.add_argument("--queries", type=int, help="only the first N")
    chosen = parser.parse_args()
    dtypes = chosen.dtypes.split(",")
    match chosen.kind:
        case "embeddings":
            embeddings(chosen.model, chosen.documents, dtypes)
        case "tasks":
            tasks(chosen.splits, dtypes)
        case _:
            reranker(chosen.model, chosen.candidates, chosen.queries, dtypes)


if __name__ == "__main__":
    main()
