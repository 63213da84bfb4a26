"""Global tokens by word and by sentence, and what they change, beside two runs of the encoder."""

import json

import numpy as np
import pytest
import torch

import unmask
from tests.support import dense
from tests.support.command import assert_one_sentence, run_here
from tests.support.longformer import write_longformer
from tests.support.specs import SPECS, random_encoder
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.errors import InvalidRequest
from unmask.interpret import AttentionView
from unmask.interpret.attention.comparison import GlobalText, global_effect
from unmask.text import PackedBatch

TEXT = "The river bank was muddy. A river was a text ! The bank"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random Longformer with a classifier of texts."""
    return write_longformer(tmp_path_factory.mktemp("globals") / "longformer")


@pytest.fixture(scope="module")
def model(folder):
    return unmask.load(folder, dtype="float64")


def chosen(model, choice):
    (encoding,) = model.tokenize([TEXT])
    return [encoding.surface(token).lower() for token in choice(encoding)]


def test_words_and_sentences_choose_their_tokens(model):
    assert chosen(model, GlobalText(words=("RIVER",))) == ["river", "river"]
    assert chosen(model, GlobalText(words=("the bank", "muddy"))) == ["muddy", "the", "bank"]
    assert chosen(model, GlobalText(sentences=(0,)))[:3] == ["the", "river", "bank"]
    assert chosen(model, GlobalText(sentences=(2,))) == ["the", "bank"]
    # Tokens that touch a range share no character with it.
    assert chosen(model, GlobalText(spans=((19, 24),))) == ["muddy"]
    assert chosen(model, GlobalText(spans=((20, 21), (24, 25)))) == ["muddy", "."]
    with pytest.raises(InvalidRequest, match="characters 18 to 19 are to be global, and no token is there"):
        chosen(model, GlobalText(spans=((18, 19),)))
    assert len(chosen(model, GlobalText(("river",), beside="first"))) == 3
    assert chosen(model, GlobalText(("river",), sentences=(2,))) == ["river", "river", "the", "bank"]


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (GlobalText(("riv",)), "the text has no word 'riv'"),
        (GlobalText((" ",)), "is empty"),
        (GlobalText(sentences=(3,)), "sentence 3 is to be global, and the text has sentences 0 to 2"),
        (GlobalText(sentences=(-1,)), "sentence -1 is to be global"),
        (GlobalText(beside="first"), "all chosen tokens are global already"),
    ],
)
def test_what_cannot_be_chosen_is_said(model, choice, says):
    (encoding,) = model.tokenize([TEXT])
    with pytest.raises(InvalidRequest, match=says):
        global_effect(model.encoder, encoding, choice)


def test_an_encoder_without_global_tokens_is_refused():
    with pytest.raises(InvalidRequest, match="this encoder has no global tokens"):
        global_effect(random_encoder(SPECS["post-norm"]), dense.random_text(5), lambda _: [1])


def test_the_effect_is_the_difference_of_two_runs(model):
    (encoding,) = model.tokenize([TEXT])
    choice = GlobalText(("river",), beside="first")
    effect = global_effect(model.encoder, encoding, choice)
    assert effect.before == (0,)
    assert [encoding.surface(token) for token in effect.added] == ["river", "river"]
    views = [AttentionView(model.encoder, encoding, global_tokens=one) for one in ("first", choice)]
    for layer in range(2):
        for head in range(3):
            for view, received in zip(views, (effect.received_before, effect.received_after), strict=True):
                p_NN = view.probabilities(layer, head)
                expected = p_NN[:, list(effect.added)].sum(1).mean()
                assert received[layer, head] == pytest.approx(expected, abs=1e-6)
    batches = [PackedBatch.of_ids([encoding.ids], None, [marks]) for marks in (effect.before, effect.after)]
    with torch.inference_mode():
        x_ND, y_ND = (model.encoder.encode(batch) for batch in batches)
        logits = [model.encoder.logits("sequence", x, batches[0].layout)[0].numpy() for x in (x_ND, y_ND)]
    for ours, theirs in zip(effect.logits["sequence"], logits, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    assert np.abs(logits[0] - logits[1]).max() > 1e-3
    first = torch.nn.functional.cosine_similarity(x_ND[0], y_ND[0], dim=0)
    assert effect.states.state_cosine[-1][0] == pytest.approx(float(first), abs=1e-12)
    assert effect.attention.moved.max() > 0.01


def test_python_takes_the_choice_wherever_global_tokens_are_given(model):
    choice = GlobalText(("river",), beside="first")
    (encoding,) = model.tokenize([TEXT])
    effect = global_effect(model.encoder, encoding, choice)
    read = model.logits(TEXT), model.logits(TEXT, global_tokens=choice)
    for side, found in zip(effect.logits["sequence"], read, strict=True):
        np.testing.assert_allclose(np.asarray(found[0]), side, rtol=0, atol=1e-9)


def test_the_command_shows_it(folder):
    options = ("--global-words", "river", "muddy", "--global-sentences", "2")
    found = json.loads(run_here("look", TEXT, "-m", folder, *options, "--json").out)
    assert found["before"] == [0]
    assert len(found["after"]) == 1 + 5
    assert [one["role"] for one in found["logits"]] == ["sequence"]
    assert [one["text"] for one in found["words"] if one["became_global"]] == [
        "river", "muddy", "river", "The", "bank",
    ]  # fmt: skip
    moved = [one["moved"] for one in found["heads"]]
    assert moved == sorted(moved, reverse=True)
    shown = run_here("look", TEXT, "-m", folder, *options).out
    assert "1 global tokens as trained, 6 now" in shown
    assert "logits of the sequence head" in shown


def test_misuse_is_one_sentence(folder, tmp_path):
    plain = write_checkpoint(tmp_path / "plain", tiny_bert())
    for arguments, says in (
        (("-m", plain, "--global-words", "river"), "no global tokens"),
        (("-m", folder, "--global-words", "fog"), "the text has no word 'fog'"),
        (("-m", folder, "--global-words", "river", "--overview"), "show different things"),
        (("-m", folder, "--global-sentences", "0", "-l", "1"), "is about all layers"),
    ):
        assert_one_sentence(run_here("look", TEXT, *arguments), says)
