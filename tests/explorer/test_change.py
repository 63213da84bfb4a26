"""What changes between two texts in one model, by the API: against the analyses themselves."""

import numpy as np
import pytest

from tests.explorer.conftest import TEXT
from unmask.interpret.attention.comparison import attention_change, compare_texts, word_probabilities
from unmask.interpret.effects.patching import patch_activations
from unmask.interpret.effects.target import TargetScore, Word
from unmask.text.tokenizer import masked

BEFORE = TEXT
AFTER = "The river water was muddy, so another big bank was 3."


@pytest.fixture(scope="module")
def both(asking):
    return asking.measured(BEFORE), asking.measured(AFTER)


@pytest.fixture(scope="module")
def views(model):
    return model.attention(BEFORE), model.attention(AFTER)


def test_words_states_and_embeddings(asking, both, views):
    arrays, meta = asking.arrays("change/{}/{}".format(*both))
    expected = compare_texts(*(view.cache for view in views))
    np.testing.assert_allclose(arrays["cosine"], expected.state_cosine, atol=1e-6)
    assert meta["embedding_cosine"] == pytest.approx(expected.embedding_cosine, abs=1e-6)
    assert (meta["before"], meta["after"], meta["pooling"]) == (*both, "mean")
    read = [asking.json(f"texts/{one}")["words"] for one in both]

    def surface(side, word):
        return None if word is None else read[side][word]["surface"]

    changed = [
        (one["change"], surface(0, one["before"]), surface(1, one["after"]))
        for one in meta["pairs"]
        if one["change"] != "kept"
    ]
    assert changed == [("replaced", "bank", "water"), ("inserted", None, "big")]


def test_heads(asking, both, views):
    arrays, meta = asking.arrays("change/{}/{}/heads".format(*both))
    expected = attention_change(*(view.cache for view in views))
    for name in ("moved", "to_removed", "to_inserted"):
        np.testing.assert_allclose(arrays[name], getattr(expected, name), atol=1e-6)
    assert meta["queries"] == meta["of"] == len(compare_texts(*(view.cache for view in views)).aligned)


def place_of(asking, text, surface):
    words = asking.json(f"texts/{text}")["words"]
    return next((word, one["first"]) for word, one in enumerate(words) if one["surface"] == surface)


def test_predictions_before_and_after(asking, both, model):
    _, token = place_of(asking, both[1], "muddy")
    answer = asking.json("change/{}/{}/fill?token={}&top=3".format(*both, token))
    assert not answer["same"]
    here = answer["token_before"]
    before, after = (model.tokenizer.encode(text) for text in (BEFORE, AFTER))
    assert before.surface(here) == after.surface(token)
    p, q = (
        word_probabilities(model_cache(model, masked(one, [at], model.tokenizer)), at)
        for one, at in ((before, here), (after, token))
    )
    ids = [prediction["id"] for prediction in answer["predictions"]]
    assert {answer["own_before"], answer["own_after"], *np.argsort(-p)[:3], *np.argsort(-q)[:3]} == set(ids)
    np.testing.assert_allclose(
        [prediction["before"] for prediction in answer["predictions"]], p[ids], atol=1e-6
    )
    np.testing.assert_allclose(
        [prediction["after"] for prediction in answer["predictions"]], q[ids], atol=1e-6
    )
    # The same number by another path: the target that ablations measure.
    cache = model_cache(model, masked(after, [token], model.tokenizer))
    score = TargetScore(cache, Word(token, ids[0])).of(cache.states[-1])
    assert np.exp(score) == pytest.approx(q[ids[0]], rel=1e-4)


def model_cache(model, encoding):
    from unmask.interpret import ActivationCache

    return ActivationCache.of(model.encoder, encoding)


def test_nothing_changes_at_the_word_that_was_replaced(asking):
    one, other = asking.measured("The river bank was muddy."), asking.measured("The river text was muddy.")
    _, token = place_of(asking, other, "text")
    answer = asking.json(f"change/{one}/{other}/fill?token={token}")
    assert answer["same"]
    assert all(word["before"] == pytest.approx(word["after"]) for word in answer["predictions"])
    assert answer["own_before"] != answer["own_after"]


