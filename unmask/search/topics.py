"""Topics of many texts: clusters of their vectors, named by their words, with how stable each cluster is.

Words of a topic are ranked by class-based TF-IDF (Grootendorst 2022, BERTopic) over the terms of BM25. The
first factor is the share of the topic's texts that hold a word. The second is the logarithm of its ratio to
the share among all texts, where the paper has log(1 + A / f): a word that is as frequent everywhere weighs
nothing, in any language. Stability is that of Hennig (2007): the mean Jaccard coefficient of a cluster with
its best match in each resample of the texts.

Axes: S texts; E features; K topics.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import log, sqrt
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_callable, check_choice, listed, whole_number
from unmask.base.optional import require
from unmask.errors import InvalidRequest
from unmask.models.load import Model, load
from unmask.search.analysis import STOP_WORDS, Analyzer
from unmask.search.duplicates import document_vectors
from unmask.search.options import ClusterMethod
from unmask.spec import PoolingMode
from unmask.tasks import Progress
from unmask.text import Truncation
from unmask.text.lines import normalized

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
"""The cluster of each text; -1 for none."""

STARTS = 4
"""Starts of k-means, of which the best is taken."""
HDBSCAN_WIDTH = 16
"""Principal components that HDBSCAN sees: distances in hundreds of dimensions have no dense regions."""
EXAMPLES = 3
"""Texts that represent a topic."""
NAME_WORDS = 3
"""Words of a topic's name."""


@dataclass(frozen=True)
class TopicWord:
    """A word of a topic."""

    word: str
    weight: float
    texts: int
    """How many texts of the topic hold it."""


@dataclass(frozen=True)
class Topic:
    """One topic."""

    name: str
    """Its best words."""
    size: int
    """Texts that belong to it."""
    words: tuple[TopicWord, ...]
    """Best first."""
    examples: tuple[int, ...]
    """The rows of the texts nearest to the mean vector, equal texts once."""
    stability: float | None
    """The mean Jaccard coefficient with the best match in each resample, 0 to 1; below 0.6 the topic may be
    an accident of the sample (Hennig 2007). None without resamples."""


@dataclass(frozen=True)
class Topics:
    """The topics of some texts, largest first."""

    model: str
    method: ClusterMethod
    texts: int
    topics: tuple[Topic, ...]
    labels: tuple[int | None, ...]
    """The place of each text's topic in ``topics``; None if it belongs to no topic."""
    without_topic: int
    adjusted_rand: float | None
    """The mean adjusted Rand index with the clusters of the resamples, over texts that both put into one: 1
    for equal clusters, 0 for chance. None without resamples."""
    lowest_adjusted_rand: float | None
    resamples: int
    seed: int
    truncated_texts: int
    """Texts of which the beginning alone was read."""


def find_topics(
    texts: Sequence[str],
    model: str | Path | Model = "default",
    *,
    method: ClusterMethod = "kmeans",
    topics: int | None = None,
    min_size: int = 10,
    words: int = 10,
    resamples: int = 20,
    seed: int = 0,
    truncation: Truncation = "error",
    pooling: PoolingMode | None = None,
    progress: Progress | None = None,
) -> Topics:
    """Cluster texts by their vectors, name the clusters, and measure how stable they are.

    The result is determined by the arguments and the vectors.

    Args:
        texts: what is clustered.
        model: gives the vectors.
        method: see `ClusterMethod`.
        topics: how many clusters k-means makes; None for the square root of half the number of
            different texts.
        min_size: the smallest cluster. Texts of a smaller one of k-means belong to no topic.
        words: words of each topic.
        resamples: bootstrap samples for the stability; 0 measures none.
        seed: determines the starts of k-means and the resamples.
        truncation: whether to refuse texts longer than the model's maximum, or read their beginning.
        pooling: how vectors are pooled; None as the checkpoint says.
        progress: called with (done, total), which counts texts that are embedded.

    Raises:
        InvalidRequest: an argument is out of range, or there are fewer texts than topics.
        MissingExtra: scikit-learn is not installed.
    """
    found, _ = topics_and_vectors(
        texts,
        model,
        method=method,
        topics=topics,
        min_size=min_size,
        words=words,
        resamples=resamples,
        seed=seed,
        truncation=truncation,
        pooling=pooling,
        progress=progress,
    )
    return found


