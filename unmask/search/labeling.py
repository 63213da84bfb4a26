"""Labels of texts: which are probably wrong, and which texts to label next.

Both are judged by logistic regression on the vectors of an embedding model. Fitting it takes seconds, because
the encoder is not trained.

Axes: S texts; C classes; E features.
"""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_callable, check_choice, listed, whole_number
from unmask.base.optional import require
from unmask.errors import InvalidRequest, quoted
from unmask.models.load import Model, load
from unmask.search.duplicates import ROWS_PER_BLOCK, document_vectors
from unmask.search.options import Acquisition
from unmask.spec import PoolingMode
from unmask.tasks import Progress
from unmask.text import Truncation
from unmask.text.lines import normalized

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

JUDGING, CHOOSING = 1.0, 10.0
"""``C`` of scikit-learn's LogisticRegression for vectors of length 1, the inverse of the penalty: to judge
labels, of which some are wrong and must not be learned by heart; and to learn from few."""
ITERATIONS = 2000
LEAST_SURE = 5
"""``"both"`` draws among this many times the texts that are chosen."""
SUM_ERROR = 1e-2
"""By how much given probabilities of a text may miss a sum of 1, which rounding to four decimals can do."""


@dataclass(frozen=True)
class SuspectLabel:
    """A text with its label, and what a classifier that did not see this label says."""

    row: int
    """The place of the text, from 0."""
    label: str
    suggested: str
    """The class that the text is confidently of; without one, the most probable other label."""
    self_confidence: float
    """The probability of the label."""
    suggested_probability: float
    is_confident: bool
    """Whether the confident joint counts the text as one of another label."""


@dataclass(frozen=True)
class LabelErrors:
    """Texts by how probable their labels are, the least probable first."""

    model: str | None
    """What gave the vectors; None if probabilities were given."""
    texts: int
    classes: tuple[str, ...]
    rows: tuple[SuspectLabel, ...]
    """All texts, by rising self-confidence."""
    confident_joint: tuple[tuple[int, ...], ...]
    """For each label (a row) the texts that are confidently of each class (a column)."""
    errors: int
    """Texts off the diagonal of the confident joint."""
    agreement: float
    """The share of texts whose label is the most probable one."""
    folds: int | None
    seed: int
    truncated_texts: int
    """Texts of which the beginning alone was read."""


def find_label_errors(
    texts: Sequence[str],
    labels: Sequence[str | int],
    model: str | Path | Model = "default",
    *,
    probabilities: Sequence[Mapping[str, float]] | None = None,
    folds: int = 5,
    seed: int = 0,
    truncation: Truncation = "error",
    pooling: PoolingMode | None = None,
    progress: Progress | None = None,
) -> LabelErrors:
    """Rank labeled texts by how probable their labels are (confident learning, Northcutt et al. 2021).

    Each label is judged by a classifier that was fitted to other folds. A text is confidently of a class if
    its probability of that class is at least the mean over the texts with that label; of several such classes
    the most probable counts. Where that class is not the label, the label is probably wrong. Texts that are
    equal but for case and white space are in one fold. The result is determined by the arguments and vectors.

    Args:
        texts: what is labeled.
        labels: one for each text.
        model: gives the vectors.
        probabilities: for each text the probability of every label, instead of the model's classifier. They
            must be of a model that was not trained on these labels.
        folds: parts of the texts, at least 2.
        seed: determines the folds.
        truncation: whether to refuse texts longer than the model's maximum, or read their beginning.
        pooling: how vectors are pooled; None as the checkpoint says.
        progress: called with (done, total), which counts texts that are embedded.

    Raises:
        InvalidRequest: an argument is out of range, or a label has fewer than two texts.
        MissingExtra: scikit-learn is not installed.
    """
    whole_number("folds", folds, 2)
    whole_number("seed", seed, 0)
    check_callable("progress", progress)
    all_texts = listed("texts", texts)
    classes, classes_S = _classes(all_texts, labels)
    if probabilities is not None:
        p_SC = _as_array(probabilities, classes, len(all_texts))
        return _ranked(p_SC, classes, classes_S, seed=seed)
    require("topics")
    _check_counts(classes, classes_S)
    folds_S = _folds(all_texts, classes_S, folds, seed)
    loaded = model if isinstance(model, Model) else load(model)
    with document_vectors(loaded, all_texts, truncation, pooling, progress=progress) as (x_SE, truncated):
        p_SC = np.zeros((len(all_texts), len(classes)))
        for fold in range(folds):
            held_S = folds_S == fold
            if held_S.any():
                p_SC[held_S] = _predicted(
                    x_SE[~held_S], classes_S[~held_S], x_SE[held_S], len(classes), JUDGING
                )
    return _ranked(p_SC, classes, classes_S, model=loaded.name, folds=folds, seed=seed, truncated=truncated)


