"""Every statistic of the atlas equals what a whole map in float64 says, in every kind of encoder."""

import dataclasses
import functools
import itertools
import math
import threading
import time

import numpy as np
import pytest
import torch

from tests.support import dense
from tests.support.specs import SPECS, global_tokens, random_encoder
from tests.support.waiting import wait_until
from unmask.engines.native.library import library_reason
from unmask.errors import Cancelled, NonFiniteResult
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.attention import head_measures
from unmask.interpret.attention.attention_statistics import (
    AHEAD,
    AttentionStatistics,
    attention_statistics,
    together,
)
from unmask.interpret.attention.head_measures import HeadMeasures, KeyMarks, NativeRows
from unmask.interpret.attention.layer_statistics import profile_edges
from unmask.interpret.attention.rows import LayerRows
from unmask.spec import FullAttention, SlidingWindow

pytestmark = pytest.mark.long

LENGTH = 41


@functools.cache
def recorded(name, length=LENGTH, dtype=torch.float64):
    encoder = random_encoder(SPECS[name], dtype=dtype)
    encoding = dense.random_text(length)
    cache = ActivationCache.of(encoder, encoding, global_tokens=lambda _: global_tokens(length))
    return encoder, encoding, cache


def measures_of(cache):
    """Of the first head of the first layer."""
    rows = LayerRows(cache, 0)
    return HeadMeasures(rows, KeyMarks.of(cache.encoding), slice(0, 1), top_k=2, cell=1)


@functools.cache
def whole_maps(name, length=LENGTH, dtype=torch.float64):
    encoder, encoding, cache = recorded(name, length, dtype)
    return dense.maps(encoder, encoding, cache.globals_N)


def expected(p, norms, keys, encoding, cell, top_k):
    """Every array of a layer from whole maps: its name -> (H, ...)."""
    length = len(encoding)
    i, j = np.indices((length, length))
    w = p * norms
    w = w / w.sum(-1, keepdims=True)
    among_keys = p / p.sum(-1, keepdims=True)  # without what an attention sink takes
    entropy = -(among_keys * np.log(np.where(p > 0, among_keys, 1))).sum(-1)
    first, special = np.arange(length) == 0, encoding.special & (np.arange(length) > 0)
    comma = np.array([not s and t == "," for s, t in zip(encoding.special, encoding.pieces, strict=True)])
    members = [
        i == j,
        j == i - 1,
        j == i + 1,
        *(np.broadcast_to(m, i.shape) for m in (first, special, comma)),
        (i != j) & (encoding.ids[i] == encoding.ids[j]) & ~encoding.special[i] & ~encoding.special[j],
    ]
    members.append(~np.any(members, axis=0))
    edges = profile_edges(length)
    side = math.ceil(length / cell)
    cells = [slice(c * cell, min((c + 1) * cell, length)) for c in range(side)]

    def pooled(x, how):
        return np.stack([[[how(one[a, b]) for b in cells] for a in cells] for one in x])

    order = np.argsort(-p, axis=-1, kind="stable")[..., :top_k]
    below = np.arange(length)[:, None] >= np.arange(length)
    return {
        "entropy_HN": entropy,
        "entropy_share_HN": entropy / np.log(np.maximum(keys, 2)),
        "keys_HN": keys,
        "to_sink_HN": 1 - p.sum(-1),
        "distance_HN": (among_keys * abs(i - j)).sum(-1),
        "attention_received_HN": p.mean(1),
        "causal_received_HN": (p * below).sum(1) / below.sum(0),
        "max_received_HN": p.max(1),
        "norm_sum_HN": (p * norms).sum(-1),
        "received_norm_HN": w.mean(1),
        "edges_keys_HNk": order,
        "edges_HNk": np.take_along_axis(p, order, -1),
        "classes_HX": np.stack([(p * m).sum((1, 2)) / length for m in members], -1),
        **expected_beyond(p, keys, encoding, members),
        "profile_HB": np.stack(
            [
                (p * ((abs(i - j) >= a) & (abs(i - j) < b))).sum((1, 2)) / length
                for a, b in itertools.pairwise(edges)
            ],
            -1,
        ),
        "map_mean_HSS": pooled(p, np.mean),
        "map_max_HSS": pooled(p, np.max),
        "map_norm_HSS": pooled(w, np.mean),
    }


