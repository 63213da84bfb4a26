"""Attention statistics of one text: every head of every layer, measured exactly."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.base.arguments import whole_number
from unmask.base.progress import Watch, unwatched
from unmask.errors import NonFiniteResult
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention.head_measures import HeadMeasures, KeyMarks, block_shape
from unmask.interpret.attention.layer_statistics import Floats, LayerStatistics, column_classes, profile_edges
from unmask.interpret.attention.rows import CELLS_AT_ONCE, LayerRows
from unmask.spec import (
    BlockSparse,
    CausalAttention,
    EncoderSpec,
    FullAttention,
    SlidingWindow,
    SoftmaxAttention,
)

T = TypeVar("T")
Tick = Callable[[int], None]
"""Called with the amount of work done since the last call."""


AHEAD = 4
"""Reports of a worker that may wait for the caller; then the worker waits too, so that a caller that
takes its time in ``tick`` has the cores to itself."""


class _Stopped(Exception):
    """Raised in the ``tick`` of a worker whose results are no longer needed."""


# The tasks consist of very many small operations. If each operation were split over the cores, all cores
# would wait for the slowest one after each operation, which on a busy machine takes most of the time.
def together(works: Sequence[Callable[[Tick], T]], tick: Tick, workers: int) -> list[T]:
    """The results of ``works``, in their order: several tasks in parallel, each on one core.

    Args:
        works: each is given a ``tick`` to call now and then, which is where it may be stopped.
        tick: called in this thread with the reports of all; an exception from it stops them all. While
            it runs for long, they soon wait.
        workers: how many at once; 1 runs them in this thread, one after another.
    """
    workers = min(workers, len(works))
    if workers <= 1:
        return [work(tick) for work in works]
    threads, started = torch.get_num_threads(), threading.Barrier(workers + 1)
    reports: SimpleQueue[int | None] = SimpleQueue()
    stopping, room = threading.Event(), threading.Semaphore(AHEAD * workers)

    def begin() -> None:
        # For this thread alone, but new threads would inherit it too: see below.
        torch.set_num_threads(1)
        started.wait()

    def report(amount: int) -> None:
        room.acquire()
        if stopping.is_set():
            raise _Stopped
        reports.put(amount)

    def run(work: Callable[[Tick], T]) -> T:
        try:
            with torch.no_grad():
                return work(report)
        finally:
            reports.put(None)

    with ThreadPoolExecutor(workers, initializer=begin) as pool:
        futures = [pool.submit(run, work) for work in works]
        started.wait()
        torch.set_num_threads(threads)
        try:
            running = len(works)
            while running:
                amount = reports.get()
                if amount is None:
                    running -= 1
                    if any(future.done() and future.exception() for future in futures):
                        break
                else:
                    tick(amount)
                    room.release()
        finally:
            stopping.set()
            room.release(len(works))  # workers that still wait for room then stop
            pool.shutdown(cancel_futures=True)
    errors = (future.exception() for future in futures if not future.cancelled())
    for error in errors:
        if error is not None and not isinstance(error, _Stopped):
            raise error
    return [future.result() for future in futures]


TOP_K = 8
MAPS = 128
BESIDE_BYTES = 100 << 20
"""Blocks of rows of each thread, and what the libraries of products keep for themselves, by measurement."""
WORTH_A_THREAD = 1 << 22
"""Layers of fewer numbers are measured on one core."""


class AttentionStatistics:
    """Attention statistics of a text, layer by layer; initially empty, filled by `measure`.

    Args:
        cache: the activation cache of the text.
        top_k: number of top keys kept for each query.
        maps: the most cells along the side of a map of a head.

    Raises:
        InvalidRequest: ``top_k`` or ``maps`` is less than 1.
    """

    def __init__(self, cache: ActivationCache, *, top_k: int = TOP_K, maps: int = MAPS) -> None:
        self.cache = cache
        self.top_k, self.maps = whole_number("top_k", top_k, 1), whole_number("maps", maps, 1)
        self.layers: list[LayerStatistics | None] = [None] * cache.layer_count
        """The statistics of each layer; None if it has not been measured."""

    @property
    def ready(self) -> bool:
        """Whether every layer is measured."""
        return all(layer is not None for layer in self.layers)

    def layer(self, layer: int) -> LayerStatistics:
        """The statistics of a layer, which is measured now if necessary."""
        self.cache.block(layer)
        if self.layers[layer] is None:
            self.measure(layers=(layer,))
        statistics = self.layers[layer]
        assert statistics is not None
        return statistics

    def measure(
        self, watch: Watch | None = None, *, layers: tuple[int, ...] | None = None, cells: int | None = None
    ) -> None:
        """Measure the remaining layers, the cheapest first.

        A layer is in `layers` as soon as it is done. If an exception from ``watch`` stops this, finished
        layers are kept, and the next call resumes with the others.

        Args:
            watch: called after each block of rows with the cells of attention done and in all.
            layers: which; None means all.
            cells: the most probabilities held at once; None decides by the text's length.

        Raises:
            InvalidRequest: there is no such layer.
            NonFiniteResult: a number is infinite or not a number.
        """
        every = range(len(self.layers)) if layers is None else layers
        for layer in every:
            self.cache.block(layer)
        remaining = [layer for layer in every if self.layers[layer] is None]
        costs = {layer: layer_cells(self.cache.encoder.spec, layer, len(self.cache)) for layer in remaining}
        finished, total, watched = 0, sum(costs.values()), watch or unwatched
        for layer in sorted(remaining, key=lambda layer: (costs[layer], layer)):
            begun, done = finished, 0

            def tick(cells: int, begun: int = begun, cost: int = costs[layer]) -> None:
                nonlocal done
                done += cells
                watched("measuring", begun + min(done, cost), total)

            self.layers[layer] = measure_layer(
                self.cache, layer, top_k=self.top_k, maps=self.maps, tick=tick, cells=cells
            )
            finished += costs[layer]
        watched("measuring", total, total)

    @staticmethod
    def bytes_needed(spec: EncoderSpec, length: int, *, top_k: int = TOP_K, maps: int = MAPS) -> int:
        """Memory for a text of ``length`` tokens above the model's own, in bytes, before anything is run.

        States of all layers in float32, arrays of all heads, what one layer needs while it is measured, and
        what the forward pass needs for a moment. In an encoder of float64 states and products are twice that.
        """
        mixers = [layer.mixer for layer in spec.layers]
        wide = max(mixer.heads * mixer.head_width for mixer in mixers)
        inner = max(layer.feedforward.width for layer in spec.layers)
        heads, most = sum(mixer.heads for mixer in mixers), max(mixer.heads for mixer in mixers)
        cell = -(-length // maps)
        side = -(-length // cell)
        states = (len(mixers) + 2) * length * spec.width * 4
        arrays = heads * (length * (8 + 10 * 4 + 8 * min(top_k, length)) + 3 * side * side * 4)
        forward = length * (4 * spec.width + max(6 * wide, 4 * inner)) * 4
        rows = 3 * length * wide * 4
        running = most * (length * (9 * 8 + 11 * 4 + 8 * top_k) + 2 * side * side * 8)
        return states + arrays + max(forward, rows + running) + BESIDE_BYTES


def attention_statistics(
    cache: ActivationCache,
    *,
    watch: Watch | None = None,
    layers: tuple[int, ...] | None = None,
    top_k: int = TOP_K,
    maps: int = MAPS,
) -> AttentionStatistics:
    """Measure a text; see `AttentionStatistics`."""
    statistics = AttentionStatistics(cache, top_k=top_k, maps=maps)
    statistics.measure(watch, layers=layers)
    return statistics


def layer_cells(spec: EncoderSpec, layer: int, length: int) -> int:
    """About how many numbers of attention a layer has, which is what measuring it costs."""
    mixer = spec.layers[layer].mixer
    columns = length
    if isinstance(mixer, SoftmaxAttention) and isinstance(mixer.pattern, SlidingWindow):
        columns = min(length, 2 * mixer.pattern.radius * mixer.pattern.dilation + 1)
    return mixer.heads * length * columns


def measure_layer(
    cache: ActivationCache,
    layer: int,
    *,
    top_k: int = TOP_K,
    maps: int = MAPS,
    tick: Tick | None = None,
    cells: int | None = None,
) -> LayerStatistics:
    """Measure one layer.

    Args:
        cache: the activation cache of the text.
        layer: which.
        top_k: number of top keys kept for each query.
        maps: the most cells along the side of a map.
        tick: called after each block with the number of attention cells in it.
        cells: the most probabilities held at once; None decides by the text's length.

    Raises:
        NonFiniteResult: attention of this text is infinite or NaN.
    """
    length = len(cache)
    rows = LayerRows(cache, layer)
    cell = -(-length // maps)
    at_once, heads_at_once = block_shape(rows, rows.heads, cell, cells)
    keys_HN = _keys_allowed(rows)
    workers = torch.get_num_threads() if rows.ordinary.q_HNK.device.type == "cpu" else 1
    workers = workers if layer_cells(cache.encoder.spec, layer, length) > WORTH_A_THREAD else 1
    heads_at_once = min(heads_at_once, -(-rows.heads // workers))
    marks = KeyMarks.of(cache.encoding)

    def some_heads(first: int, report: Tick) -> dict[str, NDArray[np.generic]]:
        heads = slice(first, min(first + heads_at_once, rows.heads))
        measures = HeadMeasures(rows, marks, heads, top_k=top_k, cell=cell)
        measures.run(at_once, report)
        return _arrays(measures, cache, keys_HN[heads])

    works = [partial(some_heads, first) for first in range(0, rows.heads, heads_at_once)]
    with torch.no_grad():
        parts = together(works, tick or (lambda _: None), workers)
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    statistics = LayerStatistics(
        kind=rows.kind,
        heads=rows.heads,
        keys_HN=keys_HN,
        profile_edges=profile_edges(length),
        cell=cell,
        **joined,
    )
    for field in fields(statistics):
        value = getattr(statistics, field.name)
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.isfinite(value).all():
            raise NonFiniteResult("attention of this text is not finite; try dtype='float32'")
    return statistics


def _arrays(
    measures: HeadMeasures, cache: ActivationCache, keys_HN: NDArray[np.int32]
) -> dict[str, NDArray[np.generic]]:
    """Sums divided by their counts."""
    length, cell = measures.layer.length, measures.cell
    from_key_N = np.arange(length, 0, -1)
    rows_S = np.minimum(cell, length - cell * np.arange(measures.cells))
    area_SS = rows_S[:, None] * rows_S[None, :]
    sums = {
        name.removeprefix("_"): value.cpu().numpy()
        for name, value in vars(measures).items()
        if isinstance(value, torch.Tensor)
    }
    entropy_HN = sums["entropy_HN"]
    near_HN3, attention_received_HN = sums["near_HN3"].astype(np.float64), sums["attention_received_HN"]
    return {
        "lse_HN": sums["lse_HN"],
        "entropy_HN": _floats(entropy_HN),
        "entropy_share_HN": _floats(np.minimum(entropy_HN / np.log(np.maximum(keys_HN, 2)), 1)),
        "distance_HN": _floats(sums["distance_HN"]),
        "attention_received_HN": _floats(attention_received_HN / length),
        "causal_received_HN": _floats(sums["causal_received_HN"] / from_key_N),
        "max_received_HN": _floats(sums["max_received_HN"]),
        "norm_HN": _floats(measures.layer.ordinary.norms_HN[measures.heads].cpu().numpy()),
        "norm_sum_HN": _floats(sums["norm_sum_HN"]),
        "received_norm_HN": _floats(sums["received_norm_HN"] / length),
        "edges_keys_HNk": sums["edges_keys_HNk"],
        "edges_HNk": _floats(sums["edges_HNk"]),
        "classes_HX": _floats(_classes(cache, near_HN3, attention_received_HN, sums) / length),
        "special_HN": _floats(sums["special_HN"]),
        **_beyond(measures.marks, near_HN3, keys_HN, sums),
        "profile_HB": _floats(sums["profile_HB"] / length),
        "map_mean_HSS": _floats(sums["map_sum_HSS"] / area_SS),
        "map_max_HSS": _floats(sums["map_max_HSS"]),
        "map_norm_HSS": _floats(sums["map_norm_HSS"] / area_SS),
    }


def _classes(
    cache: ActivationCache,
    near_HN3: NDArray[np.float64],
    attention_received_HN: NDArray[np.float64],
    sums: Mapping[str, NDArray[Any]],
) -> NDArray[np.float64]:
    """Attention to keys of each class, added up over queries: (H, X)."""
    first_N, special_N, punctuation_N = column_classes(cache.encoding)
    named_N = first_N | special_N | punctuation_N
    of_self, before, after = near_HN3[..., 1].sum(-1), near_HN3[..., 0].sum(-1), near_HN3[..., 2].sum(-1)
    # Of the keys near a query, those that no class of keys has counted already.
    plain_HN3 = near_HN3.copy()
    plain_HN3[:, 1:, 0] *= ~named_N[:-1]
    plain_HN3[..., 1] *= ~named_N
    plain_HN3[:, :-1, 2] *= ~named_N[1:]
    counted = attention_received_HN[:, named_N].sum(-1) + plain_HN3.sum((1, 2)) + sums["only_repeat_H"]
    other = np.maximum(attention_received_HN.sum(-1) - counted, 0)
    by_key = [attention_received_HN[:, marked_N].sum(-1) for marked_N in (first_N, special_N, punctuation_N)]
    return np.stack([of_self, before, after, *by_key, sums["repeat_H"], other], axis=-1)


def _beyond(
    marks: KeyMarks,
    near_HN3: NDArray[np.float64],
    keys_HN: NDArray[np.int32],
    sums: Mapping[str, NDArray[Any]],
) -> dict[str, Floats]:
    """The attention between tokens that are not set aside."""
    kept_N = ~marks.aside_N
    given_HN = np.maximum(1 - sums["special_HN"], 0) * kept_N
    given_H = given_HN.sum(-1)
    keys_HN = np.maximum(keys_HN - sums["special_keys_HN"], 2)
    entropy_HN = np.minimum(sums["beyond_entropy_HN"] / np.log(keys_HN), 1)
    # A query and its neighbor count where neither is set aside.
    both_N = kept_N[1:] & kept_N[:-1]
    previous, of_self, following = (
        near_HN3[:, 1:, 0] @ both_N, near_HN3[..., 1] @ kept_N, near_HN3[:, :-1, 2] @ both_N
    )  # fmt: skip
    classes = (of_self, previous, following, sums["first_H"], sums["punctuation_H"], sums["repeat_H"])
    classes_HX, given_H1 = np.stack(classes, axis=-1), given_H[:, None]
    return {
        "beyond_HX": _floats(np.divide(classes_HX, given_H1, where=given_H1 > 0, out=classes_HX * 0)),
        "beyond_entropy_H": _floats(
            np.divide((entropy_HN * given_HN).sum(-1), given_H, where=given_H > 0, out=given_H * 0)
        ),
    }


def _keys_allowed(rows: LayerRows) -> NDArray[np.int32]:
    """How many keys each query may see, (H, N); one row for all heads where they are alike."""
    length, pattern = rows.length, rows.ordinary.pattern
    keys_HN = np.full((1, length), length, dtype=np.int32)
    if isinstance(pattern, SlidingWindow):
        at = np.arange(length)
        sides = (np.minimum(pattern.radius, side // pattern.dilation) for side in (at, length - 1 - at))
        keys_HN[0] = 1 + sum(sides)
    elif isinstance(pattern, CausalAttention):
        keys_HN[0] = np.arange(1, length + 1)
    elif not isinstance(pattern, FullAttention):
        count = rows.heads if isinstance(pattern, BlockSparse) and pattern.heads_differ else 1
        keys_HN = np.repeat(keys_HN, count, axis=0)
        step = max(1, CELLS_AT_ONCE // (4 * length * count))
        for first, end in rows.stretches(0, length, step):
            keys_HN[:, first:end] = rows.keys_allowed(first, end)
    return np.broadcast_to(keys_HN, (rows.heads, length))


def _floats(values: NDArray[np.generic]) -> Floats:
    return values.astype(np.float32)
