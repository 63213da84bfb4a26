"""``unmask geometry`` end to end on the encoder that is shipped."""

import json

import numpy as np
import pytest

import unmask
from tests.support.command import assert_one_sentence, run_here
from unmask.interpret.geometry import cka, geometry, project, read_texts, stretches

pytestmark = pytest.mark.long

WORDS = (
    *("river", "water", "bank", "money", "letter", "garden", "winter", "summer", "window", "table", "story"),
    *("music", "paper", "horse", "stone", "bread", "quiet", "early", "small", "green", "heavy", "bright"),
    *("carry", "follow", "answer", "listen", "remember", "build", "open", "write"),
)


def prose(words=400, seed=0):
    return " ".join(np.random.default_rng(seed).choice(WORDS, words))


def test_json_holds_what_the_functions_return(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(prose())
    ran = run_here("geometry", "--file", file, "--model", "unmask-mini", "--points", 300, "--json")
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert report["words_left"] + report["words"] == 400
    assert report["words_left"] > 0
    assert [layer["layer"] for layer in report["layers"]] == list(range(7))
    model = unmask.load("unmask-mini")
    limit = model.checkpoint.trained_tokens
    kept = " ".join(prose().split()[: report["words"]])
    texts = stretches(kept, lambda one: len(model.tokenizer.encode(one)) <= limit)
    read = read_texts(model.encoder, model.tokenize(texts))
    again = geometry(read.states, special_N=read.special_T, points=300)
    for shown, one in zip(report["layers"], again, strict=True):
        assert shown["n"] == one.n <= 300
        assert shown["participation_ratio"]["value"] == one.participation_ratio.value
        assert shown["two_nn"]["value"] == one.two_nn.value
        assert shown["two_nn"]["reason"] == one.two_nn.reason
    # Before the first layer only the word is in a vector: as many points as words (pieces) are distinct.
    assert report["layers"][0]["distinct"] < 60
    assert report["layers"][0]["two_nn"]["value"] is None
    assert report["random"][0]["distinct"] == report["layers"][0]["distinct"]
    assert report["layers"][3]["distinct"] > 200


def test_tables_and_refusals():
    ran = run_here("geometry", prose(150), "--model", "unmask-mini", "--no-random")
    assert ran.code == 0, ran.err
    assert "special tokens excluded" in ran.out
    assert "no neighbor-based dimension" in ran.out
    assert_one_sentence(run_here("geometry", "too short", "--model", "unmask-mini"), "at least 30")
    assert_one_sentence(run_here("geometry", "--model", "unmask-mini"), "--file")
    assert_one_sentence(run_here("geometry", "a", "--points", 0), "1 to 4096")
    assert_one_sentence(run_here("geometry", " ", "--model", "unmask-mini"), "no words")


def test_a_projection_is_written_whole_in_both_forms(tmp_path):
    given = ("geometry", prose(60), "--model", "unmask-mini", "--no-random", "--json")
    archive, plain = tmp_path / "cloud.npz", tmp_path / "cloud.json"
    assert run_here(*given, "--projection", archive).code == 0
    assert run_here(*given, "--projection", plain, "--basis", "own").code == 0
    with np.load(archive) as kept:
        made = {name: kept[name] for name in kept.files}
    other = json.loads(plain.read_text())
    assert (
        set(made)
        == set(other)
        == {
            *("points", "piece", "chunk", "special", "explained", "method", "basis"),
        }
    )
    np.testing.assert_array_equal(made["points"], np.array(other["points"], dtype=np.float32))
    model = unmask.load("unmask-mini")
    limit = model.checkpoint.trained_tokens
    texts = stretches(prose(60), lambda one: len(model.tokenizer.encode(one)) <= limit)
    read = read_texts(model.encoder, model.tokenize(texts))
    expected = project(read.states, special_N=read.special_T)
    np.testing.assert_array_equal(made["points"], expected.points_LN3)
    np.testing.assert_array_equal(made["special"], read.special_T)
    assert made["piece"].tolist() == [piece for encoding in read.encodings for piece in encoding.pieces]
    assert len(made["chunk"]) == made["points"].shape[1]


def test_a_projection_that_cannot_be_is_one_sentence(tmp_path):
    given = ("geometry", "a b c", "--model", "unmask-mini")
    assert_one_sentence(run_here(*given, "--projection", tmp_path / "cloud.csv"), ".npz or .json")
    assert_one_sentence(run_here(*given, "--projection", tmp_path / "no" / "cloud.npz"), "cloud.npz")
    assert_one_sentence(run_here(*given, "--method", "umap"), "--projection")
    both = run_here(*given, "--model-b", "default", "--projection", tmp_path / "cloud.npz")
    assert_one_sentence(both, "--model-b")
    assert not list(tmp_path.iterdir())


def test_an_adapter_is_of_the_first_model_alone(monkeypatch):
    loaded = []

    def load(name, **how):
        loaded.append((name, how["adapter"], how["compat"]))
        # Nothing is returned, because the comparison is not computed.

    monkeypatch.setattr("unmask.models.load.load", load)
    monkeypatch.setattr("unmask.cli.look.geometry._compare", lambda *_, **__: None)
    run_here("geometry", prose(60), "--adapter", "names", "--compat", "hf", "--model-b", "unmask-mini")
    assert loaded == [("default", "names", "hf"), ("unmask-mini", None, "hf")]


def test_two_models_are_compared_word_by_word():
    ran = run_here("geometry", prose(200), "--model", "unmask-mini", "--model-b", "unmask-mini", "--json")
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert report["n"] == 200
    grid = np.array(report["debiased"])
    assert grid.shape == (7, 7)
    np.testing.assert_allclose(np.diag(grid), 1, atol=1e-9)
    np.testing.assert_allclose(grid, grid.T, atol=1e-9)
    shown = run_here("geometry", prose(60), "--model", "unmask-mini", "--model-b", "unmask-mini")
    assert "CKA of 60 words" in shown.out, shown.err


def test_words_of_different_tokenizers_are_lined_up_by_characters(tmp_path):
    from tests.support.tiny import write_checkpoint

    folder = write_checkpoint(tmp_path / "tiny", sentence=False)
    text = "the river bank was muddy . " * 12
    ran = run_here("geometry", text, "--model", "unmask-mini", "--model-b", folder, "--json")
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert np.array(report["debiased"]).shape == (7, 4)
    assert report["n"] == len(text.split())


def test_cka_of_states_of_one_text_needs_no_model_files():
    model = unmask.load("unmask-mini")
    texts = read_texts(model.encoder, model.tokenize([prose(100)]))
    similarity = cka(texts.states)
    assert similarity.debiased.shape == (7, 7)
