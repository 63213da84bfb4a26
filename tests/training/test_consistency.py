"""R-Drop and SiFT in float64 against computations that share no code with them."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.special import expit, log_softmax, rel_entr
from torch.nn import functional

from tests.support.specs import POST_NORM, SPECS, random_encoder
from unmask.errors import InvalidRequest
from unmask.spec import ROLES, Classifier, NoNorm
from unmask.training.data.labeled import IGNORED, LabeledSequence
from unmask.training.objectives.consistency import (
    class_divergence,
    grouped_divergence,
    label_divergence,
    number_divergence,
)
from unmask.training.objectives.labeled import LabeledObjective
from unmask.training.objectives.specs import SiftSpec

CASES = {
    "classification": ("sequence", "single_label_classification"),
    "multi_label": ("sequence", "multi_label_classification"),
    "regression": ("sequence", "regression"),
    "tagging": ("tokens", "single_label_classification"),
    "answering": ("span", "single_label_classification"),
}
LENGTHS = (5, 2, 7)


def classifier(role, problem):
    classes = {"span": 2, "tokens": 3}.get(role, 1 if problem == "regression" else 3)
    return Classifier(role, classes, "mean" if role == "sequence" else "tokens")


def texts(case, vocabulary, seed=0):
    draw = np.random.default_rng(seed)
    made = []
    for length in LENGTHS:
        target = {
            "classification": np.array(draw.integers(0, 3)),
            "multi_label": (draw.random(3) < 0.5).astype(np.float32),
            "regression": draw.standard_normal(1).astype(np.float32),
            "tagging": np.where(draw.random(length) < 0.4, IGNORED, draw.integers(0, 3, length)),
            "answering": np.sort(draw.integers(0, length, 2)),
        }[case]
        ids = draw.integers(0, vocabulary, length)
        made.append(LabeledSequence(ids, np.zeros(length, dtype=np.int64), target))
    return made


def built(case, spec, dropout=0.0, **options):
    """An objective in training mode with a batch."""
    role, problem = CASES[case]
    layers = tuple(replace(layer, dropout=dropout) for layer in spec.layers)
    encoder = random_encoder(
        replace(spec, layers=layers, heads=(classifier(role, problem),)), dtype=torch.float64
    )
    objective = LabeledObjective(encoder, role, problem, **options).train()
    some = texts(case, spec.embedding.vocabulary)
    if case in ("multi_label", "regression"):
        some = [replace(one, target=one.target.astype(np.float64)) for one in some]
    return objective, objective.prepare(some, np.random.default_rng(0), 0.0)


def divergence(case, one, other, example):
    """KL(one || other), or a squared difference, summed over targets, by scipy, text by text."""
    one, other = (x.detach().numpy() for x in (one, other))
    starts = example.batch.layout.offsets
    if case == "regression":
        return np.square(one - other).mean(-1).sum()
    if case == "multi_label":
        p, q = expit(one), expit(other)
        return (rel_entr(p, q) + rel_entr(1 - p, 1 - q)).mean(-1).sum()
    if case == "answering":
        total = 0.0
        for start, end in pairwise(starts):
            p, q = (np.exp(log_softmax(x[start:end], axis=0)) for x in (one, other))
            total += rel_entr(p, q).sum() / 2
        return total
    if case == "tagging":
        one, other = one[example.rows_P], other[example.rows_P]
    p, q = (np.exp(log_softmax(x, axis=-1)) for x in (one, other))
    return rel_entr(p, q).sum()


@pytest.mark.parametrize("case", CASES)
def test_divergences(case):
    objective, example = built(case, POST_NORM)
    one = objective._logits(example)
    other = one + torch.randn(one.shape, dtype=one.dtype, generator=torch.Generator().manual_seed(1))
    for pair in ((one, other), (other, one)):
        expected = divergence(case, *pair, example)
        assert objective._divergence(example, *pair).item() == pytest.approx(expected, rel=1e-10)
        assert expected > 0.01
    assert objective._divergence(example, one, one).item() == pytest.approx(0.0, abs=1e-12)


def test_divergences_of_extreme_logits_are_finite():
    large = torch.tensor([[1e4, -1e4, 0.0], [0.0, 0.0, 5e4]]).requires_grad_()
    of_T = torch.tensor([0, 0])
    for measure in (
        class_divergence,
        label_divergence,
        number_divergence,
        lambda a, b: grouped_divergence(a[:, :2], b[:, :2], of_T, 1),
    ):
        value = measure(large, -large)
        (gradient,) = torch.autograd.grad(value, large)
        assert torch.isfinite(value)
        assert torch.isfinite(gradient).all()


# --- R-Drop ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_r_drop_is_the_papers_loss(case):
    """The mean of both losses and alpha times the mean of both divergences, of the same two passes."""
    objective, example = built(case, POST_NORM, dropout=0.3, r_drop=0.7)
    plain, _ = built(case, POST_NORM, dropout=0.3)
    count = example.counts[ROLES[CASES[case][0]].term]
    torch.manual_seed(5)
    found = objective(example, example.counts)
    torch.manual_seed(5)
    first, second = plain._logits(example), plain._logits(example)
    assert not torch.equal(first, second)
    losses = [plain._loss(logits, example)[0] for logits in (first, second)]
    both = divergence(case, first, second, example) + divergence(case, second, first, example)
    expected = (sum(losses).item() / 2 + 0.7 * both / 2) / count
    assert found.loss.item() == pytest.approx(expected, rel=1e-10)
    term = ROLES[CASES[case][0]].term
    assert found.sums[f"{term}/loss"].item() == pytest.approx(sum(losses).item() / 2, rel=1e-10)
    assert found.sums[f"{term}/r_drop"].item() == pytest.approx(both / 2, rel=1e-10)
    assert not any(one.requires_grad for one in found.sums.values())


def test_the_gradient_of_r_drop_is_that_of_its_authors_code():
    objective, example = built("classification", POST_NORM, dropout=0.3, r_drop=0.7)
    torch.manual_seed(5)
    objective(example, example.counts).loss.backward()
    mine = {name: one.grad.clone() for name, one in objective.named_parameters() if one.grad is not None}
    objective.zero_grad()
    torch.manual_seed(5)
    p, q = objective._logits(example), objective._logits(example)
    targets = torch.from_numpy(example.targets_P)
    entropy = 0.5 * (functional.cross_entropy(p, targets) + functional.cross_entropy(q, targets))
    one = functional.kl_div(p.log_softmax(-1), q.softmax(-1), reduction="batchmean")
    other = functional.kl_div(q.log_softmax(-1), p.softmax(-1), reduction="batchmean")
    (entropy + 0.7 * (one + other) / 2).backward()
    for name, parameter in objective.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(mine[name], parameter.grad, rtol=0, atol=1e-12)


def test_evaluation_has_one_pass():
    objective, example = built("classification", POST_NORM, 0.3, r_drop=1.0, sift=SiftSpec(1.0))
    plain, _ = built("classification", POST_NORM, 0.3)
    found, expected = (one.eval()(example, example.counts) for one in (objective, plain))
    assert found.sums.keys() == expected.sums.keys()
    assert found.loss.item() == expected.loss.item()
    assert (plain.passes, objective.passes) == (1, pytest.approx(2 + 5 / 3))


def test_r_drop_needs_dropout():
    """Any: of layers, of attention, of the head."""
    with pytest.raises(InvalidRequest, match=r"r_drop is 0\.5 and all dropouts of the model are 0"):
        built("classification", POST_NORM, r_drop=0.5)
    attention = tuple(replace(layer, mixer=replace(layer.mixer, dropout=0.1)) for layer in POST_NORM.layers)
    for spec in (
        replace(POST_NORM, layers=attention, heads=(classifier(*CASES["classification"]),)),
        replace(
            POST_NORM,
            embedding=replace(POST_NORM.embedding, dropout=0.1),
            heads=(classifier(*CASES["classification"]),),
        ),
    ):
        LabeledObjective(random_encoder(spec), "sequence", r_drop=0.5)
    encoder = random_encoder(replace(POST_NORM, heads=(classifier(*CASES["classification"]),)))
    encoder.heads["sequence"].dropout.p = 0.1
    LabeledObjective(encoder, "sequence", r_drop=0.5)


# --- SiFT --------------------------------------------------------------------------------------------

SIFT = SiftSpec(weight=3.0, learning_rate=0.02, initial_perturbation=0.05)


def perturbed(objective, example, delta):
    """Logits with the normalized sum of embeddings moved by delta, by other means than a hook."""
    norm = objective.encoder.embedding.norm
    own = type(norm).forward

    def forward(x):
        x = x.detach()
        if isinstance(norm, torch.nn.LayerNorm):
            x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-7).sqrt()
        else:
            x = x / (x.square().mean(-1, keepdim=True) + 1e-7).sqrt()
        return own(norm, x + delta)

    norm.forward = forward
    try:
        return objective._logits(example)
    finally:
        del norm.forward


def cross_entropies(one, other):
    """As in DeBERTa's code: each side's probabilities, as constants, with the other's logarithms."""
    p, q = one.log_softmax(-1), other.log_softmax(-1)
    return -(p.exp().detach() * q).sum() - (q.exp().detach() * p).sum()


