"""Losses of cross-encoders beside those of sentence-transformers, on the same scores."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sentence_transformers.cross_encoder import CrossEncoder, losses

from tests.support.specs import SPECS, random_encoder
from tests.training.retrieval.test_dense import drawn, gradients, with_dropout
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.spec import Classifier
from unmask.training.data.ranking import RankedTexts
from unmask.training.objectives import retrieval_example as passes
from unmask.training.objectives.retrieval_reranker import RerankerObjective

QUERIES, DOCUMENTS = 3, 4


def reranker_encoder(dtype=torch.float64):
    spec = SPECS["post-norm"]
    made = replace(spec, heads=(Classifier("sequence", 1, "mean"),))
    torch.manual_seed(0)
    body = random_encoder(spec, dtype=dtype)
    encoder = Encoder(made).to(dtype)
    encoder.load_state_dict(body.state_dict(), strict=False)
    torch.nn.init.normal_(encoder.heads["sequence"].out.weight, std=0.5)
    return encoder


def items_of(encoder, *, scored=True):
    draw = np.random.default_rng(0)
    return [
        RankedTexts(
            one.query,
            (*one.documents, one.query, *one.documents, one.query)[:DOCUMENTS],
            draw.normal(size=DOCUMENTS).astype(np.float32) if scored else None,
        )
        for one in drawn(encoder, QUERIES)
    ]


class Scored(CrossEncoder):
    """What a loss of sentence-transformers calls: it gives the scores of the pairs that it is asked for."""

    num_labels = 1
    device = torch.device("cpu")

    def __init__(self, scores):
        torch.nn.Module.__init__(self)
        self.scores = scores

    def preprocess(self, pairs, **_):
        return {"places": torch.tensor([int(document) for _, document in pairs])}

    def forward(self, features):
        return {"scores": self.scores[features["places"]]}


def pointwise(loss, scores, labels):
    texts = [str(place) for place in range(len(scores))]
    return loss([texts, texts], labels)


def listwise(loss, scores, labels):
    places = [[str(place) for place in part] for part in np.arange(len(scores)).reshape(QUERIES, -1)]
    return loss([["q"] * QUERIES, places], list(labels.reshape(QUERIES, -1).unbind()))


def columns(loss, scores, labels):
    places = np.arange(len(scores)).reshape(QUERIES, -1)
    named = [[str(place) for place in places[:, column]] for column in range(DOCUMENTS)]
    return loss([["q"] * QUERIES, *named], labels.reshape(QUERIES, -1))


CASES = {
    "bce": (losses.BinaryCrossEntropyLoss, {}, pointwise, False),
    "bce weighted": (losses.BinaryCrossEntropyLoss, {"pos_weight": torch.tensor(3.0)}, pointwise, False),
    "mse": (losses.MSELoss, {}, pointwise, True),
    "list_net": (losses.ListNetLoss, {}, listwise, False),
    "list_net scored": (losses.ListNetLoss, {}, listwise, True),
    "margin_mse": (losses.MarginMSELoss, {}, columns, True),
}


@pytest.mark.parametrize("name", CASES)
def test_the_loss_and_its_gradient_are_those_of_sentence_transformers(name):
    make, given, call, scored = CASES[name]
    encoder = reranker_encoder(torch.float32).eval()
    weight = 3.0 if "weighted" in name else None
    objective = RerankerObjective(encoder, name.split()[0], pos_weight=weight)
    items = items_of(encoder, scored=scored)
    example = objective.prepare(items, np.random.default_rng(0), 0.0)
    assert example.sequences == QUERIES * DOCUMENTS, "queries are not encoded alone"
    found = objective(example, example.counts).loss
    scores = objective.scores(example.batch)[:, 0]
    relevant = torch.zeros(len(scores))
    relevant[example.positive_Q] = 1
    labels = torch.from_numpy(example.scores_P) if scored else relevant
    theirs = call(make(Scored(scores), **given), scores, labels)
    assert found.item() == pytest.approx(theirs.item(), abs=1e-6)
    parameter = encoder.heads["sequence"].out.weight
    one, other = (torch.autograd.grad(loss, parameter)[0] for loss in (found, theirs))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert other.abs().max() > 1e-3


def test_the_softmax_is_over_the_documents_of_a_query():
    encoder = reranker_encoder().eval()
    objective = RerankerObjective(encoder, "softmax")
    example = objective.prepare(items_of(encoder), np.random.default_rng(0), 0.0)
    scores = objective.scores(example.batch).reshape(QUERIES, DOCUMENTS)
    wanted = torch.nn.functional.cross_entropy(scores, torch.zeros(QUERIES, dtype=torch.long))
    outcome = objective(example, example.counts)
    assert outcome.loss.item() == pytest.approx(wanted.item(), abs=1e-12)
    right = (scores[:, 0] > scores[:, 1:].amax(1)).sum()
    assert outcome.sums["retrieval/accuracy"] == right


@pytest.mark.parametrize("loss", ["bce", "softmax"])
def test_micro_batches_and_passes_do_not_change_the_gradient(loss, monkeypatch):
    encoder = with_dropout(reranker_encoder())
    objective = RerankerObjective(encoder, loss, tokens_per_pass=30)
    items = items_of(encoder)
    example = objective.prepare(items, np.random.default_rng(0), 0.0)
    value, found = gradients(objective, example)
    with monkeypatch.context() as patch:
        patch.setattr(passes, "checkpoint", lambda encode, part, **_: encode(part))
        wanted, others = gradients(objective, example)
    assert value == pytest.approx(wanted, abs=1e-12)
    for key, one in others.items():
        torch.testing.assert_close(found[key], one, rtol=0, atol=1e-10)
    objective.eval()
    whole = objective(example, example.counts).loss.item()
    parts = [objective.prepare(some, np.random.default_rng(0), 0.0) for some in (items[:1], items[1:])]
    assert sum(objective(part, example.counts).loss.item() for part in parts) == pytest.approx(whole)


def test_a_teacher_is_needed():
    encoder = reranker_encoder()
    objective = RerankerObjective(encoder, "mse")
    example = objective.prepare(items_of(encoder, scored=False), np.random.default_rng(0), 0.0)
    with pytest.raises(InvalidRequest, match=r"set data\.scores"):
        objective(example, example.counts)
