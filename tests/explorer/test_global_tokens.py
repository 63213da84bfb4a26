"""Global tokens chosen in the explorer: what they change, beside the numbers of the library."""

import numpy as np
import pytest

import unmask
from tests.explorer.conftest import Asking
from tests.support.longformer import write_longformer
from tests.support.tiny import write_checkpoint
from unmask.explorer import Api
from unmask.interpret.attention.comparison import GlobalText, global_effect
from unmask.spec import PooledVector
from unmask.spec.global_tokens import trained_global_tokens

TEXT = "The river bank was muddy. A river was a text ! The bank"
SPAN = [4, 9]
"""The first "river"."""


@pytest.fixture(scope="module")
def longformer(tmp_path_factory):
    return unmask.load(write_longformer(tmp_path_factory.mktemp("globals") / "longformer"))


@pytest.fixture(scope="module")
def asking(longformer, tmp_path_factory):
    api = Api([longformer, unmask.load(write_checkpoint(tmp_path_factory.mktemp("bert") / "bert"))])
    yield Asking(api)
    api.close()


@pytest.fixture(scope="module")
def both(asking):
    return asking.measured(TEXT), asking.measured(TEXT, **{"global": [SPAN]})


@pytest.fixture(scope="module")
def effect(longformer):
    (encoding,) = longformer.tokenize([TEXT])
    choice = GlobalText(spans=(tuple(SPAN),), beside=trained_global_tokens(longformer.spec, paired=False))
    head = longformer.checkpoint.head
    pooled = head if isinstance(head, PooledVector) else None
    return global_effect(longformer.encoder, encoding, choice, head=pooled)


def test_a_reading_names_its_global_tokens(asking, both, effect):
    before, after = (asking.json(f"texts/{one}") for one in both)
    assert before["id"] != after["id"]
    assert (before["global_spans"], after["global_spans"]) == ([], [SPAN])
    assert (tuple(before["global_tokens"]), tuple(after["global_tokens"])) == (effect.before, effect.after)
    assert [after["tokens"][one]["surface"] for one in effect.added] == ["river"]
    answer = asking.json("session")["models"]
    assert [one["has_global_tokens"] for one in answer] == [True, False]


def test_what_the_choice_changes(asking, both, effect):
    arrays, meta = asking.arrays("change/{}/{}".format(*both))
    np.testing.assert_allclose(arrays["cosine"], effect.states.state_cosine, atol=1e-6)
    assert meta["embedding_cosine"] == pytest.approx(effect.states.embedding_cosine, abs=1e-6)
    assert meta["embedding_cosine"] < 1 - 1e-5
    assert {pair["change"] for pair in meta["pairs"]} == {"kept"}
    moved, _ = asking.arrays("change/{}/{}/heads".format(*both))
    np.testing.assert_allclose(moved["moved"], effect.attention.moved, atol=1e-6)
    received, meta = asking.arrays("change/{}/{}/global".format(*both))
    assert tuple(meta["tokens"]) == effect.added
    np.testing.assert_allclose(received["before"], effect.received_before, atol=1e-6)
    np.testing.assert_allclose(received["after"], effect.received_after, atol=1e-6)


def test_classes_are_those_of_each_choice(asking, both, longformer, effect):
    _, meta = asking.arrays("change/{}/{}".format(*both))
    for side, logits in zip(("before", "after"), effect.logits["sequence"], strict=True):
        shares = np.exp(logits - logits.max())
        np.testing.assert_allclose(
            [class_[side] for class_ in meta["classes"]], shares / shares.sum(), atol=1e-5
        )
    (plain,) = longformer.classify([TEXT])
    assert [class_["before"] for class_ in meta["classes"]] == pytest.approx(
        list(plain.scores.values()), abs=1e-5
    )


def test_maps_and_masked_words_follow_the_choice(asking, both, longformer):
    (encoding,) = longformer.tokenize([TEXT])
    first = trained_global_tokens(longformer.spec, paired=False)
    for one, choice in zip(both, (None, GlobalText(spans=(tuple(SPAN),), beside=first)), strict=True):
        view = longformer.attention(TEXT, global_tokens=choice)
        arrays, _ = asking.arrays(f"texts/{one}/values/1/2?rows=0:{len(encoding)}&columns=0:{len(encoding)}")
        np.testing.assert_allclose(arrays["values"], view.probabilities(1, 2), atol=1e-6)


@pytest.mark.parametrize(
    ("given", "status", "says"),
    [
        ({"global": [[4]]}, 400, "ranges of characters"),
        ({"global": [[9, 4]]}, 400, "ranges of characters"),
        ({"global": "river"}, 400, "ranges of characters"),
        ({"global": [[900, 905]]}, 400, "characters 900 to 905 are to be global, and no token is there"),
        ({"global": [[4, 9]], "model": 1}, 400, "this encoder has no global tokens"),
    ],
)
def test_what_is_refused(asking, given, status, says):
    error = asking.problem("texts", status, "POST", {"text": "The river bank", **given})
    assert says in error["sentence"]


def test_a_choice_that_adds_none_is_said(asking, both):
    error = asking.problem(f"change/{both[0]}/{both[0]}/global", 409)
    assert "global already" in error["sentence"]
    other = asking.measured("A river")
    assert "two texts" in asking.problem(f"change/{both[0]}/{other}/global", 409)["sentence"]
