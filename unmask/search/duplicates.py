"""Duplicates among texts, and of what an index has: equal texts, and texts whose vectors are nearly the same.

Every pair is compared exactly, in blocks of bounded size. Pairs at or above a threshold are joined to groups
(single linkage by union-find), and one text of each group stays.

Axes: S texts; R of them that are compared; E features.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_callable, check_choice, listed
from unmask.errors import InvalidRequest, quoted
from unmask.models.load import Model, load
from unmask.search.analysis import Analyzer
from unmask.search.options import Representative
from unmask.search.searchable import NearestPassages, SearchableIndex
from unmask.spec import PoolingMode
from unmask.tasks import Progress, embed
from unmask.tasks.prompts import prompt_of
from unmask.text import Truncation
from unmask.text.lines import normalized

Floats = NDArray[np.float32]
Places = NDArray[np.int64]

DuplicateKind = Literal["identical", "normalized", "near", "indexed"]
"""How a text is like its nearest: the same characters; the same but for case, white space and the forms of
characters (NFKC); a cosine at or above the threshold; or such a cosine with a passage of the index."""

TEXTS_PER_PART = 2048
"""Texts that are embedded before their vectors are written to the disk."""

ROWS_PER_BLOCK = 2048
"""Rows and columns of a block of cosines, which takes 16 MB."""

DECIMALS = 6
"""Cosines are compared with the threshold after rounding to so many, in float64."""

ROUNDING = 1e-5
"""The error of a cosine in float32; pairs this close to the threshold are computed again in float64."""


@dataclass(frozen=True)
class Duplicate:
    """A text that does not stay, and why. Rows are places in the given texts, from 0."""

    row: int
    kind: DuplicateKind
    representative: int | None
    """The row that stays for it; None if its place is taken by a passage of the index."""
    nearest: int | None
    """The row that it was joined to, of several the one with the highest cosine; None for ``"indexed"``."""
    cosine: float | None
    """With the nearest, or with the passage; None for equal texts, of which only one is embedded."""
    representative_cosine: float | None
    """With the representative. It can be below the threshold where a chain of pairs joins the two."""
    document: str | None
    """The document of the index whose passage is nearest."""
    passage: str | None
    """The text of that passage."""
    shared_words: tuple[str, ...]
    """Words of both texts of the pair, in the order of this text."""
    only_here: tuple[str, ...]
    """Words of this text that the other lacks."""
    only_there: tuple[str, ...]
    """Words of the other text that this one lacks."""


@dataclass(frozen=True)
class Duplicates:
    """The duplicates among some texts."""

    model: str
    threshold: float
    representative: Representative
    texts: int
    rows: tuple[int, ...]
    """The texts that stay, in their order."""
    duplicates: tuple[Duplicate, ...]
    """The others, in their order."""
    groups: int
    """How many of the texts that stay stand for others, too."""
    truncated_texts: int
    """Texts that were compared by their beginning alone."""

    @cached_property
    def counts(self) -> Mapping[DuplicateKind, int]:
        """How many duplicates there are of each kind."""
        counted = Counter(duplicate.kind for duplicate in self.duplicates)
        return {kind: counted[kind] for kind in get_args(DuplicateKind)}


def deduplicate(
    texts: Sequence[str],
    model: str | Path | Model | None = None,
    *,
    threshold: float = 0.9,
    representative: Representative = "longest",
    against: SearchableIndex | None = None,
    truncation: Truncation = "error",
    pooling: PoolingMode | None = None,
    progress: Progress | None = None,
) -> Duplicates:
    """Find texts that are equal, or whose vectors have a cosine at or above a threshold.

    Texts that are equal after normalization are joined first, and one of them is embedded. Their vectors lie
    in a temporary file; N texts take N² / 2 products of E numbers, whatever is found. Groups are joined by
    pairs (single linkage), so that the ends of a chain can be less alike than the threshold.

    Args:
        texts: what is compared.
        model: gives the vectors; None for that of ``against``, or ``"default"``.
        threshold: the lowest cosine of a pair that counts as a duplicate, in (0, 1].
        representative: which text of a group stays.
        against: an index with a dense view. A text that is as near to one of its passages does not stay, and
            the others are compared among themselves.
        truncation: whether to refuse texts longer than the model's maximum, or compare their beginning.
        pooling: how vectors are pooled; None as the checkpoint says.
        progress: called with (done, total), which counts every text twice: embedded, and compared.

    Raises:
        InvalidRequest: an argument is out of range, or the index was made with another model.
        TextError: a text is blank or too long.
    """
    number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
    if not number or not 0 < threshold <= 1:
        raise InvalidRequest(
            f"threshold is {quoted(threshold)}; a cosine from above 0 to 1 is needed, such as 0.9"
        )
    check_choice("representative", representative, get_args(Representative))
    check_callable("progress", progress)
    all_texts = listed("texts", texts)
    loaded = _model(model, against, pooling)
    places, equal_S = _equal_texts(all_texts, representative)
    compared = [all_texts[place] for place in places]
    with document_vectors(
        loaded, compared, truncation, pooling, progress=progress, total=2 * len(compared)
    ) as (vectors_SE, truncated):
        passages = None if against is None else against.nearest_passages(vectors_SE)
        joined = _joined(vectors_SE, passages, threshold, progress)
        return _Report(all_texts, places, equal_S, joined, passages, vectors_SE).of(
            loaded.name, threshold, representative, truncated
        )


def _model(model: str | Path | Model | None, against: SearchableIndex | None, pooling: Any) -> Model:
    if against is None:
        return model if isinstance(model, Model) else load("default" if model is None else model)
    if pooling is not None:
        raise InvalidRequest(f"pooling is {pooling}, and an index has its own; leave pooling out")
    if "dense" not in against.settings.models:
        raise InvalidRequest(
            f"the index {against.path} has no view with one vector per passage; make it with such a model, "
            "such as default"
        )
    if model is not None:
        against.use(model if isinstance(model, Model) else load(model))
    return against.model("dense")


def length(text: str) -> int:
    """The characters of a text that are not white space."""
    return sum(map(len, text.split()))


def _equal_texts(texts: Sequence[Any], rule: Representative) -> tuple[list[int], Places]:
    """The rows of different texts in order, and for each text the place of its own among them."""
    first: dict[str, int] = {}
    classes = [first.setdefault(normalized(str(text)), len(first)) for text in texts]
    chosen: dict[int, int] = {}
    for row, number in enumerate(classes):
        before = chosen.get(number)
        if before is None or (rule == "longest" and length(texts[row]) > length(texts[before])):
            chosen[number] = row
    places = sorted(chosen.values())
    order = {classes[row]: place for place, row in enumerate(places)}
    return places, np.array([order[number] for number in classes], dtype=np.int64)


@contextmanager
def document_vectors(
    model: Model,
    texts: Sequence[str],
    truncation: Truncation,
    pooling: PoolingMode | None,
    *,
    progress: Progress | None = None,
    total: int | None = None,
) -> Iterator[tuple[Floats, int]]:
    """The vectors of texts as documents, of length 1, (S, E), and how many texts were truncated.

    The vectors lie in a temporary file while the block lasts. ``progress`` is called with (texts done,
    ``total`` or all texts).
    """
    head = model.embedding_head(pooling, True)
    prompt, count, truncated = prompt_of(head.prompts, "document"), len(texts), 0
    shape = (count, head.width(model.spec))
    with tempfile.TemporaryDirectory(prefix="unmask-vectors-", ignore_cleanup_errors=True) as folder:
        stored_SE: Floats = np.empty(shape, np.float32)
        if count:
            stored_SE = np.lib.format.open_memmap(Path(folder) / "vectors.npy", "w+", np.float32, shape)
        for start in range(0, count, TEXTS_PER_PART):
            part = texts[start : start + TEXTS_PER_PART]
            ready = embed.prepare(
                model.reader,
                list(part),
                head,
                prompt=prompt,
                truncation=truncation,
                name=partial(_name, start),
            )
            stored_SE[start : start + len(part)] = ready(model.engine)
            truncated += ready.truncated
            if progress is not None:
                progress(start + len(part), total or count)
        yield stored_SE, truncated
        del stored_SE  # before its file


def _name(start: int, index: int) -> str:
    return f"text {start + index + 1}"


@dataclass(frozen=True, eq=False)
class _Joined:
    """Groups of vectors by their places."""

    root_R: Places
    """The first vector of each one's group."""
    nearest_R: Places
    """The nearest vector at or above the threshold; -1 if there is none."""
    indexed_R: NDArray[np.bool_]
    """Whether a passage of the index takes its place."""


