"""Movie reviews read whole against cut at 256 tokens, by a frozen encoder with logistic regression.

The 2,000 reviews of Pang and Lee (2004) have 746 tokens on average. A whole review is represented by the mean
of the embeddings of its windows, weighted by the tokens that each window owns; a cut one by the embedding of
its beginning. Both are classified in the ten folds of the data, with scikit-learn's defaults.

    python benchmarks/long_reviews.py --reviews reviews.jsonl --model default
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

import unmask
from unmask.text.lines import lines
from unmask.text.windows import windows


def whole(model: unmask.Model, texts: Sequence[str], window: int) -> NDArray[np.float64]:
    """The mean over the windows of each text, of Euclidean norm 1, (S, E)."""
    parts = [windows(one, window) for one in model.tokenizer.encode_batch(texts)]
    flat = [one for some in parts for one in some]
    embedded = model.embed_encodings([one.encoding for one in flat], model.embedding_head())
    weighted = embedded * np.array([one.owned.sum() for one in flat])[:, None]
    firsts = np.cumsum([0, *(len(some) for some in parts[:-1])])
    sums = np.add.reduceat(weighted.astype(np.float64), firsts)
    return sums / np.linalg.norm(sums, axis=1, keepdims=True)


def cut(model: unmask.Model, texts: Sequence[str], tokens: int) -> NDArray[np.float64]:
    """The embedding of the first ``tokens`` of each text, (S, E)."""
    encodings = model.tokenizer.encode_batch(texts, max_tokens=tokens, truncation="end")
    return model.embed_encodings(encodings, model.embedding_head()).astype(np.float64)


def by_fold(features: NDArray[np.float64], labels: Any, folds: Any) -> list[float]:
    """The accuracy on each fold of a model fitted on the others."""
    return [
        float(
            LogisticRegression(max_iter=1000)
            .fit(features[folds != fold], labels[folds != fold])
            .score(features[folds == fold], labels[folds == fold])
        )
        for fold in np.unique(folds)
    ]


def main() -> None:
    """Both representations in all folds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="default")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--reviews", type=Path, nargs="+", required=True, help="JSONL with text, label, fold")
    parser.add_argument("--tokens", type=int, default=256, help="the tokens of a window and of a cut review")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    rows = [json.loads(line) for file in options.reviews for _, line in lines(file)]
    texts = [row["text"] for row in rows]
    labels, folds = (np.array([row[name] for row in rows]) for name in ("label", "fold"))
    model = unmask.load(options.model, dtype=options.dtype)
    for name, features in {
        "whole": whole(model, texts, options.tokens),
        f"cut at {options.tokens}": cut(model, texts, options.tokens),
    }.items():
        found = by_fold(features, labels, folds)
        print(f"{name}: {np.mean(found):.4f} ± {np.std(found, ddof=1):.4f} over {len(found)} folds")


if __name__ == "__main__":
    main()
