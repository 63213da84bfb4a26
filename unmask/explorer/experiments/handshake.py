"""Queries and keys: from products to attention weights in one head, and why scores are divided by sqrt(K)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.base.arguments import one_of
from unmask.errors import InvalidRequest
from unmask.explorer.experiments.recorded_text import RecordedText, entropy_share
from unmask.interpret.words.words import words
from unmask.text import Encoding


@dataclass(frozen=True, eq=False)
class Handshake:
    """One head on one text; arrays are (N, N), queries by keys, float64."""

    layer: int
    head: int
    head_width: int
    """K; products are divided by its square root (disentangled ones by that of K times the number of
    terms)."""
    products: NDArray[np.float64]
    """q k, after rotary embedding."""
    scores: NDArray[np.float64]
    """Inputs of the softmax: scaled products plus the position bias."""
    allowed: NDArray[np.bool_]
    """Allowed keys of each query."""
    shares: NDArray[np.float64]
    """exp(score) divided by the sum of its row; each row sums to 1."""
    steps: NDArray[np.float64]
    """(N, K): for each query, the K terms of its product with the key that it attends to most."""


def handshake(recorded: RecordedText, layer: int, head: int) -> Handshake:
    """Every step of a head's attention (Vaswani et al. 2017), recomputed from its queries and keys.

    Raises:
        InvalidRequest: there is no such layer or head, or the layer has no softmax.
    """
    mixer = recorded.mixer(layer)
    one_of("head", head, mixer.heads, f"layer {layer} has heads")
    shares = recorded.probabilities(layer)[head]
    most_N = shares.argmax(-1)
    steps = recorded.queries[layer][:, head] * recorded.keys[layer][most_N, head]
    return Handshake(
        layer,
        head,
        mixer.head_width,
        products=recorded.products(layer)[head].numpy(),
        scores=recorded.scores(layer)[head].numpy(),
        allowed=recorded.allowed(layer)[head].numpy(),
        shares=shares.numpy(),
        steps=steps.numpy(),
    )


def clearest_head(recorded: RecordedText, layers: Sequence[int] | None = None) -> tuple[int, int]:
    """The layer and head that attend most to single, non-adjacent words, as the first head to show.

    The score of a head is its mean mass on keys that are not special tokens, the query itself or its
    neighbors, times the largest weight among them. The head with the highest score is chosen, from all layers
    or the given ones. This is a choice for display and says nothing about importance.
    """
    special_N = torch.tensor(recorded.encoding.special)
    places_N = torch.arange(len(recorded))
    content_NN = (~special_N)[None, :] & ((places_N[None, :] - places_N[:, None]).abs() > 1)
    every = range(recorded.layer_count) if layers is None else layers
    best, place = -math.inf, (every[0], 0)
    for layer in every:
        p_HNN = recorded.probabilities(layer)[:, ~special_N]
        if not p_HNN.numel():
            continue
        mass_H = (p_HNN * content_NN[~special_N]).sum(-1).mean(-1)
        peak_H = (p_HNN * content_NN[~special_N]).amax(-1).mean(-1)
        value, head = (mass_H * peak_H).max(0)
        if float(value) > best:
            best, place = float(value), (layer, int(head))
    return place


_PRONOUNS = """
he she it they him her them his hers its their theirs himself herself itself themselves who whom whose which
"""
_FUNCTION_WORDS = """
a an the and or but nor so yet if then than as at by for from in into of off on onto out over to under up with
without about after before because while when where there here this that these those i you we me us my your
our is are was were be been being am do does did have has had will would can could may might must shall should
not no very just also too all any each every some such only own same both more most
"""
PRONOUNS = frozenset(_PRONOUNS.split())
"""English pronouns of the third person: their antecedent is a word that a reader can name."""
FUNCTION_WORDS = PRONOUNS.union(_FUNCTION_WORDS.split())
"""English words that carry little meaning of their own; in another language, only a word's length counts."""
LEAST_LETTERS = 3
LEAST_WEIGHT = 0.2
"""A pronoun that gives its antecedent less than this is not shown."""


@dataclass(frozen=True)
class Pair:
    """A head, a query and the key that the query attends to most in this head."""

    layer: int
    head: int
    query: int
    key: int