def cosines(a_RE: Floats, b_RE: Floats) -> NDArray[np.float64]:
    """The cosine of each pair of rows in float64, rounded to `DECIMALS`, (R,)."""
    a, b = a_RE.astype(np.float64), b_RE.astype(np.float64)
    products_R = np.einsum("re,re->r", a, b)
    lengths_R = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return cast("NDArray[np.float64]", np.round(products_R / np.maximum(lengths_R, 1e-12), DECIMALS))


def _joined(
    vectors_SE: Floats, passages: NearestPassages | None, threshold: float, progress: Progress | None
) -> _Joined:
    """Groups of all vectors but those that a passage of an index is near to."""
    count = len(vectors_SE)
    root_R, nearest_R = np.arange(count), np.full(count, -1)
    best_R = np.full(count, -np.inf, dtype=np.float32)
    indexed_R = np.zeros(count, dtype=np.bool_)
    if passages is not None:
        indexed_R = np.round(passages.cosines, DECIMALS) >= threshold
    for start in range(0, count, ROWS_PER_BLOCK):
        for first in range(start, count, ROWS_PER_BLOCK):
            a, b, values = _pairs(vectors_SE, start, first, threshold)
            eligible = ~(indexed_R[a] | indexed_R[b])
            a, b, values = a[eligible], b[eligible], values[eligible]
            _unite(root_R, a, b)
            for here, there in ((a, b), (b, a)):
                order = np.lexsort((there, -values, here))
                rows, firsts = np.unique(here[order], return_index=True)
                highest, others = values[order][firsts], there[order][firsts]
                better = highest > best_R[rows]
                best_R[rows[better]], nearest_R[rows[better]] = highest[better], others[better]
        if progress is not None:
            progress(count + min(count, start + ROWS_PER_BLOCK), 2 * count)
    return _Joined(root_R, nearest_R, indexed_R)


