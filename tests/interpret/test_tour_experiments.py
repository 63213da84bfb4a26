"""Every experiment of the story beside an independent computation of the same numbers, in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support import dense
from tests.support.specs import SPECS, random_encoder
from unmask.encoder.hooks import HookPoint
from unmask.encoder.layers.linear_attention import log_features
from unmask.errors import InvalidRequest
from unmask.explorer.experiments import handshake, positions, reach, sinks, tiles, values
from unmask.explorer.experiments.reach import fields, pairs
from unmask.explorer.experiments.recorded_text import record_text
from unmask.explorer.experiments.sinks import without
from unmask.explorer.experiments.tiles import kernel_weights
from unmask.explorer.tour.models import softmax
from unmask.spec import Alibi, Rotary, SlidingWindow, SoftmaxAttention
from unmask.text import PackedBatch

N = 19
SOFTMAX = [
    name
    for name, spec in SPECS.items()
    if isinstance(spec.layers[0].mixer, SoftmaxAttention) and not spec.layers[0].mixer.sinks
]


def heard(name, length=N, spec=None):
    return record_text(random_encoder(spec or SPECS[name], dtype=torch.float64), dense.random_text(length))


def with_mixers(name, **changes):
    spec = SPECS[name]
    layers = tuple(replace(layer, mixer=replace(layer.mixer, **changes)) for layer in spec.layers)
    return replace(spec, layers=layers)


def run(encoder, ids, wanted=HookPoint.LAYER):
    found = {}

    def hear(place, layer, tensor):
        if place in (wanted, HookPoint.EMBEDDED):
            found[place, layer] = tensor.clone()

    with torch.no_grad():
        encoder.encode(PackedBatch.of_ids([ids]), hook=hear)
    return found


def by_hand(one, layer, head):
    """Products, scores and shares of a head of the plain post-norm encoder, from its states and weights."""
    mixer = one.encoder.block(layer).attention
    x = one.states[layer].numpy()
    weight, bias = mixer.qkv.weight.detach().numpy(), mixer.qkv.bias.detach().numpy()
    heads, width = mixer.spec.heads, mixer.spec.head_width
    q, k, v = ((x @ weight.T + bias).reshape(len(x), 3, heads, width)[:, part, head] for part in range(3))
    products = q @ k.T
    scores = products / np.sqrt(width)
    exponentials = np.exp(scores)
    return q, k, v, products, scores, exponentials / exponentials.sum(1, keepdims=True)


def test_the_handshake_is_the_formula():
    recorded = heard("post-norm")
    steps = handshake.handshake(recorded, 1, 2)
    q, k, _, products, scores, shares = by_hand(recorded, 1, 2)
    np.testing.assert_allclose(steps.products, products, atol=1e-12)
    np.testing.assert_allclose(steps.scores, scores, atol=1e-12)
    np.testing.assert_allclose(steps.shares, shares, atol=1e-12)
    assert steps.allowed.all()
    best = shares.argmax(1)
    np.testing.assert_allclose(steps.steps, q * k[best], atol=1e-12)
    np.testing.assert_allclose(steps.steps.sum(1), products[np.arange(N), best], atol=1e-12)


def test_the_clearest_head_is_the_one_with_most_on_far_words():
    recorded = heard("post-norm")
    content = np.abs(np.subtract.outer(np.arange(N), np.arange(N))) > 1
    special = recorded.encoding.special
    scored = {}
    for layer in range(3):
        for head in range(3):
            p = by_hand(recorded, layer, head)[-1] * content * ~special
            scored[layer, head] = p[~special].sum(1).mean() * p[~special].max(1).mean()
    assert handshake.clearest_head(recorded) == max(scored, key=scored.get)
    some = {place: score for place, score in scored.items() if place[0] in (0, 2)}
    assert handshake.clearest_head(recorded, (0, 2)) == max(some, key=some.get)


@pytest.mark.parametrize("width", [1, 64, 300])
def test_variance_of_random_products_is_their_width(width):
    products = handshake.random_products((width,), seed=3)
    # A product's fourth moment gives the error of the measured variance; products of a row share a query.
    assert products.variance[0] == pytest.approx(width, rel=0.3 if width == 1 else 0.15)
    assert products.variance_divided[0] == pytest.approx(products.variance[0] / width)
    assert products == handshake.random_products((width,), seed=3)
    if width > 1:
        assert products.entropy_share[0] < products.entropy_share_divided[0] < 1
        assert products.slope[0] < products.slope_divided[0]


def test_trained_products_beside_numpy():
    recorded = heard("post-norm")
    found = handshake.trained_products(recorded)
    for layer, head in ((0, 0), (2, 1)):
        *_, products, scores, shares = by_hand(recorded, layer, head)
        assert found.variance[layer, head] == pytest.approx(products.var(ddof=1))
        assert found.variance_divided[layer, head] == pytest.approx(scores.var(ddof=1))
        assert found.row_deviation[layer, head] == pytest.approx(scores.std(1).mean())
        entropy = -(shares * np.log(shares)).sum(1).mean() / np.log(N)
        assert found.entropy_share[layer, head] == pytest.approx(entropy)
        bare = np.exp(products - products.max(1, keepdims=True))
        bare /= bare.sum(1, keepdims=True)
        entropy = -np.where(bare > 0, bare * np.log(np.maximum(bare, 1e-300)), 0).sum(1).mean() / np.log(N)
        assert found.entropy_share_undivided[layer, head] == pytest.approx(entropy)


@pytest.mark.parametrize("name", ["rotary-windows", "disentangled", "alibi-shared"])
def test_undivided_scores_are_those_times_the_root(name):
    """Of windows only the keys allowed count, and a disentangled score is divided by more than sqrt(K)."""
    recorded = heard(name)
    products = handshake.trained_products(recorded)
    mixer = recorded.mixer(0)
    terms = getattr(mixer.position, "term_count", 1)
    seen = recorded.allowed(0)[1].numpy()
    scores = recorded.scores(0)[1].numpy() * np.sqrt(mixer.head_width * terms)
    rows = [scores[query][seen[query]] for query in range(N)]
    shares = [np.exp(row - row.max()) / np.exp(row - row.max()).sum() for row in rows]
    entropy = [-(p[p > 0] * np.log(p[p > 0])).sum() / np.log(len(p)) for p in shares]
    assert products.entropy_share_undivided[0, 1] == pytest.approx(np.mean(entropy))


def test_without_positions_order_is_lost():
    spec = SPECS["post-norm"]
    bare = replace(spec, embedding=replace(spec.embedding, positions=None))
    assert positions.is_unordered(bare)
    text = dense.random_text(N)
    lost = positions.shuffled(random_encoder(bare, dtype=torch.float64), text, seed=5)
    assert lost.without_positions
    assert sorted(lost.order) == list(range(N))
    assert (text.ids[lost.order] != text.ids).any()
    assert lost.difference.max() < 1e-12
    assert lost.final.max() < 1e-12


@pytest.mark.parametrize("name", SPECS)
def test_with_positions_order_is_known(name):
    encoder, text = random_encoder(SPECS[name], dtype=torch.float64), dense.random_text(N)
    assert not positions.is_unordered(encoder.spec)
    shuffled_text = positions.shuffled(encoder, text, seed=5)
    assert not shuffled_text.without_positions
    assert shuffled_text.final[~text.special].mean() > 1e-3
    here, there = run(encoder, text.ids), run(encoder, text.ids[shuffled_text.order])
    last = (HookPoint.LAYER, len(SPECS[name].layers) - 1)
    for place, token in ((3, shuffled_text.order[3]), (11, shuffled_text.order[11])):
        a, b = here[last][token], there[last][place]
        assert shuffled_text.difference[-1, token] == pytest.approx(float((a - b).norm() / a.norm()))


def test_a_text_that_cannot_be_shuffled_is_refused():
    text = dense.random_text(6)
    same = replace(text, ids=np.full_like(text.ids, 7))
    with pytest.raises(InvalidRequest, match="at least two"):
        positions.shuffled(random_encoder(SPECS["post-norm"]), same)


def test_the_table_of_positions():
    encoder = random_encoder(SPECS["windows-globals"], dtype=torch.float64)
    table = positions.position_table(encoder)
    rows = encoder.embedding.positions.weight.detach().numpy()[2:66]
    rows = rows - rows.mean(0)
    for a, b in ((0, 1), (5, 40)):
        cosine = rows[a] @ rows[b] / np.linalg.norm(rows[a]) / np.linalg.norm(rows[b])
        assert table.cosines[a, b] == pytest.approx(cosine)
    assert table.by_distance[0] == pytest.approx(1)
    apart = [table.cosines[place, place + 3] for place in range(len(rows) - 3)]
    assert table.by_distance[3] == pytest.approx(np.mean(apart))
    with pytest.raises(InvalidRequest, match="no learned positions"):
        positions.position_table(random_encoder(SPECS["rotary-windows"]))


@pytest.mark.parametrize("name", ["disentangled", "disentangled-own"])
def test_disentangled_parts_add_up_and_know_distance_alone(name):
    recorded = heard(name)
    terms = positions.parts(recorded, 1, 1)
    assert list(terms.parts) == ["content", "content_position", "position_content"]
    assert terms.sum_error < 1e-12
    assert terms.shift_error == 0
    np.testing.assert_allclose(sum(terms.parts.values()), recorded.scores(1)[1].numpy(), atol=1e-12)
    q, k = recorded.queries[1][:, 1].numpy(), recorded.keys[1][:, 1].numpy()
    np.testing.assert_allclose(terms.parts["content"], q @ k.T / np.sqrt(3 * q.shape[1]), atol=1e-12)
    assert terms.felt["content"] == pytest.approx(terms.parts["content"].std(1).mean())
    # Two queries with equal vectors would ask the same of equal distances: solve for what a distance offers.
    asks, offers = (
        terms.parts["content_position"],
        recorded.bias(1).distances.of_head(1).keys_PHK[:, 0].numpy(),
    )
    every = q @ offers.T / np.sqrt(3 * q.shape[1])
    for i, j in ((0, 0), (4, 6), (9, 2), (18, 0)):
        assert np.isclose(every[i], asks[i, j], atol=1e-12).any()
    with pytest.raises(InvalidRequest, match="no disentangled"):
        positions.parts(heard("post-norm"), 0, 0)


def test_the_penalty_is_what_shortens_attention():
    recorded = heard("alibi-shared")
    penalty = positions.distance_penalty(recorded)
    apart = np.abs(np.subtract.outer(np.arange(N), np.arange(N)))
    q, k = recorded.queries[2][:, 4].numpy(), recorded.keys[2][:, 4].numpy()
    content = q @ k.T / np.sqrt(3)
    for scores, distances in (
        (content, penalty.distance_without),
        (content - penalty.slopes[4] * apart, penalty.distance),
    ):
        p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        assert distances[2, 4] == pytest.approx((p * apart).sum(1).mean())
    assert penalty.halved_after[0] * penalty.slopes[0] == pytest.approx(np.log(2))
    assert (penalty.distance.mean(0) < penalty.distance_without.mean(0)).all()
    with pytest.raises(InvalidRequest, match="ALiBi"):
        positions.distance_penalty(heard("post-norm"))


@pytest.mark.parametrize(
    ("rotary", "width"), [(Rotary(10_000.0), 16), (Rotary(500.0, 8, interleaved=True), 12)]
)
def test_the_rotary_identity(rotary, width):
    identity = positions.turned_alike(rotary, width, seed=2)
    assert max(identity.errors) < 1e-10 * width
    assert identity.other_distance > 0.05
    # The same by complex numbers: a pair is a number, and turning it is a factor.
    turned = rotary.width or width
    angles = rotary.theta ** -(np.arange(0, turned, 2) / turned)
    a, b = np.random.default_rng(0).normal(size=(2, turned // 2)) + 1j
    products = [
        (a * np.exp(1j * m * angles) * np.conj(b * np.exp(1j * n * angles))).sum().real
        for m, n in ((3, 7), (1003, 1007))
    ]
    assert products[0] == pytest.approx(products[1], rel=1e-9)


@pytest.mark.parametrize("name", ["rotary-windows", "alibi-shared", "disentangled-own"])
def test_said_twice_only_the_first_layer_is_alike(name):
    copies = positions.twice(random_encoder(SPECS[name], dtype=torch.float64), dense.random_text(12))
    assert copies.state_difference[0] < 1e-14
    assert copies.score_difference[0] < 1e-9
    assert copies.state_difference[1:].min() > 1e-4
    assert copies.score_difference[1] > 1e-4


def test_said_twice_a_table_of_positions_is_seen_at_once():
    encoder = random_encoder(SPECS["post-norm"], dtype=torch.float64)
    text = dense.random_text(12)
    copies = positions.twice(encoder, text)
    assert copies.score_difference[0] > 1e-2
    words = text.ids[~text.special]
    ids = np.concatenate([text.ids[: np.flatnonzero(~text.special)[0]], words, words])
    x = run(encoder, ids)[HookPoint.EMBEDDED, 0]
    first = slice(len(ids) - 2 * len(words), len(ids) - len(words))
    moved = (x[first] - x[first.stop :]).norm(dim=-1) / x[first].norm(dim=-1)
    assert copies.state_difference[0] == pytest.approx(float(moved.mean()))
    with pytest.raises(InvalidRequest, match="linear attention does not have"):
        positions.twice(random_encoder(SPECS["linear"]), text)


@pytest.mark.parametrize("name", SPECS)
def test_fields_are_what_replacing_tokens_shows(name):
    """No token outside of the field has any effect; within it nearly every one has."""
    encoder, text = random_encoder(SPECS[name], dtype=torch.float64), dense.random_text(N)
    # A padding id is not counted in positions, so that another token at its place moves all that follow.
    # A mask token of ESM scales the words of the whole text.
    text = replace(text, ids=np.where(np.isin(text.ids, (1, 4)), 2, text.ids))
    marked = (4,) if name == "windows-globals" else ()
    found = reach.reach_and_effect(encoder, text, 9, 60, marked)
    assert found.effect_outside < 1e-13
    changed = text.ids != 60
    reached = found.effect[-1] > 1e-13
    assert (reached[changed] == found.reachable[-1][changed]).mean() > 0.9
    assert found.reachable[0].nonzero()[0].tolist() == ([8, 9, 10] if name == "narrow" else [9])
    assert (found.reachable[1:] >= found.reachable[:-1]).all()


def test_the_effect_is_that_of_running_both_texts():
    encoder, text = random_encoder(SPECS["rotary-windows"], dtype=torch.float64), dense.random_text(N)
    found = reach.reach_and_effect(encoder, text, 9, 60)
    other = text.ids.copy()
    other[7] = 60
    a, b = run(encoder, text.ids)[HookPoint.LAYER, 0][9], run(encoder, other)[HookPoint.LAYER, 0][9]
    assert found.effect[1, 7] == pytest.approx(float((a - b).norm() / a.norm()))
    assert [int(one[9].sum()) for one in fields(encoder, N)] == [1, 5, 9]
    effect = np.delete(found.effect[-1], 9)
    apart = np.delete(np.abs(np.arange(N) - 9), 9)
    whole, radius = effect.sum(), int(found.half_within)
    assert effect[apart <= radius].sum() <= whole / 2 <= effect[apart <= radius + 1].sum()


@pytest.mark.parametrize("name", ["linear", "performer"])
def test_kernel_weights_mix_values_as_the_layer_does(name):
    recorded = heard(name)
    for layer in range(2):
        p = kernel_weights(recorded, layer)
        mixed = run(recorded.encoder, recorded.encoding.ids, HookPoint.MIXED)[HookPoint.MIXED, layer]
        torch.testing.assert_close(recorded.mixed(layer, p), mixed, atol=1e-10, rtol=1e-8)
        torch.testing.assert_close(p.sum(-1), torch.ones_like(p.sum(-1)), atol=1e-5, rtol=0)
        entropy = -(p * p.log()).sum(-1).mean(-1) / np.log(N)
        np.testing.assert_allclose(tiles.evenness(recorded)[layer], entropy, atol=1e-12)


def test_blur_of_a_softmax_head():
    recorded = heard("post-norm")
    blurred = tiles.blur(recorded, 0, 1, features=(4, 64, 4096), seed=1)
    q, k, _, _, scores, shares = by_hand(recorded, 0, 1)
    np.testing.assert_allclose(blurred.exact, shares, atol=1e-12)
    plus = [np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (q, k)]
    elu = plus[0] @ plus[1].T
    elu /= elu.sum(1, keepdims=True)
    np.testing.assert_allclose(blurred.elu, elu, atol=1e-12)
    assert blurred.variation_elu == pytest.approx(np.abs(elu - shares).sum(1).mean() / 2)
    assert blurred.variation_even == pytest.approx(np.abs(1 / N - shares).sum(1).mean() / 2)
    assert blurred.largest_score == pytest.approx(np.abs(scores).max())
    # Random features estimate exp(q k / sqrt(K)) without bias, so their error falls as they become more.
    few, some, many = blurred.variation_favor
    assert many < some < few
    assert many < 0.1
    with pytest.raises(InvalidRequest, match="masks keys"):
        tiles.blur(heard("alibi-shared"), 0, 0)
    with pytest.raises(InvalidRequest, match="masks keys"):
        tiles.blur(heard("rotary-windows"), 0, 0)


def test_random_features_are_unbiased():
    generator = torch.Generator().manual_seed(0)
    q, k = 0.7 * torch.randn(2, 5, 8, dtype=torch.float64, generator=generator)
    rows = torch.randn(400_000, 8, dtype=torch.float64, generator=generator)
    estimated = (log_features(q, rows).exp() * log_features(k, rows).exp()).mean(-1)
    torch.testing.assert_close(estimated, ((q * k).sum(-1) / 8**0.5).exp(), rtol=0.03, atol=0)


@pytest.mark.parametrize("name", SOFTMAX)
@pytest.mark.parametrize("tile", [1, 4, 7, 50])
def test_tiles_give_the_whole(name, tile):
    recorded = heard(name)
    found = tiles.tiled(recorded, 1, 1, 6, tile=tile)
    mixed = run(recorded.encoder, recorded.encoding.ids, HookPoint.MIXED)[HookPoint.MIXED, 1][:, 1]
    assert found.output_size == pytest.approx(float(mixed.square().mean().sqrt()))
    assert found.error < 1e-12
    scores = np.where(recorded.allowed(1)[1, 6].numpy(), recorded.scores(1)[1, 6].numpy(), -np.inf)
    last = found.steps[-1]
    assert last.maximum == pytest.approx(scores.max())
    if name != "blocks":  # there a key may count more than once
        assert last.sum == pytest.approx(np.exp(scores - scores.max()).sum())
    assert (found.held_whole, found.held_tiled) == (N * N, tile * tile + 2 * tile)
    numbers = found.kernel_tile * (found.kernel_tile + 2 + recorded.mixer(1).head_width)
    assert found.bytes_tiled == (4 * numbers,) * len(found.lengths)


@pytest.mark.parametrize("radius", [0, 2, 30, None])
def test_pairs_are_counted(radius):
    places = np.arange(17)
    near = np.abs(np.subtract.outer(places, places)) <= (99 if radius is None else radius)
    assert pairs(17, radius) == near.sum()


def test_alternation_beside_loops():
    spec = SPECS["rotary-windows"]
    whole = replace(spec.layers[0], mixer=replace(spec.layers[0].mixer, position=Alibi()))
    near = replace(whole, mixer=replace(whole.mixer, pattern=SlidingWindow(2)))
    far = replace(
        whole, mixer=replace(whole.mixer, pattern=type(SPECS["post-norm"].layers[0].mixer.pattern)())
    )
    recorded = heard("", spec=replace(spec, layers=(near, far, near)))
    layers = reach.alternation(recorded)
    assert layers.radius == (2, None, 2)
    assert layers.field.tolist() == [1, 5, N, N]
    p = recorded.probabilities(1)[3].numpy()
    distance = sum(p[i, j] * abs(i - j) for i in range(N) for j in range(N)) / N
    beyond = sum(p[i, j] for i in range(N) for j in range(N) if abs(i - j) > 2) / N
    assert layers.distance[1, 3] == pytest.approx(distance)
    assert layers.beyond[1, 3] == pytest.approx(beyond)
    assert (layers.beyond[[0, 2]] == 0).all()
    even = np.mean([np.mean([abs(i - j) for j in range(N) if abs(i - j) <= 2]) for i in range(N)])
    assert layers.even_distance[0] == pytest.approx(even)
    with pytest.raises(InvalidRequest, match="windows"):
        reach.alternation(heard("blocks"))


def test_sinks_beside_the_layers_own_outputs():
    recorded = heard("post-norm")
    found = sinks.sinks(recorded)
    np.testing.assert_allclose(found.received.sum(1), 1)
    received = np.mean([by_hand(recorded, 1, head)[-1].mean(0) for head in range(3)], axis=0)
    np.testing.assert_allclose(found.received[1], received, atol=1e-12)
    assert found.sink == found.received.mean(0).argmax()
    out = recorded.encoder.block(1).attention.out.weight.detach().numpy()
    norms, shares = [], []
    for head in range(3):
        *_, p = values = by_hand(recorded, 1, head)
        norms.append(np.linalg.norm(values[2] @ out[:, 8 * head : 8 * head + 8].T, axis=1))
        weighted = p * norms[-1]
        shares.append((weighted / weighted.sum(1, keepdims=True)).mean(0))
    others = np.delete(norms[0], found.sink)
    assert found.value_ratio[1, 0] == pytest.approx(norms[0][found.sink] / np.median(others))
    np.testing.assert_allclose(found.norm_received[1], np.mean(shares, axis=0), atol=1e-12)


def test_a_sink_is_really_taken_away():
    recorded = heard("alibi-shared")
    found = sinks.sinks(recorded)
    bare = without(recorded.encoding, found.sink)
    assert len(bare) == N - 1
    kept = np.delete(np.arange(N), found.sink)
    assert (bare.ids == recorded.encoding.ids[kept]).all()
    last = (HookPoint.LAYER, 3)
    encoder = recorded.encoder
    segments = [recorded.encoding.token_type_ids, recorded.encoding.token_type_ids[kept]]
    assert not any(part.any() for part in segments)
    a, b = run(encoder, recorded.encoding.ids)[last][kept], run(encoder, bare.ids)[last]
    np.testing.assert_allclose(found.moved, ((a - b).norm(dim=-1) / a.norm(dim=-1)).numpy(), atol=1e-12)
    assert found.next_sink == kept[found.without.mean(0).argmax()]
    with pytest.raises(InvalidRequest, match="at least 4"):
        sinks.sinks(heard("post-norm", 3))


def test_collapse_beside_every_pair():
    recorded = heard("post-norm")
    collapsed = values.collapse(recorded)
    x = recorded.states[2].numpy()
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    pairs_of = [(i, j) for i in range(N) for j in range(N) if i != j]
    assert collapsed.cosine[2] == pytest.approx(np.mean([unit[i] @ unit[j] for i, j in pairs_of]))
    added = np.mean([unit[i] * unit[j] for i, j in pairs_of], axis=0)
    assert collapsed.share_of_one[2] == pytest.approx(added.max() / added.sum())
    fewer = np.delete(x, added.argsort()[-3:], axis=1)
    fewer /= np.linalg.norm(fewer, axis=1, keepdims=True)
    assert collapsed.cosine_left_out[3][2] == pytest.approx(
        np.mean([fewer[i] @ fewer[j] for i, j in pairs_of])
    )
    assert collapsed.residual[2] == pytest.approx(np.linalg.norm(x - x.mean(0)) / np.linalg.norm(x))
    y = recorded.states[0].numpy()
    for layer in range(3):
        y = np.mean([by_hand(recorded, layer, head)[-1] for head in range(3)], axis=0) @ y
    assert collapsed.averaged[-1] == pytest.approx(np.linalg.norm(y - y.mean(0)) / np.linalg.norm(y))


def test_too_long_a_text_and_what_is_not_there_are_refused():
    encoder = random_encoder(SPECS["rotary-windows"])
    with pytest.raises(InvalidRequest, match="at most 512"):
        record_text(encoder, dense.random_text(513))
    recorded = heard("post-norm")
    for layer, head in ((3, 0), (-1, 0), (0, 3), (0, -1)):
        with pytest.raises(InvalidRequest, match=r"has (layers|heads) 0 to 2"):
            handshake.handshake(recorded, layer, head)
    with pytest.raises(InvalidRequest, match="needs softmax attention"):
        heard("linear").probabilities(0)


def test_attention_sinks_are_refused_by_name():
    recorded = heard("sinks")
    for experiment in (
        lambda: handshake.handshake(recorded, 1, 0),
        lambda: handshake.trained_products(recorded),
        lambda: tiles.tiled(recorded, 0, 0, 3),
        lambda: values.values(recorded, 0, 0, 3),
    ):
        with pytest.raises(InvalidRequest, match=r"layer [01] has attention sinks"):
            experiment()
    assert not softmax(SPECS["sinks"])
    assert softmax(SPECS["post-norm"])
