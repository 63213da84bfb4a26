"""Pairs of texts: how many are drawn, what an item holds, and the loss beside plain torch."""

from collections import Counter

import numpy as np
import pytest
import torch

from tests.support.specs import SPECS, global_tokens, random_encoder
from unmask.encoder.heads import ClassificationHead
from unmask.errors import InvalidRequest
from unmask.spec import Classifier, LayerNorm, PooledVector
from unmask.spec.global_tokens import has_global_tokens
from unmask.text.batch import PackedBatch
from unmask.training.data import labeled
from unmask.training.data.labeled import LabeledBatches, LabeledSequence, draw_pairs
from unmask.training.objectives.labeled import ContrastiveObjective

GUIDE = [0] * 8 + [1] * 4 + [2] * 8
"""The labels of the example in SetFit's guide to sampling: 28 + 6 + 28 pairs of one label, 32 + 64 + 32 of
two."""


def texts(classes):
    ids = [np.array([1, 2 + number, 3][: 2 + number % 2]) for number in range(len(classes))]
    return [LabeledSequence(one, one * 0, np.array(c)) for one, c in zip(ids, classes, strict=True)]


def drawn(classes, seed=0, **settings):
    return draw_pairs(texts(classes), np.random.default_rng(seed), **settings)


@pytest.mark.parametrize(
    ("settings", "alike", "unlike"),
    [
        ({}, 128, 128),
        ({"strategy": "undersampling"}, 62, 62),
        ({"strategy": "unique"}, 62, 128),
        ({"iterations": 5}, 100, 100),
        ({"max_pairs": 20}, 10, 10),
        ({"strategy": "unique", "max_pairs": 130}, 62, 65),
        ({"max_pairs": 130}, 65, 65),
        ({"iterations": 2, "max_pairs": 20}, 40, 40),
    ],
)
def test_an_epoch_has_as_many_pairs_as_setfit_says(settings, alike, unlike):
    found = drawn(GUIDE, **settings)
    assert (len(found.alike_P2), len(found.unlike_P2), len(found)) == (alike, unlike, alike + unlike)
    classes = np.array(GUIDE)
    assert (classes[found.alike_P2[:, 0]] == classes[found.alike_P2[:, 1]]).all()
    assert (classes[found.unlike_P2[:, 0]] != classes[found.unlike_P2[:, 1]]).all()
    assert not (found.alike_P2[:, 0] == found.alike_P2[:, 1]).any(), "no text is paired with itself"
    for kind, pool in ((found.alike_P2, 62), (found.unlike_P2, 128)):
        limit = min(pool, settings.get("max_pairs", 1000) // 2)
        often = Counter(tuple(sorted(pair)) for pair in kind.tolist())
        assert len(often) == min(limit, len(kind)), "nothing repeats before everything is there"
        assert max(often.values()) - min(often.values()) <= 1


def test_the_seed_decides_what_is_left_out():
    one, same, other = (drawn(GUIDE, seed, max_pairs=20).alike_P2 for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert one.tolist() != other.tolist()


def test_too_many_pairs_and_pairs_of_one_kind_are_refused(monkeypatch):
    with pytest.raises(InvalidRequest, match="make 3 pairs of one label and 0 of two labels"):
        drawn([0, 0, 0])
    with pytest.raises(InvalidRequest, match="make 0 pairs of one label and 1 of two labels"):
        drawn([0, 1])
    monkeypatch.setattr(labeled, "MOST_PAIRS", 189)
    with pytest.raises(InvalidRequest, match="the 20 training texts make 190 pairs and the limit is 189"):
        drawn(GUIDE)


def test_an_item_has_both_texts():
    some = texts([0, 0, 1])
    some = [
        LabeledSequence(one.ids, one.token_type_ids + number, one.target, (0,))
        for number, one in enumerate(some)
    ]
    found = draw_pairs(some, np.random.default_rng(0), strategy="unique")
    targets = Counter()
    for item in found:
        (first, types, marks), (second, other_types, other_marks) = item.sequences()
        assert (marks, other_marks) == ((0,), (0,))
        numbers = [first[1] - 2, second[1] - 2]
        for number, ids, type_ids in zip(numbers, (first, second), (types, other_types), strict=True):
            np.testing.assert_array_equal(ids, some[number].ids)
            np.testing.assert_array_equal(type_ids, some[number].token_type_ids)
        targets[tuple(sorted(numbers))] = float(item.target)
    assert targets == {(0, 1): 1.0, (0, 2): 0.0, (1, 2): 0.0}
    assert len(found[1:]) == 2
    with pytest.raises(IndexError):
        found[3]
    assert LabeledBatches(found, batch_size=2).steps_per_epoch == 2


def reference(encoder, items, mode, marked):
    """The loss in plain torch: every text alone, its mean, a cosine, a squared error, a mean over pairs."""
    losses = []
    for item in items:
        vectors = []
        for ids, types, marks in item.sequences():
            batch = PackedBatch.of_ids([ids], [types], [marks] if marked else None)
            x_TD = encoder.encode(batch)
            vectors.append(x_TD.mean(0) if mode == "mean" else x_TD[0])
        one, other = vectors
        cosine = (one * other).sum() / (one.square().sum() * other.square().sum()).sqrt()
        losses.append((cosine - float(item.target)) ** 2)
    return torch.stack(losses).mean()


@pytest.mark.parametrize("mode", ["mean", "cls"])
@pytest.mark.parametrize("name", ["post-norm", "windows-globals"])
def test_the_loss_and_its_gradient_are_those_of_plain_torch(name, mode):
    encoder = random_encoder(SPECS[name], dtype=torch.float64)
    marked = has_global_tokens(encoder.spec)
    draw = np.random.default_rng(0)
    some = []
    for number in range(5):
        ids = draw.integers(5, 40, size=3 + 4 * number)
        marks = tuple(global_tokens(len(ids))) if marked else ()
        some.append(LabeledSequence(ids, ids * 0, np.array(number % 2), marks))
    items = list(draw_pairs(some, draw, strategy="unique"))
    parameters = [one for name, one in encoder.named_parameters() if not name.startswith(("heads", "pooler"))]
    expected = reference(encoder, items, mode, marked)
    wanted = torch.autograd.grad(expected, parameters)
    objective = ContrastiveObjective(encoder, PooledVector((mode,), normalize=True))
    examples = [objective.prepare(part, draw, 0.0) for part in (items[:3], items[3:])]
    assert [example.sequences for example in examples] == [6, 14]
    totals = {"contrastive": sum(example.counts["contrastive"] for example in examples)}
    outcomes = [objective(example, totals) for example in examples]
    loss = sum(outcome.loss for outcome in outcomes)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)
    assert sum(one.sums["contrastive/loss"] for one in outcomes).item() == pytest.approx(10 * loss.item())
    for one, other in zip(torch.autograd.grad(loss, parameters), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_a_head_may_normalize_what_it_reads():
    """Before its norm; a head that does not say so reads the state as it is."""
    torch.manual_seed(0)
    unit = ClassificationHead(Classifier("sequence", 2, "mean", normalize=True), 6)
    plain = ClassificationHead(Classifier("sequence", 2, "mean"), 6)
    plain.load_state_dict(unit.state_dict())
    x_SD = torch.randn(3, 6)
    torch.testing.assert_close(unit(x_SD), plain(x_SD / x_SD.norm(dim=-1, keepdim=True)))
    torch.testing.assert_close(unit(x_SD), unit(7 * x_SD))
    assert not torch.allclose(plain(x_SD), plain(7 * x_SD))
    normed = ClassificationHead(
        Classifier("sequence", 2, "mean", input_norm=LayerNorm(1.0), normalize=True), 6
    )
    unit_SD = x_SD / x_SD.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(normed(x_SD), normed.out(normed.norm(unit_SD)))
