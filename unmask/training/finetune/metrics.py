"""Figures of predictions beside gold labels: those of a task, those of a ranking, and those of the user.

Figures of classes are those of scikit-learn, computed from counts, because an interval needs them a thousand
times; the ranks that Spearman's correlation compares are scipy's, which the extra ``finetune`` installs.
Entities are scored as seqeval does by default (exact type and bounds), and answers by the rules of the SQuAD
evaluation script (Rajpurkar et al. 2016), both of which are packages or programs that are no longer
maintained.

Axes: S texts; C classes; K types of entities; P documents.
"""

import importlib
import inspect
import math
import numbers
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.base.optional import require
from unmask.errors import InvalidRequest, quoted
from unmask.training.finetune.tasks import Task
from unmask.training.run.log import LOWER_IS_BETTER

Span = tuple[str, int, int]
"""Type, start and end of an entity."""


def goodness(metric: str | None, value: float) -> float:
    """A figure as a number that is higher the better the figure is."""
    return -value if metric in LOWER_IS_BETTER else value


def check_metric(metric: str | None, figures: Sequence[str]) -> None:
    """Refuse a metric that is none of the figures of a task.

    Raises:
        InvalidRequest: it is none of them.
    """
    if metric is not None and metric not in figures:
        raise InvalidRequest(f"evaluation.metric is {metric!r}; of this task it can be {', '.join(figures)}")


def class_figures(
    gold_S: NDArray[np.int64], found_S: NDArray[np.int64], labels: Sequence[str]
) -> dict[str, float]:
    """Accuracy, macro F1, the F1 of each class, and Matthews' correlation.

    With two classes ``f1`` is that of the second, as in GLUE's MRPC and QQP. An F1 without a text, and a
    correlation with a single class, are 0, as in scikit-learn.
    """
    count = len(labels)
    table_CC = np.bincount(gold_S * count + found_S, minlength=count**2).reshape(count, count)
    gold_C, found_C, right_C = table_CC.sum(1), table_CC.sum(0), np.diagonal(table_CC)
    each = _f1(right_C, gold_C + found_C)
    texts = len(gold_S)
    # Gorodkin's correlation of several classes, which is Matthews' with two.
    agreement = texts * int(right_C.sum()) - int(gold_C @ found_C)
    spread = (texts**2 - int(gold_C @ gold_C)) * (texts**2 - int(found_C @ found_C))
    figures = {
        "accuracy": float((gold_S == found_S).mean()),
        "macro_f1": float(each.mean()),
        "matthews": agreement / math.sqrt(spread) if spread else 0.0,
    }
    if count == 2:
        figures["f1"] = float(each[1])
    return figures | {f"f1[{label}]": float(value) for label, value in zip(labels, each, strict=True)}


def multi_label_figures(gold_SC: NDArray[np.bool_], found_SC: NDArray[np.bool_]) -> dict[str, float]:
    """Micro and macro F1, and the share of texts with exactly the right labels."""
    right_C = (gold_SC & found_SC).sum(0)
    total_C = gold_SC.sum(0) + found_SC.sum(0)
    return {
        "micro_f1": float(_f1(right_C.sum(keepdims=True), total_C.sum(keepdims=True))[0]),
        "macro_f1": float(_f1(right_C, total_C).mean()),
        "exact": float((gold_SC == found_SC).all(-1).mean()),
    }


def _f1(right_C: NDArray[np.int64], total_C: NDArray[np.int64]) -> NDArray[np.float64]:
    """F1 from the number of right ones, and of gold and found ones together; 0 where there are none."""
    return 2 * right_C / np.maximum(total_C, 1)


def number_figures(gold_S: NDArray[np.floating], found_S: NDArray[np.floating]) -> dict[str, float]:
    """Pearson's and Spearman's correlation, which are 0 where one side is constant, and the mean error."""
    scipy = _library("scipy.stats")
    constant = np.ptp(gold_S) == 0 or np.ptp(found_S) == 0
    # scipy's pearsonr and spearmanr also prepare p-values, which takes longer than the correlations.
    ranks = [] if constant else [scipy.rankdata(one_S) for one_S in (gold_S, found_S)]
    return {
        "pearson": 0.0 if constant else float(np.corrcoef(gold_S, found_S)[0, 1]),
        "spearman": 0.0 if constant else float(np.corrcoef(*ranks)[0, 1]),
        "mean_squared_error": float(np.square(gold_S - found_S).mean()),
    }


