"""Four position encodings, a text that stands twice, and encoders without positions, which see no order."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.base.arguments import one_of
from unmask.encoder.encoder import Encoder
from unmask.encoder.hooks import HookPoint
from unmask.encoder.layers.positions import RotaryTable, apply_rotary
from unmask.errors import InvalidRequest
from unmask.explorer.experiments.recorded_text import RecordedText, record_tensors, run_ids
from unmask.interpret.words.words import Words, words
from unmask.kernels import Tile, alibi_slopes
from unmask.spec import Alibi, EncoderSpec, FullAttention, Rotary, SoftmaxAttention
from unmask.spec.attention import NoPosition
from unmask.text import Encoding, PackedBatch

TABLE_ROWS = 64
SHIFTS = (1, 10, 100, 1000)


@dataclass(frozen=True, eq=False)
class PositionTable:
    """Learned absolute positions."""

    cosines: NDArray[np.float64]
    """(M, M): cosines between the vectors of the first M positions, after subtracting their mean."""
    by_distance: NDArray[np.float64]
    """(M,): mean cosine of pairs by distance; 0 by chance, with standard deviation ``chance``."""
    chance: float
    """Standard deviation of the cosine of two unrelated directions of this width, 1 / sqrt(E)."""
    length_beside_words: float
    """Mean norm of these position vectors divided by that of the word vectors."""


def position_table(encoder: Encoder) -> PositionTable:
    """Cosines of a learned position table (Devlin et al. 2019).

    Raises:
        InvalidRequest: the encoder has no learned positions.
    """
    spec, table = encoder.spec.embedding.positions, encoder.embedding.positions
    if spec is None or table is None or not spec.added:
        raise InvalidRequest("this encoder has no learned positions; use one that has")
    rows = table.weight.detach().to("cpu", torch.float64)[spec.offset : spec.offset + TABLE_ROWS]
    words = encoder.embedding.words.weight.detach().to("cpu", torch.float64)
    unit = torch.nn.functional.normalize(rows - rows.mean(0), dim=-1)
    cosines = unit @ unit.T
    means = [float(cosines.diagonal(distance).mean()) for distance in range(len(rows))]
    lengths = rows.norm(dim=-1).mean() / words.norm(dim=-1).mean()
    return PositionTable(cosines.numpy(), np.array(means), words.shape[-1] ** -0.5, float(lengths))


@dataclass(frozen=True, eq=False)
class Parts:
    """The scores of one disentangled head as the sum of its terms, (N, N) each, scaled like the score."""

    layer: int
    head: int
    parts: dict[str, NDArray[np.float64]]
    """``content``, ``content_position`` (query content times key distance) and ``position_content`` (key
    content times query distance), as far as the encoder has them."""
    felt: dict[str, float]
    """Standard deviation of each term within a row, mean over queries: its effect on the softmax."""
    sum_error: float
    """Largest difference between the sum of the terms and the score."""
    shift_error: float
    """Largest change of any score when all tokens are shifted by `SHIFTS` positions: only distances
    matter."""


def parts(recorded: RecordedText, layer: int, head: int) -> Parts:
    """Decompose a disentangled score into its terms (He et al. 2021).

    Raises:
        InvalidRequest: the layer has no disentangled positions, or there is no such head.
    """
    mixer, bias = recorded.mixer(layer), recorded.bias(layer)
    if bias.distances is None:
        raise InvalidRequest(f"layer {layer} has no disentangled positions; use an encoder that has")
    one_of("head", head, mixer.heads, f"layer {layer} has heads")
    distances = bias.distances.of_head(head)
    q_N1K, k_N1K = (vectors[layer][:, head : head + 1] for vectors in (recorded.queries, recorded.keys))
    factor = (mixer.head_width * distances.position.term_count) ** 0.5
    distance_NN = Tile.whole(len(recorded)).distance_RC(torch.device("cpu"))
    nothing = torch.zeros(1, len(recorded), len(recorded), dtype=torch.float64)
    products = {"content": torch.einsum("rhk,chk->hrc", q_N1K, k_N1K)}
    for name, keys, queries in (
        ("content_position", distances.keys_PHK, None),
        ("position_content", None, distances.queries_PHK),
    ):
        if keys is not None or queries is not None:
            alone = type(distances)(distances.position, keys, queries)
            products[name] = alone.add_to(nothing, q_N1K, k_N1K, distance_NN)
    products = {name: part[0] / factor for name, part in products.items()}
    whole = recorded.scores(layer)[head]
    moved = [
        distances.add_to(nothing, q_N1K, k_N1K, _far(len(recorded), shift))
        - distances.add_to(nothing, q_N1K, k_N1K, distance_NN)
        for shift in SHIFTS
    ]
    return Parts(
        layer,
        head,
        {name: part.numpy() for name, part in products.items()},
        {name: float(part.std(-1, correction=0).mean()) for name, part in products.items()},
        sum_error=float((sum(products.values(), torch.zeros(())) - whole).abs().max()),
        shift_error=max(float(difference.abs().max()) for difference in moved),
    )


def _far(length: int, shift: int) -> Tensor:
    """Distances in a text that begins ``shift`` tokens later."""
    return Tile(shift, shift + length, shift, shift + length).distance_RC(torch.device("cpu"))


@dataclass(frozen=True, eq=False)
class DistancePenalty:
    """ALiBi on one text."""

    slopes: NDArray[np.float64]
    """(H,): the penalty of a score per token of distance."""
    halved_after: NDArray[np.float64]
    """(H,): distance in tokens at which the penalty halves a weight, ln 2 / slope."""
    distance: NDArray[np.float64]
    """(L, H): mean distance of attention in tokens, over queries."""
    distance_without: NDArray[np.float64]
    """(L, H): the same distance for the same queries and keys without the penalty."""


def distance_penalty(recorded: RecordedText) -> DistancePenalty:
    """Slopes of an encoder with ALiBi (Press, Smith & Lewis 2022), and their effect on a text.

    Raises:
        InvalidRequest: a layer does not use ALiBi.
    """
    rows: list[tuple[Tensor, Tensor]] = []
    tokens = torch.arange(len(recorded), dtype=torch.float64)
    apart_NN = (tokens[None, :] - tokens[:, None]).abs()
    for layer in range(recorded.layer_count):
        mixer = recorded.mixer(layer)
        if not isinstance(mixer.position, Alibi):
            raise InvalidRequest(f"layer {layer} has no distance penalty; this experiment needs ALiBi")
        s_HNN = recorded.products(layer) / mixer.head_width**0.5
        bare_HNN = s_HNN.masked_fill(~recorded.allowed(layer), -torch.inf).softmax(-1)
        rows.append(
            (
                (recorded.probabilities(layer) * apart_NN).sum(-1).mean(-1),
                (bare_HNN * apart_NN).sum(-1).mean(-1),
            )
        )
    slopes_H = alibi_slopes(recorded.mixer(0).heads)
    with_penalty, without = (torch.stack(column).numpy() for column in zip(*rows, strict=True))
    return DistancePenalty(slopes_H.numpy(), (np.log(2) / slopes_H.numpy()), with_penalty, without)


@dataclass(frozen=True)
class TurnedAlike:
    """The identity behind rotary positions, measured on random vectors."""

    shifts: tuple[int, ...]
    """Numbers of positions by which both vectors are shifted."""
    errors: tuple[float, ...]
    """Largest resulting change of a product; products have a standard deviation of sqrt(K)."""
    other_distance: float
    """For comparison: mean change when only the key is shifted by one position."""


def turned_alike(rotary: Rotary, head_width: int, *, seed: int = 0) -> TurnedAlike:
    """<R_m q, R_n k> depends only on n - m (Su et al. 2021); measured in float64 on random vectors."""
    generator = torch.Generator().manual_seed(seed)
    q_THK, k_THK = torch.randn(2, 64, 1, head_width, dtype=torch.float64, generator=generator)
    places_T = torch.randint(0, 512, (2, 64), generator=generator)

    def products(shift_q: int, shift_k: int) -> Tensor:
        turned = [
            apply_rotary(x_THK, RotaryTable.of(places + shift, rotary, head_width, torch.float64), rotary)
            for x_THK, places, shift in zip((q_THK, k_THK), places_T.numpy(), (shift_q, shift_k), strict=True)
        ]
        return (turned[0] * turned[1]).sum(-1)

    here = products(0, 0)
    errors = tuple(float((products(shift, shift) - here).abs().max()) for shift in SHIFTS)
    return TurnedAlike(SHIFTS, errors, float((products(0, 1) - here).abs().mean()))


@dataclass(frozen=True, eq=False)
class Twice:
    """Differences between two copies of the words in one sequence; means over words or pairs of words."""

    words: int
    """Number of tokens in a copy."""
    state_difference: NDArray[np.float64]
    """(L + 1,): ||a - b|| / ||a|| of a word and its copy, in the input of each layer and the output of the
    last."""
    score_difference: NDArray[np.float64]
    """(L,): mean difference of q k / sqrt(K) between the copies of a pair, divided by its standard
    deviation."""


def twice(encoder: Encoder, encoding: Encoding) -> Twice:
    """Run the words of a text twice in one sequence and compare the copies.

    If positions enter only as distances, the first layer's products of a pair are equal in both copies up to
    rounding. In deeper layers they differ, because words have different neighbors in each copy.

    Raises:
        InvalidRequest: there are no words, two copies exceed the maximum length, or a layer has no softmax.
    """
    words = encoding.ids[~encoding.special]
    if not len(words):
        raise InvalidRequest("the text has no words to repeat; give a text with words")
    if not all(isinstance(layer.mixer, SoftmaxAttention) for layer in encoder.spec.layers):
        raise InvalidRequest(
            "this experiment compares scores, which linear attention does not have; use another encoder"
        )
    special = np.flatnonzero(encoding.special)
    before = special[special < np.flatnonzero(~encoding.special)[0]]
    after = special[special > np.flatnonzero(~encoding.special)[-1]]
    ids = np.concatenate([encoding.ids[before], words, words, encoding.ids[after]])
    tensors, states = record_tensors(encoder, PackedBatch.of_ids([ids]))
    start, count, layers = len(before), len(words), range(len(encoder.spec.layers))
    first, second = slice(start, start + count), slice(start + count, start + 2 * count)
    moved = [float(((x[first] - x[second]).norm(dim=-1) / x[first].norm(dim=-1)).mean()) for x in states]
    changed = []
    for layer in layers:
        q_THK, k_THK = tensors[HookPoint.QUERY, layer], tensors[HookPoint.KEY, layer]
        first_scores, other = (
            torch.einsum("rhk,chk->hrc", q_THK[part], k_THK[part]) for part in (first, second)
        )
        spread = first_scores.flatten(1).std(-1, correction=0).clamp_min(1e-300)
        changed.append(float(((first_scores - other).abs().flatten(1).mean(-1) / spread).mean()))
    return Twice(count, np.array(moved), np.array(changed))


TRIES = 100
"""Permutations that are tried; of a text with different words, one of the first few differs from it."""


@dataclass(frozen=True, eq=False)
class Shuffled:
    """A text and the same tokens in another order."""

    order: NDArray[np.int64]
    """(N,): position i of the shuffled text has token ``order[i]`` of the text; special tokens are not
    moved."""
    difference: NDArray[np.float64]
    """(L + 1, N): relative change of each token's state, ||a - b|| / ||a||, by layer; row 0 is the input of
    the first layer. Tokens are in the order of the original text."""
    final: NDArray[np.float64]
    """(N,): the same change for the encoder's output."""
    without_positions: bool
    """Whether the encoder has no position information, so that by symmetry every difference is rounding."""


