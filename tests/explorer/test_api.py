"""Every route of the API, without a server, against the library and against dense computations."""

import math
from contextlib import closing

import numpy as np
import pytest

from tests.explorer.conftest import TEXT, Asking
from tests.support.explorable import HEADS, LAYERS, WIDTH, FakeModel
from unmask.errors import UnmaskError
from unmask.explorer import Api
from unmask.explorer.wire.tiles import codes, pooled
from unmask.interpret.attention.layer_statistics import CLASSES
from unmask.interpret.attention.patterns import CLEAR, SHAPES, head_patterns
from unmask.interpret.words.words import words
from unmask.kernels import Tile

LONG = " ".join(["the river bank was muddy , another text ."] * 4)


@pytest.fixture(scope="module")
def text_id(asking):
    return asking.measured()


@pytest.fixture(scope="module")
def view(model):
    return model.attention(TEXT)


@pytest.fixture(scope="module")
def dense(model, view):
    """Probabilities of every head, float64, (L, H, N, N)."""
    return np.array(
        [[view.probabilities(layer, head) for head in range(HEADS)] for layer in range(LAYERS)],
        dtype=np.float64,
    )


def test_session(asking, model):
    session = asking.json("session")
    assert session["versions"].keys() >= {"unmask", "torch", "numpy"}
    first, second = session["models"]
    assert (first["name"], first["phase"], first["can_fill"], first["maps"]) == (
        model.name,
        "ready",
        True,
        True,
    )
    assert (first["layers"], first["heads"], first["width"]) == (LAYERS, [HEADS] * LAYERS, WIDTH)
    assert first["layer_kinds"] == ["full attention"] * LAYERS
    assert first["max_tokens"] == 32
    assert (second["index"], second["can_fill"], second["layers"]) == (1, False, 2)
    assert session["limits"]["tile_cells"] == 256


def test_a_text_is_described_at_once(asking):
    text_id, read = asking.read()
    assert read["total_tokens"] == read["kept_tokens"] == len(read["tokens"])
    assert asking.json(f"texts/{text_id}") == read
    for token in read["tokens"]:
        if not token["special"]:
            assert TEXT[token["start"] : token["end"]] == token["surface"]
        word = read["words"][token["word"]]
        assert word["first"] <= read["tokens"].index(token) < word["stop"]
    assert {token["category"] for token in read["tokens"]} >= {"special", "punctuation", "word"}
    surfaces = [word["surface"] for word in read["words"]]
    assert surfaces[1:4] == ["The", "river", "bank"]
    assert asking.json(f"texts/{text_id}/words")["words"] == read["words"]


def test_ids_are_stable(asking, model, other):
    first, _ = asking.read()
    again, _ = Asking(Api([FakeModel(), other])).read()
    assert again == first, "a server that was started again knows the text by the same id"
    ids = {
        asking.read(TEXT, model=1)[0],
        asking.read(TEXT, pair="a bank")[0],
        first,
        asking.read("the text")[0],
    }
    assert len(ids) == 4


def test_two_models_of_one_folder_name_are_two_models():
    """A run writes its model into a folder "model": two runs must not be compared with themselves."""
    models = [FakeModel("model"), FakeModel("model", seed=1)]
    asking = Asking(Api(models))
    ids = [asking.measured(TEXT, model=at) for at in (0, 1)]
    reads = [asking.json(f"texts/{text_id}") for text_id in ids]
    assert [read["model_index"] for read in reads] == [0, 1]
    names = [read["model"] for read in reads]
    assert names == [model["name"] for model in asking.json("session")["models"]]
    parents = [model.checkpoint.source.folder.parent.name for model in models]
    assert names == [f"{parent}/model" for parent in parents]
    for text_id, model in zip(ids, models, strict=True):
        values, _ = asking.arrays(f"texts/{text_id}/values/2/3")
        expected = model.attention(TEXT).probabilities(2, 3)
        np.testing.assert_allclose(values["values"], expected, atol=1e-6)
    compared, _ = asking.arrays(f"compare/{ids[0]}/{ids[1]}")
    assert np.diag(compared["distance"]).min() > 1e-3
    asking.api.close()


