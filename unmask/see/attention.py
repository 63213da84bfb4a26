"""Exact attention of one text, evaluated on just the rectangle that is asked for.

Queries and keys of every layer are kept, N x H x K each; probabilities are recomputed from them by
the tile functions that define attention. Nothing holds N x N.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.errors import InvalidRequest, NonFiniteResult, UnknownArchitecture
from unmask.model.encoder import Encoder
from unmask.model.kernels import DistanceTerms, ScoreTerms, Sight, Tile, allowed
from unmask.model.kernels import probabilities as tile_probabilities
from unmask.model.spec import Disentangled, SoftmaxAttention, Whole
from unmask.model.spec.global_tokens import GlobalTokens, pack, trained_global_tokens
from unmask.model.tap import Place
from unmask.text import Encoding

ROWS_AT_ONCE = 64
"""Queries in one tile of a statistics pass: 64 x 8,192 keys x 12 heads in float64 are 50 MB."""

RELATIONS = ("self", "previous", "next", "first", "special")
"""How a key can stand to a query: the same token, the one before, the one after, the sequence's first
token, or a special token other than the first. A key may stand in several: to itself, the first token is
both self and first."""


@dataclass(frozen=True)
class TopEdges:
    """The strongest keys of every query of one head, strongest first."""

    keys: NDArray[np.int64]
    """Shape (N, k)."""
    probabilities: NDArray[np.float32]
    """Shape (N, k)."""


@dataclass(frozen=True)
class HeadSummary:
    """What one head does on one text."""

    layer: int
    head: int
    entropy_nats: float
    """Mean over queries."""
    entropy_share: float
    """Entropy as a share of that of an even spread over the keys allowed: 0 one key, 1 even."""
    distance_tokens: float
    """Mean distance from query to key."""
    sink_token: int
    """The token that receives most."""
    sink_mass: float
    """What it receives, as a share of all queries' attention; an even spread gives 1/N."""
    relation: str
    """The one of `RELATIONS` that gets most."""
    relation_mass: float


@dataclass(frozen=True)
class _Statistics:
    entropy_LHN: NDArray[np.float64]
    distance_LHN: NDArray[np.float64]
    received_LHN: NDArray[np.float64]
    relation_LHX: NDArray[np.float64]
    keys_LHN: NDArray[np.int64]