def shuffled(encoder: Encoder, encoding: Encoding, *, seed: int = 0) -> Shuffled:
    """Run a text and a random permutation of its words, and compare the states of each token.

    Words are moved whole, with all their tokens. Self-attention treats its input as a set: without positions,
    permuting the tokens only permutes their states (Vaswani et al. 2017, 3.5).

    Raises:
        InvalidRequest: fewer than two words can be permuted, or all of them are equal.
    """
    grouped = words(encoding)
    movable = [word for word in range(len(grouped)) if not grouped.special[word]]
    generator = np.random.default_rng(seed)
    for _ in range(TRIES):
        order = _moved(grouped, dict(zip(movable, generator.permutation(movable).tolist(), strict=True)))
        if (encoding.ids[order] != encoding.ids).any():
            return _compared(encoder, encoding, order)
    # All words are equal, or are one token repeated.
    raise InvalidRequest("the text has fewer than two different words; give at least two to shuffle")


def swapped(encoder: Encoder, encoding: Encoding, first: int, other: int) -> Shuffled:
    """The same comparison for a text in which two words change places; words count as in `words`.

    Raises:
        InvalidRequest: there is no such word.
    """
    grouped = words(encoding)
    for word in (first, other):
        one_of("word", word, len(grouped), "this text has words")
    return _compared(encoder, encoding, _moved(grouped, {first: other, other: first}))


