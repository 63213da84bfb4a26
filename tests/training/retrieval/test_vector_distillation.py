"""Distillation of embeddings beside the loss of sentence-transformers."""

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer import losses

from tests.support.specs import SPECS, random_encoder
from unmask.spec import PooledVector
from unmask.training.data.labeled import LabeledSequence
from unmask.training.objectives.retrieval_distillation import VectorDistillation


def items_of(encoder, count=5):
    draw = np.random.default_rng(0)
    found = []
    for number in range(count):
        ids = draw.integers(5, 40, size=3 + number)
        found.append(LabeledSequence(ids, ids * 0, draw.normal(size=encoder.spec.width).astype(np.float32)))
    return found


@pytest.mark.parametrize("loss", ["l2", "mse", "cosine"])
def test_the_loss_and_its_gradient_are_those_of_sentence_transformers(loss):
    encoder = random_encoder(SPECS["post-norm"], dtype=torch.float64).eval()
    items = items_of(encoder)
    objective = VectorDistillation(encoder, PooledVector(), loss)
    example = objective.prepare(items, np.random.default_rng(0), 0.0)
    outcome = objective(example, example.counts)
    vectors = objective.vectors(example.batch)
    taught = torch.from_numpy(np.stack([one.target for one in items])).double()
    theirs = losses.EmbedDistillLoss(torch.nn.Identity(), distance_metric=loss)
    wanted = theirs.compute_loss_from_embeddings([vectors], [taught])
    assert outcome.loss.item() == pytest.approx(wanted.item(), abs=1e-9)
    parameter = encoder.embedding.words.weight
    one, other = (torch.autograd.grad(value, parameter)[0] for value in (outcome.loss, wanted))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
    cosine = torch.nn.functional.cosine_similarity(vectors, taught).sum()
    assert outcome.sums["distillation/cosine"].item() == pytest.approx(cosine.item())


def test_micro_batches_and_passes_do_not_change_the_loss():
    encoder = random_encoder(SPECS["post-norm"], dtype=torch.float64).eval()
    items = items_of(encoder)
    whole = VectorDistillation(encoder, PooledVector(), "l2")
    passes = VectorDistillation(encoder, PooledVector(), "l2", tokens_per_pass=8)
    example = whole.prepare(items, np.random.default_rng(0), 0.0)
    wanted = whole(example, example.counts).loss.item()
    parts = [passes.prepare(some, np.random.default_rng(0), 0.0) for some in (items[:2], items[2:])]
    assert sum(passes(part, example.counts).loss.item() for part in parts) == pytest.approx(wanted, abs=1e-12)
