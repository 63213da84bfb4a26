"""The losses of dense retrievers beside those of sentence-transformers, and passes beside one big batch."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import sentence_transformers
import torch
from sentence_transformers.sentence_transformer import losses

import unmask
from tests.support.specs import SPECS, global_tokens, random_encoder
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.encoder.encoder import Encoder
from unmask.spec import PooledVector
from unmask.spec.global_tokens import has_global_tokens
from unmask.training.data.ranking import RankedTexts, TokenizedText
from unmask.training.objectives import retrieval_example as passes
from unmask.training.objectives.retrieval_bi_encoder import DenseObjective
from unmask.training.objectives.retrieval_example import prepared
from unmask.training.objectives.specs import RankingSpec

ROWS = [
    ("the river", "a muddy bank", "another text", "the bank"),
    ("a text", "another river", "the muddy text", "a bank"),
    ("was muddy", "the river was muddy", "a text was another", "bank"),
]


@pytest.fixture(scope="module")
def body(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("dense") / "body", tiny_bert(initializer_range=0.2))


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    return write_checkpoint(
        tmp_path_factory.mktemp("deep") / "body", tiny_bert(initializer_range=0.2, num_hidden_layers=3)
    )


def items_of(tokenizer, rows):
    def text(one):
        (encoding,) = tokenizer.encode_batch([one])
        return TokenizedText(encoding.ids, encoding.token_type_ids, one)

    return [RankedTexts(text(query), tuple(map(text, documents))) for query, *documents in rows]


def ours(body, rows, contrast, **settings):
    model = unmask.load(body)
    objective = DenseObjective(model.trainable_encoder(), model.checkpoint.head, contrast, **settings)
    objective.double().eval()
    example = objective.prepare(items_of(model.tokenizer, rows), np.random.default_rng(0), 0.0)
    outcome = objective(example, example.counts)
    outcome.loss.backward()
    return outcome, objective.encoder.embedding.words.weight.grad


def theirs(body, rows, make):
    model = sentence_transformers.SentenceTransformer(str(body), device="cpu").double().eval()
    loss = make(model)
    features = [model.tokenize(list(column)) for column in zip(*rows, strict=True)]
    found = loss(features, torch.zeros(len(rows)))
    found.backward()
    return found.item(), model[0].auto_model.embeddings.word_embeddings.weight.grad


CASES = {
    "pairs": (RankingSpec(), {}, 2),
    "negatives": (RankingSpec(), {}, 4),
    "dot": (
        RankingSpec("contrastive", 1.0, "dot"),
        {"scale": 1.0, "similarity_fct": sentence_transformers.util.dot_score},
        3,
    ),
    "symmetric": (
        RankingSpec("contrastive", 30.0, "cosine", ("query_to_doc", "doc_to_query"), joint=False),
        {"scale": 30.0, "directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"},
        3,
    ),
    "all directions": (
        RankingSpec(
            "contrastive", 20.0, "cosine", ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
        ),
        {"directions": ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")},
        4,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_loss_and_its_gradient_are_those_of_sentence_transformers(body, name):
    contrast, given, columns = CASES[name]
    rows = [row[:columns] for row in ROWS]
    outcome, gradient = ours(body, rows, contrast)
    wanted, other = theirs(body, rows, lambda model: losses.MultipleNegativesRankingLoss(model, **given))
    assert outcome.loss.item() == pytest.approx(wanted, abs=1e-9)
    assert outcome.sums["retrieval/loss"].item() == pytest.approx(3 * wanted, abs=3e-9)
    torch.testing.assert_close(gradient, other, rtol=0, atol=1e-9)
    assert other.abs().max() > 1e-3


@pytest.mark.parametrize("weights", [(), (1.0, 0.5, 0.25)])
def test_several_widths_are_those_of_matryoshka_loss(body, weights):
    outcome, gradient = ours(
        body, ROWS, RankingSpec(), widths=dict(zip((30, 16, 7), weights or (1.0,) * 3, strict=True))
    )

    def make(model):
        inner = losses.MultipleNegativesRankingLoss(model)
        return losses.MatryoshkaLoss(model, inner, [30, 16, 7], list(weights) or None)

    wanted, other = theirs(body, ROWS, make)
    assert outcome.loss.item() == pytest.approx(wanted, abs=1e-9)
    torch.testing.assert_close(gradient, other, rtol=0, atol=1e-9)
    alone, _ = ours(body, ROWS, RankingSpec())
    assert abs(alone.loss.item() - outcome.loss.item()) > 0.1


@pytest.mark.parametrize("widths", [(), (30, 7)])
@pytest.mark.parametrize("depths", [(1,), (2, 1)])
def test_several_depths_are_those_of_adaptive_layer_loss(deep, monkeypatch, depths, widths):
    """Also with several widths, which is its ``Matryoshka2dLoss``; their layers are named, not drawn."""
    outcome, gradient = ours(
        deep, ROWS, RankingSpec(), widths=dict.fromkeys(widths, 1.0) or None, depths=depths
    )
    monkeypatch.setattr("random.sample", lambda layers, count: list(depths))

    def make(model):
        inner = losses.MultipleNegativesRankingLoss(model)
        if widths:
            inner = losses.MatryoshkaLoss(model, inner, list(widths))
        return losses.AdaptiveLayerLoss(model, inner, n_layers_per_step=len(depths), kl_temperature=0)

    wanted, other = theirs(deep, ROWS, make)
    assert outcome.loss.item() == pytest.approx(wanted, abs=1e-9)
    torch.testing.assert_close(gradient, other, rtol=0, atol=1e-9)
    parts = {name: outcome.sums[f"retrieval/{name}"].item() for name in ("loss", "ranking", "depths")}
    assert parts["loss"] == pytest.approx(parts["ranking"] + parts["depths"])
    alone, _ = ours(deep, ROWS, RankingSpec(), widths=dict.fromkeys(widths, 1.0) or None)
    assert alone.loss.item() == pytest.approx(parts["ranking"] / 3, abs=1e-12)
    assert parts["depths"] > 0.1


@pytest.mark.parametrize("name", ["post-norm", "rotary-windows"])
def test_vectors_of_a_depth_are_those_of_a_model_of_so_many_layers(name):
    """Also of an encoder with a final norm, in passes, and what is used after training has no depths."""
    spec = SPECS[name]
    encoder = random_encoder(spec)
    objective = DenseObjective(encoder, PooledVector(), RankingSpec(), depths=(1,)).eval()
    shorter = Encoder(replace(spec, layers=spec.layers[:1])).eval()
    shorter.load_state_dict(encoder.state_dict(), strict=False)
    alone = DenseObjective(shorter, PooledVector(), RankingSpec()).eval()
    texts = [TokenizedText(np.array([1, 5, 7 + n, 9]), np.zeros(4, np.int64), str(n)) for n in range(4)]
    batch = prepared([RankedTexts(texts[0], tuple(texts[1:]))], np.random.default_rng(0), None).batch
    whole, first = passes.encode_in_passes(objective.trained_vectors, batch, 8).chunk(2, dim=1)
    torch.testing.assert_close(first, alone.vectors(batch), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(whole, objective.vectors(batch), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(whole, first, atol=1e-2)


def test_a_step_uses_some_of_the_negatives():
    def text(key):
        return TokenizedText(np.array([1, 5 + key]), np.zeros(2, dtype=np.int64), str(key))

    items = [RankedTexts(text(0), tuple(text(place) for place in range(1, 9)))]
    encoder = random_encoder(SPECS["post-norm"])
    objective = DenseObjective(encoder, PooledVector(), RankingSpec(), negatives=3)
    seen = set()
    for seed in range(20):
        example = objective.prepare(items, np.random.default_rng(seed), 0.0)
        ids = example.batch.ids_T[1::2]
        assert ids[:2].tolist() == [5, 6], "query and positive document are always there"
        assert len(ids) == 5
        assert (np.diff(ids) > 0).all()
        seen.update(ids[2:].tolist())
    assert seen == set(range(7, 14))


def drawn(encoder, count=7):
    draw = np.random.default_rng(0)
    marked = has_global_tokens(encoder.spec)

    def text():
        ids = draw.integers(5, 40, size=draw.integers(2, 14))
        return TokenizedText(ids, ids * 0, "", tuple(global_tokens(len(ids))) if marked else ())

    return [RankedTexts(text(), tuple(text() for _ in range(draw.integers(1, 4)))) for _ in range(count)]


def gradients(objective, example, seed=0):
    torch.manual_seed(seed)
    outcome = objective(example, example.counts)
    outcome.loss.backward()
    found = {name: one.grad.clone() for name, one in objective.named_parameters() if one.grad is not None}
    objective.zero_grad(set_to_none=True)
    return outcome.loss.item(), found


def with_dropout(encoder, rate=0.2):
    for part in encoder.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = rate
    return encoder.train()


@pytest.mark.parametrize("name", ["post-norm", "windows-globals"])
@pytest.mark.parametrize("dropout", [True, False])
def test_passes_have_the_gradient_of_the_whole_batch(name, dropout, monkeypatch):
    """With dropout, beside the same passes with all activations kept; without, beside one big pass."""
    encoder = random_encoder(SPECS[name], dtype=torch.float64)
    encoder = with_dropout(encoder) if dropout else encoder.eval()
    objective = DenseObjective(encoder, PooledVector(), RankingSpec(), tokens_per_pass=30).train(dropout)
    example = objective.prepare(drawn(encoder), np.random.default_rng(0), 0.0)
    loss, found = gradients(objective, example)
    if dropout:
        assert any(part.p for part in encoder.modules() if isinstance(part, torch.nn.Dropout))
        monkeypatch.setattr(passes, "checkpoint", lambda encode, part, **_: encode(part))
        assert gradients(objective, example, seed=1)[0] != loss
    else:
        objective.tokens_per_pass = None
    wanted, others = gradients(objective, example)
    assert loss == pytest.approx(wanted, abs=1e-12)
    assert found.keys() == others.keys()
    for key, one in others.items():
        torch.testing.assert_close(found[key], one, rtol=0, atol=1e-10)
    assert max(one.abs().max() for one in others.values()) > 1e-3


def test_no_pass_is_larger_than_its_budget_and_none_keeps_activations():
    encoder = with_dropout(random_encoder(SPECS["post-norm"]))
    objective = DenseObjective(encoder, PooledVector(), RankingSpec(), tokens_per_pass=30)
    example = objective.prepare(drawn(encoder, 20), np.random.default_rng(0), 0.0)
    sizes, kept = [], []

    def counted(tensor):
        kept.append(tensor.numel())
        return tensor

    forward = type(encoder).forward

    def seen(self, ids_T, *given, **named):
        sizes.append((len(ids_T), torch.is_grad_enabled()))
        return forward(self, ids_T, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(encoder), "forward", seen)
        with torch.autograd.graph.saved_tensors_hooks(counted, lambda tensor: tensor):
            outcome = objective(example, example.counts)
        first = len(sizes)
        stored = sum(kept)
        outcome.loss.backward()
    assert max(size for size, _ in sizes) <= 30 < example.tokens / 4
    assert sum(size for size, _ in sizes[:first]) == example.tokens
    assert len(sizes) == 2 * first, "each part is encoded twice"
    objective.tokens_per_pass = None
    kept.clear()
    with torch.autograd.graph.saved_tensors_hooks(counted, lambda tensor: tensor):
        objective(example, example.counts)
    assert stored < sum(kept) / 20, "only vectors and scores are kept"


def test_parts_are_whole_sequences_in_order():
    encoder = random_encoder(SPECS["windows-globals"])
    batch = prepared(drawn(encoder), np.random.default_rng(0), None).batch
    for budget in (1, 5, 13, 30, 10_000):
        parts = list(passes.parts_of(batch, budget))
        np.testing.assert_array_equal(np.concatenate([one.ids_T for one in parts]), batch.ids_T)
        lengths = np.concatenate([one.layout.lengths for one in parts])
        np.testing.assert_array_equal(lengths, batch.layout.lengths)
        marks = np.concatenate([one.layout.globals_T for one in parts])
        np.testing.assert_array_equal(marks, batch.layout.globals_T)
        assert all(one.layout.token_count <= budget or one.layout.sequence_count == 1 for one in parts)
        assert len(parts) == 1 or all(
            a.layout.token_count + b.layout.lengths[0] > budget for a, b in pairwise(parts)
        )