def _pairs(vectors_SE: Floats, start: int, first: int, threshold: float) -> tuple[Places, Places, Floats]:
    """The pairs of one block at or above the threshold, the earlier vector first, and their cosines."""
    rows_RE = np.asarray(vectors_SE[start : start + ROWS_PER_BLOCK])
    columns_RE = np.asarray(vectors_SE[first : first + ROWS_PER_BLOCK])
    products = rows_RE @ columns_RE.T
    a, b = np.divmod(np.flatnonzero(products >= threshold - ROUNDING), len(columns_RE))
    if first == start:
        a, b = a[a < b], b[a < b]
    values = products[a, b]
    close = np.flatnonzero(values <= threshold + ROUNDING)
    keep = np.ones(len(values), dtype=np.bool_)
    for begin in range(0, len(close), ROWS_PER_BLOCK):
        some = close[begin : begin + ROWS_PER_BLOCK]
        keep[some] = cosines(rows_RE[a[some]], columns_RE[b[some]]) >= threshold
    return a[keep] + start, b[keep] + first, values[keep]


def _unite(root_R: Places, a: Places, b: Places) -> None:
    """Join the groups of pairs; a root is the lowest place of its group, and every place points to it."""
    while True:
        roots_a, roots_b = root_R[a], root_R[b]
        differ = roots_a != roots_b
        if not differ.any():
            return
        a, b, roots_a, roots_b = a[differ], b[differ], roots_a[differ], roots_b[differ]
        np.minimum.at(root_R, np.maximum(roots_a, roots_b), np.minimum(roots_a, roots_b))
        while not np.array_equal(further := root_R[root_R], root_R):
            root_R[:] = further