def test_one_checkpoint_twice_is_two_models():
    """One of the two may have been trained further in memory."""
    asking = Asking(Api([FakeModel(), FakeModel()]))
    reads = [asking.read(TEXT, model=at)[1] for at in (0, 1)]
    assert [(read["model_index"], read["model"]) for read in reads] == [(0, "fake"), (1, "fake (2)")]
    assert reads[0]["id"] != reads[1]["id"]
    asking.api.close()


def test_other_weights_in_the_same_folder_are_another_text():
    """A page that outlived its server must not go on with answers of a model that is no longer there."""
    ids = []
    for seed in (0, 1):
        asking = Asking(Api([FakeModel(seed=seed)]))
        ids.append(asking.read()[0])
        asking.api.close()
    assert ids[0] != ids[1]


def test_what_a_text_holds_cannot_pass_for_a_pair(asking):
    pair, _ = asking.read("the river", pair="the bank")
    joined, read = asking.read("the river\0the bank")
    assert (joined != pair, read["pair"]) == (True, None)


def test_a_pair_of_texts(asking):
    _, read = asking.read("the river", pair="a bank")
    assert read["pair"] == "a bank"
    assert [token["surface"] for token in read["tokens"] if token["in_pair"]][:2] == ["a", "bank"]


def test_state(asking, text_id):
    state = asking.json(f"texts/{text_id}/state")
    assert (state["phase"], state["readable"], state["ready"]) == ("done", True, [True] * LAYERS)
    assert state["stated_bytes"] > 0
    assert state["problem"] is None


def test_values_are_exact(asking, text_id, dense):
    arrays, meta = asking.arrays(f"texts/{text_id}/values/2/3?rows=1:4&columns=2:7")
    np.testing.assert_allclose(arrays["values"], dense[2, 3, 1:4, 2:7], atol=1e-6)
    assert (meta["rows"], meta["columns"], meta["kind"]) == ([1, 4], [2, 7], "softmax")
    whole, _ = asking.arrays(f"texts/{text_id}/values/0/1")
    np.testing.assert_allclose(whole["values"].sum(axis=1), 1, rtol=1e-5)
    weighted, _ = asking.arrays(f"texts/{text_id}/values/0/1?weight=norm")
    norm, _ = asking.arrays(f"texts/{text_id}/head/0/1")
    expected = dense[0, 1] * norm["norm"]
    np.testing.assert_allclose(weighted["values"], expected / expected.sum(1, keepdims=True), atol=1e-5)


def test_tiles_are_codes_of_the_values(asking, text_id, dense):
    for pool in ("max", "mean"):
        arrays, meta = asking.arrays(f"texts/{text_id}/tiles/1/2/0/0/0?pool={pool}")
        assert np.abs(arrays["codes"].astype(int) - codes(dense[1, 2])).max() <= 1
        assert (meta["cell"], meta["pool"], meta["weight"]) == (1, pool, "raw")


def test_overview(asking, text_id, dense):
    arrays, _ = asking.arrays(f"texts/{text_id}/overview?pool=max")
    length = dense.shape[-1]
    assert arrays["codes"].shape == (LAYERS, HEADS, length, length)
    assert arrays["ready"].tolist() == [1] * LAYERS
    assert np.abs(arrays["codes"].astype(int) - codes(dense)).max() <= 1
    assert asking.arrays(f"texts/{text_id}/overview?weight=norm&pool=max")[1]["pool"] == "mean"


def test_statistics_of_heads(asking, text_id, dense):
    arrays, meta = asking.arrays(f"texts/{text_id}/heads")
    length = dense.shape[-1]
    at = np.arange(length)
    apart = np.abs(at[:, None] - at)
    entropy = -(dense * np.log(dense)).sum(-1).mean(-1)
    np.testing.assert_allclose(arrays["entropy"], entropy, rtol=1e-4)
    np.testing.assert_allclose(arrays["entropy_share"], entropy / math.log(length), rtol=1e-4)
    distance = (dense * apart).sum(-1).mean(-1)
    np.testing.assert_allclose(arrays["distance"], distance, rtol=1e-4)
    np.testing.assert_allclose(arrays["distance_share"], distance / apart.mean(), rtol=1e-4)
    np.testing.assert_allclose(arrays["sink_mass"], dense.mean(2).max(-1), rtol=1e-4)
    assert np.array_equal(arrays["sink_token"], dense.mean(2).argmax(-1))
    assert tuple(meta["classes"]) == CLASSES
    np.testing.assert_allclose(arrays["classes"][..., 0], np.einsum("lhnn->lh", dense) / length, rtol=1e-4)
    assert arrays["label"].max() < len(meta["labels"])
    # What is named beyond special tokens, the first and the last, has the share of these beside it.
    resting = dense[:, :, 1:-1][..., [0, -1]].sum(-1).mean(-1)
    np.testing.assert_allclose(arrays["special_mass"], resting, rtol=1e-4)