def clearest_pair(recorded: RecordedText, layer: int | None = None, head: int = 0) -> Pair:
    """A head in which a word attends most to another word that means something to a reader.

    First choice: the head whose pronouns attend most to content words before them that are not their
    neighbors, and the pronoun that does so most. Second choice: the largest weight from one content word to
    another one that is not its neighbor; then to the same word elsewhere. If a text has none of these, the
    choice of `clearest_head` and its largest weight. ``layer`` and ``head`` limit the choice to one head.
    """
    maps = [
        (at, number, p_NN.numpy())
        for at in (range(recorded.layer_count) if layer is None else [layer])
        for number, p_NN in enumerate(recorded.probabilities(at))
        if layer is None or number == head
    ]
    pronouns, contents = _words_in(recorded.encoding)
    names = {token: recorded.encoding.surface(token).strip().lower() for token in contents}
    pair = _by_pronouns(maps, pronouns, contents)
    for alike in (False, True):  # a word that attends to itself elsewhere says less
        pair = pair or _by_contents(maps, names, alike)
    return pair or _largest(recorded, clearest_head(recorded) if layer is None else (layer, head))


_Map = tuple[int, int, NDArray[np.float64]]
"""Layer, head, and attention weights, (N, N)."""


def _by_pronouns(maps: Sequence[_Map], pronouns: Sequence[int], contents: Sequence[int]) -> Pair | None:
    best, chosen = 0.0, None
    for at, number, p_NN in maps:
        peaks = {
            query: float(p_NN[query, key])
            for query in pronouns
            if (key := int(p_NN[query].argmax())) in contents
            and key < query - 1
            and p_NN[query, key] >= LEAST_WEIGHT
        }
        value = sum(peaks.values()) / max(1, len(pronouns))
        if value > best:
            query = max(peaks, key=lambda place: peaks[place])
            best, chosen = value, Pair(at, number, query, int(p_NN[query].argmax()))
    return chosen


def _by_contents(maps: Sequence[_Map], names: Mapping[int, str], alike: bool) -> Pair | None:
    best, chosen = 0.0, None
    for at, number, p_NN in maps:
        for query in names:
            key = int(p_NN[query].argmax())
            if key not in names or abs(key - query) <= 1 or (names[key] == names[query]) != alike:
                continue
            if p_NN[query, key] > best:
                best, chosen = float(p_NN[query, key]), Pair(at, number, query, key)
    return chosen


def _largest(recorded: RecordedText, place: tuple[int, int]) -> Pair:
    """The largest weight of a query that is a word on another token, in one head."""
    p_NN = recorded.probabilities(place[0])[place[1]].numpy().copy()
    if len(p_NN) > 1:
        np.fill_diagonal(p_NN, -1.0)
    special = recorded.encoding.special
    if not special.all():
        p_NN[special] = -2.0
    query = int(p_NN.max(1).argmax())
    return Pair(*place, query, int(recorded.probabilities(place[0])[place[1]][query].argmax()))


def content_token(encoding: Encoding) -> int:
    """The content word nearest to the middle that is a single token; without one, the token in the middle."""
    _, contents = _words_in(encoding)
    middle = (len(encoding) - 1) / 2
    others = [token for token in range(len(encoding)) if not encoding.special[token]]
    candidates = contents or [token for token in others if encoding.surface(token).isalnum()] or others or [0]
    return min(candidates, key=lambda token: abs(token - middle))


def content_tokens(encoding: Encoding) -> list[int]:
    """All content words that are single tokens."""
    return _words_in(encoding)[1]


def _words_in(encoding: Encoding) -> tuple[list[int], list[int]]:
    """The pronouns, and the content words: words of letters that are single tokens."""
    grouped = words(encoding)
    pieces: NDArray[np.int64] = np.bincount(grouped.of_token, minlength=len(grouped))
    pronouns, contents = [], []
    for word in range(len(grouped)):
        surface = grouped.surface(word).strip().lower()
        if grouped.special[word] or pieces[word] != 1 or not surface.isalpha():
            continue
        token = int(grouped.first_tokens[word])
        if surface in PRONOUNS:
            pronouns.append(token)
        elif surface not in FUNCTION_WORDS and len(surface) >= LEAST_LETTERS:
            contents.append(token)
    return pronouns, contents


WIDTHS = (4, 16, 64, 256, 1024)
QUERIES = 64
KEYS = 64


@dataclass(frozen=True)
class RandomProducts:
    """Products of random standard normal vectors; one entry per width."""

    widths: tuple[int, ...]
    """K."""
    variance: tuple[float, ...]
    """Variance of q k, whose expectation is K for such vectors."""
    variance_divided: tuple[float, ...]
    """Variance of q k / sqrt(K)."""
    entropy_share: tuple[float, ...]
    """Entropy share of the softmax over `KEYS` undivided products: 1 if uniform, 0 for a single key."""
    entropy_share_divided: tuple[float, ...]
    """Entropy share of the softmax over divided products."""
    slope: tuple[float, ...]
    """Mean over queries of the sum of p (1 - p), which scales the gradient of the softmax; undivided
    products."""
    slope_divided: tuple[float, ...]


