"""Labeled batches: epochs in orders of their own; and the loss of answers in packed batches."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from tests.support.specs import SPECS, random_encoder
from unmask.errors import InvalidRequest
from unmask.spec import Classifier
from unmask.spec.global_tokens import has_global_tokens
from unmask.training.data.labeled import LabeledBatches, LabeledSequence
from unmask.training.objectives.labeled import LabeledObjective


def items(count):
    ones = np.ones(3, dtype=np.int64)
    return [LabeledSequence(ones + number, ones * 0, np.array(number)) for number in range(count)]


def numbers(micro_batches):
    return [[int(item.target) for item in some] for some in micro_batches]


def test_every_epoch_has_every_text_in_another_order():
    batches = LabeledBatches(items(10), batch_size=4, seed=3)
    epochs = []
    for _ in range(3):
        steps = [numbers(batches.next(1))[0] for _ in range(batches.steps_per_epoch)]
        assert [len(step) for step in steps] == [4, 4, 2]
        epochs.append(list(chain(*steps)))
        assert sorted(epochs[-1]) == list(range(10))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    again = LabeledBatches(items(10), batch_size=4, seed=4)
    assert list(chain(*(numbers(again.next(1))[0] for _ in range(3)))) != epochs[0]
    assert batches.epochs == {"train": 3.0}
    assert batches.tokens == 90


def test_micro_batches_and_processes_share_a_step():
    whole = numbers(LabeledBatches(items(10), batch_size=5, seed=1).next(1))[0]
    parts = numbers(LabeledBatches(items(10), batch_size=5, micro_batches=2, seed=1).next(2))
    assert [len(part) for part in parts] == [3, 2]
    assert list(chain(*parts)) == whole
    for rank in (0, 1):
        mine = LabeledBatches(items(10), batch_size=5, micro_batches=2, seed=1).next(2, rank=rank, world=2)
        assert numbers(mine) == [parts[rank]]


def test_fewer_texts_than_micro_batches():
    batches = LabeledBatches(items(5), batch_size=4, micro_batches=3)
    batches.next(3)
    last = numbers(batches.next(3))
    assert [len(part) for part in last] == [1, 1, 1]


def test_a_position_is_restored():
    batches = LabeledBatches(items(7), batch_size=2, seed=2)
    for _ in range(5):
        batches.next(1)
    other = LabeledBatches(items(7), batch_size=2, seed=2)
    other.restore(batches.state())
    assert numbers(other.next(1)) == numbers(batches.next(1))
    assert other.tokens == batches.tokens
    with pytest.raises(InvalidRequest, match="was training on 7 texts and there are 8 now"):
        LabeledBatches(items(8), batch_size=2, seed=2).restore(batches.state())


@pytest.mark.parametrize(("count", "options"), [(0, {}), (3, {"micro_batches": 3})])
def test_impossible_batches(count, options):
    with pytest.raises(InvalidRequest, match=r"no training texts|micro_batches is 3"):
        LabeledBatches(items(count), batch_size=2, **options)


@pytest.mark.parametrize("name", sorted(SPECS))
def test_packed_losses_are_those_of_one_text_at_a_time(name):
    heads = (
        Classifier("span", 2, "tokens"),
        Classifier("tokens", 3, "tokens"),
        Classifier("sequence", 3, "mean"),
        Classifier("choice", 1, "first"),
    )
    encoder = random_encoder(replace(SPECS[name], heads=heads), dtype=torch.float64)
    draw = np.random.default_rng(0)
    lengths = [5, 1, 9]
    for role in ("span", "tokens", "sequence", "choice"):
        objective = LabeledObjective(encoder, role)
        some = []
        for length in lengths:
            target = {
                "span": np.sort(draw.integers(0, length, 2)),
                "tokens": np.where(draw.random(length) < 0.4, -100, draw.integers(0, 3, length)),
                "sequence": np.array(draw.integers(0, 3)),
                "choice": np.array(1),
            }[role]
            ids = draw.integers(0, SPECS[name].embedding.vocabulary, length)
            parts, marks = (), ()
            if role == "choice":  # a question with two or three choices
                parts = (length, 4) if length > 5 else (length, 4, 7)
                ids = draw.integers(0, SPECS[name].embedding.vocabulary, sum(parts))
                marks = (0, length + 1) if has_global_tokens(SPECS[name]) else ()
            some.append(LabeledSequence(ids, np.zeros_like(ids), target, marks, parts))
        together = objective.prepare(some, draw, 0.0)
        gradients = []
        for batch in ([some], [[one] for one in some]):
            encoder.zero_grad()
            loss = sum(objective(objective.prepare(part, draw, 0.0), together.counts).loss for part in batch)
            loss.backward()
            gradients.append(
                (
                    loss.item(),
                    {n: p.grad.clone() for n, p in encoder.named_parameters() if p.grad is not None},
                )
            )
        (one, theirs), (two, ours) = gradients
        assert one == pytest.approx(two, abs=1e-10)
        for key in theirs:
            torch.testing.assert_close(theirs[key], ours[key], rtol=0, atol=1e-10)


def test_the_loss_of_an_answer_is_that_of_its_text_alone():
    name = sorted(SPECS)[0]
    encoder = random_encoder(
        replace(SPECS[name], heads=(Classifier("span", 2, "tokens"),)), dtype=torch.float64
    )
    encoder.heads["span"].out.weight.data *= 1e5  # far beyond what an exponential can hold
    objective = LabeledObjective(encoder, "span")
    some = [LabeledSequence(np.arange(1, 8), np.zeros(7, dtype=np.int64), np.array([2, 5]))] * 2
    example = objective.prepare(some, np.random.default_rng(0), 0.0)
    logits = encoder.logits("span", encoder.encode(example.batch), example.batch.layout)[:7]
    expected = torch.nn.functional.cross_entropy(logits.T, torch.tensor([2, 5]))
    found = objective(example, example.counts)
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-12)
    right = int(logits[:, 0].argmax() == 2 and logits[:, 1].argmax() == 5)
    assert found.sums["answering/accuracy"].item() == 2 * right


def question(draw, lengths, target, marks=()):
    ids = draw.integers(1, 90, sum(lengths))
    return LabeledSequence(ids, np.zeros_like(ids), np.array(target), marks, tuple(lengths))


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_of_a_question_is_cross_entropy_over_its_choices(smoothing):
    name = sorted(SPECS)[0]
    heads = (Classifier("choice", 1, "mean"),)
    encoder = random_encoder(replace(SPECS[name], heads=heads), dtype=torch.float64)
    encoder.heads["choice"].out.weight.data *= 1e4  # far beyond what an exponential can hold
    objective = LabeledObjective(encoder, "choice", label_smoothing=smoothing)
    draw = np.random.default_rng(0)
    some = [question(draw, *one) for one in (((3, 5), 1), ((4, 2, 6, 1), 2), ((7, 7, 7), 0))]
    example = objective.prepare(some, draw, 0.0)
    assert (example.counts, example.sequences, example.tokens) == ({"multiple_choice": 3}, 9, 42)
    logits = encoder.logits("choice", encoder.encode(example.batch), example.batch.layout)[:, 0]
    expected, right = 0.0, 0
    for item, mine in zip(some, logits.split([2, 4, 3]), strict=True):
        expected += torch.nn.functional.cross_entropy(
            mine, torch.tensor(int(item.target)), label_smoothing=smoothing
        )
        right += int(mine.argmax() == int(item.target))
    found = objective(example, example.counts)
    assert found.loss.item() == pytest.approx(expected.item() / 3, rel=1e-12)
    assert found.sums["multiple_choice/accuracy"].item() == right


def test_the_choices_of_a_question_are_never_in_two_micro_batches():
    draw = np.random.default_rng(0)
    some = [question(draw, (3, 4, 2)[: 2 + number % 2], 0) for number in range(7)]
    batches = LabeledBatches(some, batch_size=4, micro_batches=3)
    parts = [part for _ in range(batches.steps_per_epoch) for part in batches.next(3)]
    assert [len(part) for part in parts] == [2, 1, 1, 1, 1, 1]
    assert {id(item) for part in parts for item in part} == set(map(id, some))
    assert batches.tokens == sum(len(item.ids) for item in some)


def test_the_sequences_of_an_item():
    item = LabeledSequence(np.arange(9), np.arange(9) % 2, np.array(0), (0, 3, 5, 8), (3, 1, 5))
    found = [(ids.tolist(), types.tolist(), marks) for ids, types, marks in item.sequences()]
    assert found == [
        ([0, 1, 2], [0, 1, 0], (0,)),
        ([3], [1], (0,)),
        ([4, 5, 6, 7, 8], [0, 1, 0, 1, 0], (1, 4)),
    ]


def test_choices_have_no_class_weights():
    encoder = random_encoder(replace(SPECS[sorted(SPECS)[0]], heads=(Classifier("choice", 1, "mean"),)))
    with pytest.raises(InvalidRequest, match="class_weights is given and choices have no classes"):
        LabeledObjective(encoder, "choice", class_weights=[1.0])
