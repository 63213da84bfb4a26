"""Masked words: probabilities as `transformers` gives them, and why a model cannot fill."""

import json

import pytest
import torch
from transformers import AutoModelForMaskedLM

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.text.masking import spellings

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