def test_guesses_stand_for_a_whole_word(asking, both, model):
    _, token = place_of(asking, both[0], "bank")
    answer = asking.json(f"texts/{both[0]}/guesses?token={token}&top=4")
    fill = asking.json(f"texts/{both[0]}/fill?token={token}&top=40")
    known = {prediction["id"]: prediction["probability"] for prediction in fill["predictions"]}
    assert answer["own"]["probability"] == pytest.approx(fill["own"]["probability"], rel=1e-4)
    assert answer["own"]["rank"] == fill["own"]["rank"]
    assert len(answer["predictions"]) == 4
    for prediction in answer["predictions"]:
        assert prediction["probability"] == pytest.approx(known[prediction["id"]], rel=1e-4)
        assert prediction["text"].isalnum()
    assert asking.problem(f"texts/{both[0]}/guesses?token=0", 409)["sentence"].startswith(
        "[CLS] is a special"
    )


def test_attention_between_the_texts_of_a_pair(asking, both, model):
    pair = asking.measured("the river was muddy", pair="another bank")
    arrays, _ = asking.arrays(f"texts/{pair}/segments")
    view = model.attention("the river was muddy", "another bank")
    first, second = (np.flatnonzero(view.encoding.sequence_ids == text) for text in (0, 1))
    p = view.probabilities(1, 2)
    assert arrays["shares"][1, 2, 0, 1] == pytest.approx(p[np.ix_(first, second)].sum(-1).mean(), abs=1e-5)
    assert arrays["shares"][1, 2, 1, 0] == pytest.approx(p[np.ix_(second, first)].sum(-1).mean(), abs=1e-5)
    assert "single text" in asking.problem(f"texts/{both[0]}/segments", 409)["sentence"]


def test_what_is_refused(asking, both):
    other = asking.measured(BEFORE, model=1)
    assert "asked of one model" in asking.problem(f"change/{other}/{both[1]}", 409)["sentence"]
    _, token = place_of(asking, both[1], "big")
    sentence = asking.problem("change/{}/{}/fill?token={}".format(*both, token), 409)["sentence"]
    assert sentence.startswith(f"the word of token {token}, “b”, was inserted")
    lost = asking.problem(f"change/0123/{both[1]}", 404)
    assert lost["kind"] == "UnknownText"


REPLACED = BEFORE.replace("river", "bank", 1)


def test_patching(asking, both, model):
    assert REPLACED != BEFORE
    other = asking.measured(REPLACED)
    _, token = place_of(asking, both[0], "muddy")
    arrays, meta = asking.arrays(f"change/{both[0]}/{other}/patching?part=residual&target=word&token={token}")
    encodings = [
        masked(model.tokenizer.encode(text), [token], model.tokenizer) for text in (BEFORE, REPLACED)
    ]
    caches = [model_cache(model, encoding) for encoding in encodings]
    word = Word(token, int(model.tokenizer.encode(BEFORE).ids[token]))
    expected = patch_activations(*caches, word)
    np.testing.assert_allclose(arrays["values"], expected.values, atol=1e-4)
    np.testing.assert_allclose(arrays["effect"], expected.effect, atol=1e-3)
    assert (meta["unit"], meta["part"], meta["token"]) == ("logit", "residual", token)
    assert meta["clean"] == pytest.approx(expected.clean, abs=1e-4)
    assert "muddy" in meta["words"]
    arrays, meta = asking.arrays(f"change/{both[0]}/{other}/patching?part=head_output&target=embedding")
    assert arrays["effect"].shape == (model.layer_count, model.head_count)
    assert meta["clean"] == pytest.approx(1, abs=1e-5)
    said = asking.problem("change/{}/{}/patching?part=residual&target=embedding".format(*both), 409)
    assert "exchanged token by token" in said["sentence"]
    same = f"change/{both[0]}/{both[0]}/patching?part=residual&target=embedding"
    assert "no change to explain" in asking.problem(same, 409)["sentence"]