def test_statistics_of_one_head(asking, text_id, dense):
    arrays, _ = asking.arrays(f"texts/{text_id}/head/1/0")
    np.testing.assert_allclose(arrays["attention_received"], dense[1, 0].mean(0), rtol=1e-4)
    np.testing.assert_allclose(arrays["max_received"], dense[1, 0].max(0), rtol=1e-4)
    assert arrays["profile"].sum() == pytest.approx(1, rel=1e-5)
    assert len(arrays["profile_edges"]) == len(arrays["profile"]) + 1


def test_edges_of_all_heads(asking, text_id, dense):
    arrays, _ = asking.arrays(f"texts/{text_id}/edges/0")
    order = np.argsort(-dense[0], axis=-1, kind="stable")[..., :8]
    assert np.array_equal(arrays["keys"], order)
    np.testing.assert_allclose(arrays["values"], np.take_along_axis(dense[0], order, -1), rtol=1e-4)
    assert not arrays["left_out"].any()


def test_edges_without_special_tokens(asking, text_id, dense):
    """[CLS] and [SEP] are the first and the last token; the rest of each row sums to 1 again."""
    arrays, _ = asking.arrays(f"texts/{text_id}/edges/1?special=hide")
    kept = dense[1][:, 1:-1, 1:-1]
    np.testing.assert_allclose(arrays["left_out"][:, 1:-1], 1 - kept.sum(-1), rtol=1e-3, atol=1e-6)
    kept = kept / kept.sum(-1, keepdims=True)
    np.testing.assert_allclose(arrays["values"][:, 1:-1], -np.sort(-kept, axis=-1)[..., :8], rtol=1e-4)
    assert (arrays["keys"][:, [0, -1]] == -1).all()
    assert not np.isin(arrays["keys"], (0, dense.shape[-1] - 1)).any()
    np.testing.assert_allclose(arrays["received"][:, 1:-1], kept.mean(1), rtol=1e-4, atol=1e-7)


def test_fewer_edges_are_the_first_of_all(asking, text_id):
    whole, _ = asking.arrays(f"texts/{text_id}/edges/1?special=hide")
    few, _ = asking.arrays(f"texts/{text_id}/edges/1?special=hide&most=2")
    shown, _ = asking.arrays(f"texts/{text_id}/edges/1?special=show")
    assert not shown["left_out"].any()
    assert np.isin(shown["keys"], 0).any()  # [CLS], of the same layer
    for name in ("keys", "values"):
        assert np.array_equal(few[name], whole[name][..., :2])
    assert np.array_equal(few["left_out"], whole["left_out"])
    assert "most is '9'" in asking.problem(f"texts/{text_id}/edges/1?most=9", 400)["sentence"]


@pytest.mark.parametrize("weight", ["raw", "norm"])
def test_edges_between_the_texts_of_a_pair(asking, text_id, weight):
    pair_id = asking.measured(pair="the bank was a text")
    answer = asking.json(f"texts/{pair_id}")
    whole, _ = asking.arrays(f"texts/{pair_id}/values/1/2?weight={weight}")
    found, _ = asking.arrays(f"texts/{pair_id}/edges/1/pair?weight={weight}&most=3")
    of = np.array([2 if token["special"] else int(token["in_pair"]) for token in answer["tokens"]])
    for text in (0, 1):
        there = np.where(of == text, whole["values"], 0)
        there[of == 2] = 0
        there = there.astype(np.float64)
        rows = np.flatnonzero(of < 2)
        np.testing.assert_allclose(found["kept"][text, 2, rows], there[rows].sum(-1), rtol=1e-4)
        order = np.argsort(-there, axis=-1, kind="stable")[:, :3]
        assert np.array_equal(found["keys"][text, 2, rows], order[rows])
        as_they_were = found["values"][text, 2] * found["kept"][text, 2][:, None]
        np.testing.assert_allclose(as_they_were[rows], np.take_along_axis(there, order, -1)[rows], rtol=1e-4)
        assert (found["keys"][text][:, of == 2] == -1).all()
    assert "single text" in asking.problem(f"texts/{text_id}/edges/1/pair", 409)["sentence"]