def expected_beyond(p, keys, encoding, members):
    """The same of the attention that stays among tokens that are not special, if there are two."""
    kept = ~encoding.special if (~encoding.special).sum() > 1 else np.ones(len(encoding), dtype=bool)
    q = p * kept[:, None] * kept
    given = q.sum(-1)
    total = np.maximum(given.sum(-1), 1e-300)
    shares = q / np.maximum(given, 1e-300)[..., None]
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(-1)
    keys = np.maximum(keys - (p * ~kept > 0).sum(-1), 2)
    of_self, previous, following, first, _, comma, repeat, _ = members
    return {
        "special_HN": (p * ~kept).sum(-1),
        "beyond_HX": np.stack(
            [(q * m).sum((1, 2)) / total for m in (of_self, previous, following, first, comma, repeat)], -1
        ),
        "beyond_entropy_H": (np.minimum(entropy / np.log(keys), 1) * given).sum(-1) / total,
    }


def compare(layer, p, norms, keys, encoding, top_k, *, rtol, atol, exact_edges=True):
    for name, value in expected(p, norms, keys, encoding, layer.cell, top_k).items():
        found = getattr(layer, name)
        assert found.shape == value.shape, name
        if name in ("edges_keys_HNk",):
            if exact_edges:
                np.testing.assert_array_equal(found, value, err_msg=name)
        else:
            np.testing.assert_allclose(found, value, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize(
    ("maps", "cells"), [(128, None), pytest.param(11, 2000, marks=pytest.mark.slow), (7, 90)]
)
def test_every_statistic_is_that_of_the_whole_map(name, maps, cells):
    _, encoding, cache = recorded(name)
    statistics = AttentionStatistics(cache, maps=maps, top_k=6)
    statistics.measure(cells=cells)
    for layer, (p, norms, keys) in zip(statistics.layers, whole_maps(name), strict=True):
        compare(layer, p, norms, keys, encoding, 6, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(layer.norm_HN, norms[:, 1], rtol=1e-6)  # row 1 is of no global token


@pytest.fixture(params=["native", "torch"])
def backend(request, monkeypatch):
    """Who measures in float32: the native library, where it is built, or torch."""
    if request.param == "native" and (reason := library_reason("float32")) is not None:
        pytest.skip(reason)
    if request.param == "torch":
        monkeypatch.setattr(head_measures, "library_reason", lambda _: "it is not asked")
    return request.param


@pytest.mark.parametrize("maps", [128, 13, 2])
@pytest.mark.parametrize("name", SPECS)
def test_float32_is_as_close_as_it_can_be(name, maps, backend):
    _, encoding, cache = recorded(name, dtype=torch.float32)
    native = backend == "native" and name != "sinks"  # which torch measures
    assert (NativeRows.of(measures_of(cache)) is not None) == native
    statistics = attention_statistics(cache, maps=maps)
    for layer, (p, norms, keys) in zip(statistics.layers, whole_maps(name, dtype=torch.float32), strict=True):
        compare(layer, p, norms, keys, encoding, 8, rtol=1e-5, atol=2e-6, exact_edges=False)


@pytest.mark.parametrize("length", [1, 2, 3, 7])
@pytest.mark.parametrize("name", SPECS)
def test_texts_of_a_few_tokens(name, length):
    _, encoding, cache = recorded(name, length)
    statistics = attention_statistics(cache)
    for layer, (p, norms, keys) in zip(statistics.layers, whole_maps(name, length), strict=True):
        compare(layer, p, norms, keys, encoding, min(8, length), rtol=1e-6, atol=1e-9)


def test_a_token_beside_an_equal_one_is_counted_once(backend):
    text = dense.random_text(30)
    ids = np.where(np.arange(30) % 5 < 3, 7, text.ids)  # three of a kind, one after another
    text = dataclasses.replace(text, ids=ids)
    encoder = random_encoder(SPECS["post-norm"], dtype=torch.float32)
    cache = ActivationCache.of(encoder, text)
    maps = dense.maps(encoder, text, cache.globals_N)
    for layer, (p, norms, keys) in zip(attention_statistics(cache, maps=7).layers, maps, strict=True):
        compare(layer, p, norms, keys, text, 8, rtol=1e-5, atol=2e-6, exact_edges=False)


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_is_an_error(backend, monkeypatch, score):
    _, _, cache = recorded("post-norm", 30, torch.float32)
    scores = LayerRows.scores

    def broken(self, side, tile, heads, out=None):
        s_HRC = scores(self, side, tile, heads, out)
        s_HRC[-1, 3, 4] = score
        return s_HRC

    monkeypatch.setattr(LayerRows, "scores", broken)
    with pytest.raises(NonFiniteResult, match="attention of this text is not finite"):
        attention_statistics(cache)


@pytest.mark.parametrize("length", [1, 2, 3, 17])
@pytest.mark.parametrize("name", ["post-norm", "rotary-windows", "windows-globals", "causal", "linear"])
def test_texts_of_a_few_tokens_in_float32(name, length, backend):
    _, encoding, cache = recorded(name, length, torch.float32)
    statistics = attention_statistics(cache)
    maps = whole_maps(name, length, torch.float32)
    for layer, (p, norms, keys) in zip(statistics.layers, maps, strict=True):
        compare(layer, p, norms, keys, encoding, min(8, length), rtol=1e-5, atol=2e-6, exact_edges=False)


def test_of_equal_keys_the_first_in_the_text_is_listed(backend):
    encoder = random_encoder(SPECS["post-norm"])
    with torch.no_grad():
        for block in encoder.layers:
            block.attention.qkv.weight.view(3, -1, 24)[0].zero_()
            block.attention.qkv.bias.view(3, -1)[0].zero_()
    cache = ActivationCache.of(encoder, dense.random_text(50))
    for maps in (50, 9):
        for layer in attention_statistics(cache, maps=maps).layers:
            assert (layer.edges_keys_HNk == np.arange(8)).all()
            np.testing.assert_allclose(layer.entropy_share_HN, 1, rtol=1e-6)


def test_windows_keep_to_themselves():
    _, _, cache = recorded("rotary-windows", 64, torch.float32)
    for layer in attention_statistics(cache).layers:
        far = abs(layer.edges_keys_HNk - np.arange(64)[:, None]) > 2
        assert (layer.edges_HNk[far] == 0).all()
        assert (layer.profile_HB[:, 3:] == 0).all()
        assert (layer.distance_HN <= 2).all()


@pytest.mark.parametrize("name", SPECS)
def test_what_must_hold_of_any_text(name):
    _, _, cache = recorded(name, 60, torch.float32)
    for layer in attention_statistics(cache, maps=20).layers:
        assert layer.kind == ("kernel" if name in ("linear", "performer") else "softmax")
        np.testing.assert_allclose(layer.received_norm_HN.sum(-1), 1, rtol=0, atol=1e-5)
        assert (layer.to_sink_HN > 0).all() == (name == "sinks")
        for array in (layer.attention_received_HN, layer.profile_HB):
            rest = layer.to_sink_HN.mean(-1)
            np.testing.assert_allclose(array.sum(-1) + rest, 1, rtol=0, atol=1e-5)
        assert (layer.entropy_HN <= np.log(layer.keys_HN) + 1e-6).all()
        assert (layer.map_mean_HSS <= layer.map_max_HSS + 1e-7).all()
        assert (np.diff(layer.edges_HNk, axis=-1) <= 0).all()
        np.testing.assert_array_equal(layer.max_received_HN.max(-1), layer.edges_HNk.max((1, 2)))
        assert (np.diff(np.sort(layer.edges_keys_HNk, -1)) > 0).all()  # no key is listed twice


def test_the_cheapest_layers_come_first_and_stopping_keeps_what_is_done():
    spec = dataclasses.replace(
        SPECS["rotary-windows"],
        layers=tuple(
            dataclasses.replace(layer, mixer=dataclasses.replace(layer.mixer, pattern=pattern))
            for pattern in (FullAttention(), SlidingWindow(2), SlidingWindow(1))
            for layer in SPECS["rotary-windows"].layers[1:]
        ),
    )
    cache = ActivationCache.of(random_encoder(spec), dense.random_text(70))
    made, order, told = AttentionStatistics(cache), [], []

    def watch(what, done, total):
        told.append((what, done, total))
        order.append([layer is not None for layer in made.layers])
        if sum(order[-1]) == 2 and done < total and not stopped:
            stopped.append(done)
            raise Cancelled("enough")

    stopped = []
    with pytest.raises(Cancelled):
        made.measure(watch, cells=300)
    assert [layer is not None for layer in made.layers] == [False, True, True]
    assert [False, False, True] in order
    kept = made.layers[2]
    made.measure(watch, cells=300)
    assert made.ready
    assert made.layers[2] is kept
    assert {what for what, _, _ in told} == {"measuring"}
    second = told[order.index([False, True, True]) + 1 :]
    assert [done for _, done, _ in second] == sorted(done for _, done, _ in second)
    assert second[-1][1] == second[-1][2]


def test_how_many_cells_a_map_has():
    cache = recorded("post-norm", 50)[2]
    for maps, cell, side in ((128, 1, 50), (50, 1, 50), (49, 2, 25), (1, 50, 1)):
        (layer, *_) = attention_statistics(cache, maps=maps, layers=(0,)).layers
        assert (layer.cell, layer.map_max_HSS.shape) == (cell, (3, side, side))


@pytest.mark.parametrize("length", [1, 2, 3, 5, 6, 9, 10, 1000])
def test_bins_of_distance_hold_every_distance_once(length):
    edges = profile_edges(length)
    assert edges[:3].tolist() == [0, 1, 2]
    assert (np.diff(edges) > 0).all()
    assert edges[-1] > length - 1
    assert len(edges) <= 3 or edges[-2] <= length - 1


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setattr("unmask.interpret.attention.attention_statistics.WORTH_A_THREAD", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def test_heads_measured_at_once_are_those_measured_in_turn(two_threads):
    cache = recorded("alibi-shared", 60)[2]
    together, told = AttentionStatistics(cache), []
    caller = threading.current_thread()
    together.measure(lambda *words: told.append((words, threading.current_thread())), cells=2000)
    torch.set_num_threads(1)
    in_turn = AttentionStatistics(cache)
    in_turn.measure(cells=2000)
    torch.set_num_threads(2)
    for one, other in zip(together.layers, in_turn.layers, strict=True):
        for field in dataclasses.fields(one):
            if field.name != "kind":
                np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name))
    assert {thread for _, thread in told} == {caller}


def test_stopping_ends_all_threads(two_threads):
    cache, before = recorded("alibi-shared", 60)[2], threading.active_count()

    def stop(*_):
        raise Cancelled("enough")

    with pytest.raises(Cancelled):
        AttentionStatistics(cache).measure(stop, cells=500)
    assert threading.active_count() == before


def test_an_error_in_a_thread_comes_out():
    def fail(tick):
        tick(1)
        raise NonFiniteResult("no number")

    def work(tick):
        for _ in range(1000):
            tick(1)
        return 5

    with pytest.raises(NonFiniteResult, match="no number"):
        together([work, fail, work], lambda _: None, 2)
    reports = []
    assert together([work, work, work], reports.append, 2) == [5, 5, 5]
    assert sum(reports) == 3000


def test_threads_stand_still_while_the_caller_takes_its_time():
    made, seen = [0, 0], []
    most = 2 * (AHEAD + 1)

    def count(number):
        def work(tick):
            for _ in range(200):
                made[number] += 1
                tick(1)

        return work

    def wait(_):
        if not seen:
            wait_until(lambda: sum(made) >= most)
            time.sleep(0.05)
            seen.append(sum(made))

    together([count(0), count(1)], wait, 2)
    assert seen == [most]
    assert made == [200, 200]
