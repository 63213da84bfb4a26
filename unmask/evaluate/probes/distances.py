"""Distance probes: how well the distance between two tokens can be read from their states, by layer.

Two ridge regressions read a pair of tokens i and j of one window: the *offset* j - i, with its sign, from the
difference of their states, and the *distance*, the offset without its sign, from the squares of the
differences. What a probe reads may come from the text, in which words that belong together stand together, or
from the architecture alone, so each has two controls: the same tokens in a random order, asked for their
distance in the text, and random weights.

Axes: P pairs; W windows.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from unmask.base.intervals import Interval, ratio_interval
from unmask.base.progress import Progress
from unmask.engines.engine import Engine
from unmask.engines.torch_engine import TorchEngine
from unmask.errors import InvalidRequest, not_finite
from unmask.evaluate.probes.perplexity import Window
from unmask.evaluate.probes.probing import counter, layers_of
from unmask.evaluate.probes.words import PARTS, STATES_BYTES, TOKENS_PER_PASS
from unmask.interpret.geometry.reading import random_baseline
from unmask.interpret.geometry.values import FloatArray, generator
from unmask.models.load import Model
from unmask.spec import EncoderSpec
from unmask.spec.describe import describe_position
from unmask.text import PackedBatch, token_budget_batches

DISTANCE = 32
"""The largest distance asked for, in tokens."""
PAIRS = 64
"""Pairs of a window."""
STRENGTHS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)
"""Strengths of the penalty, strongest first; one is chosen on dev."""
SHARES = (0.7, 0.15)
"""Of the windows: train and dev; the others are the test part."""
FEWEST = 20
"""Windows."""


@dataclass(frozen=True)
class DistanceFit:
    """One probe on the test pairs, with 95 % bootstrap intervals over windows."""

    r2: float
    """1 minus the squared error divided by that of the mean of the training pairs: 1 is exact, and 0 or less
    says nothing."""
    r2_interval: Interval
    error: float
    """Mean absolute error in tokens."""
    error_interval: Interval
    strength: float
    """Strength of the penalty, chosen on dev."""


@dataclass(frozen=True)
class DistanceLayer:
    """The probes of one layer; None where a control was not asked for."""

    layer: int
    """0 is the output of the embedding; the last includes the encoder's final norm."""
    offset: DistanceFit
    """The signed distance j - i, from the difference of the two states."""
    distance: DistanceFit
    """The distance without its sign, from the squares of the differences."""
    shuffled_offset: DistanceFit | None
    """On states of the same tokens in a random order, asked for the offset that they have in the text."""
    shuffled_distance: DistanceFit | None
    random_offset: DistanceFit | None
    """On states of an encoder of the same architecture with random weights."""
    random_distance: DistanceFit | None


@dataclass(frozen=True)
class DistanceResult:
    """The result of `measure_distances`."""

    probe: str = field(default="distances", init=False)
    model: str
    revision: str | None
    dtype: str
    source: str
    positions: tuple[str, ...]
    """How the encoder knows positions, in words; empty if it does not."""
    largest: int
    """The largest distance asked for; all from 1 on are equally frequent."""
    windows: Mapping[str, int]
    """Of train, dev and test."""
    pairs: Mapping[str, int]
    too_short: int
    """Windows that were left out because they do not hold the largest distance."""
    offset_error: float
    """Mean absolute error in tokens of the mean offset of the training pairs: what knows nothing."""
    distance_error: float
    seed: int
    layers: tuple[DistanceLayer, ...]
    seconds: float