def without_special(p):
    """A dense map of one head without its first and last token, which are special."""
    kept = np.zeros_like(p)
    kept[1:-1, 1:-1] = p[1:-1, 1:-1] / p[1:-1, 1:-1].sum(-1, keepdims=True)
    return kept


def test_maps_without_special_tokens(asking, text_id, dense):
    expected = without_special(dense[1, 2])
    found, _ = asking.arrays(f"texts/{text_id}/values/1/2?special=hide")
    np.testing.assert_allclose(found["values"], expected, rtol=1e-4)
    found, _ = asking.arrays(f"texts/{text_id}/values/1/2?rows=0:3&columns=2:5&special=hide")
    np.testing.assert_allclose(found["values"], expected[:3, 2:5], rtol=1e-4)
    weighted, _ = asking.arrays(f"texts/{text_id}/values/1/2?weight=norm")
    found, _ = asking.arrays(f"texts/{text_id}/values/1/2?weight=norm&special=hide")
    np.testing.assert_allclose(found["values"], without_special(weighted["values"]), rtol=1e-4)
    for weight in ("raw", "norm"):
        values, _ = asking.arrays(f"texts/{text_id}/values/1/2?weight={weight}&special=hide")
        tile, _ = asking.arrays(f"texts/{text_id}/tiles/1/2/0/0/0?weight={weight}&special=hide")
        assert np.array_equal(tile["codes"], codes(values["values"]))
        small, meta = asking.arrays(f"texts/{text_id}/overview?weight={weight}&special=hide")
        assert meta["cell"] == 1
        assert np.array_equal(small["codes"][1, 2], tile["codes"])


def test_patterns_of_a_layer(asking, text_id, view):
    answer = asking.json(f"texts/{text_id}/patterns/1")
    assert (tuple(answer["shapes"]), answer["clear"]) == (SHAPES, CLEAR)
    expected = head_patterns(view.cache, view.statistics(), layers=(1,))
    assert answer["scores"] == [list(expected.of(1, head).values()) for head in range(HEADS)]
    asking.problem(f"texts/{text_id}/patterns/{LAYERS}", 400)


OVERS = {
    "layer_mean": (1, np.mean),
    "layer_max": (1, np.max),
    "all_mean": (0, np.mean),
    "all_max": (0, np.max),
}


@pytest.mark.parametrize("over", OVERS)
def test_maps_of_many_heads_as_one(asking, text_id, dense, view, over):
    """Of a layer and of all: values, tiles and words, with and without special tokens, whatever the head."""
    whole, pool = OVERS[over]
    for special, change in (("show", lambda p: p), ("hide", without_special)):
        maps = np.stack([[change(p) for p in layer] for layer in dense])
        expected = pool(maps[1] if whole else np.concatenate(maps), axis=0)
        about = f"special={special}&over={over}"
        found, _ = asking.arrays(f"texts/{text_id}/values/1/2?{about}")
        np.testing.assert_allclose(found["values"], expected, atol=1e-6)
        part, _ = asking.arrays(f"texts/{text_id}/values/1/0?rows=1:4&columns=2:7&{about}")
        np.testing.assert_allclose(part["values"], expected[1:4, 2:7], atol=1e-6)
        tile, meta = asking.arrays(f"texts/{text_id}/tiles/1/2/0/0/0?{about}")
        assert np.array_equal(tile["codes"], codes(found["values"]))
        assert meta["pool"] == over.split("_")[1]
        firsts = words(view.encoding).first_tokens
        sums = np.add.reduceat(expected, firsts, axis=1)
        means = [rows.mean(0) for rows in np.split(sums, firsts[1:])]
        found, _ = asking.arrays(f"texts/{text_id}/words/1/2?{about}")
        np.testing.assert_allclose(found["values"], means, atol=1e-6)
    asking.problem(f"texts/{text_id}/values/1/2?over=sum", 400)


