"""A recording holds what the encoder computed, changes nothing of it, and gives its projections back."""

import math

import numpy as np
import pytest
import torch

from tests.support import dense
from tests.support.specs import SPECS, global_tokens, random_encoder
from unmask.encoder.elmo import Elmo
from unmask.encoder.hooks import HookPoint
from unmask.engines.inference import optimize_for_inference, unsupported_reason
from unmask.errors import Cancelled, InvalidRequest, NonFiniteResult, UnknownArchitecture
from unmask.interpret import ActivationCache, AttentionView, LayerRows
from unmask.interpret.attention.rows import out_matrix
from unmask.spec.global_tokens import pack

LENGTH = 19


def chosen(_):
    return global_tokens(LENGTH)


def run(encoder, encoding):
    """The encoder alone, and all that taps hear."""
    heard, batch = {}, pack(encoder.spec, [encoding], chosen)
    with torch.inference_mode():
        quiet = encoder.encode(batch)
        encoder.encode(batch, hook=lambda place, layer, x: heard.update({(place, layer): x.clone()}))
    return quiet, heard


@pytest.mark.parametrize("name", SPECS)
def test_it_keeps_what_was_computed_and_changes_nothing(name):
    encoder, encoding = random_encoder(SPECS[name]), dense.random_text(LENGTH)
    quiet, heard = run(encoder, encoding)
    cache = ActivationCache.of(encoder, encoding, global_tokens=chosen)
    assert torch.equal(cache.final_ND, quiet)
    assert torch.equal(cache.states[0], heard[HookPoint.EMBEDDED, 0])
    for layer in range(cache.layer_count):
        assert torch.equal(cache.states[layer + 1], heard[HookPoint.LAYER, layer])
        assert cache.kind(layer) == ("kernel" if name in ("linear", "performer") else "softmax")
    AttentionView(encoder, encoding, global_tokens=chosen).statistics()
    assert torch.equal(run(encoder, encoding)[0], quiet)
    assert not any(state.is_inference() or state.requires_grad for state in cache.states)