class AttentionView:
    """Exact attention probabilities of one text, every layer and head.

    Arrays are indexed layer, head, token (L, H, N). Statistics are computed in float64 on first use
    and returned in float32. ``global_tokens`` says which tokens are global in an encoder that has a use for
    such; None means what its head was trained with. Their rows are shown as the encoder computes them,
    through projections of their own where it has those.
    """

    def __init__(
        self, encoder: Encoder, encoding: Encoding, *, global_tokens: GlobalTokens | None = None
    ) -> None:
        self.encoding = encoding
        self._mixers: list[SoftmaxAttention] = []
        for layer in encoder.spec.layers:
            if not isinstance(layer.mixer, SoftmaxAttention):
                raise UnknownArchitecture(f"{type(layer.mixer).__name__} has no softmax map to show")
            self._mixers.append(layer.mixer)
        self._queries: dict[int, Tensor] = {}
        self._keys: dict[int, Tensor] = {}
        self._tables: dict[tuple[Place, int], Tensor] = {}
        self._of_globals: dict[tuple[Place, int], Tensor] = {}

        def listen(place: Place, layer: int, tensor: Tensor) -> None:
            if place is Place.QUERY:
                self._queries[layer] = tensor.cpu().clone()
            elif place is Place.KEY:
                self._keys[layer] = tensor.cpu().clone()
            elif place in (Place.DISTANCE_KEY, Place.DISTANCE_QUERY):
                self._tables[place, layer] = tensor.cpu().clone()
            elif place in (Place.GLOBAL_QUERY, Place.GLOBAL_KEY):
                self._of_globals[place, layer] = tensor.cpu().clone()

        if global_tokens is None:
            global_tokens = trained_global_tokens(encoder.spec, paired=encoding.pair is not None)
        batch = pack(encoder.spec, [encoding], global_tokens)
        self.globals_N: NDArray[np.bool_] | None = batch.layout.globals_T
        """Which tokens were global in this run; None in an encoder that has no use for such."""
        with torch.inference_mode():
            encoder.encode(batch, tap=listen)

    def __len__(self) -> int:
        """N, the number of tokens."""
        return len(self.encoding)

    @property
    def layer_count(self) -> int:
        """L."""
        return len(self._mixers)

    @property
    def head_count(self) -> int:
        """H of the layer with most heads."""
        return max(mixer.heads for mixer in self._mixers)

    def probabilities(
        self, layer: int, head: int, rows: slice = slice(None), columns: slice = slice(None)
    ) -> NDArray[np.float32]:
        """Attention of queries ``rows`` to keys ``columns``, shape (R, C), float32.

        Each row is a softmax over all keys of the text, of which the columns asked for are returned.

        Raises:
            InvalidRequest: no such layer or head, or a slice with a step.
        """
        self._check(layer, head)
        first_row, end_row = _bounds(rows, len(self))
        first_column, end_column = _bounds(columns, len(self))
        blocks = [np.empty((0, end_column - first_column), dtype=np.float32)]
        for start in range(first_row, end_row, ROWS_AT_ONCE):
            p_HRN = self._tile(layer, start, min(start + ROWS_AT_ONCE, end_row), head)
            blocks.append(p_HRN[0, :, first_column:end_column].float().numpy())
        return np.concatenate(blocks)

    def top_edges(self, layer: int, head: int, k: int = 8) -> TopEdges:
        """The ``k`` strongest keys of every query (all of them where there are fewer)."""
        if k < 1:
            raise InvalidRequest(f"k is {k}; it must be at least 1")
        self._check(layer, head)
        found = [p_HRN[0].topk(min(k, len(self)), dim=-1) for _, p_HRN in self._row_blocks(layer, head)]
        return TopEdges(
            torch.cat([part.indices for part in found]).numpy(),
            torch.cat([part.values for part in found]).float().numpy(),
        )

    @property
    def entropy(self) -> NDArray[np.float32]:
        """Entropy of each query's attention in nats, (L, H, N)."""
        return self._statistics.entropy_LHN.astype(np.float32)

    @property
    def entropy_share(self) -> NDArray[np.float32]:
        """Entropy divided by the log of the keys allowed, (L, H, N); 0 where only one is allowed."""
        most_LHN = np.log(np.maximum(self._statistics.keys_LHN, 2))
        return (self._statistics.entropy_LHN / most_LHN).astype(np.float32)

    @property
    def distance(self) -> NDArray[np.float32]:
        """Mean distance from each query to its keys in tokens, (L, H, N)."""
        return self._statistics.distance_LHN.astype(np.float32)

    @property
    def received(self) -> NDArray[np.float32]:
        """Mean attention each key receives from all queries, (L, H, N); an even spread gives 1/N.

        This is the sink score of Gu et al. 2025 adapted to attention in both directions: theirs is
        causal and averages over the queries from the key on.
        """
        return self._statistics.received_LHN.astype(np.float32)

    @property
    def sink_mass(self) -> NDArray[np.float32]:
        """What the token that receives most receives, (L, H)."""
        return np.asarray(self.received.max(axis=-1))

    def summaries(self) -> list[HeadSummary]:
        """One `HeadSummary` per head, layer by layer."""
        statistics, share = self._statistics, self.entropy_share
        return [
            HeadSummary(
                layer=layer,
                head=head,
                entropy_nats=float(statistics.entropy_LHN[layer, head].mean()),
                entropy_share=float(share[layer, head].mean()),
                distance_tokens=float(statistics.distance_LHN[layer, head].mean()),
                sink_token=int(statistics.received_LHN[layer, head].argmax()),
                sink_mass=float(statistics.received_LHN[layer, head].max()),
                relation=RELATIONS[int(statistics.relation_LHX[layer, head].argmax())],
                relation_mass=float(statistics.relation_LHX[layer, head].max()),
            )
            for layer in range(self.layer_count)
            for head in range(self._mixers[layer].heads)
        ]

    @cached_property
    def _statistics(self) -> _Statistics:
        layers, heads, length = self.layer_count, self.head_count, len(self)
        made = _Statistics(
            np.zeros((layers, heads, length)),
            np.zeros((layers, heads, length)),
            np.zeros((layers, heads, length)),
            np.zeros((layers, heads, len(RELATIONS))),
            np.full((layers, heads, length), length, dtype=np.int64),
        )
        special_N = torch.from_numpy(self.encoding.special)
        for layer, mixer in enumerate(self._mixers):
            some = slice(0, mixer.heads)
            for start, p_HRN in self._row_blocks(layer):
                rows = slice(start, start + p_HRN.shape[1])
                tile = Tile(rows.start, rows.stop, 0, length)
                distance_RN = tile.distance_RC(p_HRN.device)
                made.entropy_LHN[layer, some, rows] = torch.special.entr(p_HRN).sum(-1).numpy()
                made.distance_LHN[layer, some, rows] = (p_HRN * distance_RN.abs()).sum(-1).numpy()
                made.received_LHN[layer, some] += p_HRN.sum(-2).numpy() / length
                seen = allowed(tile, mixer.reach, p_HRN.device, Sight(length, mixer.heads, self.globals_N))
                if seen is not None:
                    made.keys_LHN[layer, some, rows] = seen.sum(-1).numpy()
                related = (
                    distance_RN == 0,
                    distance_RN == -1,
                    distance_RN == 1,
                    torch.arange(length) == 0,
                    special_N & (torch.arange(length) > 0),
                )
                for x, mask in enumerate(related):
                    mass_H = (p_HRN * mask).sum((-1, -2)) / length
                    made.relation_LHX[layer, some, x] += mass_H.numpy()
        if not np.isfinite(made.entropy_LHN).all():
            raise NonFiniteResult("attention of this text is not finite; try dtype='float32'")
        return made

    def _row_blocks(self, layer: int, head: int | None = None) -> Iterator[tuple[int, Tensor]]:
        for start in range(0, len(self), ROWS_AT_ONCE):
            yield start, self._tile(layer, start, min(start + ROWS_AT_ONCE, len(self)), head)

    def _tile(self, layer: int, start: int, end: int, head: int | None) -> Tensor:
        """Complete rows of one head (or all), float64, shape (H, R, N)."""
        mixer = self._mixers[layer]
        q_RHK, k_NHK = self._queries[layer][start:end], self._keys[layer]
        terms = self._terms(layer)
        if head is not None:
            some = slice(head, head + 1)
            q_RHK, k_NHK, terms = q_RHK[:, some], k_NHK[:, some], terms.of_head(head)
        tile = Tile(start, end, 0, len(self))
        sight = Sight(len(self), mixer.heads, self.globals_N, head)
        p_HRN, _ = tile_probabilities(tile, q_RHK.double(), k_NHK.double(), mixer.reach, terms, sight=sight)
        if (Place.GLOBAL_QUERY, layer) not in self._of_globals or self.globals_N is None:
            return p_HRN
        globals_R = torch.from_numpy(self.globals_N[start:end])
        if not globals_R.any():
            return p_HRN
        return torch.where(globals_R[:, None], self._global_rows(layer, tile, head), p_HRN)

    def _global_rows(self, layer: int, tile: Tile, head: int | None) -> Tensor:
        """As `_tile`, through the projections of global tokens, as if every row were one."""
        some = slice(None) if head is None else slice(head, head + 1)
        q_NHK, k_NHK = (
            self._of_globals[place, layer][:, some].double()
            for place in (Place.GLOBAL_QUERY, Place.GLOBAL_KEY)
        )
        q_RHK = q_NHK[tile.first_row : tile.end_row]
        return tile_probabilities(tile, q_RHK, k_NHK, Whole(), ScoreTerms())[0]

    def _terms(self, layer: int) -> ScoreTerms:
        mixer = self._mixers[layer]
        if not isinstance(mixer.position, Disentangled):
            return ScoreTerms.of(mixer.position, mixer.heads)
        tables = (self._tables.get((place, layer)) for place in (Place.DISTANCE_KEY, Place.DISTANCE_QUERY))
        return ScoreTerms(distances=DistanceTerms(mixer.position, *tables))

    def _check(self, layer: int, head: int) -> None:
        if not 0 <= layer < self.layer_count:
            raise InvalidRequest(f"layer is {layer}; this encoder has layers 0 to {self.layer_count - 1}")
        heads = self._mixers[layer].heads
        if not 0 <= head < heads:
            raise InvalidRequest(f"head is {head}; layer {layer} has heads 0 to {heads - 1}")


def _bounds(part: slice, length: int) -> tuple[int, int]:
    start, end, step = part.indices(length)
    if step != 1:
        raise InvalidRequest(f"a slice with step {step} was given; only whole stretches can be read")
    return start, max(start, end)
