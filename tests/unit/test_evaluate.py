"""``unmask evaluate``: tables for people, one line of JSON for programs, one sentence when it cannot."""

import json

import pytest

from tests.support.command import assert_one_sentence, run_here
from tests.support.tiny import LAYERS, tiny_bert, write_checkpoint

PAIR = {"uid": "one", "field": "syntax", "term": "islands", "good": "the river was muddy", "bad": "a xyz"}
TIE = {"uid": "two", "field": "syntax", "term": "islands", "good": "The text", "bad": "the text"}
CONLLU = "".join(
    "\t".join([str(number), word, "_", tag, *"_" * 6]) + "\n"
    for number, (word, tag) in enumerate([("the", "DET"), ("river", "NOUN"), ("was", "AUX")], start=1)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("evaluate") / "tiny"
    return write_checkpoint(made, tiny_bert("BertForMaskedLM"), sentence=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder for each probe."""
    made = tmp_path_factory.mktemp("data")
    for name, file, text in (
        ("blimp", "blimp.jsonl", json.dumps(PAIR) + "\n" + json.dumps(TIE) + "\n"),
        ("perplexity", "wiki.test.tokens", "the river bank was muddy\n\n a text . a text\n"),
        *(("tagging", f"x-ud-{part}.conllu", CONLLU + "\n" + CONLLU) for part in ("train", "dev", "test")),
    ):
        (made / name).mkdir(exist_ok=True)
        (made / name / file).write_text(text)
    return made


def answer(*arguments):
    ran = run_here("evaluate", *arguments, "--json")
    assert ran.code == 0, ran.err
    return json.loads(
        ran.out.splitlines()[-1], parse_constant=lambda name: pytest.fail(f"{name} is not JSON")
    )


@pytest.mark.parametrize("probe", ["blimp", "perplexity", "tagging"])
def test_json_is_one_line_and_what_the_file_has(probe, folder, data, tmp_path):
    out = tmp_path / "result.json"
    found = answer(probe, "-m", folder, "--data", data / probe, "--output", out)
    assert json.loads(out.read_text()) == found
    assert found["probe"] == probe
    assert 0 <= found["accuracy"] <= 1
    assert found["dtype"] == "float32"
    ran = run_here("evaluate", probe, "-m", folder, "--data", data / probe)
    assert (ran.code, ran.err) == (0, "")
    assert "\x1b" not in ran.out
    assert f"{found['accuracy']:.4f}" in ran.out
    assert "95 % interval" in ran.out
    if probe != "blimp":
        between = found["intervals"]["accuracy"]
        assert between["low"] <= found["accuracy"] <= between["high"]


def test_blimp_counts_ties_as_wrong(folder, data):
    found = answer("blimp", "-m", folder, "--data", data / "blimp", "--score", "within_word")
    assert found["score"] == "within_word"
    assert [(one["name"], one["pairs"], one["ties"]) for one in found["paradigms"]] == [
        ("one", 1, 0),
        ("two", 1, 1),
    ]
    assert found["paradigms"][1]["right"] == 0
    assert found["accuracy"] == found["overall"]["accuracy"] == found["paradigms"][0]["accuracy"] / 2
    assert found["complete"] is False
    shown = run_here("evaluate", "blimp", "-m", folder, "--data", data / "blimp").out
    assert "not all of BLiMP" in shown


def test_perplexity_in_both_ways(folder, data):
    here = ("perplexity", "-m", folder, "--data", data / "perplexity")
    masked, pseudo = answer(*here, "--seed", 3), answer(*here, "--measure", "pseudo", "--dtype", "float64")
    assert (masked["seed"], masked["scored"], masked["tokens"]) == (3, 2, 10)
    assert (pseudo["seed"], pseudo["scored"], pseudo["source"]) == (None, 10, "wiki.test.tokens")
    assert answer(*here, "--tokens", 6, "--limit", 2)["tokens"] == 8


def test_tagging_one_layer(folder, data):
    found = answer("tagging", "-m", folder, "--data", data / "tagging", "--layer", 1, "--limit", 1)
    assert [one["layer"] for one in found["layers"]] == [1]
    assert found["accuracy"] == found["baseline_accuracy"] == 1.0
    assert found["sentences"] == {"train": 1, "dev": 1, "test": 1}


@pytest.mark.parametrize(
    ("probe", "options", "parts"),
    [
        ("blimp", ("--limit", 0), ("limit is 0", "--limit")),
        ("blimp", ("--output", "/nowhere/x.json"), ("/nowhere is not a folder",)),
        ("perplexity", ("--tokens", 24), ("24 tokens", "at most 23")),
        ("perplexity", ("--tokens", 2), ("leaves no room", "--tokens")),
        ("tagging", ("--layer", LAYERS + 1), (f"layer is {LAYERS + 1}", f"to {LAYERS}")),
        ("tagging", ("--limit", -1), ("limit is -1",)),
    ],
)
def test_what_is_out_of_range(probe, options, parts, folder, data):
    assert_one_sentence(run_here("evaluate", probe, "-m", folder, "--data", data / probe, *options), *parts)


@pytest.mark.parametrize("probe", ["blimp", "perplexity", "tagging"])
def test_data_that_are_not_there(probe, folder, tmp_path):
    here = ("evaluate", probe, "-m", folder, "--data")
    assert_one_sentence(run_here(*here, tmp_path / "none"), "neither a folder nor a file", tmp_path)
    assert_one_sentence(run_here(*here, tmp_path), "has no file", tmp_path)


@pytest.mark.parametrize("probe", ["blimp", "perplexity"])
def test_a_model_without_the_head_is_refused(probe, tiny_folder, data):
    ran = run_here("evaluate", probe, "-m", tiny_folder, "--data", data / probe)
    assert_one_sentence(ran, "no masked-LM head", "use a checkpoint")


def test_help_names_the_probes():
    shown = run_here("evaluate", "--help").out
    assert all(probe in shown for probe in ("blimp", "perplexity", "tagging"))
    assert_one_sentence(run_here("evaluate", "blimp"), "--model", code=2)