def entity_figures(gold: Sequence[Sequence[Span]], predicted: Sequence[Sequence[Span]]) -> dict[str, float]:
    """Micro precision, recall and F1 of entities, and the F1 of each type.

    An entity is right if a gold one has the same type, start and end.
    """
    return entity_counts(gold, predicted).figures()


@dataclass(frozen=True, eq=False)
class EntityCounts:
    """How many entities of each type each text has, so that figures of any selection are sums."""

    kinds: tuple[str, ...]
    right_SK: NDArray[np.int64]
    gold_SK: NDArray[np.int64]
    found_SK: NDArray[np.int64]

    def figures(self, chosen: NDArray[np.int64] | None = None) -> dict[str, float]:
        """The figures of `entity_figures`, of all texts or a selection, without types that it lacks."""
        counts = (self.right_SK, self.gold_SK, self.found_SK)
        right_K, gold_K, found_K = ((count if chosen is None else count[chosen]).sum(0) for count in counts)
        precision, recall, f1 = _prf(int(right_K.sum()), int(found_K.sum()), int(gold_K.sum()))
        figures = {"precision": precision, "recall": recall, "f1": f1}
        for k, kind in enumerate(self.kinds):
            if gold_K[k] or found_K[k]:
                figures[f"f1[{kind}]"] = _prf(int(right_K[k]), int(found_K[k]), int(gold_K[k]))[2]
        return figures


def entity_counts(gold: Sequence[Sequence[Span]], predicted: Sequence[Sequence[Span]]) -> EntityCounts:
    """The entities of each text by type: right ones, gold ones and those that were found."""
    kinds = sorted({kind for spans in (*gold, *predicted) for kind, *_ in spans})
    column = {kind: number for number, kind in enumerate(kinds)}
    counts = np.zeros((3, len(gold), len(kinds)), dtype=np.int64)
    for row, (theirs, ours) in enumerate(zip(gold, predicted, strict=True)):
        for part, spans in enumerate((set(theirs) & set(ours), theirs, ours)):
            for kind, *_ in spans:
                counts[part, row, column[kind]] += 1
    return EntityCounts(tuple(kinds), *counts)


def _prf(right: int, predicted: int, gold: int) -> tuple[float, float, float]:
    precision, recall = right / max(predicted, 1), right / max(gold, 1)
    return precision, recall, 2 * right / max(predicted + gold, 1)


def answer_scores(gold: Sequence[str], predicted: str) -> tuple[float, float]:
    """Exact match and F1 of one answer, each the best over the gold answers.

    A question without gold answers is right if the answer is empty.
    """
    accepted = gold or [""]
    exact = any(normalized(predicted) == normalized(text) for text in accepted)
    return float(exact), max(word_overlap(predicted, text) for text in accepted)


def answer_figures(exact_S: NDArray[np.float64], overlap_S: NDArray[np.float64]) -> dict[str, float]:
    """Exact match and F1 of answers in percent, from the `answer_scores` of each."""
    return {"exact_match": 100 * float(exact_S.mean()), "f1": 100 * float(overlap_S.mean())}


