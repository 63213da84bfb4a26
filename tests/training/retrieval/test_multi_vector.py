"""Late interaction: scores in tiles, and losses beside those of sentence-transformers on the same vectors."""

import numpy as np
import pytest
import torch
from sentence_transformers.multi_vector_encoder import losses
from torch.nn.utils.rnn import pad_sequence

from tests.support.specs import SPECS, random_encoder
from tests.training.retrieval.test_dense import drawn, gradients, with_dropout
from unmask.text.batch import SequenceLayout
from unmask.training.data.ranking import RankedTexts
from unmask.training.objectives import retrieval_bi_encoder as multi_vector
from unmask.training.objectives import retrieval_example as passes
from unmask.training.objectives.retrieval_bi_encoder import (
    MultiVectorObjective,
    late_scores,
    own_late_scores,
)
from unmask.training.objectives.retrieval_example import prepared
from unmask.training.objectives.specs import RankingSpec

QUERIES, DOCUMENTS, WIDTH = 3, 4, 6


def layouts(draw, documents=QUERIES * DOCUMENTS):
    return (
        SequenceLayout.of_lengths(draw.integers(2, 6, size=QUERIES)),
        SequenceLayout.of_lengths(draw.integers(2, 9, size=documents)),
    )


def unit(tokens):
    return torch.nn.functional.normalize(torch.randn(tokens, WIDTH, dtype=torch.float64), dim=-1)


