"""Causal language modeling: its loss beside `transformers`, what it refuses, and a run."""

import json

import numpy as np
import pytest
import torch
import transformers

import unmask
from tests.support.specs import CAUSAL, POST_NORM, random_encoder
from tests.training.runs import Instead, write_run, write_texts
from tests.training.toy import CLS, SEP, chunks, vocabulary, with_heads
from unmask.errors import InvalidRequest
from unmask.training.data.stream import Chunk
from unmask.training.objectives.build import build_objective
from unmask.training.objectives.language_modeling import CausalLanguageModel
from unmask.training.pretrain import pretrain
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build

DRAW = np.random.default_rng(0)


def test_the_loss_and_its_gradient_are_those_of_transformers(tmp_path):
    config = transformers.BertConfig(
        vocab_size=97, hidden_size=12, num_attention_heads=3, intermediate_size=20, num_hidden_layers=2,
        max_position_embeddings=40, is_decoder=True,
    )  # fmt: skip
    theirs = transformers.BertLMHeadModel(config).double().eval()
    theirs.save_pretrained(tmp_path)
    encoder = build(read_checkpoint(Source(tmp_path, "tiny")), dtype="float64").requires_grad_()
    texts = chunks([3, 9, 1, 6], range(4))
    objective = CausalLanguageModel(encoder, vocabulary())
    example = objective.prepare(texts, DRAW, 0.0)
    assert example.counts == {"causal": 19}
    outcome = objective(example, {"causal": 19})
    outcome.loss.backward()
    expected, right = torch.zeros((), dtype=torch.float64), 0
    for chunk in texts:
        ids = torch.tensor([[CLS, *chunk.ids, SEP]])
        labels = torch.where(torch.isin(ids, torch.tensor([CLS, SEP])), -100, ids)
        out = theirs(ids, labels=labels)
        expected = expected + out.loss * len(chunk.ids)
        right += int((out.logits[0, :-2].argmax(-1) == ids[0, 1:-1]).sum())
    (expected / 19).backward()
    assert outcome.loss.item() == pytest.approx(expected.item() / 19, abs=1e-6)  # their loss is in float32
    assert int(outcome.sums["causal/accuracy"]) == right
    found = encoder.embedding.words.weight.grad
    wanted = theirs.bert.embeddings.word_embeddings.weight.grad
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_special_tokens_are_read_and_not_predicted():
    encoder = random_encoder(with_heads(CAUSAL))
    objective = CausalLanguageModel(encoder, vocabulary())
    example = objective.prepare([Chunk(np.array([7, 1, 8]), 0), Chunk(np.array([9]), 0)], DRAW, 0.0)
    assert example.targets_M.tolist() == [7, 8, 9]
    assert example.chosen_M.tolist() == [0, 2, 5]
    with pytest.raises(InvalidRequest, match="only special tokens"):
        objective.prepare([Chunk(np.array([1]), 0)], DRAW, 0.0)


@pytest.mark.parametrize(
    ("spec", "kind", "says"),
    [
        (POST_NORM, "causal", "predicts the next token, which this encoder attends to"),
        (CAUSAL, "masked", r"objective.kind is 'masked', and the encoder's attention is causal"),
        (CAUSAL, "replaced", r"objective.kind is 'replaced', and the encoder's attention is causal"),
    ],
)
def test_objectives_that_do_not_suit_the_attention_are_refused(spec, kind, says):
    with pytest.raises(InvalidRequest, match=says):
        build_objective({"kind": kind}, random_encoder(with_heads(spec)), vocabulary())
    with pytest.raises(InvalidRequest, match="objective"):
        build_objective({"kind": kind, "dream": 1}, random_encoder(with_heads(spec)), vocabulary())


def test_a_run_learns_and_exports_a_decoder(tmp_path):
    write_texts(tmp_path)
    config = {
        "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 48, "max_position_embeddings": 64, "is_decoder": True,
    }  # fmt: skip
    objective = Instead({"kind": "causal"})
    pretrain(write_run(tmp_path, model=Instead({"config": config}), objective=objective, steps=6))
    folder = tmp_path / "run" / "model"
    written = json.loads((folder / "config.json").read_text())
    assert written["architectures"] == ["BertLMHeadModel"]
    assert written["is_decoder"] is True
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    first, last = (event["causal/loss"] for event in log if event["event"] == "held_out")
    assert last < first - 0.1
    found = unmask.load(folder).predict_tokens("the river bank was muddy")
    assert found.context == "earlier tokens"
