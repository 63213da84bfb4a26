"""The strongest edges of a layer equal those of whole maps in float64, with and without special tokens."""

import numpy as np
import pytest
import torch

from tests.interpret.test_statistics import recorded, whole_maps
from tests.support.specs import SPECS
from unmask.encoder.hooks import HookPoint
from unmask.interpret.attention import rows as rows_module
from unmask.interpret.attention.edges import layer_edges, residual_norms
from unmask.interpret.attention.rows import LayerRows


def whole(p, norms, special, *, weighted, hide):
    """Shares (H, N, N) and what is left out (H, N), from whole maps."""
    w = p * norms / (p * norms).sum(-1, keepdims=True) if weighted else p
    if not hide:
        return w, np.zeros(w.shape[:2])
    left = w[..., special].sum(-1)
    kept = np.where(special, 0, w)
    total = kept.sum(-1, keepdims=True)
    kept = np.divide(kept, total, out=np.zeros_like(kept), where=total > 0)
    kept[:, special] = 0
    return kept, left


@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_edges_are_those_of_the_whole_map(name, weighted, hide, monkeypatch):
    _, encoding, cache = recorded(name)
    for layer, (p, norms, _) in enumerate(whole_maps(name)):
        expected, left = whole(p, norms, encoding.special, weighted=weighted, hide=hide)
        without = encoding.special if hide else None
        for cells in (90, None):
            if cells is not None:
                monkeypatch.setattr("unmask.interpret.attention.edges.cells_at_once", lambda _: 1000)
            else:
                monkeypatch.setattr(
                    "unmask.interpret.attention.edges.cells_at_once", rows_module.cells_at_once
                )
            edges = layer_edges(LayerRows(cache, layer), 6, weighted=weighted, without_N=without)
            order = np.argsort(-expected, axis=-1, kind="stable")[..., :6]
            top = np.take_along_axis(expected, order, -1)
            np.testing.assert_allclose(edges.shares_HNk, top, rtol=1e-5, atol=1e-9)
            seen = edges.keys_HNk >= 0
            np.testing.assert_array_equal(seen, top > 0)
            # Equal to rounding, two keys may stand in either order.
            at_keys = np.take_along_axis(expected, np.maximum(edges.keys_HNk, 0), -1)
            np.testing.assert_allclose(np.where(seen, at_keys, 0), top, rtol=1e-9, atol=1e-12)
            assert all(len(set(row[row >= 0])) == (row >= 0).sum() for row in edges.keys_HNk.reshape(-1, 6))
            np.testing.assert_allclose(edges.left_out_HN, left, rtol=1e-5, atol=1e-9)
            rest = 1 if weighted or not hide else p.sum(-1)  # with an attention sink less than 1
            np.testing.assert_allclose(edges.kept_HN, rest - left, rtol=1e-5, atol=1e-9)
            rows = np.flatnonzero(~encoding.special) if hide else slice(None)
            np.testing.assert_allclose(edges.received_HN, expected[:, rows].mean(1), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_edges_to_some_tokens_of_other_queries(name, weighted):
    """A share times the part that is kept is the weight of the whole map; other queries have no edges."""
    _, encoding, cache = recorded(name)
    length = len(encoding)
    without, queries = np.arange(length) >= length // 2, np.arange(length) % 3 > 0
    for layer, (p, norms, _) in enumerate(whole_maps(name)):
        expected = p * norms / (p * norms).sum(-1, keepdims=True) if weighted else p
        rows = LayerRows(cache, layer)
        edges = layer_edges(rows, length, weighted=weighted, without_N=without, queries_N=queries)
        np.testing.assert_allclose(edges.kept_HN, expected[..., ~without].sum(-1), rtol=1e-5, atol=1e-9)
        back = np.zeros_like(expected)
        weights = edges.shares_HNk * edges.kept_HN[..., None].astype(np.float64)
        for place in np.argwhere(edges.keys_HNk >= 0):
            back[place[0], place[1], edges.keys_HNk[tuple(place)]] = weights[tuple(place)]
        wanted = np.where(without, 0, expected)
        wanted[:, ~queries] = 0
        np.testing.assert_allclose(back, wanted, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("name", SPECS)
def test_norms_are_of_what_the_layer_adds(name):
    """With the attention output of these norms, each layer's own sum gives the next state."""
    encoder, _, cache = recorded(name)
    added = {}

    def record(place, layer, tensor):
        if place is HookPoint.ATTENTION:
            added[layer] = tensor

    with torch.no_grad():
        encoder.encode(cache.batch, hook=record)
    norms = residual_norms(cache)
    assert norms.state_LN.shape == (cache.layer_count + 1, len(cache))
    for layer in range(cache.layer_count):
        out_ND = added[layer]
        with torch.no_grad():
            read_NP = encoder.read(cache.states[0], layer)
            after_ND = cache.block(layer).after_attention(cache.states[layer], out_ND, read=read_NP)
        if layer > 0 or encoder.spec.convolution is None:
            torch.testing.assert_close(after_ND, cache.states[layer + 1])
        expected = np.linalg.norm(out_ND.numpy(), axis=-1)
        np.testing.assert_allclose(norms.attention_LN[layer], expected, rtol=1e-5)
        expected = np.linalg.norm(cache.states[layer].numpy(), axis=-1)
        np.testing.assert_allclose(norms.state_LN[layer], expected, rtol=1e-5)