@pytest.mark.parametrize("tile", [1, 60, 1 << 22])
def test_scores_are_those_of_a_plain_loop_whatever_the_tile(tile):
    torch.manual_seed(0)
    queries, documents = layouts(np.random.default_rng(0))
    q_TE, d_TE = (unit(one.token_count).requires_grad_() for one in (queries, documents))
    found = late_scores(q_TE, queries, d_TE, documents, tile=tile)
    wanted = torch.stack(
        [
            torch.stack(
                [
                    (q_TE[queries.rows(q)] @ d_TE[documents.rows(d)].T).amax(1).sum()
                    for d in range(documents.sequence_count)
                ]
            )
            for q in range(queries.sequence_count)
        ]
    )
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    weights = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), (q_TE, d_TE)),
        torch.autograd.grad((wanted * weights).sum(), (q_TE, d_TE)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    query_of_P = np.repeat(np.arange(QUERIES), DOCUMENTS)
    own = own_late_scores(q_TE, queries, d_TE, documents, query_of_P)
    torch.testing.assert_close(own, wanted[query_of_P, np.arange(len(query_of_P))], rtol=0, atol=1e-12)


def test_no_tile_of_products_is_larger_than_its_bound():
    torch.manual_seed(0)
    queries, documents = layouts(np.random.default_rng(0), 40)
    q_TE, d_TE = (unit(one.token_count).requires_grad_() for one in (queries, documents))
    bound = queries.token_count * 20
    kept = []
    pack = lambda tensor: kept.append(tensor.numel()) or tensor  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        scores = late_scores(q_TE, queries, d_TE, documents, tile=bound)
    assert max(kept, default=0) <= max(q_TE.numel(), d_TE.numel())
    sizes = []
    original = multi_vector._tile_scores

    def seen(query, document, *given):
        sizes.append(len(query) * len(document))
        return original(query, document, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multi_vector, "_tile_scores", seen)
        late_scores(q_TE, queries, d_TE, documents, tile=bound).sum().backward()
    assert len(sizes) > 8
    assert max(sizes) <= bound < queries.token_count * documents.token_count / 4
    assert scores.shape == (QUERIES, 40)


class Padded(torch.nn.Module):
    """What a loss of sentence-transformers calls: it gives the vectors that its features name."""

    def forward(self, features, task=None):
        return features


def padded(vectors, layout, chosen):
    some = [vectors[layout.rows(place)] for place in chosen]
    mask = pad_sequence([torch.ones(len(one)) for one in some], batch_first=True)
    return {"token_embeddings": pad_sequence(some, batch_first=True), "attention_mask": mask}


CASES = {
    "contrastive": (
        RankingSpec("contrastive", 2.0),
        losses.MultiVectorMultipleNegativesRankingLoss,
        {"scale": 2.0},
    ),
    "kl": (
        RankingSpec("kl", temperature=0.25),
        losses.MultiVectorDistillKLDivLoss,
        {"temperature": 0.25},
    ),
    "margin_mse": (RankingSpec("margin_mse"), losses.MultiVectorMarginMSELoss, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_loss_and_its_gradient_are_those_of_sentence_transformers(name):
    ranking, make, given = CASES[name]
    encoder = random_encoder(SPECS["post-norm"])
    draw = np.random.default_rng(3)
    items = [
        RankedTexts(one.query, (*one.documents, *one.documents, *one.documents)[:DOCUMENTS],
                    draw.normal(size=DOCUMENTS).astype(np.float32))
        for one in drawn(encoder, QUERIES)
    ]  # fmt: skip
    objective = MultiVectorObjective(encoder, ranking)
    example = prepared(items, draw, None)
    torch.manual_seed(1)
    vectors = unit(example.tokens).float().requires_grad_()
    parts, _ = objective.losses(vectors, example)
    loss = sum(parts.values()) / QUERIES
    (found,) = torch.autograd.grad(loss, vectors)
    layout = example.batch.layout
    columns = [range(QUERIES)] + [
        range(QUERIES + column, layout.sequence_count, DOCUMENTS) for column in range(DOCUMENTS)
    ]
    labels = torch.from_numpy(example.scores_P).reshape(QUERIES, DOCUMENTS)
    theirs = make(Padded(), **given)([padded(vectors, layout, column) for column in columns], labels)
    (wanted,) = torch.autograd.grad(theirs, vectors)
    assert loss.item() == pytest.approx(theirs.item(), rel=1e-6, abs=1e-6)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    assert wanted.abs().max() > 1e-3


def test_skipped_tokens_of_documents_take_no_part():
    encoder = random_encoder(SPECS["post-norm"], dtype=torch.float64).eval()
    encoder.output.append(torch.nn.Linear(encoder.spec.width, WIDTH, bias=False).double())
    items = drawn(encoder, 4)
    all_ids = np.concatenate([one.ids for item in items for one in item.documents])
    skipped = sorted(set(all_ids.tolist()) - {one.ids[0] for item in items for one in item.documents})[:6]

    def loss(ids):
        objective = MultiVectorObjective(encoder, RankingSpec(), skipped=ids)
        example = objective.prepare(items, np.random.default_rng(0), 0.0)
        return objective, example, objective(example, example.counts).loss.item()

    objective, example, found = loss(skipped)
    assert abs(found - loss(())[2]) > 1e-6
    vectors = objective.vectors(example.batch)
    layout = example.batch.layout
    scores = torch.stack(
        [
            torch.stack(
                [
                    (vectors[layout.rows(q)] @ vectors[layout.rows(d)][
                        ~np.isin(example.batch.ids_T[layout.rows(d)], skipped)
                    ].T).amax(1).sum()
                    for d in range(4, layout.sequence_count)
                ]
            )
            for q in range(4)
        ]
    )  # fmt: skip
    wanted = torch.nn.functional.cross_entropy(20 * scores, torch.from_numpy(example.positive_Q))
    assert found == pytest.approx(wanted.item(), abs=1e-10)


def test_passes_have_the_gradient_of_the_whole_batch(monkeypatch):
    encoder = with_dropout(random_encoder(SPECS["post-norm"], dtype=torch.float64))
    encoder.output.append(torch.nn.Linear(encoder.spec.width, WIDTH, bias=False).double())
    objective = MultiVectorObjective(encoder, RankingSpec("contrastive", 1.0), tokens_per_pass=30)
    example = objective.prepare(drawn(encoder), np.random.default_rng(0), 0.0)
    loss, found = gradients(objective, example)
    monkeypatch.setattr(passes, "checkpoint", lambda encode, part, **_: encode(part))
    wanted, others = gradients(objective, example)
    assert loss == pytest.approx(wanted, abs=1e-12)
    assert found.keys() == others.keys()
    assert "encoder.output.0.weight" in found
    for key, one in others.items():
        torch.testing.assert_close(found[key], one, rtol=0, atol=1e-10)