def topics_and_vectors(
    texts: Sequence[str],
    model: str | Path | Model,
    *,
    method: ClusterMethod = "kmeans",
    topics: int | None = None,
    min_size: int = 10,
    words: int = 10,
    resamples: int = 20,
    seed: int = 0,
    truncation: Truncation = "error",
    pooling: PoolingMode | None = None,
    progress: Progress | None = None,
) -> tuple[Topics, Floats]:
    """What `find_topics` finds, with the vectors of the texts, (S, E)."""
    require("topics")
    check_choice("method", method, get_args(ClusterMethod))
    for name, value, least in (("min_size", min_size, 2), ("words", words, 1), ("resamples", resamples, 0)):
        whole_number(name, value, least)
    whole_number("seed", seed, 0)
    check_callable("progress", progress)
    all_texts = listed("texts", texts)
    distinct = len({normalized(str(text)) for text in all_texts})
    count = _cluster_count(distinct, topics, method, min_size)
    loaded = model if isinstance(model, Model) else load(model)
    with document_vectors(loaded, all_texts, truncation, pooling, progress=progress) as (
        stored_SE,
        truncated,
    ):
        vectors_SE = np.array(stored_SE)
    cluster = _clustering(method, count, min_size, seed)
    labels_S = cluster(vectors_SE)
    draw = np.random.Generator(np.random.PCG64DXSM(seed))
    samples = [draw.integers(0, len(all_texts), len(all_texts)) for _ in range(resamples)]
    agreements, jaccard_K = _stability(vectors_SE, labels_S, cluster, samples)
    found_words = _words(all_texts, labels_S, words)
    found = Topics(
        loaded.name,
        method,
        len(all_texts),
        tuple(
            Topic(
                ", ".join(word.word for word in words_of[:NAME_WORDS]),
                int((labels_S == topic).sum()),
                words_of,
                _examples(all_texts, vectors_SE, np.flatnonzero(labels_S == topic)),
                float(jaccard_K[topic]) if resamples else None,
            )
            for topic, words_of in enumerate(found_words)
        ),
        tuple(None if label < 0 else label for label in labels_S.tolist()),
        int((labels_S < 0).sum()),
        float(np.mean(agreements)) if agreements else None,
        min(agreements, default=None),
        resamples,
        seed,
        truncated,
    )
    return found, vectors_SE


def _cluster_count(texts: int, topics: int | None, method: ClusterMethod, min_size: int) -> int:
    if method == "hdbscan":
        if topics is not None:
            raise InvalidRequest(f"topics is {topics}, and HDBSCAN finds their number; leave it out")
        count = 1
    else:
        count = max(2, round(sqrt(texts / 2))) if topics is None else whole_number("topics", topics, 2)
    if texts < max(count, min_size):
        raise InvalidRequest(
            f"there are {texts:,} different texts, too few for {count} topics of at least {min_size}; give "
            "more"
        )
    return count


Cluster = Callable[[Floats], Labels]


def _clustering(method: ClusterMethod, count: int, min_size: int, seed: int) -> Cluster:
    """What gives vectors their labels: clusters by size, of equal ones by their first text; -1 for none."""
    library = import_module("sklearn.cluster")

    def kmeans(vectors_SE: Floats) -> Labels:
        # A resample can have fewer different vectors than clusters, of which the library warns.
        distinct = len(np.unique(vectors_SE, axis=0))
        model = library.KMeans(min(count, distinct), n_init=STARTS, random_state=seed)
        return np.asarray(model.fit_predict(vectors_SE), np.int64)

    def hdbscan(vectors_SE: Floats) -> Labels:
        return np.asarray(
            library.HDBSCAN(min_cluster_size=min_size, copy=True).fit_predict(
                principal_components(vectors_SE, HDBSCAN_WIDTH)[0]
            ),
            np.int64,
        )

    chosen = kmeans if method == "kmeans" else hdbscan
    return lambda vectors_SE: _by_size(chosen(vectors_SE), min_size)