def _classes(texts: Sequence[Any], labels: Any) -> tuple[tuple[str, ...], Places]:
    """The labels in order, and the place of each text's."""
    names = listed("labels", labels)
    if len(names) != len(texts):
        raise InvalidRequest(f"there are {len(texts):,} texts and {len(names):,} labels; give one for each")
    for row, label in enumerate(names):
        if not isinstance(label, str | int | np.integer) or isinstance(label, bool) or str(label) == "":
            raise InvalidRequest(f"label {row + 1} is {quoted(label)}; give a text or a whole number")
    classes, classes_S = np.unique([str(label) for label in names], return_inverse=True)
    if len(classes) < 2:
        shown = ", ".join(classes.tolist()) or "none"
        raise InvalidRequest(f"there are {len(classes)} labels ({shown}); at least two are needed")
    return tuple(classes.tolist()), classes_S


def _check_counts(classes: Sequence[str], classes_S: Places) -> None:
    counts = Counter(classes_S.tolist())
    alone = [label for place, label in enumerate(classes) if counts[place] < 2]
    if alone:
        raise InvalidRequest(
            f"{len(alone)} labels have a single text, such as {quoted(alone[0])}, and a label is judged by "
            "other texts that have it; leave them out, or label more"
        )


def _as_array(rows: Any, classes: Sequence[str], count: int) -> Floats:
    """Probabilities that were given, as an array."""
    values = listed("probabilities", rows)
    if len(values) != count:
        raise InvalidRequest(f"there are {count:,} texts and probabilities of {len(values):,}; give all")
    p_SC = np.empty((count, len(classes)))
    for row, value in enumerate(values):
        lacking = next(
            (name for name in classes if not isinstance(value, Mapping) or name not in value), None
        )
        if lacking is not None:
            raise InvalidRequest(
                f"probabilities of text {row + 1} lack the label {quoted(lacking)}; give that of every label"
            )
        numbers = [value[name] for name in classes]
        if not all(isinstance(each, int | float) and 0 <= each <= 1 for each in numbers):
            raise InvalidRequest(
                f"probabilities of text {row + 1} are {quoted(numbers)}; give numbers from 0 to 1"
            )
        if not sum(numbers) <= 1 + SUM_ERROR:
            raise InvalidRequest(
                f"probabilities of text {row + 1} sum to {sum(numbers):.3f}; they may sum to 1"
            )
        p_SC[row] = numbers
    return p_SC


def _folds(texts: Sequence[str], classes_S: Places, folds: int, seed: int) -> Places:
    """The fold of each text: of each class about as many in every fold, and equal texts in one."""
    groups: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        groups.setdefault(normalized(str(text)), []).append(row)
    rows = list(groups.values())
    order = np.random.default_rng(seed).permutation(len(rows))
    by_class = sorted(order.tolist(), key=lambda group: classes_S[rows[group][0]])
    folds_S = np.empty(len(texts), dtype=np.int64)
    for number, group in enumerate(by_class):
        folds_S[rows[group]] = number % folds
    return folds_S


def _predicted(x_SE: Any, classes_S: Places, other_SE: Any, count: int, strength: float) -> Floats:
    """The probability of each class for other vectors; 0 for classes that no text of the first has."""
    p_SC = np.zeros((len(other_SE), count))
    known = np.unique(classes_S)
    if len(known) == 1:
        p_SC[:, known[0]] = 1.0
        return p_SC
    linear_model = import_module("sklearn.linear_model")
    classifier = linear_model.LogisticRegression(C=strength, max_iter=ITERATIONS)
    with warnings.catch_warnings():  # many classes of few texts are what is asked for
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        classifier.fit(np.asarray(x_SE, np.float64), classes_S)
    p_SC[:, known] = classifier.predict_proba(np.asarray(other_SE, np.float64))
    return p_SC


def confident_classes(p_SC: Floats, classes_S: Places) -> Places:
    """The class that each text is confidently of, -1 for none (Northcutt et al. 2021, equation 1).

    The threshold of a class is the mean probability of it over the texts that have it as their label. A
    class that no text has is no text's.
    """
    thresholds_C = np.full(p_SC.shape[1], np.inf)
    for place in np.unique(classes_S):
        thresholds_C[place] = p_SC[classes_S == place, place].mean()
    # Rounding must not decide whether a text reaches the mean of equal values.
    eligible_SC = p_SC >= thresholds_C - 1e-12
    best_S = np.where(eligible_SC, p_SC, -1.0).argmax(1)
    return np.where(eligible_SC.any(1), best_S, -1)


