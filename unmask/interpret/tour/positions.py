"""Four position encodings: learned embeddings, disentangled scores, ALiBi, rotary."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import InvalidRequest
from unmask.interpret.arguments import one_of
from unmask.interpret.tour.recorded_text import RecordedText
from unmask.model.encoder import Encoder
from unmask.model.kernels import Tile, alibi_slopes
from unmask.model.layers.rotary import RotaryTable, apply_rotary
from unmask.model.spec import Alibi, Rotary

TABLE_ROWS = 64
SHIFTS = (1, 10, 100, 1000)


@dataclass(frozen=True, eq=False)
class PositionTable:
    """Learned absolute positions."""

    cosines: NDArray[np.float64]
    """(M, M) between the vectors of the first M positions, their mean taken out."""
    by_distance: NDArray[np.float64]
    """(M,): mean cosine of pairs so many positions apart; by chance 0, give or take ``chance``."""
    chance: float
    """Standard deviation of the cosine of two unrelated directions of this width, 1 / sqrt(E)."""
    length_beside_words: float
    """Mean length of these position vectors over that of the vocabulary's word vectors."""


def position_table(encoder: Encoder) -> PositionTable:
    """Cosines of a learned table of positions (Devlin et al. 2019).

    Raises:
        InvalidRequest: the encoder adds no learned positions.
    """
    spec, table = encoder.spec.embedding.positions, encoder.embedding.positions
    if spec is None or table is None or not spec.added:
        raise InvalidRequest("this encoder adds no learned positions to its words")
    rows = table.weight.detach().to("cpu", torch.float64)[spec.offset : spec.offset + TABLE_ROWS]
    words = encoder.embedding.words.weight.detach().to("cpu", torch.float64)
    unit = torch.nn.functional.normalize(rows - rows.mean(0), dim=-1)
    cosines = unit @ unit.T
    means = [float(cosines.diagonal(distance).mean()) for distance in range(len(rows))]
    lengths = rows.norm(dim=-1).mean() / words.norm(dim=-1).mean()
    return PositionTable(cosines.numpy(), np.array(means), words.shape[-1] ** -0.5, float(lengths))


@dataclass(frozen=True, eq=False)
class Parts:
    """The scores of one disentangled head as the sum of its parts, (N, N) each, divided as the score is."""

    layer: int
    head: int
    parts: dict[str, NDArray[np.float64]]
    """``content``, ``content_position`` (what a query asks of a distance), ``position_content`` (what a key
    answers to one); those that the encoder has."""
    felt: dict[str, float]
    """Standard deviation of each part within a row, mean over queries: what the softmax feels of it."""
    sum_error: float
    """Largest difference of the sum of the parts and the score."""
    shift_error: float
    """Largest change of any score when all tokens stand `SHIFTS` places later: only distances enter."""


def parts(heard: RecordedText, layer: int, head: int) -> Parts:
    """Take a disentangled score apart (He et al. 2021).

    Raises:
        InvalidRequest: the layer has other positions, or there is no such head.
    """
    mixer, bias = heard.mixer(layer), heard.bias(layer)
    if bias.distances is None:
        raise InvalidRequest(f"layer {layer} has no disentangled positions to take apart")
    one_of("head", head, mixer.heads, f"layer {layer} has heads")
    one = bias.distances.of_head(head)
    q_N1K, k_N1K = (some[layer][:, head : head + 1] for some in (heard.queries, heard.keys))
    factor = (mixer.head_width * one.position.term_count) ** 0.5
    distance_NN = Tile.whole(len(heard)).distance_RC(torch.device("cpu"))
    nothing = torch.zeros(1, len(heard), len(heard), dtype=torch.float64)
    found = {"content": torch.einsum("rhk,chk->hrc", q_N1K, k_N1K)}
    for name, keys, queries in (
        ("content_position", one.keys_PHK, None),
        ("position_content", None, one.queries_PHK),
    ):
        if keys is not None or queries is not None:
            alone = type(one)(one.position, keys, queries)
            found[name] = alone.add_to(nothing, q_N1K, k_N1K, distance_NN)
    found = {name: part[0] / factor for name, part in found.items()}
    whole = heard.scores(layer)[head]
    moved = [
        one.add_to(nothing, q_N1K, k_N1K, _far(len(heard), shift))
        - one.add_to(nothing, q_N1K, k_N1K, distance_NN)
        for shift in SHIFTS
    ]
    return Parts(
        layer,
        head,
        {name: part.numpy() for name, part in found.items()},
        {name: float(part.std(-1, correction=0).mean()) for name, part in found.items()},
        sum_error=float((sum(found.values(), torch.zeros(())) - whole).abs().max()),
        shift_error=max(float(one.abs().max()) for one in moved),
    )