def principal_components(vectors_SE: Floats, count: int) -> tuple[Floats, Floats]:
    """The coordinates of vectors along their first principal components, (S, count), and the shares of the
    variance that those hold, (count,)."""
    centered_SE = vectors_SE.astype(np.float64) - vectors_SE.mean(axis=0, dtype=np.float64)
    variances, axes = np.linalg.eigh(centered_SE.T @ centered_SE)
    largest = np.maximum(variances[::-1][:count], 0)
    shares = largest / max(float(variances.sum()), np.finfo(np.float64).tiny)
    points = centered_SE @ axes[:, ::-1][:, :count]
    return np.asarray(points, np.float32), np.asarray(shares, np.float32)


def _by_size(labels_S: Labels, min_size: int) -> Labels:
    numbers, first, sizes = np.unique(labels_S, return_index=True, return_counts=True)
    order = np.lexsort((first, -sizes))
    ranked_S = np.full(len(labels_S), -1)
    place = 0
    for index in order.tolist():
        if numbers[index] >= 0 and sizes[index] >= min_size:
            ranked_S[labels_S == numbers[index]] = place
            place += 1
    return ranked_S


def _stability(
    vectors_SE: Floats, labels_S: Labels, cluster: Cluster, samples: Sequence[NDArray[np.int64]]
) -> tuple[list[float], NDArray[np.float64]]:
    """The adjusted Rand index of each resample, and the mean Jaccard coefficient of each topic, (K,)."""
    score = import_module("sklearn.metrics").adjusted_rand_score
    count = int(labels_S.max()) + 1
    agreements, coefficients = list[float](), np.zeros((len(samples), count))
    for number, sample in enumerate(samples):
        again = cluster(vectors_SE[sample])
        rows, first = np.unique(sample, return_index=True)
        before, after = labels_S[rows], again[first]
        both = (before >= 0) & (after >= 0)
        agreements.append(float(score(before[both], after[both])) if both.any() else 0.0)
        coefficients[number] = _jaccard(before, after, count)
    return agreements, coefficients.mean(axis=0) if len(samples) else np.zeros(count)


def _jaccard(before: Labels, after: Labels, count: int) -> NDArray[np.float64]:
    """For each cluster before, the highest Jaccard coefficient with a cluster after, (K,)."""
    others = int(after.max()) + 1
    if not others:
        return np.zeros(count)
    both = (before >= 0) & (after >= 0)
    shared = np.bincount(before[both] * others + after[both], minlength=count * others).reshape(count, others)
    sizes_before = np.bincount(before[before >= 0], minlength=count)
    sizes_after = np.bincount(after[after >= 0], minlength=others)
    union = sizes_before[:, None] + sizes_after[None] - shared
    best: NDArray[np.float64] = (shared / np.maximum(union, 1)).max(axis=1)
    return best


def _words(texts: Sequence[str], labels_S: Labels, most: int) -> list[tuple[TopicWord, ...]]:
    """The best words of each topic; see the module."""
    count = int(labels_S.max()) + 1
    analyzer = Analyzer("none", identifiers=False)
    everywhere = Counter[str]()
    by_topic = [Counter[str]() for _ in range(count)]
    for text, label in zip(texts, labels_S.tolist(), strict=True):
        held = set(analyzer.asked(text)) - STOP_WORDS
        everywhere.update(held)
        if label >= 0:
            by_topic[label].update(held)
    sizes = np.bincount(labels_S[labels_S >= 0], minlength=count).tolist()
    ranked = []
    for counted, size in zip(by_topic, sizes, strict=True):
        weighted = [
            TopicWord(word, _weight(held_by / size, everywhere[word] / len(texts)), held_by)
            for word, held_by in counted.items()
        ]
        best = sorted(weighted, key=lambda word: (-word.weight, word.word))[:most]
        ranked.append(tuple(word for word in best if word.weight > 0))
    return ranked


def _weight(share: float, share_of_all: float) -> float:
    """The weight of a word, from the shares of a topic's texts and of all texts that hold it."""
    return share * log(share / share_of_all)


def _examples(texts: Sequence[str], vectors_SE: Floats, rows: NDArray[np.int64]) -> tuple[int, ...]:
    members = vectors_SE[rows].astype(np.float64)
    order = rows[np.argsort(-(members @ members.mean(axis=0)), kind="stable")].tolist()
    distinct: dict[str, int] = {}
    for row in order:
        distinct.setdefault(normalized(texts[row]), row)
        if len(distinct) == EXAMPLES:
            break
    return tuple(distinct.values())
