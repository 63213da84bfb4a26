"""Approximate search over the vectors of a generation, by graphs that are kept in a cache.

Each large segment has one graph (HNSW, by usearch, of vectors rounded to 8 bits) in the folder ``cache`` of
the index. It only proposes candidates: their scores are computed from the stored vectors in float32. A graph
that is missing, damaged or of another content is built again, so the cache can be removed at any time.

Axes: Q queries; A candidates.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unmask.base.arguments import check_choice
from unmask.base.files import whole_file
from unmask.base.optional import require
from unmask.base.system import locked, sync
from unmask.errors import InvalidRequest, OutputError, quoted
from unmask.search.store import Generation, Segment
from unmask.search.store.manifest import seal, unseal

Metric = Literal["cosine", "dot"]
Floats = NDArray[np.float32]
Rows = NDArray[np.int64]

CACHE = "cache"
"""The folder of the graphs in the folder of an index; no manifest names it."""

EXACT_ROWS = 4096
"""Segments of up to this many rows are searched exactly: that is as fast, and needs no graph."""

CANDIDATES = 100
"""The least number of candidates that a graph proposes; it is four times what is wanted if that is more."""

GRAPH: dict[str, Any] = {"connectivity": 16, "expansion_add": 128, "dtype": "i8"}
"""How graphs are built. A graph built otherwise is not used."""

AT_ONCE = 8192
"""Rows that are converted at once."""


class ApproximateSearch:
    """Nearest stored vectors of queries, found through graphs; to be used by one thread at a time.

    Args:
        generation: an opened generation; graphs that it needs and the cache does not have are built here, on
            one thread, so that the same vectors always give the same graph. It takes about 50 s of one core
            for 100,000 vectors of 384 numbers; a search of it takes 1 to 2 ms.
        array_name: a 2-D array of floating-point numbers, in every segment with the same width; its rows
            count through all segments in order.
        metric: ``"cosine"``, or ``"dot"`` for the product of vectors of any length.
        deleted: the excluded rows of that array per segment; None: the deleted rows of each segment.

    Raises:
        MissingExtra: usearch is not installed.
        InvalidRequest: there is no such array, it is not of vectors, or without ``deleted`` it has other rows
            than its segment.
        CorruptIndex: the array is damaged.
    """

    def __init__(
        self,
        generation: Generation,
        array_name: str,
        metric: Metric = "cosine",
        *,
        deleted: Sequence[Rows] | None = None,
    ) -> None:
        require("ann")
        check_choice("metric", metric, ("cosine", "dot"))
        segments = [
            segment for segment in generation.segments if segment.rows or array_name in segment.arrays
        ]
        excluded = [segment.deleted for segment in segments] if deleted is None else deleted
        self._parts: list[_Part] = []
        self._cosine = metric == "cosine"
        self.width: int | None = None
        """The length of the vectors; None without segments."""
        first = 0
        for segment, rows in zip(segments, excluded, strict=True):
            vectors = _vectors(segment, array_name, self.width)
            self.width = vectors.shape[1]
            if deleted is None and len(vectors) != segment.rows:
                raise InvalidRequest(
                    f"array {array_name} of segment {segment.name} has {len(vectors)} rows and the segment "
                    f"{segment.rows}; say with deleted which rows of the array are excluded"
                )
            large = len(vectors) > EXACT_ROWS
            graph = cached_graph(generation.path, segment, array_name, metric) if large else None
            self._parts.append(_Part(vectors, graph, metric, first, rows))
            first += len(vectors)

    def search(self, queries_QE: NDArray[Any], k: int) -> tuple[Floats, Rows]:
        """The scores and rows of the ``k`` nearest vectors of each query, best first, equal ones by row.

        Where fewer than ``k`` vectors are left, the rows at the end are -1 and their scores minus infinity.

        Raises:
            InvalidRequest: the queries are not vectors of the stored length, or k is below 1.
        """
        if type(k) is not int or k < 1:
            raise InvalidRequest(f"k is {quoted(k)}; it must be an integer from 1")
        queries_QE = np.asarray(queries_QE, np.float32)
        if queries_QE.ndim != 2 or self.width not in (None, queries_QE.shape[1]):
            raise InvalidRequest(
                f"the queries have shape {queries_QE.shape}; give one row of {self.width} numbers per query"
            )
        scores_Qk = np.full((len(queries_QE), k), -np.inf, np.float32)
        rows_Qk = np.full((len(queries_QE), k), -1, np.int64)
        for number, query_E in enumerate(unit(queries_QE) if self._cosine else queries_QE):
            matches = [part.search(query_E, k) for part in self._parts]
            if matches:
                scores = np.concatenate([scores for scores, _ in matches])
                rows = np.concatenate([rows for _, rows in matches])
                best = np.lexsort((rows, -scores))[:k]
                scores_Qk[number, : len(best)] = scores[best]
                rows_Qk[number, : len(best)] = rows[best]
        return scores_Qk, rows_Qk


class _Part:
    """The vectors of one segment, with a graph if they are many; ``first`` is the number of its first row."""

    def __init__(
        self, vectors: NDArray[Any], graph: Any | None, metric: Metric, first: int, deleted: Rows
    ) -> None:
        self._vectors = vectors
        self._graph = graph
        self._cosine = metric == "cosine"
        self._first = first
        self._live = np.ones(len(vectors), bool)
        self._live[deleted] = False

    def search(self, query_E: Floats, k: int) -> tuple[Floats, Rows]:
        """Scores and rows of candidates, among which the ``k`` nearest are as far as they were found."""
        count, live = max(CANDIDATES, 4 * k), int(self._live.sum())
        if self._graph is None or 2 * count >= live or 2 * live < len(self._live):
            candidates = np.flatnonzero(self._live)
        else:
            candidates = self._proposed(self._graph, query_E, count)
        scores = [
            self._scores(query_E, candidates[start : start + AT_ONCE])
            for start in range(0, len(candidates), AT_ONCE)
        ]
        scores_A = np.concatenate([np.empty(0, np.float32), *scores])
        best = np.lexsort((candidates, -scores_A))[:k]
        return scores_A[best], candidates[best] + self._first

    def _proposed(self, graph: Any, query_E: Floats, wanted: int) -> Rows:
        """At least ``wanted`` rows that are not deleted: more are asked for until there are so many."""
        extra = np.zeros(graph.ndim - len(query_E), np.float32)
        unit_E = unit(np.concatenate([query_E, extra])[None])[0]
        # As many more as are deleted on average, and a quarter for chance.
        left = self._live.mean()
        count = wanted if left == 1 else int(1.25 * wanted / left)
        while True:
            graph.expansion_search = count
            rows = graph.search(unit_E, count, threads=1).keys.astype(np.int64)
            live = rows[self._live[rows]]
            if len(live) >= wanted or count >= len(self._live):
                return np.sort(live)
            count = min(2 * count, len(self._live))

    def _scores(self, query_E: Floats, rows: Rows) -> Floats:
        vectors_AE = np.asarray(self._vectors[rows], np.float32)
        # Summed row by row, so a score does not depend on which other rows are candidates.
        scores_A: Floats = np.sum(
            (unit(vectors_AE) if self._cosine else vectors_AE) * query_E, axis=1, dtype=np.float32
        )
        return scores_A


def unit(vectors: Floats) -> Floats:
    """Vectors divided by their lengths; zeros stay zeros."""
    lengths = np.sqrt(np.sum(vectors * vectors, axis=1, keepdims=True))
    unit_vectors: Floats = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return unit_vectors


def cached_graph(path: Path, segment: Segment, array_name: str, metric: Metric) -> Any:
    """The graph of one array, from the cache or built and put there."""
    from usearch.index import Index

    key = {
        "segment": segment.name, "sha256": segment.sha256, "array": array_name, "metric": metric, **GRAPH,
    }  # fmt: skip
    name = f"{segment.name}-{hashlib.sha256(seal(key)).hexdigest()[:16]}.graph"
    file = path / CACHE / name
    if not _is_whole(file, key):
        held = ExitStack()
        try:
            file.parent.mkdir(exist_ok=True)
            held.enter_context(locked(file.parent / "lock"))
        except OSError:
            # Where the index may not be written to, the graph lives as long as the search.
            return built_graph(segment.arrays[array_name], metric)
        with held:
            # While this process waited for the lock, another may have built it.
            if not _is_whole(file, key):
                graph = built_graph(segment.arrays[array_name], metric)
                try:
                    _store(file, key, graph)
                except OutputError:
                    return graph
                _remove_others(path)
    return Index.restore(file, view=True)


def built_graph(vectors: NDArray[Any], metric: Metric) -> Any:
    """A graph of unit vectors; for dot products they get one more number, which makes lengths equal.

    With ``sqrt(longest ** 2 - length ** 2)`` appended every vector is as long as the longest, and the nearest
    by angle is the one with the largest dot product, because the query has a zero there.
    """
    from usearch.index import Index

    lengths = np.concatenate([np.linalg.norm(piece, axis=1) for _, piece in _pieces(vectors)])
    longest = lengths.max(initial=0)
    graph = Index(ndim=vectors.shape[1] + (metric == "dot"), metric="ip", **GRAPH)
    for start, piece in _pieces(vectors):
        added = piece
        if metric == "dot":
            rest = np.sqrt(np.maximum(longest**2 - lengths[start : start + len(piece)] ** 2, 0))
            added = np.column_stack([piece, rest])
        graph.add(np.arange(start, start + len(piece)), unit(added), threads=1)
    return graph


def _pieces(vectors: NDArray[Any]) -> Iterator[tuple[int, Floats]]:
    for start in range(0, len(vectors), AT_ONCE):
        yield start, np.asarray(vectors[start : start + AT_ONCE], np.float32)


def _vectors(segment: Segment, array_name: str, width: int | None) -> NDArray[Any]:
    """The array, which must be of vectors of the given length."""
    if array_name not in segment.arrays:
        raise InvalidRequest(
            f"segment {segment.name} has no array {quoted(array_name)}; it has {', '.join(segment.arrays)}"
        )
    vectors = segment.arrays[array_name]
    if vectors.ndim != 2 or vectors.dtype.kind != "f" or width not in (None, vectors.shape[1]):
        raise InvalidRequest(
            f"array {array_name} of segment {segment.name} is {vectors.dtype} of shape {vectors.shape}; "
            "approximate search needs 2-D arrays of floating-point numbers of one width"
        )
    return vectors


def _seal_path(file: Path) -> Path:
    return file.with_suffix(".json")


def _is_whole(file: Path, key: dict[str, Any]) -> bool:
    """Whether the graph in a file is that of ``key``, byte for byte as it was written.

    usearch does not check what it opens, and a damaged graph can end the process.
    """
    try:
        values = unseal(_seal_path(file).read_bytes())
        with file.open("rb") as opened:
            return bool(values == key | {"file": hashlib.file_digest(opened, "sha256").hexdigest()})
    except (OSError, ValueError, TypeError):
        return False


def _store(file: Path, key: dict[str, Any], graph: Any) -> None:
    """Write a graph and then the file that says what it is, each at once; raises OutputError."""
    with whole_file(file) as partial:
        try:
            graph.save(partial)
        except RuntimeError as error:  # usearch's word for a full disk
            raise OutputError(f"cannot write {file}: {error}") from None
        with partial.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    with whole_file(_seal_path(file)) as partial:
        partial.write_bytes(seal(key | {"file": digest}))
    sync(file.parent)


def _remove_others(path: Path) -> None:
    """Remove graphs of segments that the index does not have any more."""
    for file in (path / CACHE).glob("*-*-*.*"):
        name = file.name.rpartition("-")[0]
        if not (path / "segments" / f"{name}.arrays").exists():
            with suppress(OSError):
                file.unlink()