@pytest.mark.parametrize("name", SPECS)
def test_queries_keys_and_values_of_any_rows_are_those_of_the_run(name):
    encoder, encoding = random_encoder(SPECS[name], dtype=torch.float64), dense.random_text(LENGTH)
    heard = run(encoder, encoding)[1]
    cache = ActivationCache.of(encoder, encoding, global_tokens=chosen)
    for layer in range(cache.layer_count):
        for rows in (slice(None), slice(4, 11)):
            found = cache.projected(layer, rows)
            for part, place in zip(found, (HookPoint.QUERY, HookPoint.KEY, HookPoint.VALUE), strict=True):
                torch.testing.assert_close(part, heard[place, layer][rows], rtol=1e-12, atol=1e-13)
            own = cache.projected_for_globals(layer, rows)
            assert (own is None) == ((HookPoint.GLOBAL_KEY, layer) not in heard)
            if own is not None:
                expected = heard[HookPoint.GLOBAL_QUERY, layer][rows]
                torch.testing.assert_close(own.q_NHK, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", SPECS)
def test_blocks_of_rows_are_the_whole_map(name):
    encoder, encoding = random_encoder(SPECS[name], dtype=torch.float64), dense.random_text(LENGTH)
    cache = ActivationCache.of(encoder, encoding, global_tokens=chosen)
    for layer, (p, norms, _) in enumerate(dense.maps(encoder, encoding, cache.globals_N)):
        rows = LayerRows(cache, layer)
        for head in (None, rows.heads - 1):
            found = np.zeros_like(p[:1] if head is not None else p)
            weighted = np.zeros_like(found)
            for block in rows.blocks(head, cells=150):
                at = slice(block.first_row, block.end_row), slice(block.first_column, block.end_column)
                found[:, *at], weighted[:, *at] = block.p_HRC, block.weighted_HRC
            some = slice(None) if head is None else slice(head, head + 1)
            np.testing.assert_allclose(found, p[some], rtol=1e-9, atol=1e-12)
            expected = (p * norms) / (p * norms).sum(-1, keepdims=True)
            np.testing.assert_allclose(weighted, expected[some], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_any_rectangle_is_that_of_the_whole_map(name, measured):
    encoder, encoding = random_encoder(SPECS[name]), dense.random_text(LENGTH)
    view = AttentionView(encoder, encoding, global_tokens=chosen)
    if measured:
        view.statistics()
    draw = np.random.default_rng(0)
    for layer, (p, norms, _) in enumerate(dense.maps(encoder, encoding, view.globals_N)):
        w = (p * norms) / (p * norms).sum(-1, keepdims=True)
        for head in range(len(p)):
            (a, b), (c, d) = np.sort(draw.integers(0, LENGTH + 1, (2, 2)))
            weights = view.probabilities(layer, head, slice(a, b), slice(c, d))
            np.testing.assert_allclose(weights, p[head, a:b, c:d], rtol=1e-5, atol=1e-7)
            weights = view.probabilities(layer, head, slice(a, b), slice(c, d), weight="norm")
            np.testing.assert_allclose(weights, w[head, a:b, c:d], rtol=1e-5, atol=1e-7)
        whole = view.probabilities(layer, 0)
        np.testing.assert_allclose(whole.sum(-1), p[0].sum(-1), rtol=0, atol=2e-6)
        assert (whole.sum(-1) < 0.99).all() == (name == "sinks")
        assert (whole[p[0] == 0] == 0).all()  # nothing where nothing may be seen


@pytest.mark.parametrize(
    "name", ["alibi-shared", "disentangled", "disentangled-own", "windows-globals", "relative"]
)
def test_parts_of_scores_add_up_to_the_scores(name):
    encoder, encoding = random_encoder(SPECS[name], dtype=torch.float64), dense.random_text(LENGTH)
    view = AttentionView(encoder, encoding, global_tokens="none")
    weights = dense.weights_of(encoder)
    biased = {"content", "bias"}
    names = {"alibi-shared": biased, "relative": biased, "windows-globals": {"content"}}
    for layer, spec in enumerate(encoder.spec.layers):
        q_NHK, k_NHK, _ = (part.numpy() for part in view.cache.projected(layer))
        at = f"layers.{encoder.spec.weights_of_layer[layer]}."
        for head in range(spec.mixer.heads):
            parts = view.score_parts(layer, head, slice(3, 12), slice(1, 17))
            wanted = names.get(name, {"content", "content_position", "position_content"})
            assert set(parts) == wanted
            q, k = q_NHK[:, head], k_NHK[:, head]
            expected = [dense.logits_of(q, k, i, head, spec.mixer, weights, at) for i in range(LENGTH)]
            np.testing.assert_allclose(sum(parts.values()), np.array(expected)[3:12, 1:17], rtol=0, atol=1e-9)
            bias = spec.mixer.position.term_count if "disentangled" in name else 1
            alone = (q @ k.T)[3:12, 1:17] / math.sqrt(spec.mixer.head_width * bias)
            np.testing.assert_allclose(parts["content"], alone, rtol=0, atol=1e-9)


def test_position_parts_depend_on_distance_and_the_right_side_alone():
    view = AttentionView(random_encoder(SPECS["disentangled-own"]), dense.text_of([5] * LENGTH))
    parts = view.score_parts(0, 1)
    for name in ("content_position", "position_content"):
        for offset in range(-LENGTH + 1, LENGTH):
            along = np.diagonal(parts[name], offset)
            np.testing.assert_allclose(along, along[0], rtol=0, atol=1e-6)
        assert np.ptp(parts[name]) > 0.1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("name", ["post-norm", "disentangled", "windows-globals", "linear"])
def test_encoders_rewritten_for_speed_are_read_as_they_are(name, dtype):
    if unsupported_reason(dtype) is not None:
        pytest.skip(str(unsupported_reason(dtype)))
    plain_encoder, encoding = random_encoder(SPECS[name]), dense.random_text(LENGTH)
    fast = random_encoder(SPECS[name])
    fast = optimize_for_inference(fast.bfloat16() if dtype == "bfloat16" else fast, dtype)
    view = AttentionView(fast, encoding, global_tokens=chosen)
    quiet, heard = run(fast, encoding)
    tolerance = {"float32": 1e-5, "bfloat16": 1e-2, "int8": 3e-2}[dtype]
    # What is looked into runs module by module; without a hook, whole layers run and round in other places.
    assert (view.cache.final_ND - quiet).norm() < tolerance * quiet.norm()
    for block, found in zip(fast.layers, plain_encoder.layers, strict=True):
        expected = found.attention.out.weight.detach().double().T
        made = out_matrix(block.attention).flatten(0, 1)
        assert (made - expected).norm() < tolerance * expected.norm()
    statistics = view.statistics()
    for layer in range(view.layer_count):
        arrays = statistics.layers[layer]
        np.testing.assert_allclose(arrays.attention_received_HN.sum(-1), 1, atol=1e-5)
        np.testing.assert_allclose(arrays.received_norm_HN.sum(-1), 1, atol=1e-5)
        for head in range(arrays.heads):
            p, w = (view.probabilities(layer, head, weight=weight) for weight in ("raw", "norm"))
            np.testing.assert_allclose(p.mean(0), arrays.attention_received_HN[head], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(w.mean(0), arrays.received_norm_HN[head], rtol=1e-4, atol=1e-6)
            if (HookPoint.GLOBAL_KEY, layer) not in heard and dtype == "float32" and name != "linear":
                mixed = p @ heard[HookPoint.VALUE, layer][:, head].numpy()
                expected = heard[HookPoint.MIXED, layer][:, head].numpy()
                np.testing.assert_allclose(mixed, expected, rtol=0, atol=1e-5)


def test_reading_can_be_watched_and_stopped():
    encoder, encoding, told = random_encoder(SPECS["alibi-shared"]), dense.random_text(LENGTH), []
    ActivationCache.of(encoder, encoding, watch=lambda *words: told.append(words))
    assert told == [("reading", layer + 1, 4) for layer in range(4)]

    def stop(what, done, total):
        if done == 2:
            raise Cancelled("the text was closed")

    with pytest.raises(Cancelled, match="the text was closed"):
        ActivationCache.of(encoder, encoding, watch=stop)


def test_what_has_no_attention_or_is_not_finite_is_refused():
    with pytest.raises(UnknownArchitecture, match="Elmo has no attention, so there is none to show"):
        ActivationCache.of(Elmo.__new__(Elmo), dense.random_text(5))
    encoder = random_encoder(SPECS["post-norm"])
    with torch.no_grad():
        encoder.embedding.words.weight.fill_(math.inf)
    with pytest.raises(NonFiniteResult, match="try dtype='float32'"):
        ActivationCache.of(encoder, dense.random_text(5))


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda view: view.probabilities(3, 0), "layer is 3; this encoder has layers 0 to 2"),
        (lambda view: view.probabilities(0, 3), "head is 3; layer 0 has heads 0 to 2"),
        (lambda view: view.probabilities(0, 0, slice(0, 4, 2)), "step 2"),
        (lambda view: view.probabilities(0, 0, weight="values"), "weight is 'values'; it can be raw or norm"),
        (lambda view: view.topk(0, 0, 0), "k is 0"),
        (lambda view: view.statistics(top_k=0), "top_k is 0"),
        (lambda view: view.statistics(maps=-1), "maps is -1"),
    ],
)
def test_what_cannot_be_asked_is_refused(ask, sentence):
    view = AttentionView(random_encoder(SPECS["post-norm"]), dense.random_text(7))
    with pytest.raises(InvalidRequest, match=sentence):
        ask(view)


def test_linear_attention_has_no_scores_to_take_apart():
    view = AttentionView(random_encoder(SPECS["performer"]), dense.random_text(7))
    assert view.kind(0) == "kernel"
    with pytest.raises(InvalidRequest, match="layer 0 is linear attention"):
        view.score_parts(0, 0)


@pytest.mark.parametrize("name", SPECS)
def test_topk_keys_are_the_same_measured_or_not(name):
    encoder, encoding = random_encoder(SPECS[name], dtype=torch.float64), dense.random_text(LENGTH)
    fresh, measured = (AttentionView(encoder, encoding, global_tokens=chosen) for _ in range(2))
    measured.statistics()
    for layer in range(fresh.layer_count):
        for k in (1, 5, 8, 11, LENGTH + 1):
            one, other = (view.topk(layer, 0, k) for view in (fresh, measured))
            np.testing.assert_array_equal(one.keys, other.keys)
            np.testing.assert_allclose(one.probabilities, other.probabilities, rtol=1e-6)
            assert one.keys.shape == (LENGTH, min(k, LENGTH))
            np.testing.assert_allclose(
                fresh.probabilities(layer, 0)[0, one.keys[0]], one.probabilities[0], rtol=1e-6
            )