def test_a_coarse_tile_of_many_heads_pools_cells_as_heads():
    with closing(Api([FakeModel(max_tokens=320)])) as api:
        asking = Asking(api)
        text_id = asking.measured("the river bank " * 90)
        for over, pool in (("all_mean", np.mean), ("layer_max", np.max)):
            tile, meta = asking.arrays(f"texts/{text_id}/tiles/1/2/1/0/0?over={over}")
            values, _ = asking.arrays(f"texts/{text_id}/values/1/2?over={over}")
            p, cells = values["values"].astype(np.float64), len(tile["codes"])
            assert meta["cell"] == 2
            expected = [
                [pool(p[2 * y : 2 * y + 2, 2 * x : 2 * x + 2]) for x in range(cells)] for y in range(cells)
            ]
            assert np.abs(tile["codes"].astype(int) - codes(np.array(expected))).max() <= 1


def test_a_coarse_tile_without_special_tokens_is_not_the_one_that_is_kept():
    with closing(Api([FakeModel(max_tokens=320)])) as api:
        asking = Asking(api)
        text_id = asking.measured("the river bank " * 90)
        tile, meta = asking.arrays(f"texts/{text_id}/tiles/1/2/1/0/0?special=hide")
        values, _ = asking.arrays(f"texts/{text_id}/values/1/2?special=hide")
        whole = Tile(0, meta["tokens"], 0, meta["tokens"])
        assert meta["cell"] == 2
        most, _ = pooled([(0, values["values"])], whole, 2)
        assert np.array_equal(tile["codes"], codes(most))


def test_sinks(asking, text_id, dense):
    answer = asking.json(f"texts/{text_id}/sinks?epsilon=0.2")
    length = dense.shape[-1]
    assert (answer["epsilon"], len(answer["layers"])) == (0.2, LAYERS)
    assert answer["baseline"] == pytest.approx(1 / length)
    received = dense.mean(2).reshape(-1, length)
    by_token = {token["token"]: token for token in answer["tokens"]}
    assert by_token.keys() == set(np.flatnonzero((received > 0.2).any(0)).tolist())
    for token, one in by_token.items():
        assert one["mass"] == pytest.approx(received[:, token].mean(), rel=1e-4)
        assert one["adapted_rate"] == pytest.approx((received[:, token] > 0.2).mean())
    assert len(answer["heads"]) == LAYERS * HEADS
    for one in answer["heads"]:
        assert one["type"] in ("no-op", "broadcast", "neither")
        assert one["mass"] == pytest.approx(dense[one["layer"], one["head"]].mean(0).max(), rel=1e-4)
        p = dense[one["layer"], one["head"]]
        causal = p[one["token"] :, one["token"]].mean()
        assert one["causal"] == pytest.approx(causal, rel=1e-4)


def test_rollout(asking, text_id, dense):
    arrays, meta = asking.arrays(f"texts/{text_id}/rollout?token=3&fusion=mean")
    row = np.eye(dense.shape[-1])[3]
    for layer in reversed(range(LAYERS)):
        row = row @ (dense[layer].mean(0) + np.eye(len(row))) / 2
    np.testing.assert_allclose(arrays["values"][0], row, atol=1e-6)
    assert meta == {"token": 3, "fusion": "mean"}


def test_fill_and_logit_lens_agree_with_the_library(asking, text_id, model):
    token = 3
    described = asking.json(f"texts/{text_id}")["tokens"][token]
    masked = TEXT[: described["start"]] + "[MASK]" + TEXT[described["end"] :]
    (expected,) = model.fill(masked, top_k=4)
    answer = asking.json(f"texts/{text_id}/fill?token={token}&top=4")
    assert [prediction["id"] for prediction in answer["predictions"]] == [
        prediction.id for prediction in expected.predictions
    ]
    for one, other in zip(answer["predictions"], expected.predictions, strict=True):
        assert one["probability"] == pytest.approx(other.probability, rel=1e-4)
    assert (answer["own"]["id"], answer["was_mask"]) == (described["id"], False)
    (every,) = model.fill(masked, top_k=model.spec.embedding.vocabulary)
    assert answer["own"]["rank"] == 1 + [word.id for word in every.predictions].index(described["id"])
    lens = asking.json(f"texts/{text_id}/lens?token={token}&top=4")
    assert len(lens["levels"]) == LAYERS + 1
    assert lens["levels"][-1]["predictions"] == answer["predictions"]
    assert lens["levels"][-1]["own"] == answer["own"]
    few = asking.json(f"texts/{text_id}/lens?token={token}&top=2")
    assert [level["predictions"] for level in few["levels"]] == [
        level["predictions"][:2] for level in lens["levels"]
    ]


