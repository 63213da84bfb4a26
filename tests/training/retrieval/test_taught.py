"""Losses on a teacher's scores beside those of sentence-transformers, on the same vectors."""

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.util import pairwise_cos_sim, pairwise_dot_score

from unmask.errors import InvalidRequest
from unmask.training.data.ranking import RankedTexts, TokenizedText
from unmask.training.objectives.retrieval_bi_encoder import vector_loss
from unmask.training.objectives.retrieval_example import RankingExample, prepared
from unmask.training.objectives.retrieval_losses import Groups, own_positives_first, taught_loss
from unmask.training.objectives.specs import RankingSpec

QUERIES, DOCUMENTS, WIDTH = 4, 5, 8


def items(counts, *, scored=True):
    draw = np.random.default_rng(0)

    def text():
        return TokenizedText(draw.integers(5, 40, size=3), np.zeros(3, dtype=np.int64))

    return [
        RankedTexts(
            text(),
            tuple(text() for _ in range(count)),
            draw.normal(size=count).astype(np.float32) * 3 if scored else None,
        )
        for count in counts
    ]


def example_of(counts, negatives=None, **given) -> RankingExample:
    return prepared(items(counts, **given), np.random.default_rng(1), negatives)


SPECS = {
    "margin_mse": (RankingSpec("margin_mse", similarity="dot"), losses.MarginMSELoss, {}),
    "margin_mse cosine": (
        RankingSpec("margin_mse"),
        losses.MarginMSELoss,
        {"similarity_fct": pairwise_cos_sim},
    ),
    "kl": (
        RankingSpec("kl", similarity="dot", temperature=2.0),
        losses.DistillKLDivLoss,
        {"temperature": 2.0, "similarity_fct": pairwise_dot_score},
    ),
    "kl of two temperatures": (
        RankingSpec("kl", similarity="dot", temperature=0.5, teacher_temperature=3.0),
        losses.DistillKLDivLoss,
        {"student_temperature": 0.5, "teacher_temperature": 3.0, "similarity_fct": pairwise_dot_score},
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_the_loss_and_its_gradient_are_those_of_sentence_transformers(name):
    ranking, make, given = SPECS[name]
    example = example_of([DOCUMENTS] * QUERIES)
    torch.manual_seed(0)
    vectors = torch.randn(QUERIES * (1 + DOCUMENTS), WIDTH, dtype=torch.float64, requires_grad=True)
    loss, right = vector_loss(vectors[:QUERIES], vectors[QUERIES:], example, ranking)
    (found,) = torch.autograd.grad(loss / QUERIES, vectors)
    columns = vectors[QUERIES:].reshape(QUERIES, DOCUMENTS, WIDTH)
    labels = torch.from_numpy(example.scores_P).double().reshape(QUERIES, DOCUMENTS)
    theirs = make(torch.nn.Identity(), **given).compute_loss_from_embeddings(
        [vectors[:QUERIES], *columns.unbind(1)], labels
    )
    (wanted,) = torch.autograd.grad(theirs, vectors)
    assert loss.item() / QUERIES == pytest.approx(theirs.item(), abs=1e-9)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
    assert wanted.abs().max() > 1e-3
    assert 0 <= right <= QUERIES


def groups_of(counts):
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    return Groups(torch.from_numpy(np.repeat(np.arange(len(counts)), counts)), torch.from_numpy(starts))


@pytest.mark.parametrize("loss", ["margin_mse", "kl"])
def test_queries_may_have_different_numbers_of_documents(loss):
    """The sum over queries of the loss of each alone."""
    counts = [3, 1, 4]
    ranking = RankingSpec(loss, temperature=1.5, min_max_scores=loss == "kl")
    torch.manual_seed(0)
    own_P, teacher_P = torch.randn(2, 8, dtype=torch.float64)
    whole = taught_loss(own_P, teacher_P, groups_of(counts), ranking)
    alone = [
        taught_loss(one, other, groups_of([len(one)]), ranking)
        for one, other in zip(own_P.split(counts), teacher_P.split(counts), strict=True)
    ]
    assert whole.item() == pytest.approx(sum(alone).item(), abs=1e-12)
    assert alone[1].item() == pytest.approx(0)


def test_scores_brought_to_one_range():
    """By hand: 0, 1 and one quarter."""
    groups = groups_of([3])
    teacher_P = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64)
    own_P = torch.tensor([3.0, 11.0, 5.0], dtype=torch.float64)
    ranking = RankingSpec("kl", min_max_scores=True)
    found = taught_loss(own_P, teacher_P, groups, ranking)
    wanted = taught_loss(own_P.new_tensor([0.0, 1.0, 0.25]), teacher_P, groups, RankingSpec("kl"))
    assert found.item() == pytest.approx(wanted.item())
    assert wanted.item() > 0.01


def test_a_positive_document_counts_if_it_is_above_its_own_others():
    groups = groups_of([2, 2, 2])
    own_P = torch.tensor([2.0, 1.0, 1.0, 2.0, 3.0, 3.0])
    assert own_positives_first(own_P, groups) == 1


def test_scores_belong_to_the_documents_that_a_step_uses():
    (item,) = items([6])
    for seed in range(5):
        example = prepared([item], np.random.default_rng(seed), 2)
        assert len(example.scores_P) == 3
        for place, score in enumerate(example.scores_P):
            (same,) = (n for n, one in enumerate(item.scores) if one == score)
            ids = example.batch.ids_T.reshape(-1, 3)[1 + place]
            np.testing.assert_array_equal(ids, item.documents[same].ids)


def test_missing_scores_are_refused():
    example = example_of([2, 2], scored=False)
    vectors = torch.randn(6, WIDTH)
    with pytest.raises(InvalidRequest, match=r"set data\.scores"):
        vector_loss(vectors[:2], vectors[2:], example, RankingSpec("kl"))
    mixed = [*items([2]), *items([2], scored=False)]
    with pytest.raises(InvalidRequest, match="some queries have a teacher's scores"):
        prepared(mixed, np.random.default_rng(0), None)
