"""Any rectangle of any head, exactly: a small product of the queries and keys of its sides."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask.model.kernels import ScoreTerms, Sight, Tile
from unmask.model.kernels.tile import key_counts, scores
from unmask.model.layers.attention import SoftmaxMixer, plainest
from unmask.model.spec import Reach, Whole
from unmask.see.layer_atlas import LayerAtlas
from unmask.see.norms import out_factors, value_norms
from unmask.see.recording import Projected, Recording


@dataclass(frozen=True, eq=False)
class _Rectangle:
    """Queries and keys of one head on the sides of a rectangle, in float64."""

    tile: Tile
    q_RK: Tensor
    k_CK: Tensor
    v_CK: Tensor
    reach: Reach
    terms: ScoreTerms
    """Of the one head."""


def probabilities(
    recording: Recording, measured: LayerAtlas, layer: int, head: int, tile: Tile, *, weighted: bool = False
) -> NDArray[np.float32]:
    """Attention of one rectangle of a softmax layer, (R, C), from what is known of its rows.

    Args:
        recording: the text.
        measured: of that layer: the logarithms of rows' sums are taken from it.
        layer: which.
        head: which.
        tile: the rectangle.
        weighted: each key's part in ``sum_j p_ij n_j`` instead of ``p_ij``.
    """
    lse_R = torch.from_numpy(measured.lse_HN[head, tile.first_row : tile.end_row])
    found_RC = _given(
        recording, (layer, head), _read(recording, layer, head, tile, own=False), lse_R, weighted
    )
    marks = recording.globals_N
    if marks is not None and marks[tile.first_row : tile.end_row].any():
        own = _read(recording, layer, head, tile, own=True)
        if own is not None:
            own_RC = _given(recording, (layer, head), own, lse_R, weighted)
            found_RC = torch.where(
                torch.from_numpy(marks[tile.first_row : tile.end_row, None]), own_RC, found_RC
            )
    if weighted:
        sums_R = torch.from_numpy(measured.norm_sum_HN[head, tile.first_row : tile.end_row]).double()
        found_RC = torch.where(sums_R[:, None] > 0, found_RC / sums_R[:, None], 0.0)
    return found_RC.float().numpy()


def score_parts(recording: Recording, layer: int, head: int, tile: Tile) -> dict[str, NDArray[np.float64]]:
    """The terms that a rectangle's scores are sums of, (R, C) each, in float64.

    ``content`` always; ``content_position`` (the query with the distance) and ``position_content`` (the key
    with the distance) where positions are disentangled; ``bias`` for ALiBi. Each is divided as the score is,
    and nothing is said of which keys may be seen. Rows of global tokens with projections of their own have
    content alone.
    """
    ordinary = _read(recording, layer, head, tile, own=False)
    assert ordinary is not None
    parts = _parts(ordinary)
    marks = recording.globals_N
    if marks is not None and marks[tile.first_row : tile.end_row].any():
        own = _read(recording, layer, head, tile, own=True)
        if own is not None:
            rows = marks[tile.first_row : tile.end_row]
            parts["content"][rows] = _parts(own)["content"][rows]
    return parts


def _parts(one: _Rectangle) -> dict[str, NDArray[np.float64]]:
    q_R1K, k_C1K = one.q_RK[:, None], one.k_CK[:, None]

    def part(terms: ScoreTerms) -> Tensor:
        return scores(one.tile, q_R1K, k_C1K, terms)[0]

    distances = one.terms.distances
    if distances is None:
        found = {"content": part(ScoreTerms())}
        if one.terms.slopes_H is not None:
            found["bias"] = part(one.terms) - found["content"]
        return {name: term.numpy() for name, term in found.items()}
    kinds = (
        ("content_position", distances.keys_PHK, None),
        ("position_content", None, distances.queries_PHK),
    )
    content = part(ScoreTerms(distances=type(distances)(distances.position, None, None)))
    found = {"content": content}
    for name, keys_PHK, queries_PHK in kinds:
        if keys_PHK is not None or queries_PHK is not None:
            alone = ScoreTerms(distances=type(distances)(distances.position, keys_PHK, queries_PHK))
            found[name] = part(alone) - content
    return {name: term.numpy() for name, term in found.items()}


def _read(recording: Recording, layer: int, head: int, tile: Tile, *, own: bool) -> "_Rectangle | None":
    project = recording.projected_for_globals if own else recording.projected
    rows, columns = slice(tile.first_row, tile.end_row), slice(tile.first_column, tile.end_column)
    of_rows, of_columns = project(layer, rows), project(layer, columns)
    if of_rows is None or of_columns is None:
        return None
    mixer = recording.mixer(layer)
    assert isinstance(mixer, SoftmaxMixer)
    assert isinstance(of_rows, Projected)
    q_RK, k_CK, v_CK = (
        x[:, head].double().cpu() for x in (of_rows.q_NHK, of_columns.k_NHK, of_columns.v_NHK)
    )
    if own:
        return _Rectangle(tile, q_RK, k_CK, v_CK, Whole(), ScoreTerms())
    terms = _on_host(recording.terms(layer).of_head(head))
    return _Rectangle(tile, q_RK, k_CK, v_CK, plainest(mixer.spec.reach, recording.batch.layout), terms)


def _given(
    recording: Recording, where: tuple[int, int], one: "_Rectangle | None", lse_R: Tensor, weighted: bool
) -> Tensor:
    assert one is not None
    layer, head = where
    s_RC = scores(one.tile, one.q_RK[:, None], one.k_CK[:, None], one.terms)[0]
    sight = Sight(len(recording), recording.heads(layer), recording.globals_N, head)
    counts = key_counts(one.tile, one.reach, s_RC.device, sight)
    p_RC = (s_RC - lse_R[:, None]).exp()
    if counts is not None:
        counts = counts[0] if counts.ndim == 3 else counts
        p_RC = p_RC * counts
    if weighted:
        factor_1KE = out_factors(recording.mixer(layer))[head : head + 1].cpu()
        p_RC = p_RC * value_norms(one.v_CK[:, None], factor_1KE)
    return p_RC


def _on_host(terms: ScoreTerms) -> ScoreTerms:
    distances = terms.distances
    if distances is None:
        return terms
    tables = (distances.keys_PHK, distances.queries_PHK)
    return ScoreTerms(
        distances=type(distances)(
            distances.position, *(None if table is None else table.cpu() for table in tables)
        )
    )