def test_a_mask_in_the_text_is_not_masked_again(asking):
    text_id = asking.measured("the [MASK] bank")
    answer = asking.json(f"texts/{text_id}/fill?token=2")
    assert (answer["was_mask"], answer["own"]) == (True, None)
    assert asking.json(f"texts/{text_id}/lens?token=2")["masked"] is False


def test_effects_have_the_sign_that_is_said(asking, text_id):
    importance, meta = asking.arrays(f"texts/{text_id}/importance?token=3")
    assert importance["values"].shape == (LAYERS, HEADS)
    agree = []
    for layer in range(LAYERS):
        for head in range(HEADS):
            answer = asking.json(f"texts/{text_id}/ablate/{layer}/{head}?token=3&how=zero")
            assert answer["effect"] == pytest.approx(answer["before"] - answer["after"], abs=1e-6)
            assert answer["estimate"] == pytest.approx(float(importance["values"][layer, head]), rel=1e-4)
            assert (answer["what"], answer["unit"]) == (meta["what"], meta["unit"])
            agree.append((answer["effect"], answer["estimate"]))
    assert np.corrcoef(np.array(agree).T)[0, 1] > 0.5, "an estimate points the way the measurement goes"
    mean = asking.json(f"texts/{text_id}/ablate/{layer}/{head}?token=3&how=mean")
    assert (mean["how"], mean["before"], mean["estimate"]) == ("mean", answer["before"], None)
    assert mean["effect"] != pytest.approx(answer["effect"], rel=1e-3)


def test_attribution(asking, text_id):
    for target in ("word", "embedding"):
        arrays, meta = asking.arrays(f"texts/{text_id}/relevance?token=3&target={target}")
        np.testing.assert_allclose(arrays["values"], arrays["by_layer"].sum(0), rtol=1e-4, atol=1e-7)
        assert meta["target"] == target
        assert "token 3" in meta["words"]
        assert meta["words"].endswith({"word": ", by its logit", "embedding": ", by its length"}[target])
    _, meta = asking.arrays(f"texts/{text_id}/relevance?target=embedding")
    assert meta["token"] is None


def test_methods_of_attribution(asking, text_id):
    question = f"texts/{text_id}/relevance?token=3&target=embedding&method"
    arrays, meta = asking.arrays(f"{question}=integrated_gradients&baseline=pad&steps=12")
    assert set(arrays) == {"values"}
    path = meta["completeness"]
    assert (meta["baseline"], path["steps"], meta["unit"]) == ("pad", 12, "length")
    gap = arrays["values"].sum() - path["at_text"] + path["at_baseline"]
    assert path["gap"] == pytest.approx(gap, abs=1e-5)
    arrays, meta = asking.arrays(f"{question}=attention_x_gradient")
    np.testing.assert_allclose(arrays["values"], arrays["by_layer"].sum(0), rtol=1e-4, atol=1e-7)
    assert (meta["method"], meta["completeness"]) == ("attention_x_gradient", None)
    assert "one of chefer" in asking.problem(f"{question}=lime", 400)["sentence"]


def test_words(asking, text_id, dense):
    arrays, meta = asking.arrays(f"texts/{text_id}/words/1/1")
    answer = asking.json(f"texts/{text_id}")
    groups = [slice(word["first"], word["stop"]) for word in answer["words"]]
    expected = [[dense[1, 1, a, b].sum(1).mean() for b in groups] for a in groups]
    np.testing.assert_allclose(arrays["values"], expected, atol=1e-6)
    assert meta["words"] == len(groups)
    found, _ = asking.arrays(f"texts/{text_id}/words/1/1?special=hide")
    kept = without_special(dense[1, 1])
    expected = [[kept[a, b].sum(1).mean() for b in groups] for a in groups]
    np.testing.assert_allclose(found["values"], expected, atol=1e-6)
    assert not found["values"][[0, -1]].any()


