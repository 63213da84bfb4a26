"""One text in two models: aligned by its characters, their heads and their levels compared."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.explorer.routes.route import AppContext, Route
from unmask.explorer.sessions.texts import TextSession
from unmask.explorer.wire.binary import array_answer
from unmask.explorer.wire.page_request import Arrays, PageRequest
from unmask.http.requests import Request
from unmask.http.responses import Answer
from unmask.http.worker import Watch
from unmask.interpret.attention.head_distances import HeadMatch, compare_heads, match_heads
from unmask.interpret.geometry.cka import Cka, cka
from unmask.interpret.words.alignment import Alignment, Segment, align
from unmask.models.elmo import ElmoModel

MOST_PAIRS = 1 << 20
"""Pairs of heads of one answer: 1,024 heads of each, more than any published encoder has; 4 MiB."""

NamedArrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class CompareMeta:
    """Of ``compare``. ``cka`` is (levels of a, levels of b), ``distance`` (heads of a, heads of b), heads
    counted layer by layer, or absent where ``no_distance`` says why."""

    a: str
    b: str
    alignment: tuple[Segment, ...]
    matches: tuple[HeadMatch, ...]
    cka_n: int
    cka_note: str
    no_distance: str | None


@dataclass(frozen=True)
class CompareRequest(PageRequest):
    """One text in two models."""

    path = "compare/{a}/{b}"
    answer = Arrays[CompareMeta]

    a: str
    b: str


def compare(context: AppContext, request: Request) -> Answer:
    """``GET compare/{a}/{b}``: cka (levels of a, levels of b), distance (heads of a, heads of b)."""
    a, b = (context.texts.get(part) for part in request.parts)
    alignment = align(a.encoding, b.encoding)
    no_distance = _no_distance(a, b)

    other = b.levels

    def measure(levels: Sequence[object], watch: Watch) -> tuple[NamedArrays, CompareMeta]:
        arrays, meta = _compared((a, b), (levels, other), alignment, no_distance, watch)
        return arrays, replace(meta, a=a.id, b=b.id)

    arrays, meta = a.analyse_levels(("compare", b.id), measure)
    return array_answer(arrays, meta)


def _compared(
    texts: tuple[TextSession, TextSession],
    levels: tuple[Sequence[object], Sequence[object]],
    alignment: Alignment,
    no_distance: str | None,
    watch: Watch,
) -> tuple[NamedArrays, CompareMeta]:
    arrays: NamedArrays = {"cka": np.zeros((0, 0))}
    n, note = 0, ""
    try:
        alike, pooled = _levels_alike(levels, alignment, watch)
        arrays |= {"cka": alike.debiased, "cka_low": alike.low, "cka_high": alike.high}
        arrays |= {"cka_biased": alike.biased, "cka_shuffled": alike.shuffled}
        n = alike.n
        note = "debiased (Nguyen et al. 2021), over " + (
            "stretches of the text that both models have tokens for, each the mean of its tokens"
            if pooled
            else "the tokens"
        )
    except InvalidRequest as error:
        note = str(error)
    matches: tuple[HeadMatch, ...] = ()
    if no_distance is None:
        distances = compare_heads(*(text.view.cache for text in texts), watch=watch)
        arrays["distance"] = distances.divergence
        matches = match_heads(distances)
    meta = CompareMeta(
        a="",
        b="",
        alignment=alignment.segments,
        matches=matches,
        cka_n=n,
        cka_note=note,
        no_distance=no_distance,
    )
    return arrays, meta


def _levels_alike(
    levels: tuple[Sequence[object], Sequence[object]], alignment: Alignment, watch: Watch
) -> tuple[Cka, bool]:
    """CKA over what both have, special tokens left out; and whether tokens had to be pooled for it."""
    pairs = [
        (segment.a, segment.b)
        for segment in alignment.segments
        if segment.a[0] < segment.a[1] and segment.b[0] < segment.b[1]
    ]
    if not pairs:
        raise InvalidRequest("no stretch of the text has tokens in both models, so layers are not compared")
    states = []
    for side, depths in enumerate(levels):
        starts = np.array([pair[side][0] for pair in pairs])
        ends = np.array([pair[side][1] for pair in pairs])
        states.append([_pooled(_float64(level), starts, ends) for level in depths])
    pooled = any(end - start > 1 for pair in pairs for start, end in pair)
    return cka(states[0], states[1], watch=watch), pooled


def _float64(level: object) -> NDArray[np.float64]:
    return np.asarray(torch.as_tensor(level).double().cpu())


def _pooled(
    x_ND: NDArray[np.float64], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The mean of each run of rows."""
    sums = np.concatenate([np.zeros((1, x_ND.shape[1])), np.cumsum(x_ND, axis=0)])
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts)[:, None])


def _no_distance(a: TextSession, b: TextSession) -> str | None:
    without = next((text for text in (a, b) if isinstance(text.reader, ElmoModel)), None)
    if without is not None:
        return f"the ELMo {without.place.name} has no attention, so only layers are compared"
    heads = [sum(text.described.heads) for text in (a, b)]
    if heads[0] * heads[1] > MOST_PAIRS:
        return f"{heads[0]:,} x {heads[1]:,} heads are more than one answer holds, so they are not matched"
    return None


ROUTES = (Route.get(CompareRequest, compare),)