def _ranked(
    p_SC: Floats,
    classes: tuple[str, ...],
    classes_S: Places,
    *,
    model: str | None = None,
    folds: int | None = None,
    seed: int = 0,
    truncated: int = 0,
) -> LabelErrors:
    count = len(classes_S)
    confident_S = confident_classes(p_SC, classes_S)
    joint_CC = np.zeros((len(classes),) * 2, dtype=np.int64)
    sure_S = confident_S >= 0
    np.add.at(joint_CC, (classes_S[sure_S], confident_S[sure_S]), 1)
    own_S = p_SC[np.arange(count), classes_S]
    others_SC = p_SC.copy()
    others_SC[np.arange(count), classes_S] = -1.0
    suggested_S = others_SC.argmax(1)
    wrong_S = sure_S & (confident_S != classes_S)
    suggested_S[wrong_S] = confident_S[wrong_S]
    rows = tuple(
        SuspectLabel(
            row,
            classes[classes_S[row]],
            classes[suggested_S[row]],
            float(own_S[row]),
            float(p_SC[row, suggested_S[row]]),
            bool(wrong_S[row]),
        )
        for row in np.argsort(own_S, kind="stable").tolist()
    )
    return LabelErrors(
        model,
        count,
        classes,
        rows,
        tuple(tuple(row) for row in joint_CC.tolist()),
        int(wrong_S.sum()),
        float((p_SC.argmax(1) == classes_S).mean()) if count else 0.0,
        folds,
        seed,
        truncated,
    )


@dataclass(frozen=True)
class ChosenText:
    """A text that should be labeled."""

    row: int
    """Its place in the pool, from 0."""
    predicted: str | None
    """The most probable label; None without labeled texts of two labels."""
    margin: float | None
    """The difference of the two highest probabilities: 0 for a tie."""
    entropy: float | None
    """Of the probabilities, in nats."""
    distance: float | None
    """One minus the cosine with the nearest text that is labeled or was chosen before it; None if none is."""


@dataclass(frozen=True)
class ChosenTexts:
    """Texts to label, in the order in which they were chosen."""

    model: str
    pool: int
    """Texts that could be chosen, equal ones once."""
    labeled: int
    classes: tuple[str, ...]
    by: Acquisition
    rows: tuple[ChosenText, ...]
    seed: int
    truncated_texts: int
    """Texts of which the beginning alone was read."""


def choose_texts(
    pool: Sequence[str],
    number: int = 20,
    model: str | Path | Model = "default",
    *,
    labeled: Sequence[str] = (),
    labels: Sequence[str | int] = (),
    by: Acquisition | None = None,
    seed: int = 0,
    truncation: Truncation = "error",
    pooling: PoolingMode | None = None,
    progress: Progress | None = None,
) -> ChosenTexts:
    """Choose the texts of a pool whose labels a classifier would learn most from (active learning).

    The classifier is fitted to the labeled texts. ``"margin"`` takes the texts with the smallest difference
    of the two highest probabilities (Scheffer et al. 2001), ``"entropy"`` those with the highest entropy.
    ``"k_center"`` takes again and again the text that is farthest from all that are labeled or chosen (Sener
    and Savarese 2018). ``"both"`` draws among the five times as many texts with the smallest margins (after
    Zhdanov 2019, which clusters these), one after another with the square of that distance as the weight, as
    k-means++ does. Texts that are equal but for case and white space are one, and those that are labeled are
    not chosen. Without labels of two classes nothing is uncertain: ``"both"`` then draws from the whole pool.

    Args:
        pool: texts without labels.
        number: how many are chosen; fewer if the pool has fewer.
        model: gives the vectors.
        labeled: texts with labels.
        labels: one for each of ``labeled``.
        by: see `Acquisition`; None for ``"margin"`` where labels of two classes are known, else ``"both"``.
        seed: determines what is drawn.
        truncation: whether to refuse texts longer than the model's maximum, or read their beginning.
        pooling: how vectors are pooled; None as the checkpoint says.
        progress: called with (done, total), which counts texts that are embedded.

    Raises:
        InvalidRequest: an argument is out of range, or the labeled texts have fewer than two labels and
            ``by`` needs them.
        MissingExtra: scikit-learn is not installed.
    """
    whole_number("number", number, 1)
    whole_number("seed", seed, 0)
    if by is not None:
        check_choice("by", by, get_args(Acquisition))
    check_callable("progress", progress)
    known, texts = listed("labeled", labeled), listed("pool", pool)
    classes, classes_S = _known(known, labels, by)
    by = by or ("margin" if classes else "both")
    seen = {normalized(str(text)) for text in known}
    first = {normalized(str(text)): row for row, text in reversed(list(enumerate(texts)))}
    rows = sorted(row for text, row in first.items() if text not in seen)
    loaded = model if isinstance(model, Model) else load(model)
    both = [*known, *(texts[row] for row in rows)]
    with document_vectors(loaded, both, truncation, pooling, progress=progress) as (x_SE, truncated):
        known_SE, pool_SE = np.asarray(x_SE[: len(known)]), np.asarray(x_SE[len(known) :])
        p_SC = _predicted(known_SE, classes_S, pool_SE, len(classes), CHOOSING) if classes else None
        draw, most = np.random.default_rng(seed), min(number, len(rows))
        chosen = _chosen(pool_SE, known_SE, p_SC, most, by=by, draw=draw)
    return ChosenTexts(
        loaded.name,
        len(rows),
        len(known),
        classes,
        by,
        tuple(_described(rows[place], place, distance, p_SC, classes) for place, distance in chosen),
        seed,
        truncated,
    )


