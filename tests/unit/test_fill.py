"""Masked words: probabilities as `transformers` gives them, and why a model cannot fill."""

import json

import pytest
import torch
from transformers import AutoModelForMaskedLM

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.cli import inputs as lines_module
from unmask.text.tokenizer import spellings

TEXT = "the [MASK] bank [MASK] muddy"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("fill") / "tiny", tiny_bert("BertForMaskedLM"))


def test_probabilities_are_those_of_transformers(folder):
    model = unmask.load(folder)
    assert spellings(model.tokenizer, model.tokenizer.mask_id) == ("[MASK]", "[MASK]")
    filled = model.fill(TEXT, top_k=7)
    (encoding,) = model.tokenize([TEXT])
    with torch.inference_mode():
        logits = AutoModelForMaskedLM.from_pretrained(folder)(torch.tensor(encoding.ids[None])).logits[0]
    assert [mask.token for mask in filled] == [2, 4]
    for mask in filled:
        assert TEXT[mask.start : mask.end] == "[MASK]"
        expected = logits[mask.token].softmax(-1).topk(7)
        assert [one.id for one in mask.predictions] == expected.indices.tolist()
        for one, probability in zip(mask.predictions, expected.values.tolist(), strict=True):
            assert one.probability == pytest.approx(probability, rel=1e-5)
            assert model.tokenizer.engine.id_to_token(one.id) == one.piece


def test_the_command_shows_the_same(folder):
    filled = unmask.load(folder).fill(TEXT, top_k=2)
    answer = json.loads(run_here("fill", TEXT, "-m", folder, "--top", "2", "--json").out)
    assert [mask["token"] for mask in answer["masks"]] == [mask.token for mask in filled]
    shown = run_here("fill", "-", "-m", folder, "--top", "2", stdin=TEXT.encode()).out
    assert "the ___ bank \\[MASK] muddy".replace("\\", "") in shown
    for mask in filled:
        for one in mask.predictions:
            assert f"{one.probability:.4f}" in shown
            assert one.piece in shown


def test_people_see_the_masks_in_the_text_and_their_words_in_columns(folder, monkeypatch):
    filled = unmask.load(folder).fill(TEXT, top_k=2)
    monkeypatch.setattr("unmask.cli.tasks.predict.on_terminal", lambda: True)
    heading, *rows = run_here("fill", TEXT, "-m", folder, "--top", "2").out.splitlines()
    assert heading == TEXT
    expected = [
        [*([str(number)] if place == 0 else []), f"{best.probability:.4f}", best.text.strip(), best.piece]
        for number, mask in enumerate(filled, start=1)
        for place, best in enumerate(mask.predictions)
    ]
    assert [row.split() for row in rows] == expected
    shown = run_here("fill", TEXT, "-m", folder, "--json").out
    monkeypatch.undo()
    assert shown == run_here("fill", TEXT, "-m", folder, "--json").out


def test_predictions_of_a_file_are_written_whole(folder, tmp_path):
    (tmp_path / "a.csv").write_text("n,text\n1,the [MASK]\n2,[MASK] bank\n")
    given = ("fill", "--file", tmp_path / "a.csv", "-m", folder, "--json")
    ran = run_here(*given, "-o", tmp_path / "out")
    assert (ran.code, ran.out) == (0, f"2 inputs, in {tmp_path / 'out'}\n")
    assert (tmp_path / "out").read_text() == run_here(*given).out
    assert [(row["row"], row["text"]) for row in objects(run_here(*given))] == [
        (2, "the [MASK]"),
        (3, "[MASK] bank"),
    ]
    piped = run_here("fill", "-m", folder, "--json", stdin=b"the [MASK]\n")
    assert [row["text"] for row in objects(piped)] == ["the [MASK]"]


def objects(ran):
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


LINES = ("the [MASK]", "[MASK] bank [MASK]", "a text [MASK]", "the river [MASK] !", "[MASK]")


def test_each_line_of_a_file_gives_one_object(folder, tmp_path, monkeypatch):
    """The same predictions as in Python, in the order of the lines, whatever the parts they are read in."""
    monkeypatch.setattr(lines_module, "TEXTS_PER_PART", 2)
    filled = unmask.load(folder).fill(LINES, top_k=2)
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(LINES))
    found = objects(run_here("fill", "--file", path, "-m", folder, "--top", "2", "--json"))
    assert [(one["source"], one["line"], one["text"]) for one in found] == [
        (str(path), number, text) for number, text in enumerate(LINES, start=1)
    ]
    for one, masks in zip(found, filled, strict=True):
        assert [mask["token"] for mask in one["masks"]] == [mask.token for mask in masks]
        for said, mask in zip(one["masks"], masks, strict=True):
            assert [best["id"] for best in said["predictions"]] == [best.id for best in mask.predictions]
            for best, expected in zip(said["predictions"], mask.predictions, strict=True):
                assert best["probability"] == pytest.approx(expected.probability, abs=1e-5)


