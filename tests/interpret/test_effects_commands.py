"""``unmask attribute`` and ``unmask patch`` print what the functions compute, or one sentence."""

import json

import numpy as np
import pytest

import unmask
from tests.support.command import run_here
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.effects.attribution import attribution
from unmask.interpret.effects.patching import patch_activations
from unmask.interpret.effects.target import Word

pytestmark = pytest.mark.long

CLEAN = "The girl lost the doll, and [MASK] began to cry."
CORRUPTED = "The boy lost the doll, and [MASK] began to cry."


@pytest.fixture(scope="module")
def mini():
    return unmask.load("unmask-mini")


@pytest.fixture(scope="module")
def caches(mini):
    return [ActivationCache.of(mini.encoder, encoding) for encoding in mini.tokenize([CLEAN, CORRUPTED])]


@pytest.fixture(scope="module")
def she(mini, caches):
    ids = caches[0].encoding.ids.tolist()
    return Word(ids.index(mini.tokenizer.mask_id), mini.tokenizer.token_to_id("Ġshe"))


def asked(*arguments):
    ran = run_here(*arguments, "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_attributions_are_those_of_the_function(mini, caches, she):
    encoder = mini.trainable_encoder(replace=False)
    result = asked("attribute", CLEAN, "--word", "she", "--steps", "20")
    found = attribution(
        caches[0],
        she,
        method="integrated_gradients",
        encoder=encoder,
        baseline=mini.tokenizer.mask_id,
        steps=20,
    )
    np.testing.assert_allclose([token["value"] for token in result["tokens"]], found.values, atol=1e-4)
    assert result["completeness"]["steps"] == 20
    assert abs(result["completeness"]["gap"]) < 1e-2
    assert result["target"] == "the word “she” at token 8"
    named = asked("attribute", CLEAN, "--method", "input_x_gradient")
    assert named["target"] == "the word “she” at token 8"  # the likeliest
    assert (named["completeness"], named["unit"]) == (None, "logit")
    shown = run_here("attribute", CLEAN, "--word", "she").out
    assert "girl" in shown
    assert "is the error of 50 steps" in shown


def test_a_text_without_a_mask_is_explained_by_its_embedding():
    result = asked("attribute", "The river bank", "--method", "chefer", "-m", "default")
    assert (result["unit"], len(result["tokens"])) == ("length", 5)
    assert result["target"] == "the text's embedding (mean of its tokens)"


def test_patches_are_those_of_the_function(caches, she, tmp_path):
    file = tmp_path / "patch.svg"
    result = asked("patch", CLEAN, CORRUPTED, "--word", "she", "--picture", file)
    found = patch_activations(*caches, she)
    np.testing.assert_allclose(result["effect"], found.effect, atol=1e-4)
    np.testing.assert_allclose(result["values"], found.values, atol=1e-4)
    assert result["tokens"][2] == ["girl", "boy"]
    assert "girl | boy" in file.read_text(encoding="utf-8")
    by_head = asked("patch", CLEAN, CORRUPTED, "--word", "she", "--part", "head_output")
    assert np.argmax(by_head["effect"]) == 1  # head 0.1
    shown = run_here("patch", CLEAN, CORRUPTED, "--word", "she").out.splitlines()
    assert shown[1].split() == ["token", "emb.", "0", "1", "2", "3", "4", "5"]
    assert next(line for line in shown if "girl | boy" in line).split()[3] == "1.00"


def test_what_cannot_be_asked_is_one_sentence(tmp_path):
    for words, arguments in (
        (
            "has 14 tokens and the corrupted one 17",
            ("patch", CLEAN, CORRUPTED.replace("boy", "big old dog ")),
        ),
        ("0 mask tokens; write [MASK] once", ("attribute", "The girl", "--word", "she")),
        ("2 mask tokens", ("attribute", "The [MASK] [MASK]", "--word", "she")),
        ("--word trophies is 3 tokens", ("attribute", CLEAN, "--word", "trophies")),
        ("no classifier of texts, so there is no label good", ("attribute", CLEAN, "--label", "good")),
        ("are two targets", ("attribute", CLEAN, "--label", "good", "--word", "she")),
        ("--steps is 0", ("attribute", CLEAN, "--steps", "0")),
        ("ends in .svg", ("patch", CLEAN, CORRUPTED, "--picture", tmp_path / "a.gif")),
    ):
        ran = run_here(*arguments)
        assert ran.code == 1, arguments
        assert ran.err.count("\n") == 1
        assert words in ran.err
