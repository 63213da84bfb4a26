"""Sparse retrievers: the loss, its regularizers and their warm-up beside those of sentence-transformers."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SparseEncoder
from sentence_transformers.base import modules
from sentence_transformers.sparse_encoder import losses
from sentence_transformers.sparse_encoder import modules as own
from sentence_transformers.sparse_encoder.callbacks.splade_callbacks import (
    SpladeRegularizerWeightSchedulerCallback,
)

import unmask
from tests.support.tiny import tiny_bert, write_checkpoint
from tests.training.retrieval.test_dense import ROWS, gradients, items_of, with_dropout
from unmask.errors import InvalidRequest
from unmask.training.data.ranking import RankedTexts, TokenizedText
from unmask.training.objectives import retrieval_bi_encoder as sparse
from unmask.training.objectives import retrieval_example as passes
from unmask.training.objectives.retrieval_bi_encoder import SparseObjective, flops
from unmask.training.objectives.specs import RankingSpec, RegularizerSpec

SCORES = np.array([[3.0, 1.0, 0.5], [2.0, 1.5, -0.5], [4.0, -1.0, 0.0]], dtype=np.float32)
DOT = RankingSpec("contrastive", 1.0, "dot")
REGULARIZER = RegularizerSpec(0.3, 0.07)
STEPS = 9

CASES = {
    "contrastive": (DOT, losses.SparseMultipleNegativesRankingLoss, {}),
    "margin_mse": (RankingSpec("margin_mse", similarity="dot"), losses.SparseMarginMSELoss, {}),
    "kl": (
        RankingSpec("kl", similarity="dot", temperature=2.0),
        losses.SparseDistillKLDivLoss,
        {"temperature": 2.0},
    ),
}


@pytest.fixture(scope="module")
def body(tmp_path_factory):
    """A model of each kind, as sentence-transformers writes it."""
    place = tmp_path_factory.mktemp("sparse")
    tiny = tiny_bert("BertForMaskedLM", initializer_range=0.2, vocab_size=69)
    with torch.no_grad():  # the vector of [PAD] is 0, so its logits would be equal and the largest ambiguous
        tiny.bert.embeddings.word_embeddings.weight[0].normal_()
    checkpoint = write_checkpoint(place / "encoder", tiny, sentence=False)
    transformers.AutoTokenizer.from_pretrained(checkpoint).save_pretrained(checkpoint)
    for name in ("both", "static"):
        encoder = modules.Transformer(str(checkpoint), transformer_task="fill-mask")
        parts = [encoder, own.SpladePooling("max")]
        if name == "static":
            torch.manual_seed(1)
            table = own.SparseStaticEmbedding(
                encoder.tokenizer, weight=torch.rand(len(encoder.tokenizer.get_vocab()))
            )
            parts = [modules.Router.for_query_document(query_modules=[table], document_modules=parts)]
        SparseEncoder(modules=parts).save_pretrained(str(place / name))
    return place


def texts(model, static):
    items = items_of(model.tokenizer, [row[:4] for row in ROWS])
    if static:
        bare = [item.query.ids[1:-1] for item in items]
        queries = [
            TokenizedText(ids, np.zeros_like(ids), item.query.key)
            for ids, item in zip(bare, items, strict=True)
        ]
    else:
        queries = [item.query for item in items]
    return [
        RankedTexts(query, item.documents, scores)
        for query, item, scores in zip(queries, items, SCORES, strict=True)
    ]


def objective_of(folder, ranking=DOT, **settings):
    model = unmask.load(folder)
    settings = {"regularizer": REGULARIZER, "steps": STEPS} | settings
    made = SparseObjective(model.trainable_encoder(), model.checkpoint.head, ranking, **settings)
    return made.double().eval(), texts(model, model.checkpoint.head.static_queries)


def theirs(folder, make, given, step):
    """The loss of sentence-transformers at a step of `STEPS`, with its parts and two gradients."""
    model = with_dropout(SparseEncoder(str(folder), device="cpu").double(), 0.0)  # eval has no gradient
    static = folder.name == "static"
    loss = losses.SpladeLoss(
        model,
        make(model, **given),
        document_regularizer_weight=REGULARIZER.document_weight,
        query_regularizer_weight=REGULARIZER.query_weight,
    )
    schedule = SpladeRegularizerWeightSchedulerCallback(loss)
    schedule.on_train_begin(None, SimpleNamespace(max_steps=STEPS), None)
    schedule.on_step_begin(None, SimpleNamespace(global_step=step), None)
    columns = [list(column) for column in zip(*[row[:4] for row in ROWS], strict=True)]
    features = [
        model.preprocess(column, **({"task": "document" if place else "query"} if static else {}))
        for place, column in enumerate(columns)
    ]
    vectors = [
        model(one, **({"task": "document" if place else "query"} if static else {}))["sentence_embedding"]
        for place, one in enumerate(features)
    ]
    parts = loss.loss.compute_loss_from_embeddings(vectors, torch.from_numpy(SCORES).double())
    parts = {
        "ranking": parts,
        "query_regularizer": loss.query_regularizer_weight
        * loss.query_regularizer.compute_loss_from_embeddings(vectors[0]),
        "document_regularizer": loss.document_regularizer_weight
        * loss.document_regularizer.compute_loss_from_embeddings(torch.cat(vectors[1:])),
    }
    sum(parts.values()).backward()
    named = dict(model.named_parameters())
    words = next(one for name, one in named.items() if name.endswith("word_embeddings.weight"))
    table = [one for name, one in named.items() if "sub_modules.query." in name]
    return {name: one.item() for name, one in parts.items()}, [words.grad, *(one.grad for one in table)]


@pytest.mark.parametrize("static", [False, True], ids=["both", "static"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("step", [0, 2, 8])
def test_loss_parts_and_gradient_are_those_of_sentence_transformers(body, name, static, step):
    ranking, make, given = CASES[name]
    folder = body / ("static" if static else "both")
    objective, items = objective_of(folder, ranking)
    example = objective.prepare(items, np.random.default_rng(0), step / STEPS)
    assert example.queries == (0 if static else 3)
    outcome = objective(example, example.counts)
    outcome.loss.backward()
    parts, wanted = theirs(folder, make, given, step)
    for part, value in parts.items():
        found = outcome.sums[f"retrieval/{part}"].item() / 3
        assert found == pytest.approx(value, rel=1e-10, abs=1e-15), part
    assert outcome.loss.item() == pytest.approx(sum(parts.values()), rel=1e-10)
    encoder = objective.encoder
    found = [encoder.embedding.words.weight.grad, *(one.weight.grad for one in encoder.output)]
    for one, other in zip(found, wanted, strict=True):
        assert other.abs().max() > 1e-4
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 7, 100])
@pytest.mark.parametrize("share", [1 / 3, 0.5, 1.0])
def test_the_warm_up_is_theirs_at_every_step(steps, share):
    loss = losses.SpladeLoss(
        torch.nn.Identity(),
        losses.SparseMultipleNegativesRankingLoss(None),
        document_regularizer_weight=1.0,
        query_regularizer_weight=0.5,
    )
    schedule = SpladeRegularizerWeightSchedulerCallback(loss, warmup_ratio=share)
    schedule.on_train_begin(None, SimpleNamespace(max_steps=steps), None)
    ours = RegularizerSpec(0.5, 1.0, share)
    for step in range(steps):
        schedule.on_step_begin(None, SimpleNamespace(global_step=step), None)
        assert ours.factor(step, steps) == loss.document_regularizer_weight
        assert 0.5 * ours.factor(step, steps) == loss.query_regularizer_weight
        assert RegularizerSpec(1.0, 1.0, 0.0).factor(step, steps) == 1


def test_flops_of_a_small_matrix():
    assert flops(torch.tensor([[2.0, 0.0], [0.0, 4.0]])).item() == 1 + 4


@pytest.mark.parametrize("name", ["both", "static"])
@pytest.mark.parametrize("dropout", [True, False])
def test_passes_have_the_gradient_of_the_whole_batch(body, name, dropout, monkeypatch):
    objective, items = objective_of(body / name, tokens_per_pass=14)
    if dropout:
        with_dropout(objective)
    example = objective.prepare(items, np.random.default_rng(0), 1.0)
    assert len(list(passes.parts_of(example.batch, 14))) > 2
    loss, found = gradients(objective, example)
    if dropout:
        assert gradients(objective, example, seed=1)[0] != loss
        for module in (passes, sparse):
            monkeypatch.setattr(module, "checkpoint", lambda call, *given, **_: call(*given))
    else:
        objective.tokens_per_pass = None
    wanted, others = gradients(objective, example)
    assert loss == pytest.approx(wanted, abs=1e-12)
    assert found.keys() == others.keys()
    for key, one in others.items():
        torch.testing.assert_close(found[key], one, rtol=0, atol=1e-10)
    assert ("encoder.output.0.weight" in found) == (name == "static")


@pytest.mark.parametrize("tokens", [None, 14])
def test_logits_of_one_text_at_a_time_are_in_memory(body, tokens, monkeypatch):
    objective, items = objective_of(body / "both", tokens_per_pass=tokens)
    example = objective.prepare(items, np.random.default_rng(0), 1.0)
    words, longest = objective.encoder.spec.embedding.vocabulary, int(example.batch.layout.lengths.max())
    asked, kept = [], []
    logits = type(objective.encoder).logits

    def seen(self, role, x_TD, layout):
        asked.append(len(x_TD))
        return logits(self, role, x_TD, layout)

    monkeypatch.setattr(type(objective.encoder), "logits", seen)
    pack = lambda tensor: kept.append(tensor.shape) or tensor  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outcome = objective(example, example.counts)
    first = len(asked)
    assert max(asked) <= longest
    assert sum(asked) == example.tokens
    wide = [shape[0] for shape in kept if len(shape) == 2 and shape[1] == words]
    assert max(wide) <= example.sequences, "vectors of texts are kept, and no logits of tokens"
    assert example.sequences < example.tokens / 3
    outcome.loss.backward()
    assert len(asked) >= 2 * first


def test_micro_batches_count_by_their_queries(body):
    """A regularizer is a mean over micro-batches, each with as much weight as it has queries."""
    objective, items = objective_of(body / "both")
    parts = [objective.prepare(some, np.random.default_rng(0), 1.0) for some in (items[:1], items[1:])]
    outcomes = [objective(one, {"retrieval": 3}) for one in parts]
    alone = [objective(one, one.counts) for one in parts]
    wanted = (alone[0].loss.item() + 2 * alone[1].loss.item()) / 3
    assert sum(one.loss.item() for one in outcomes) == pytest.approx(wanted, rel=1e-12)


def test_impossible_regularizers_are_refused():
    for given, message in (
        ((-1.0, 0.0), "query_regularizer_weight is -1; it must be at least 0 and finite"),
        ((0.0, float("nan")), "document_regularizer_weight is nan"),
        ((0.0, 0.0, 1.5), r"regularizer_warmup_share is 1\.5; it must be from 0 to 1"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            RegularizerSpec(*given)