def test_lines_of_standard_input_and_keys_of_json_lines(folder, tmp_path):
    piped = objects(run_here("fill", "-", "-m", folder, "--json", stdin=b"the [MASK]\r\n[MASK] bank\n"))
    assert [(one["source"], one["text"]) for one in piped] == [
        ("<stdin>", "the [MASK]"),
        ("<stdin>", "[MASK] bank"),
    ]
    path = tmp_path / "texts.jsonl"
    path.write_text('{"t": "the [MASK]"}\n\n{"t": "[MASK] bank"}\n')
    options = ("--field", "t", "--blank", "skip", "--json")
    read = objects(run_here("fill", "--file", path, *options, "-m", folder))
    assert [(one["line"], one["masks"]) for one in read] == [
        (1, piped[0]["masks"]),
        (3, piped[1]["masks"]),
    ]
    shown = run_here("fill", "-", "-m", folder, "--top", "1", stdin=b"the [MASK]\n[MASK] bank\n").out
    assert "the ___" in shown
    assert "___ bank" in shown


def test_parts_are_shown_before_the_next_is_read(folder, monkeypatch):
    """A line of the second part has no mask, so what stands before the error is the first part."""
    monkeypatch.setattr(lines_module, "TEXTS_PER_PART", 2)
    stdin = b"the [MASK]\n[MASK] bank\nthe river\n"
    ran = run_here("fill", "-", "-m", folder, "--json", stdin=stdin)
    assert_one_sentence(ran, "line 3 of <stdin> has no [MASK]")
    assert [json.loads(line)["line"] for line in ran.out.splitlines()] == [1, 2]


def test_a_bad_line_of_a_file_is_found_before_the_model_is_loaded(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_bytes(b"the [MASK]\n\xff\n")
    assert_one_sentence(run_here("fill", "--file", path, "-m", tmp_path / "nowhere"), f"line 2 of {path}")


@pytest.mark.parametrize(
    ("arguments", "stdin", "parts"),
    [
        ((), b"", ("there is no text in the input",)),
        (("the [MASK]", "--file", "x"), b"", ("a text or --file",)),
        (("the [MASK]", "--field", "t"), b"", ("--field, --format and --blank are for lines",)),
        (("-",), b"", ("no text in the input",)),
        (("-",), b"the [MASK]\n\n", ("line 2 of <stdin> holds no text", "--blank skip")),
        (("-",), b"the [MASK] " * 30, ("line 1 of <stdin>", "tokens")),
    ],
)
def test_lines_that_cannot_be_filled(arguments, stdin, parts, folder):
    assert_one_sentence(run_here("fill", *arguments, "-m", folder, stdin=stdin), *parts)


def test_one_note_for_all_lines_longer_than_in_training(folder, monkeypatch):
    monkeypatch.setattr(lines_module, "TEXTS_PER_PART", 1)
    monkeypatch.setattr("unmask.weights.read.checkpoint.trained_tokens", lambda *_: 4)
    ran = run_here("fill", "-", "-m", folder, "--json", stdin=b"the river [MASK]\nthe river bank [MASK]\n")
    assert ran.err == (
        "unmask: note: the longest text has 6 tokens and the model was trained on at most 4; "
        "it is not truncated\n"
    )


@pytest.mark.parametrize(
    ("text", "options", "parts"),
    [
        ("the bank", (), ("the text has no [MASK]",)),
        (TEXT, ("--top", "0"), ("--top is 0", "1 to")),
        (TEXT, ("--top", "9999"), ("--top is 9999",)),
        ("the [MASK] " * 30, (), ("tokens", "at most")),
    ],
)
def test_what_cannot_be_filled(text, options, parts, folder):
    assert_one_sentence(run_here("fill", text, "-m", folder, *options), *parts)


def test_a_model_without_the_head_says_why(tiny_folder, tmp_path):
    assert_one_sentence(run_here("fill", TEXT, "-m", tiny_folder), "no masked-LM head", "heads: none")
    classifier = write_checkpoint(tmp_path / "classifier", tiny_bert("BertForSequenceClassification"))
    assert_one_sentence(run_here("fill", TEXT, "-m", classifier), "no masked-LM head", "heads: sequence")