@pytest.mark.parametrize(
    "name", [name for name, spec in SPECS.items() if spec.embedding.norm not in (None, NoNorm())]
)
def test_sift_is_the_code_of_deberta(name):
    """Value of the step and gradient of every weight, of every kind of encoder."""
    objective, example = built("classification", SPECS[name], sift=SIFT)
    torch.manual_seed(3)
    objective(example, example.counts).loss.backward()
    mine = {name: one.grad.clone() for name, one in objective.named_parameters() if one.grad is not None}
    objective.zero_grad()
    torch.manual_seed(3)
    width = objective.encoder.embedding.norm.weight.shape[0]
    noise = torch.randn(sum(LENGTHS), width, dtype=torch.float64) * 0.05
    delta = noise.clamp(-0.1, 0.1).requires_grad_()
    clean = objective._logits(example)
    p = clean.detach().log_softmax(-1)
    ascent = -(p.exp() * perturbed(objective, example, delta).log_softmax(-1)).sum()
    (gradient,) = torch.autograd.grad(ascent, delta)
    delta = (delta + 0.02 * gradient / (1e-6 + gradient.abs().max(-1, keepdim=True)[0])).detach()
    loss = objective._loss(clean, example)[0]
    (loss + 3.0 * cross_entropies(clean, perturbed(objective, example, delta))).div(len(LENGTHS)).backward()
    assert mine
    for key, parameter in objective.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(mine[key], parameter.grad, rtol=1e-9, atol=1e-12, msg=key)