def test_vocabulary_and_geometry(asking, text_id):
    assert asking.json(f"texts/{text_id}/vocabulary")["pieces_per_word"] >= 1
    answer = asking.json(f"texts/{text_id}/geometry")
    assert answer["levels"] == []
    assert "30" in answer["problem"]["sentence"]


def test_two_models_on_one_text(asking, text_id):
    second = asking.measured(TEXT, model=1)
    arrays, meta = asking.arrays(f"compare/{text_id}/{second}")
    assert arrays["distance"].shape == (LAYERS * HEADS, 2 * HEADS)
    assert len(meta["matches"]) == 2 * HEADS
    assert meta["alignment"][0]["start"] == 0
    assert meta["alignment"][-1]["end"] == len(TEXT)
    # Too few tokens for CKA: an empty grid and the reason.
    assert arrays["cka"].shape == (0, 0)
    assert "30" in meta["cka_note"]
    itself, meta = asking.arrays(f"compare/{text_id}/{text_id}")
    assert np.abs(np.diag(itself["distance"])).max() < 1e-6
    assert all(match["a"] == match["b"] for match in meta["matches"])
    different = asking.measured("another text")
    assert asking.problem(f"compare/{text_id}/{different}", 400)["kind"] == "InvalidRequest"


def test_a_bias_by_distance_is_a_part_of_the_scores():
    keys = {"model_type": "mpnet", "architectures": ["MPNetForMaskedLM"], "pad_token_id": 0}
    api = Api([FakeModel("mpnet", **keys)])
    asking = Asking(api)
    text_id = asking.measured(TEXT)
    whole, meta = asking.arrays(f"texts/{text_id}/values/1/2?part=bias")
    assert meta["parts"] == ["content", "bias"]
    bias = whole["values"]
    assert bias.std() > 0.1
    assert all(np.ptp(np.diagonal(bias, offset)) < 1e-5 for offset in range(1 - len(bias), len(bias)))
    assert len(asking.json(f"texts/{text_id}/fill?token=2")) > 0
    api.close()


def test_a_model_without_what_is_asked_says_so(asking):
    text_id = asking.measured(TEXT, model=1)
    for path in ("fill?token=2", "lens?token=2", "relevance?token=2&target=word"):
        error = asking.problem(f"texts/{text_id}/{path}", 409)
        assert "masked" in error["sentence"]
    assert "classifier" in asking.problem(f"texts/{text_id}/relevance?token=2&target=class", 409)["sentence"]
    error = asking.problem(f"texts/{text_id}/values/0/0?part=content_position", 409)
    assert "content_position" in error["sentence"]
    # Without a head for words, effects are on the token's state.
    assert asking.json(f"texts/{text_id}/ablate/0/0?token=2")["unit"] == "cosine"


@pytest.mark.parametrize(
    "path",
    [
        *("head/3/0", "head/0/4", "head/x/0", "head/²/0", "values/0/0?rows=0:99", "values/0/0?rows=3:3"),
        *("values/0/0?rows=-1:2", "values/0/0?columns=a:b", "values/0/0?weight=heavy", "tiles/0/0/1/0/0"),
        *("tiles/0/0/0/1/0", "tiles/0/0/0/0/0?pool=median", "sinks?epsilon=2", "sinks?epsilon=0"),
        "sinks?epsilon=nan",
        *(
            "rollout?token=99",
            "rollout?fusion=sum",
            "fill",
            "fill?token=-1",
            "fill?token=1&top=0",
            "lens?token=1e3",
        ),
        *("ablate/0/0?token=1&how=twice", "relevance?token=1&target=fame", "geometry?random=perhaps"),
    ],
)
def test_bad_requests_are_one_sentence(asking, text_id, path):
    error = asking.problem(f"texts/{text_id}/{path}", 400)
    assert error["kind"] == "InvalidRequest"


@pytest.mark.parametrize(
    "body",
    [
        {}, [], {"text": 1}, {"text": "a", "pair": 2}, {"text": "a", "too_long": "maybe"},
        {"text": "a", "model": "x"}, {"text": "a", "model": True}, {"text": "a", "model": 2},
    ],
)  # fmt: skip
def test_bad_bodies(asking, body):
    asking.problem("texts", 400, "POST", body)