def _far(length: int, shift: int) -> Tensor:
    """Distances of a text that begins ``shift`` tokens later."""
    return Tile(shift, shift + length, shift, shift + length).distance_RC(torch.device("cpu"))


@dataclass(frozen=True, eq=False)
class DistancePenalty:
    """ALiBi on one text."""

    slopes: NDArray[np.float64]
    """(H,): what every token of distance takes from a score."""
    halved_after: NDArray[np.float64]
    """(H,): tokens after which a share is half of what its content alone would give, ln 2 / slope."""
    distance: NDArray[np.float64]
    """(L, H): mean distance of attention in tokens, over queries."""
    distance_without: NDArray[np.float64]
    """(L, H): the same of the same queries and keys with the penalty left out."""


def distance_penalty(heard: RecordedText) -> DistancePenalty:
    """Slopes of an encoder with ALiBi (Press, Smith & Lewis 2022), and what they do on a text.

    Raises:
        InvalidRequest: a layer has other positions.
    """
    rows: list[tuple[Tensor, Tensor]] = []
    tokens = torch.arange(len(heard), dtype=torch.float64)
    apart_NN = (tokens[None, :] - tokens[:, None]).abs()
    for layer in range(heard.layer_count):
        mixer = heard.mixer(layer)
        if not isinstance(mixer.position, Alibi):
            raise InvalidRequest(f"layer {layer} takes nothing off for distance; this experiment is of ALiBi")
        s_HNN = heard.products(layer) / mixer.head_width**0.5
        bare_HNN = s_HNN.masked_fill(~heard.allowed(layer), -torch.inf).softmax(-1)
        rows.append(
            ((heard.probabilities(layer) * apart_NN).sum(-1).mean(-1), (bare_HNN * apart_NN).sum(-1).mean(-1))
        )
    slopes_H = alibi_slopes(heard.mixer(0).heads)
    found, without = (torch.stack(column).numpy() for column in zip(*rows, strict=True))
    return DistancePenalty(slopes_H.numpy(), (np.log(2) / slopes_H.numpy()), found, without)


@dataclass(frozen=True)
class TurnedAlike:
    """The identity that rotary positions rest on, on draws."""

    shifts: tuple[int, ...]
    """Both vectors are moved so many places."""
    errors: tuple[float, ...]
    """Largest change of a product by that, beside products of standard deviation sqrt(K)."""
    other_distance: float
    """For comparison: mean change when the key alone is moved by one place."""


def turned_alike(rotary: Rotary, head_width: int, *, seed: int = 0) -> TurnedAlike:
    """<R_m q, R_n k> depends on n - m alone (Su et al. 2021): measured in float64 on random vectors."""
    generator = torch.Generator().manual_seed(seed)
    q_THK, k_THK = torch.randn(2, 64, 1, head_width, dtype=torch.float64, generator=generator)
    places_T = torch.randint(0, 512, (2, 64), generator=generator)

    def products(shift_q: int, shift_k: int) -> Tensor:
        turned = [
            apply_rotary(x_THK, RotaryTable.of(places + shift, rotary, head_width, torch.float64), rotary)
            for x_THK, places, shift in zip((q_THK, k_THK), places_T, (shift_q, shift_k), strict=True)
        ]
        return (turned[0] * turned[1]).sum(-1)

    here = products(0, 0)
    errors = tuple(float((products(shift, shift) - here).abs().max()) for shift in SHIFTS)
    return TurnedAlike(SHIFTS, errors, float((products(0, 1) - here).abs().mean()))