def _moved(grouped: Words, to: Mapping[int, int]) -> NDArray[np.int64]:
    """The order of tokens when the place of each word is taken by another one."""
    tokens = [np.flatnonzero(grouped.of_token == to.get(word, word)) for word in range(len(grouped))]
    return np.concatenate(tokens)


def _compared(encoder: Encoder, encoding: Encoding, order: NDArray[np.int64]) -> Shuffled:
    states = run_ids(encoder, [encoding.ids, encoding.ids[order]])
    count = len(encoding)
    rows = []
    for state in states:
        a_ND, b_ND = state[:count][order], state[count:]
        moved = np.empty(count)
        moved[order] = ((a_ND - b_ND).norm(dim=-1) / a_ND.norm(dim=-1).clamp_min(1e-300)).numpy()
        rows.append(moved)
    return Shuffled(order, np.stack(rows[:-1]), rows[-1], is_unordered(encoder.spec))


def is_unordered(spec: EncoderSpec) -> bool:
    """Whether the encoder is independent of word order: no positions, no windows, no convolution,
    no neighbors in the embedding."""
    positions = spec.embedding.positions
    if (
        spec.convolution is not None
        or spec.embedding.reads_neighbors
        or (positions is not None and positions.added)
    ):
        return False
    mixers = [layer.mixer for layer in spec.layers]
    return all(
        not isinstance(mixer, SoftmaxAttention)
        or (isinstance(mixer.position, NoPosition) and isinstance(mixer.pattern, FullAttention))
        for mixer in mixers
    )