@dataclass(frozen=True, eq=False)
class _Report:
    """What was found, in terms of the given texts."""

    texts: Sequence[str]
    places: Sequence[int]
    """The row of each text that was compared."""
    equal_S: Places
    joined: _Joined
    passages: NearestPassages | None
    vectors_SE: Floats
    analyzer = Analyzer("none", identifiers=False)

    def of(self, model: str, threshold: float, rule: Representative, truncated: int) -> Duplicates:
        """The result."""
        stays = self._representatives(rule)
        duplicates = []
        for row, place in enumerate(self.equal_S.tolist()):
            if self.places[place] != row:
                duplicates.append(self._equal(row, place, stays))
            elif self.joined.indexed_R[place]:
                duplicates.append(self._indexed(row, place))
            elif stays[place] != place:
                duplicates.append(self._near(row, place, stays[place]))
        gone = {duplicate.row for duplicate in duplicates}
        return Duplicates(
            model,
            threshold,
            rule,
            len(self.texts),
            tuple(row for row in range(len(self.texts)) if row not in gone),
            tuple(duplicates),
            len({each.representative for each in duplicates} - {None}),
            truncated,
        )

    @cached_property
    def _first_rows(self) -> Mapping[str, int]:
        """The first row of each text, to the character."""
        rows: dict[str, int] = {}
        for row, text in enumerate(self.texts):
            rows.setdefault(text, row)
        return rows

    def _representatives(self, rule: Representative) -> list[int]:
        """For each compared text the place of the one that stays for it."""
        chosen: dict[int, int] = {}
        roots = self.joined.root_R.tolist()
        for place, root in enumerate(roots):
            before = chosen.setdefault(root, place)
            longer = length(self.texts[self.places[place]]) > length(self.texts[self.places[before]])
            if rule == "longest" and longer:
                chosen[root] = place
        return [chosen[root] for root in roots]

    def _equal(self, row: int, place: int, stays: Sequence[int]) -> Duplicate:
        text, nearest, document = self.texts[row], self.places[place], None
        if text != self.texts[nearest] and self._first_rows[text] != row:
            nearest = self._first_rows[text]
        kind: DuplicateKind = "identical" if text == self.texts[nearest] else "normalized"
        representative: int | None = self.places[stays[place]]
        cosine = None if stays[place] == place else self._cosine(place, stays[place])
        if self.passages is not None and self.joined.indexed_R[place]:
            representative, document = None, self.passages.documents[place]
        words = self._words(row, self.texts[nearest])
        return Duplicate(row, kind, representative, nearest, None, cosine, document, None, *words)

    def _near(self, row: int, place: int, stays: int) -> Duplicate:
        nearest = int(self.joined.nearest_R[place])
        return Duplicate(
            row,
            "near",
            self.places[stays],
            self.places[nearest],
            self._cosine(place, nearest),
            self._cosine(place, stays),
            None,
            None,
            *self._words(row, self.texts[self.places[nearest]]),
        )

    def _indexed(self, row: int, place: int) -> Duplicate:
        assert self.passages is not None
        passage = self.passages.texts[place]
        return Duplicate(
            row,
            "indexed",
            None,
            None,
            float(np.round(self.passages.cosines[place], DECIMALS)),
            None,
            self.passages.documents[place],
            passage,
            *self._words(row, passage),
        )

    def _cosine(self, a: int, b: int) -> float:
        return float(cosines(self.vectors_SE[a : a + 1], self.vectors_SE[b : b + 1])[0])

    def _words(self, row: int, other: str) -> tuple[tuple[str, ...], ...]:
        """Words of both, of this text alone, and of the other alone."""
        here, there = (dict.fromkeys(self.analyzer.counted(text)) for text in (self.texts[row], other))
        return (
            tuple(word for word in here if word in there),
            tuple(word for word in here if word not in there),
            tuple(word for word in there if word not in here),
        )
