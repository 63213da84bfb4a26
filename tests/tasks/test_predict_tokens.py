"""The loss of every token: beside `transformers`, in both kinds of model, and side by side."""

import json
from copy import deepcopy

import numpy as np
import pytest
import torch

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.errors import InvalidRequest
from unmask.tasks.predict_tokens import PredictedToken, TokenPredictions, compare_predictions

TEXT = "the river bank was muddy !"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Random models of `transformers`: one that reads in both directions, one that reads from the left."""
    folder = tmp_path_factory.mktemp("pair")
    made = {
        "both": tiny_bert("BertForMaskedLM"),
        "causal": tiny_bert("BertLMHeadModel", seed=1, is_decoder=True),
    }
    return {name: (write_checkpoint(folder / name, model), model) for name, model in made.items()}


def expected(name, model, ids, mask_id):
    """-log p of the tokens between [CLS] and [SEP] by `transformers` in float64, a masked copy each."""
    losses, model = [], deepcopy(model).double()
    for place in range(1, len(ids) - 1):
        copy = ids.copy()
        if name == "both":
            copy[place] = mask_id
        with torch.inference_mode():
            log_p = model(torch.tensor(copy[None])).logits[0].log_softmax(-1)
        losses.append(-float(log_p[place if name == "both" else place - 1, ids[place]]))
    return losses


ROUNDING = 3e-5
"""Of the loss in float32, for logits of some tens."""


@pytest.mark.parametrize("name", ["both", "causal"])
@pytest.mark.parametrize("tokens_per_pass", [1, 20, 2048])
def test_losses_are_those_of_transformers(pair, name, tokens_per_pass):
    folder, theirs = pair[name]
    model = unmask.load(folder)
    found = model.predict_tokens(TEXT, top_k=4, tokens_per_pass=tokens_per_pass)
    (encoding,) = model.tokenize([TEXT])
    assert found.context == {"both": "all other tokens", "causal": "earlier tokens"}[name]
    losses = expected(name, theirs, encoding.ids, model.tokenizer.mask_id)
    assert [one.token for one in found.tokens] == list(range(1, len(encoding) - 1))
    np.testing.assert_allclose([one.loss for one in found.tokens], losses, rtol=0, atol=ROUNDING)
    assert found.loss == pytest.approx(np.mean(losses), abs=ROUNDING)
    for one in found.tokens:
        assert one.piece == model.tokenizer.engine.id_to_token(one.id)
        best = [guess.probability for guess in one.predictions]
        assert len(best) == 4
        assert best == sorted(best, reverse=True)
        assert (one.rank == 1) == (one.predictions[0].id == one.id)
        assert (one.rank <= 4) == (one.id in [guess.id for guess in one.predictions])


def test_the_future_is_hidden_from_the_causal_model_alone(pair):
    other = TEXT.replace("muddy", "a")
    changed = {}
    for name, (folder, _) in pair.items():
        model = unmask.load(folder)
        before, after = (model.predict_tokens(text).tokens for text in (TEXT, other))
        changed[name] = [one.loss != two.loss for one, two in zip(before[:4], after[:4], strict=True)]
    assert changed == {"both": [True] * 4, "causal": [False] * 4}


def test_a_causal_model_refuses_masked_words(pair):
    folder, _ = pair["causal"]
    with pytest.raises(InvalidRequest, match=r"its attention is causal .* use predict_tokens"):
        unmask.load(folder).fill("the [MASK] bank")
    assert_one_sentence(run_here("fill", "the [MASK] bank", "-m", folder), "attention is causal")


def test_the_command_shows_both(pair):
    both, causal = pair["both"][0], pair["causal"][0]
    answer = json.loads(run_here("compare", TEXT, "-m", both, "--model-b", causal, "--json").out)
    for part, folder in (("first", both), ("second", causal)):
        found = unmask.load(folder).predict_tokens(TEXT, top_k=3)
        assert answer[part]["loss"] == pytest.approx(found.loss)
        assert [one["id"] for one in answer[part]["tokens"]] == [one.id for one in found.tokens]
    assert [one["text"] for one in answer["compared"]] == TEXT.split()
    assert sum(one["second_loss"] for one in answer["compared"]) == pytest.approx(
        answer["second"]["loss"] * len(answer["second"]["tokens"])
    )
    shown = run_here("compare", TEXT, "-m", both, "--model-b", causal).out
    assert "from all other tokens" in shown
    assert "from earlier tokens" in shown
    alone = json.loads(run_here("compare", TEXT, "-m", causal, "--json").out)
    assert alone["second"] is None
    assert alone["compared"] == []


def test_misuse_is_one_sentence(pair, tmp_path):
    assert_one_sentence(run_here("compare", TEXT, "-m", pair["both"][0], "--top", "0"), "--top is 0")
    bare = write_checkpoint(tmp_path / "bare")
    assert_one_sentence(run_here("compare", TEXT, "-m", bare), "holds no masked-LM head")


def predictions(*spans):
    return TokenPredictions(
        "earlier tokens",
        tuple(PredictedToken(n, 0, "", *span, 2.0**n, 1, ()) for n, span in enumerate(spans)),
    )


def test_different_vocabularies_meet_where_both_cut():
    first = predictions((0, 3), (3, 7), (8, 9), (9, 12))
    second = predictions((0, 2), (2, 5), (5, 7), (8, 12), (13, 14))
    found = compare_predictions(first, second)
    assert [(one.start, one.end) for one in found] == [(0, 7), (8, 12)]
    assert [one.losses for one in found] == [(1 + 2, 1 + 2 + 4), (4 + 8, 8)]
    found = compare_predictions(predictions((0, 3), (4, 9)), predictions((1, 3), (3, 9)))
    assert [(one.start, one.end) for one in found] == [(0, 3), (3, 9)]  # the first character of either
