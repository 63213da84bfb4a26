"""ELMo's states in the analyses of geometry: word by word, beside its own states and beside a BERT."""

import json

import numpy as np
import pytest

import unmask
from tests.parity.test_elmo import SMALL, random_elmo
from tests.support.command import assert_one_sentence, run_here
from tests.support.tiny import write_checkpoint
from unmask.encoder.elmo import Elmo
from unmask.errors import EmptyText, InvalidRequest
from unmask.interpret.geometry import geometry, random_baseline, read_texts, sense_cloud, shipped_senses
from unmask.interpret.geometry import word_senses as measure
from unmask.weights.elmo_files import save_elmo

TEXTS = ["The river bank, muddy.", "Money lies in a bank!", "don't  bank on 3.14"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("elmo") / "small"
    save_elmo(random_elmo(SMALL), place)
    return place


@pytest.fixture(scope="module")
def elmo(folder):
    return unmask.load(folder, dtype="float64", family="elmo")


def test_words_and_punctuation_are_tokens_with_their_offsets(elmo):
    found = elmo.tokenize(TEXTS)
    assert [one.pieces for one in found] == [
        ("The", "river", "bank", ",", "muddy", "."),
        ("Money", "lies", "in", "a", "bank", "!"),
        ("don't", "bank", "on", "3.14"),
    ]
    for encoding in found:
        spans = encoding.offsets.tolist()
        assert [encoding.text[start:end] for start, end in spans] == list(encoding.pieces)
        assert not encoding.special.any()
    with pytest.raises(EmptyText, match="text 2 has no words"):
        elmo.tokenize(["a", " "])
    with pytest.raises(InvalidRequest, match="text 1 is 5; give a string"):
        elmo.tokenize([5])


def test_states_are_those_of_the_model_at_every_level(elmo):
    encodings = elmo.tokenize(TEXTS)
    texts = read_texts(elmo.encoder, encodings)
    expected = elmo.hidden_states([list(encoding.pieces) for encoding in encodings], layers="all")
    assert len(texts.states) == SMALL.layers + 1
    for level, states_TD in enumerate(texts.states):
        np.testing.assert_allclose(
            states_TD, np.concatenate([one[level] for one in expected]), rtol=0, atol=1e-6
        )
    assert texts.tokens_of((1, 16, 20)).tolist() == [6 + 4]


def test_senses_of_a_word_are_measured_layer_by_layer(elmo):
    sense_set = shipped_senses("bank")
    report = measure(elmo.encoder, elmo.tokenizer, sense_set, permutations=19)
    assert [layer.layer for layer in report.layers] == [0, 1, 2]
    # A word before the first recurrent layer depends on its characters alone.
    same_form = [
        sentence for sentence in sense_set.sentences if sentence.text[sentence.start : sentence.end] == "bank"
    ]
    texts = read_texts(elmo.encoder, elmo.tokenize([one.text for one in same_form]))
    rows = [texts.tokens_of((i, one.start, one.end)) for i, one in enumerate(same_form)]
    words, first, _ = texts.mean_states(rows)
    assert np.ptp(words, axis=0).max() < 1e-6
    assert np.ptp(first, axis=0).max() > 1e-2
    assert len(report.random) == 3
    cloud = sense_cloud(elmo.encoder, elmo.tokenizer, sense_set)
    assert len(cloud.projection.points_LN3) == 3


def test_its_random_baseline_is_an_elmo_of_the_same_shape(elmo):
    one, other, same = (random_baseline(elmo.encoder, seed) for seed in (0, 1, 0))
    assert type(one) is Elmo
    assert one.spec == SMALL
    states = [read_texts(which, elmo.tokenize(TEXTS)).states[-1] for which in (one, other, same)]
    assert np.abs(states[0] - states[1]).max() > 1e-4
    np.testing.assert_array_equal(states[0], states[2])


def test_the_commands_read_an_elmo_alone_and_beside_a_bert(folder, tmp_path):
    printed = json.loads(run_here("senses", "bank", "-m", folder, "--permutations", "9", "--json").out)
    assert [layer["layer"] for layer in printed["report"]["layers"]] == [0, 1, 2]
    draw = np.random.default_rng(0)
    text = " ".join(draw.choice(["the", "river", "bank", "was", "muddy", "text", "a"], 120))
    printed = json.loads(run_here("geometry", text, "-m", folder, "--json").out)
    elmo = unmask.load(folder, family="elmo")
    layers = geometry(read_texts(elmo.encoder, elmo.tokenize([text])).states)
    assert [layer["effective_rank"]["value"] for layer in printed["layers"]] == pytest.approx(
        [layer.effective_rank.value for layer in layers]
    )
    bert = write_checkpoint(tmp_path / "bert")
    both = json.loads(run_here("geometry", text, "-m", folder, "--model-b", bert, "--json").out)
    assert both["n"] > 50
    assert len(both["debiased"]) == 3
    assert len(both["debiased"][0]) == len(unmask.load(bert).spec.layers) + 1


def test_what_an_elmo_lacks_is_said(folder):
    for arguments, says in (
        (("senses", "bank", "-m", folder, "--kernel", "rows"), "is an ELMo, which has no --kernel"),
        (("senses", "bank", "-m", folder, "--dtype", "int8"), "is an ELMo, which has no --kernel"),
        (("look", "a text", "-m", folder), "geometry, unmask senses and unmask explore read it"),
    ):
        assert_one_sentence(run_here(*arguments), says)