def _known(labeled: Sequence[Any], labels: Any, by: Acquisition | None) -> tuple[tuple[str, ...], Places]:
    """The classes of labeled texts; none if they are fewer than two, of which no classifier can be fitted."""
    names = listed("labels", labels)
    different = len(set(map(str, names)))
    if different >= 2 or len(names) != len(labeled):
        require("topics")
        return _classes(labeled, names)
    if by in ("margin", "entropy"):
        raise InvalidRequest(
            f"by is {by!r} and the labeled texts have {different} labels, of which at least two are needed; "
            "label texts that by='k_center' (--by k_center) chooses first"
        )
    return (), np.empty(0, dtype=np.int64)


def _described(
    row: int, place: int, distance: float, p_SC: Floats | None, classes: Sequence[str]
) -> ChosenText:
    far = float(distance) if np.isfinite(distance) else None
    if p_SC is None:
        return ChosenText(row, None, None, None, far)
    p_C = p_SC[place]
    return ChosenText(
        row, classes[int(p_C.argmax())], float(_margins(p_C[None])[0]), float(_entropies(p_C[None])[0]), far
    )


def _margins(p_SC: Floats) -> Floats:
    two_S2 = np.partition(p_SC, p_SC.shape[1] - 2, axis=1)[:, -2:]
    return np.asarray(two_S2[:, 1] - two_S2[:, 0])


def _entropies(p_SC: Floats) -> Floats:
    return np.asarray(-(p_SC * np.log(np.maximum(p_SC, 1e-300))).sum(1))


def _chosen(
    pool_SE: Any,
    known_SE: Any,
    p_SC: Floats | None,
    number: int,
    *,
    by: Acquisition,
    draw: np.random.Generator,
) -> list[tuple[int, float]]:
    """The places of the chosen texts, and the distance of each when it was chosen."""
    distances_S = np.full(len(pool_SE), np.inf)
    for start in range(0, len(known_SE), ROWS_PER_BLOCK):
        block_SE = known_SE[start : start + ROWS_PER_BLOCK]
        distances_S = np.minimum(distances_S, (1.0 - pool_SE @ block_SE.T).min(1))
    fixed = None
    if by == "random":
        fixed = draw.permutation(len(pool_SE))[:number]
    elif p_SC is not None and by in ("margin", "entropy"):
        fixed = np.argsort(_margins(p_SC) if by == "margin" else -_entropies(p_SC), kind="stable")[:number]
    open_S = np.ones(len(pool_SE), dtype=np.bool_)
    if p_SC is not None and by == "both":
        open_S[np.argsort(_margins(p_SC), kind="stable")[LEAST_SURE * number :]] = False
    chosen: list[tuple[int, float]] = []
    for step in range(number):
        if fixed is not None:
            place = int(fixed[step])
        else:
            place = _next(distances_S, open_S, pool_SE, None if by == "k_center" else draw)
        chosen.append((place, max(0.0, float(distances_S[place]))))
        open_S[place] = False
        distances_S = np.minimum(distances_S, 1.0 - pool_SE @ pool_SE[place])
    return chosen


def _next(distances_S: Any, open_S: NDArray[np.bool_], pool_SE: Any, draw: np.random.Generator | None) -> int:
    """The farthest open place, without ``draw``; or one that is drawn by the square of its distance."""
    if np.isinf(distances_S).any():  # nothing is labeled or chosen: the text nearest to the mean vector
        return int(np.where(open_S, pool_SE @ pool_SE.mean(0), -np.inf).argmax())
    if draw is None:
        return int(np.where(open_S, distances_S, -np.inf).argmax())
    weights_S = np.where(open_S, np.maximum(distances_S, 0.0).astype(np.float64) ** 2, 0.0)
    if not weights_S.sum() > 0:
        return int(np.flatnonzero(open_S)[0])
    return int(draw.choice(len(weights_S), p=weights_S / weights_S.sum()))
