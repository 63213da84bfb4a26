"""Two texts in one encoder, or two choices of global tokens: everything against whole maps and by hand."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import unmask
from tests.support import dense, plain
from tests.support.command import assert_one_sentence, run_here
from tests.support.examples import examples
from tests.support.longformer import write_longformer
from tests.support.specs import SPECS, random_encoder
from tests.support.tiny import tiny_bert, write_checkpoint
from tests.support.tokenizers_built import of_pieces
from unmask.errors import Cancelled, InvalidRequest
from unmask.interpret import ActivationCache, AttentionView
from unmask.interpret.attention.comparison import (
    GlobalText,
    attention_change,
    compare_texts,
    global_effect,
    prediction_change,
    word_probabilities,
)
from unmask.interpret.words.alignment import groups_of, pair_words
from unmask.interpret.words.words import words
from unmask.spec import PooledVector
from unmask.text import PackedBatch

PIECES = of_pieces()
IDS: dict[str, int] = {}


def sentence(text):
    """An encoding of words; a hyphen in a word is a border of its tokens."""
    pieces = [""]
    for word in text.split():
        first, *rest = word.split("-")
        pieces += [f" {first}", *rest]
    pieces.append("")
    ids = [1 + IDS.setdefault(piece, len(IDS)) % 90 for piece in pieces]
    return dense.text_of(ids, special=(0, len(pieces) - 1), surfaces=pieces)


BEFORE, AFTER = sentence("the ri-ver bank was mud-dy to-day"), sentence("the very old ri-ver sh-or-e was wet")


def changes(before, after):
    one, other = words(before), words(after)
    return [
        (
            pair.change,
            None if pair.before is None else one.surface(pair.before).strip(),
            None if pair.after is None else other.surface(pair.after).strip(),
        )
        for pair in pair_words(one, other)
    ]


def test_words_are_paired_by_hand():
    assert changes(BEFORE, AFTER)[1:-1] == [
        ("kept", "the", "the"),
        ("inserted", None, "very"),
        ("inserted", None, "old"),
        ("kept", "river", "river"),
        ("replaced", "bank", "shore"),
        ("kept", "was", "was"),
        ("replaced", "muddy", "wet"),
        ("removed", "today", None),
    ]
    assert [kind for kind, _, _ in changes(BEFORE, BEFORE)] == ["kept"] * 8


def test_a_word_of_the_second_text_stands_for_none_of_the_first():
    found = changes(PIECES.encode("the river", "the bank"), PIECES.encode("the river was", "bank"))
    assert [one for one in found if one[0] != "kept"] == [("inserted", None, "was"), ("removed", "the", None)]


@examples(80)
@given(*[st.lists(st.sampled_from(["the", "ri-ver", "a", "b"]), min_size=1, max_size=12)] * 2)
def test_every_word_is_in_one_pair_in_order(one, other):
    before, after = words(sentence(" ".join(one))), words(sentence(" ".join(other)))
    pairs = pair_words(before, after)
    assert [pair.before for pair in pairs if pair.before is not None] == list(range(len(before)))
    assert [pair.after for pair in pairs if pair.after is not None] == list(range(len(after)))
    for pair in pairs:
        same = None not in (pair.before, pair.after) and before.surface(pair.before) == after.surface(
            pair.after
        )
        assert (pair.change == "kept") == same
    groups_before, groups_after, count = groups_of(pairs, before, after)
    common = set(range(count - 2))
    assert set(groups_before) - {count - 2} == common == set(groups_after) - {count - 1}


def caches(name, **options):
    encoder = random_encoder(SPECS[name], **options)
    return ActivationCache.of(encoder, BEFORE), ActivationCache.of(encoder, AFTER)


def word_maps(cache, of):
    """Of each layer: attention between words (H, W, W), from whole maps."""
    belongs = (of.of_token[:, None] == np.arange(len(of))).astype(float)
    mean = (belongs / belongs.sum(0)).T
    return [mean @ p @ belongs for p, _, _ in dense.maps(cache.encoder, cache.encoding, cache.globals_N)]


KEPT = ([0, 1, 2, 3, 4, 5, 7], [0, 1, 4, 5, 6, 7, 8])
"""Words of both texts that stand for each other, by hand."""


@pytest.mark.parametrize("name", ["post-norm", "rotary-windows", "disentangled", "linear"])
def test_attention_moved_is_that_of_whole_maps(name):
    before, after = caches(name)
    change = attention_change(before, after)
    rows, columns = KEPT
    maps = zip(word_maps(before, words(BEFORE)), word_maps(after, words(AFTER)), strict=True)
    assert (change.queries, change.of) == (7, 7)
    for layer, (one, other) in enumerate(maps):
        p, q = one[:, rows], other[:, columns]
        lost, gained = p[:, :, 6], q[:, :, [2, 3]].sum(-1)
        kept = np.abs(p[:, :, rows] - q[:, :, columns]).sum(-1)
        np.testing.assert_allclose(change.moved[layer], ((kept + lost + gained) / 2).mean(-1), atol=1e-5)
        np.testing.assert_allclose(change.to_removed[layer], lost.mean(-1), atol=1e-5)
        np.testing.assert_allclose(change.to_inserted[layer], gained.mean(-1), atol=1e-5)
    assert change.moved.max() > 0.02


def test_states_and_embeddings_are_those_of_the_formulas():
    before, after = caches("post-norm")
    weights = dense.weights_of(before.encoder)
    states = [
        plain.encode(
            before.encoder.spec, weights, one.ids, one.token_type_ids, np.zeros(len(one), dtype=bool)
        )
        for one in (BEFORE, AFTER)
    ]
    comparison = compare_texts(before, after, head=PooledVector(("cls",), True))
    assert comparison.aligned.tolist() == KEPT[0]
    assert comparison.counterparts.tolist() == KEPT[1]
    for level in range(before.layer_count + 1):
        for place, (one, other) in enumerate(zip(*KEPT, strict=True)):
            x = states[0][level][words(BEFORE).of_token == one].mean(0)
            y = states[1][level][words(AFTER).of_token == other].mean(0)
            expected = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
            assert comparison.state_cosine[level, place] == pytest.approx(expected, abs=1e-5)
    x, y = states[0][-1][0], states[1][-1][0]
    assert comparison.embedding_cosine == pytest.approx(
        x @ y / np.linalg.norm(x) / np.linalg.norm(y), abs=1e-5
    )
    mean = [state[-1].mean(0) for state in states]
    assert compare_texts(before, after).embedding_cosine == pytest.approx(
        mean[0] @ mean[1] / np.linalg.norm(mean[0]) / np.linalg.norm(mean[1]), abs=1e-5
    )


def test_the_last_level_is_after_the_final_norm():
    before, after = caches("rotary-windows")
    assert not torch.allclose(before.states[-1], before.final_ND)
    x, y = before.final_ND[0].double(), after.final_ND[0].double()
    expected = float(torch.nn.functional.cosine_similarity(x, y, dim=0))
    assert compare_texts(before, after).state_cosine[-1, 0] == pytest.approx(expected, abs=1e-9)


def test_a_text_and_itself_do_not_differ():
    before, _ = caches("rotary-windows")
    found, change = compare_texts(before, before), attention_change(before, before)
    np.testing.assert_allclose(found.state_cosine, 1)
    assert found.embedding_cosine == pytest.approx(1)
    assert not change.moved.any()
    assert not change.to_removed.any()


def test_long_texts_are_sampled_evenly():
    before, after = caches("post-norm")
    heads = sum(before.heads(layer) for layer in range(before.layer_count))
    change = attention_change(before, after, cells=3 * heads * len(AFTER))
    assert (change.queries, change.of) == (3, 7)
    rows, columns = (np.array(side)[[1, 3, 5]] for side in KEPT)
    p, q = (word_maps(*one)[1] for one in ((before, words(BEFORE)), (after, words(AFTER))))
    p, q = p[:, rows], q[:, columns]
    kept = np.abs(p[:, :, KEPT[0]] - q[:, :, KEPT[1]]).sum(-1)
    moved = (kept + p[:, :, 6] + q[:, :, [2, 3]].sum(-1)) / 2
    np.testing.assert_allclose(change.moved[1], moved.mean(-1), atol=1e-5)


def test_predictions_have_both_probabilities():
    model = unmask.load("unmask-mini", dtype="float64")
    texts = [model.tokenizer.encode(f"The {word} opened the [MASK].") for word in ("man", "rain")]
    places = [int(np.flatnonzero(text.ids == model.tokenizer.mask_id)[0]) for text in texts]
    before, after = (ActivationCache.of(model.encoder, text) for text in texts)
    change = prediction_change(before, places[0], after, places[1], top_k=4)
    logits = [
        torch.from_numpy(np.asarray(model.logits(text, head="masked").values, dtype=np.float64))
        for text in ("The man opened the [MASK].", "The rain opened the [MASK].")
    ]
    p, q = (one[place].softmax(-1).numpy() for one, place in zip(logits, places, strict=True))
    best = set(np.argsort(-p)[:4]) | set(np.argsort(-q)[:4])
    assert set(change.ids) == best
    assert 4 < len(best) <= 8
    np.testing.assert_allclose(change.before, p[change.ids], atol=1e-6)
    np.testing.assert_allclose(change.after, q[change.ids], atol=1e-6)
    assert (np.diff(change.after) <= 0).all()


def test_what_cannot_be_compared_is_said():
    before, _ = caches("post-norm")
    other, _ = caches("post-norm", seed=1)
    for compare in (compare_texts, attention_change):
        with pytest.raises(InvalidRequest, match="two encoders; read both with the same one"):
            compare(before, other)
    with pytest.raises(InvalidRequest, match="cannot predict masked words"):
        word_probabilities(before, 0)

    def stop(what, done, of):
        raise Cancelled("stopped")

    with pytest.raises(Cancelled):
        attention_change(before, before, watch=stop)


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
    printed = json.loads(run_here("look", TEXT, "-m", folder, *options, "--json").out)
    assert printed["before"] == [0]
    assert len(printed["after"]) == 1 + 5
    assert [one["role"] for one in printed["logits"]] == ["sequence"]
    assert [word["text"] for word in printed["words"] if word["became_global"]] == [
        "river", "muddy", "river", "The", "bank",
    ]  # fmt: skip
    moved = [head["moved"] for head in printed["heads"]]
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