def measure_distances(
    model: Model,
    windows: Sequence[Window],
    *,
    source: str,
    largest: int = DISTANCE,
    layer: int | None = None,
    shuffled: bool = True,
    random: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> DistanceResult:
    """Fit both probes on the states of every layer, and the same on controls.

    Args:
        model: any encoder.
        windows: running text; see `unmask.evaluate.probes.perplexity.text_windows`.
        source: the name of the text in the result.
        largest: the largest distance asked for.
        layer: from 0, the output of the embedding, to L; None for all.
        shuffled: fit probes on the tokens in a random order too.
        random: fit probes on an encoder of random weights too.
        seed: of parts, pairs, orders and random weights.
        progress: called with (probes fitted, probes to fit).

    Raises:
        InvalidRequest: there is no such layer, ``largest`` is below 2, or fewer than 20 windows hold it.
        NonFiniteResult: a hidden state is not finite.
    """
    start = time.perf_counter()
    chosen = layers_of(model, layer)
    pairs = pairs_of(windows, largest, seed)
    advance = counter(progress, 2 * len(chosen) * (1 + shuffled + random))
    probed = {"": probe_distances(model.engine, pairs, chosen, advance)}
    if shuffled:
        probed["shuffled_"] = probe_distances(model.engine, pairs.shuffled(seed), chosen, advance)
    if random:
        engine = TorchEngine(random_baseline(model.encoder, seed))
        probed["random_"] = probe_distances(engine, pairs, chosen, advance)
    fits = {
        f"{control}{target}": of_layers
        for control, both in probed.items()
        for target, of_layers in both.items()
    }
    names = [name for name in DistanceLayer.__dataclass_fields__ if name != "layer"]
    layers = [
        DistanceLayer(at, **{name: fits[name][place] if name in fits else None for name in names})  # type: ignore[arg-type]
        for place, at in enumerate(chosen)
    ]
    counts = {part: int((pairs.part_W == number).sum()) for number, part in enumerate(PARTS)}
    return DistanceResult(
        model=model.name,
        revision=model.revision,
        dtype=model.dtype,
        source=source,
        positions=_positions(model.spec),
        largest=largest,
        windows=counts,
        pairs={part: PAIRS * count for part, count in counts.items()},
        too_short=len(windows) - len(pairs.ids),
        offset_error=pairs.error_of_mean("offset"),
        distance_error=pairs.error_of_mean("distance"),
        seed=seed,
        layers=tuple(layers),
        seconds=time.perf_counter() - start,
    )


def _positions(spec: EncoderSpec) -> tuple[str, ...]:
    learned = spec.embedding.positions
    found = ["learned positions"] if learned is not None and learned.added else []
    for layer in spec.layers:
        position = getattr(layer.mixer, "position", None)
        if position is not None and (words := describe_position(position)) and words not in found:
            found.append(words)
    return tuple(found)


@dataclass(frozen=True, eq=False)
class TokenPairs:
    """Pairs of tokens of windows, the same number of each. Made by `pairs_of`."""

    ids: tuple[NDArray[np.int64], ...]
    """The token ids of each window, with special tokens."""
    places_WP2: NDArray[np.int64]
    """Where the two tokens of each pair are in the ids of their window."""
    offsets_WP: NDArray[np.int64]
    """How far the second is after the first in the text."""
    scored: tuple[NDArray[np.int64], ...]
    """The places of the tokens of each window that are not special."""
    part_W: NDArray[np.int64]
    """The part of each window: 0 train, 1 dev, 2 test."""

    def shuffled(self, seed: int) -> "TokenPairs":
        """The tokens of each window in a random order, but for special ones; pairs are of the same tokens."""
        draw = generator(seed)
        every_ids, places_WP2 = [], np.empty_like(self.places_WP2)
        for number, (ids_N, places) in enumerate(zip(self.ids, self.scored, strict=True)):
            moved = np.arange(len(ids_N))
            moved[places] = draw.permutation(places)
            mixed_N = np.empty_like(ids_N)
            mixed_N[moved] = ids_N
            every_ids.append(mixed_N)
            places_WP2[number] = moved[self.places_WP2[number]]
        return replace(self, ids=tuple(every_ids), places_WP2=places_WP2)

    def targets(self, target: str) -> FloatArray:
        """What a probe is asked for, (W, P)."""
        return (self.offsets_WP if target == "offset" else np.abs(self.offsets_WP)).astype(np.float64)

    def error_of_mean(self, target: str) -> float:
        """Mean absolute error on test of the mean of the training pairs."""
        y_WP = self.targets(target)
        return float(np.abs(y_WP[self.part_W == 2] - y_WP[self.part_W == 0].mean()).mean())


def pairs_of(windows: Sequence[Window], largest: int = DISTANCE, seed: int = 0) -> TokenPairs:
    """Draw pairs from every window that holds the largest distance, and deal the windows into parts.

    Each distance from 1 to ``largest`` is equally likely, and so are both orders of the two tokens.

    Raises:
        InvalidRequest: ``largest`` is below 2, or fewer than 20 windows hold it.
    """
    if largest < 2:
        raise InvalidRequest(f"the largest distance is {largest}; it must be at least 2 (--distance)")
    long = [window for window in windows if window.scored_N.sum() > largest]
    if len(long) < FEWEST:
        raise InvalidRequest(
            f"{len(long)} windows hold a distance of {largest} tokens, and {FEWEST} are needed; give more "
            "text, longer windows (--tokens) or a smaller distance (--distance)"
        )
    draw = generator(seed)
    scored = tuple(np.flatnonzero(window.scored_N) for window in long)
    distance_WP = draw.integers(1, largest + 1, (len(long), PAIRS))
    room_WP = np.array([len(places) for places in scored])[:, None] - distance_WP
    first_WP = draw.integers(0, room_WP)
    turned_WP = draw.random(first_WP.shape) < 0.5
    ends_WP2 = np.stack([first_WP, first_WP + distance_WP], axis=2)
    ends_WP2[turned_WP] = ends_WP2[turned_WP][:, ::-1]
    bounds = [round(len(long) * SHARES[0]), round(len(long) * sum(SHARES))]
    return TokenPairs(
        ids=tuple(window.ids_N for window in long),
        places_WP2=np.stack([places[ends] for places, ends in zip(scored, ends_WP2, strict=True)]),
        offsets_WP=np.where(turned_WP, -distance_WP, distance_WP),
        scored=scored,
        part_W=np.searchsorted(bounds, draw.permutation(len(long)), side="right"),
    )


def probe_distances(
    engine: Engine,
    pairs: TokenPairs,
    layers: Sequence[int],
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, list[DistanceFit]]:
    """The probes ``offset`` and ``distance`` of each of these layers of an encoder.

    Args:
        engine: runs the encoder, whose vocabulary is that of the windows.
        pairs: see `pairs_of`.
        layers: from 0, the output of the embedding, to L.
        advance: called with the number of probes fitted since the last call.

    Raises:
        NonFiniteResult: a state is not finite.
    """
    found: dict[str, list[DistanceFit]] = {"offset": [], "distance": []}
    of_layer = 4 * engine.spec.width * pairs.offsets_WP.size
    at_once = max(1, STATES_BYTES // of_layer)
    for first in range(0, len(layers), at_once):
        some = layers[first : first + at_once]
        for x_WPD in _differences(engine, pairs, some):
            found["offset"].append(_fit(x_WPD, pairs, "offset"))
            found["distance"].append(_fit(np.square(x_WPD), pairs, "distance"))
            advance(2)
    return found


def _differences(engine: Engine, pairs: TokenPairs, layers: Sequence[int]) -> NDArray[np.float32]:
    """The state of each pair's second token minus that of its first, (layers, W, P, D)."""
    x_LWPD = np.empty((len(layers), *pairs.offsets_WP.shape, engine.spec.width), dtype=np.float32)
    lengths = np.array([len(ids_N) for ids_N in pairs.ids], dtype=np.int64)
    for chosen in token_budget_batches(lengths, TOKENS_PER_PASS):
        batch = PackedBatch.of_ids([pairs.ids[window] for window in chosen])
        states = engine.hidden_states(batch, "all")
        for window, start in zip(chosen, batch.layout.offsets[:-1], strict=True):
            first_P, second_P = (pairs.places_WP2[window] + start).T
            for number, layer in enumerate(layers):
                x_LWPD[number, window] = states[layer, second_P] - states[layer, first_P]
    if not np.isfinite(x_LWPD).all():
        raise not_finite("a hidden state", engine.dtype)
    return x_LWPD


def _fit(x_WPD: NDArray[np.float32], pairs: TokenPairs, target: str) -> DistanceFit:
    """Ridge regression of standardized features, in float64; nothing is random."""
    y_WP, of_part = pairs.targets(target), [pairs.part_W == part for part in range(len(PARTS))]
    y_P, dev_P, test_P = (y_WP[windows_W].ravel() for windows_W in of_part)
    x_PD, dev_PD, test_PD = (
        x_WPD[windows_W].reshape(-1, x_WPD.shape[-1]).astype(np.float64) for windows_W in of_part
    )
    mean_D, deviation_D = x_PD.mean(0), x_PD.std(0)
    deviation_D[deviation_D <= 1e-9 * deviation_D.max()] = np.inf  # a constant feature has no information
    mean = y_P.mean()
    x_PD, dev_PD, test_PD = ((part - mean_D) / deviation_D for part in (x_PD, dev_PD, test_PD))
    values_D, vectors_DD = np.linalg.eigh(x_PD.T @ x_PD / len(x_PD))
    product_D = vectors_DD.T @ (x_PD.T @ (y_P - mean) / len(x_PD))
    weights = {strength: vectors_DD @ (product_D / (values_D + strength)) for strength in STRENGTHS}
    strength = min(STRENGTHS, key=lambda one: float(np.square(dev_PD @ weights[one] + mean - dev_P).sum()))
    windows = int(of_part[2].sum())
    error_WP = (test_PD @ weights[strength] + mean - test_P).reshape(windows, -1)
    squared_W, whole_W = (
        np.square(part_WP.reshape(windows, -1)).sum(1) for part_WP in (error_WP, test_P - mean)
    )
    unexplained = ratio_interval(squared_W, whole_W)
    return DistanceFit(
        r2=float(1 - squared_W.sum() / whole_W.sum()),
        r2_interval=Interval(1 - unexplained.high, 1 - unexplained.low),
        error=float(np.abs(error_WP).mean()),
        error_interval=ratio_interval(np.abs(error_WP).sum(1), np.full(windows, float(PAIRS))),
        strength=strength,
    )