def test_texts_that_cannot_be_read(asking):
    assert asking.problem("texts", 422, "POST", {"text": " \n"})["kind"] == "EmptyText"
    assert asking.problem("texts", 422, "POST", {"text": "a \ud83d b"})["kind"] == "InvalidText"
    error = asking.problem("texts", 422, "POST", {"text": LONG})
    assert (error["kind"], error["max_tokens"]) == ("TextTooLong", 32)
    _, cut = asking.read(LONG, too_long="cut")
    assert (cut["total_tokens"], cut["kept_tokens"]) == (error["total_tokens"], 32)


def test_unknown_things(asking):
    assert asking.problem("texts/nothing/heads", 404)["kind"] == "UnknownText"
    assert asking.problem("elsewhere", 404)["kind"] == "UnknownRoute"
    assert asking.problem("session", 404, "POST", {})["kind"] == "UnknownRoute"


def test_tour_and_roofline_are_there(asking):
    chapters = asking.json("tour")["chapters"]
    assert len(chapters) >= 10
    answer = asking.json(f"tour/{chapters[0]['id']}?text=the+river+bank")
    assert answer["chapter"] == chapters[0]["id"]
    assert asking.problem("tour/nothing", 400)["kind"] == "InvalidRequest"
    assert "model is '9'" in asking.problem("roofline?model=9", 400)["sentence"]
    roofline = asking.json("roofline")
    assert roofline == asking.json("roofline")  # measured once
    assert [cost["tokens"] for cost in roofline["costs"]] == [64, 256, 1024, 4096]
    assert (
        min(roofline["gflop_per_second"], roofline["gbytes_per_second"], roofline["costs"][0]["seconds"]) > 0
    )


def test_answers_do_not_name_what_is_not_finite(asking, monkeypatch):
    text_id = asking.measured("A text of which no answer is cached.")
    monkeypatch.setattr(
        "unmask.interpret.attention.rectangles.LayerCache.blocks",
        lambda *_, **__: iter([(0, np.full((2, 2), np.nan, dtype=np.float32))]),
    )
    for path in ("values/0/0", "tiles/2/1/0/0/0?weight=norm"):
        assert asking.problem(f"texts/{text_id}/{path}", 500)["kind"] == "NonFiniteResult"


def test_a_fault_of_ours_is_still_a_sentence(asking, monkeypatch, capfd):
    def fault(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("unmask.explorer.sessions.described.versions", fault)
    monkeypatch.setattr("unmask.explorer.routes.session.versions", fault)
    assert asking.problem("session", 500)["kind"] == "InternalError"
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_pooling_of_a_long_text(model):
    """A text of several zoom levels: every tile is the pool of exact values."""
    asking = Asking(Api([FakeModel("long", max_tokens=700, num_hidden_layers=1)]))
    text_id = asking.measured("the river bank " * 220)
    length = asking.json(f"texts/{text_id}")["kept_tokens"]
    rows = [
        asking.arrays(f"texts/{text_id}/values/0/1?rows={start}:{start + 1}")[0]["values"]
        for start in range(length)
    ]
    whole = np.concatenate(rows)
    for z in (1, 2):
        part = Tile(0, min(length, 256 << z), 0, min(length, 256 << z))
        square = whole[: part.end_row, : part.end_column]
        for pool, expected in zip(("max", "mean"), pooled([(0, square)], part, 1 << z), strict=True):
            tile, meta = asking.arrays(f"texts/{text_id}/tiles/0/1/{z}/0/0?pool={pool}")
            assert meta["cell"] == 1 << z
            assert np.abs(tile["codes"].astype(int) - codes(expected)).max() <= 1
    column, _ = asking.arrays(f"texts/{text_id}/values/0/1?columns=9:10")
    np.testing.assert_allclose(column["values"][:, 0], whole[:, 9], rtol=1e-4)
    assert asking.problem(f"texts/{text_id}/tiles/0/1/3/0/0", 400)
    thumbnails, meta = asking.arrays(f"texts/{text_id}/overview")
    size = thumbnails["codes"].shape[-1]
    assert size <= 32
    assert (size - 1) * meta["cell"] < length <= size * meta["cell"]
    assert thumbnails["codes"][0, 1].max() == codes(whole).max(), (
        "the largest is seen in the smallest picture"
    )
    asking.api.close()


def test_no_models_is_an_error():
    with pytest.raises(UnmaskError, match="no model"):
        Api([])