def random_products(widths: Sequence[int] = WIDTHS, *, seed: int = 0) -> RandomProducts:
    """Measure products of `QUERIES` random queries with `KEYS` random keys each (Vaswani et al. 2017, 3.2.1).

    Raises:
        InvalidRequest: a width is below 1.
    """
    if not widths or min(widths) < 1:
        raise InvalidRequest(f"widths are {list(widths)}; each must be at least 1")
    generator = torch.Generator().manual_seed(seed)
    rows: list[list[float]] = []
    for width in widths:
        q_RK = torch.randn(QUERIES, width, dtype=torch.float64, generator=generator)
        k_RCK = torch.randn(QUERIES, KEYS, width, dtype=torch.float64, generator=generator)
        products_RC = torch.einsum("rk,rck->rc", q_RK, k_RCK)
        row = []
        for s_RC in (products_RC, products_RC / width**0.5):
            p_RC = s_RC.softmax(-1)
            keys = torch.full((QUERIES,), KEYS)
            slope = (p_RC * (1 - p_RC)).sum(-1).mean()
            row += [float(s_RC.var()), float(entropy_share(p_RC, keys).mean()), float(slope)]
        rows.append(row)
    variance, share, slopes, variance_d, share_d, slopes_d = (
        tuple(column) for column in zip(*rows, strict=True)
    )
    return RandomProducts(tuple(widths), variance, variance_d, share, share_d, slopes, slopes_d)


@dataclass(frozen=True, eq=False)
class TrainedProducts:
    """The same measurements for a trained encoder on a text, (L, H) each."""

    head_width: int
    """K of the first layer."""
    variance: NDArray[np.float64]
    """Variance of q k over all pairs that a layer allows."""
    variance_divided: NDArray[np.float64]
    """Variance of q k / sqrt(K)."""
    row_deviation: NDArray[np.float64]
    """Standard deviation of q k / sqrt(K) within a row, mean over queries. The softmax depends only on
    differences within a row."""
    entropy_share: NDArray[np.float64]
    """Entropy share of the encoder's softmax."""
    entropy_share_undivided: NDArray[np.float64]
    """Entropy share of the softmax over the same scores without the division."""


def trained_products(recorded: RecordedText) -> TrainedProducts:
    """Variances and entropies of every head; layers with fewer heads are padded with their mean.

    Raises:
        InvalidRequest: a layer has no softmax.
    """
    rows: list[list[NDArray[np.float64]]] = []
    for layer in range(recorded.layer_count):
        mixer = recorded.mixer(layer)
        products_HNN, allowed_HNN = recorded.products(layer), recorded.allowed(layer)
        keys_HN = allowed_HNN.sum(-1)
        scores_HNN = recorded.scores(layer)
        factor = (mixer.head_width * _term_count(recorded, layer)) ** 0.5
        undivided = (scores_HNN * factor).masked_fill(~allowed_HNN, -torch.inf).softmax(-1)
        divided = products_HNN / mixer.head_width**0.5
        variance_H = torch.stack(
            [
                products[allowed_NN].var()
                for products, allowed_NN in zip(products_HNN, allowed_HNN, strict=True)
            ]
        )
        count_HN1 = keys_HN[..., None]
        mean_HN1 = (divided * allowed_HNN).sum(-1, keepdim=True) / count_HN1
        spread_HN = (((divided - mean_HN1) ** 2 * allowed_HNN).sum(-1) / keys_HN).sqrt()
        rows.append(
            [
                variance_H.numpy(),
                (variance_H / mixer.head_width).numpy(),
                spread_HN.mean(-1).numpy(),
                entropy_share(recorded.probabilities(layer), keys_HN).mean(-1).numpy(),
                entropy_share(undivided, keys_HN).mean(-1).numpy(),
            ]
        )
    most = max(len(row[0]) for row in rows)
    columns = (np.stack([_filled(row[n], most) for row in rows]) for n in range(5))
    return TrainedProducts(recorded.mixer(0).head_width, *columns)


def _term_count(recorded: RecordedText, layer: int) -> int:
    distances = recorded.bias(layer).distances
    return 1 if distances is None else distances.position.term_count


def _filled(values_H: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Pad the values of a layer with their mean to a fixed number of heads."""
    missing = most - len(values_H)
    return np.concatenate([values_H, np.full(missing, values_H.mean())])