@pytest.mark.parametrize("case", CASES)
def test_the_perturbation_follows_the_gradient(case, monkeypatch):
    """The step against finite differences of the divergence, element by element."""
    from unmask.training.objectives.consistency import _Perturbation

    moves, ascend = [], _Perturbation.ascend

    def kept(self, value):
        before = self.delta.detach().clone()
        ascend(self, value)
        moves.append((before, self.delta))

    monkeypatch.setattr(_Perturbation, "ascend", kept)
    objective, example = built(case, POST_NORM, sift=SIFT)
    torch.manual_seed(2)
    found = objective(example, example.counts)
    ((before, after),) = moves
    assert before.abs().max() <= 0.1 < 0.1 + 1e-9
    clean, term = objective._logits(example), ROLES[CASES[case][0]].term

    def value(delta):
        with torch.no_grad():
            return divergence(case, clean, perturbed(objective, example, delta), example)

    slope = torch.zeros_like(before)
    places = [(row, column) for row in range(0, len(before), 3) for column in range(before.shape[1])]
    for place in places:
        step = torch.zeros_like(before)
        step[place] = 1e-5
        slope[place] = (value(before + step) - value(before - step)) / 2e-5
    rows = torch.arange(0, len(before), 3)
    expected = 0.02 * slope[rows] / (1e-6 + slope[rows].abs().max(-1, keepdim=True)[0])
    torch.testing.assert_close((after - before)[rows], expected, rtol=0, atol=2e-6)
    moved = perturbed(objective, example, after)
    both = divergence(case, clean, moved, example) + divergence(case, moved, clean, example)
    assert found.sums[f"{term}/sift"].item() == pytest.approx(both, rel=1e-9)
    loss = objective._loss(clean, example)[0].item()
    assert found.loss.item() == pytest.approx((loss + 3 * both) / example.counts[term], rel=1e-9)


def test_the_norm_is_as_before_after_a_step():
    objective, example = built("classification", POST_NORM, sift=SIFT)
    before = objective._logits(example)
    objective(example, example.counts)
    torch.testing.assert_close(objective._logits(example), before, rtol=0, atol=0)
    assert not objective.encoder.embedding.norm._forward_pre_hooks


def test_a_frozen_encoder_can_be_perturbed():
    objective, example = built("classification", POST_NORM, sift=SIFT)
    for part in (objective.encoder.embedding, objective.encoder.layers):
        part.requires_grad_(False)
    objective(example, example.counts).loss.backward()
    assert objective.encoder.heads["sequence"].out.weight.grad.abs().max() > 0
    assert objective.encoder.embedding.norm.weight.grad is None


def test_what_cannot_be_perturbed_is_refused():
    spec = replace(POST_NORM, embedding=replace(POST_NORM.embedding, norm=None))
    with pytest.raises(InvalidRequest, match="sift perturbs normalized embeddings, and this encoder has no"):
        built("classification", spec, sift=SIFT)
    for name in ("weight", "learning_rate", "initial_perturbation"):
        with pytest.raises(InvalidRequest, match=f"{name} is 0; it must be above 0"):
            SiftSpec(**{"weight": 1.0, name: 0.0})