def normalized(answer: str) -> str:
    """An answer in lower case, without punctuation, articles and repeated white space."""
    lower = "".join(character for character in answer.lower() if character not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", lower).split())


def word_overlap(mine: str, gold: str) -> float:
    """F1 of the words of an answer beside those of another."""
    ours, theirs = normalized(mine).split(), normalized(gold).split()
    if not ours or not theirs:
        return float(ours == theirs)
    shared = (Counter(ours) & Counter(theirs)).total()
    return 2 * shared / (len(ours) + len(theirs))


@cache
def _library(name: str) -> Any:
    require("finetune")
    return importlib.import_module(name)


Metrics = Callable[[Sequence[Any], Sequence[Any]], Mapping[str, float] | float]
"""Figures by name, or one number, which has the function's name, of predictions and of gold labels. Both are
lists with an entry for each text: the name of its label; a tuple of names of several labels; a number; the
labels of its words; the text of an answer, and the tuple of accepted ones; or the number of a choice."""


class OwnMetrics:
    """A function of the user that gives figures beside those of the task.

    Args:
        function: see `Metrics`.

    Raises:
        InvalidRequest: it is no function of two arguments.
    """

    def __init__(self, function: Metrics) -> None:
        takes = callable(function)
        if takes:
            try:
                inspect.signature(function).bind([], [])
            except TypeError:
                takes = False
            except ValueError:  # a function in C without a signature
                pass
        if not takes:
            raise InvalidRequest(
                f"metrics is {quoted(function)}; give a function of predictions and labels that returns "
                "figures by name, such as lambda predictions, labels: {'kappa': ...}"
            )
        self.function = function

    def names(self, task: Task, labels: Sequence[Any], reserved: Sequence[str]) -> tuple[str, ...]:
        """The figures that the function gives where every prediction is right.

        Args:
            task: what is predicted.
            labels: gold labels.
            reserved: the figures that the task has.

        Raises:
            InvalidRequest: a figure has a name of the task's, or is no number.
        """
        right = (
            [accepted[0] if accepted else "" for accepted in labels] if task == "answering" else list(labels)
        )
        names = tuple(self.figures(right, labels))
        if shared := [name for name in names if name in reserved]:
            raise InvalidRequest(
                f"metrics gives {shared[0]!r}, which the task has already; give it another name"
            )
        return names

    def figures(self, predictions: Sequence[Any], labels: Sequence[Any]) -> dict[str, float]:
        """The figures of predictions.

        Raises:
            InvalidRequest: the function returns neither a number nor numbers by name.
        """
        returned: Any = self.function(list(predictions), list(labels))
        if _is_number(returned):
            returned = {getattr(self.function, "__name__", "metric"): returned}
        numbered = isinstance(returned, Mapping) and all(
            isinstance(name, str) and _is_number(value) for name, value in returned.items()
        )
        if not numbered:
            raise InvalidRequest(
                f"metrics returned {quoted(returned)}; it must return a number, or numbers by name"
            )
        return {name: float(value) for name, value in returned.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) or (getattr(value, "shape", None) == () and hasattr(value, "item"))


CUT = 10
"""The documents of a ranking that count."""

RANKING_FIGURES = (f"ndcg@{CUT}", f"mrr@{CUT}", f"recall@{CUT}")
"""The figures of a retriever on dev data; the first is the default metric."""


def best_of(scores_P: NDArray[np.float32], count: int = CUT) -> NDArray[np.int64]:
    """The places of the highest scores, the highest first; of equal scores the first place."""
    return np.argsort(-scores_P, kind="stable")[:count]


def ranking_figures(
    rankings: Sequence[Sequence[int]], answers: Sequence[Mapping[int, int]]
) -> dict[str, float]:
    """Means over queries.

    Args:
        rankings: for each query, the places of documents, the best first; `CUT` of them count.
        answers: for each query, the relevance of documents by place.
    """
    figures: list[tuple[float, float, float]] = []
    discounts = 1 / np.log2(np.arange(CUT) + 2)
    for ranking, relevant in zip(rankings, answers, strict=True):
        gains = np.array([relevant.get(int(place), 0) for place in ranking[:CUT]], dtype=np.float64)
        ideal = np.sort(np.array(list(relevant.values()), dtype=np.float64))[::-1][:CUT]
        hits = np.flatnonzero(gains)
        figures.append(
            (
                float(gains @ discounts[: len(gains)] / (ideal @ discounts[: len(ideal)])),
                1 / (hits[0] + 1) if len(hits) else 0.0,
                len(hits) / len(relevant),
            )
        )
    means = np.array(figures).mean(0)
    return dict(zip(RANKING_FIGURES, means.tolist(), strict=True))
