"""Every analysis says where it is, block by block, stops where it is told to, and asks for what is there."""

import numpy as np
import pytest
import torch

from tests.support.heads import recorded
from unmask.base.arguments import one_of, whole_number
from unmask.errors import Cancelled, InvalidRequest
from unmask.interpret import AttentionStatistics, AttentionView
from unmask.interpret.attention.head_distances import compare_heads, head_distances
from unmask.interpret.effects import attribution as attribution_module
from unmask.interpret.effects.ablation import ablate, ablate_each, ablate_edge, importance
from unmask.interpret.effects.attribution import attribution, rollout
from unmask.interpret.effects.logit_lens import logit_lens
from unmask.interpret.effects.target import Class, Embedding, Word
from unmask.interpret.geometry import cka, geometry

LENGTH = 240
LAYERS = 4

ANALYSES = {
    "atlas": lambda r, watch: AttentionStatistics(r).measure(watch),
    "rollout": lambda r, watch: rollout(r, watch=watch),
    "relevance": lambda r, watch: attribution(r, Embedding(), watch=watch),
    "importance": lambda r, watch: importance(r, Word(5, 7), watch=watch),
    "ablate": lambda r, watch: ablate(r, Embedding(), 0, 1, watch=watch),
    "ablate_edge": lambda r, watch: ablate_edge(r, Embedding(), 0, 1, query=3, key=9, watch=watch),
    "ablate_each": lambda r, watch: ablate_each(r, Word(5, 7), watch=watch),
    "lens": lambda r, watch: logit_lens(r, [3, 5], watch=watch),
    "head_distances": lambda r, watch: head_distances(r, watch=watch),
    "compare_heads": lambda r, watch: compare_heads(r, r, watch=watch),
    "geometry": lambda r, watch: geometry(r.states, watch=watch),
    "cka": lambda r, watch: cka(r.states, watch=watch),
}
WITH_ROWS = ("atlas", "rollout", "relevance", "head_distances", "compare_heads")


@pytest.fixture(scope="module")
def cache():
    return recorded("alibi-shared", LENGTH, dtype=torch.float32)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(attribution_module, "CELLS_AT_ONCE", 1 << 14)


@pytest.mark.parametrize("name", ANALYSES)
def test_it_is_heard_in_order_and_stops_at_once(name, cache):
    reports = []
    ANALYSES[name](cache, lambda *said: reports.append(said))
    whats = [what for what, _, _ in reports]
    for what in set(whats):
        dones = [done for one, done, _ in reports if one == what]
        # Measured anew, with and without a part, work of one name begins again.
        assert name.startswith("ablate") or dones == sorted(dones)
        assert dones[-1] == [total for one, _, total in reports if one == what][-1]
    assert len(reports) >= (3 * LAYERS if name in WITH_ROWS else LAYERS)

    for last in {1, len(reports) // 2, len(reports) - 1}:
        recorded = []

        def stop(*said, heard=recorded, last=last):
            heard.append(said)
            if len(heard) == last:
                raise Cancelled("enough")

        with pytest.raises(Cancelled):
            ANALYSES[name](cache, stop)
        assert len(recorded) == last
    assert not any(block.attention.out._forward_pre_hooks for block in cache.encoder.layers)


@pytest.mark.parametrize("wrong", [-1, 1.0, True, None, "1", np.float64(1), 10**9])
@pytest.mark.parametrize(
    "ask",
    [
        lambda view, x: view.probabilities(x, 0),
        lambda view, x: view.probabilities(0, x),
        lambda view, x: view.score_parts(0, x),
        lambda view, x: view.topk(x, 0),
        lambda view, x: view.kind(x),
        lambda view, x: view.open_statistics().layer(x),
        lambda view, x: AttentionStatistics(view.cache).measure(layers=(x,)),
        lambda view, x: view.cache.projected(x),
        lambda view, x: rollout(view.cache, x) if x is not None else view.kind(x),
        lambda view, x: attribution(view.cache, Word(x, 5)),
        lambda view, x: attribution(view.cache, Word(5, x)),
        lambda view, x: attribution(view.cache, Class("tokens", x, 3)),
        lambda view, x: ablate(view.cache, Embedding(), x, 0),
        lambda view, x: ablate(view.cache, Embedding(), 0, x),
        lambda view, x: ablate_edge(view.cache, Embedding(), 0, 0, query=x, key=1),
        lambda view, x: ablate_edge(view.cache, Embedding(), 0, 0, query=1, key=x),
        lambda view, x: logit_lens(view.cache, [x]),
        lambda view, x: logit_lens(view.cache, [1], top_k=x),
        lambda view, x: logit_lens(view.cache, [1], follow=[x]),
    ],
)
def test_what_is_no_place_is_refused(ask, wrong):
    view = AttentionView(recorded("post-norm", 6).encoder, recorded("post-norm", 6).encoding)
    with pytest.raises(InvalidRequest, match=r" is .*(whole number|has|at least|can be)"):
        ask(view, wrong)


def test_whole_numbers_of_any_type_are_places():
    for number in (2, np.int32(2), np.array(2), torch.tensor(2)):
        assert one_of("token", number, 3, "this text has tokens") == whole_number("k", number, 1) == 2
    with pytest.raises(InvalidRequest, match="token is 3; this text has tokens 0 to 2"):
        one_of("token", 3, 3, "this text has tokens")
    view = AttentionView(recorded("post-norm", 6).encoder, recorded("post-norm", 6).encoding)
    for part in (3, slice(0.5, 2), "0:3"):
        with pytest.raises(InvalidRequest, match="give a slice, such as slice"):
            view.probabilities(0, 0, part)
