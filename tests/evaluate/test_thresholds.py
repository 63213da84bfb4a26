"""Thresholds of named labels that are fitted to labeled texts."""

import numpy as np
import pytest

import unmask
from tests.tasks.test_labels import TEXTS, write_gliner
from unmask.errors import InvalidRequest
from unmask.evaluate.thresholds import best_threshold

LABELS = ["person", "city"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return unmask.load(write_gliner(tmp_path_factory.mktemp("gliner") / "model"))


def places(model, threshold, **options):
    found = model.tag(TEXTS, labels=LABELS, threshold=threshold, **options)
    return [[(it.start, it.end, it.label) for it in one.entities] for one in found]


@pytest.mark.parametrize("seed", range(30))
def test_the_best_threshold_is_that_of_all_cuts(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 12))
    scores = np.round(rng.uniform(0.1, 1, count), 1 + seed % 2) + 0.01  # with and without equal scores
    right = rng.random(count) < 0.5
    gold = int(right.sum() + rng.integers(0, 4))
    tried = {}
    for cut in np.linspace(0.0999, 1.05, 2000):
        taken = scores > cut
        tried[cut] = 2 * (right & taken).sum() / max(taken.sum() + gold, 1)
    best = best_threshold(scores, right, gold, 0.05)
    if not right.any():
        assert best is None
        return
    taken = scores > best
    assert 2 * (right & taken).sum() / (taken.sum() + gold) == pytest.approx(max(tried.values()))
    fewest = min((scores > cut).sum() for cut, f1 in tried.items() if f1 > max(tried.values()) - 1e-9)
    assert taken.sum() == fewest
    assert abs(scores - best).min() > 1e-4  # between scores, not at one


def test_nothing_found_has_no_threshold():
    assert best_threshold(np.array([]), np.array([], dtype=bool), 3, 0.05) is None


@pytest.mark.parametrize("options", [{}, {"nested": True, "multi_label": True}])
def test_what_a_threshold_finds_is_found_again(model, options):
    """Entities above a hidden threshold are the gold ones, so the fitted thresholds find exactly these."""
    hidden = {"person": 0.7, "city": 0.71}
    gold = places(model, hidden, **options)
    assert sum(map(len, gold)) > 2
    fitted = unmask.fit_thresholds(model, TEXTS, gold, LABELS, **options)
    again = places(model, {label: one.threshold for label, one in fitted.items()}, **options)
    usual = places(model, 0.5, **options)
    for label, one in fitted.items():
        of_label = [[it for it in some if it[2] == label] for some in gold]
        assert one.gold == sum(map(len, of_label))
        for agreement, found in ((one.fitted, again), (one.usual, usual)):
            ours = [[it for it in some if it[2] == label] for some in found]
            right = sum(len(set(a) & set(b)) for a, b in zip(ours, of_label, strict=True))
            count = sum(map(len, ours))
            assert agreement.found == count
            assert agreement.precision == pytest.approx(right / max(count, 1))
            assert agreement.recall == pytest.approx(right / max(one.gold, 1))
            assert agreement.f1 == pytest.approx(2 * right / max(count + one.gold, 1))
    if options:  # no entity takes the place of another here
        assert all(one.fitted.f1 == 1 for one in fitted.values())
        assert [set(some) for some in again] == [set(some) for some in gold]


def test_a_label_that_is_never_there_keeps_the_usual_threshold(model):
    fitted = unmask.fit_thresholds(model, TEXTS, [[], []], LABELS)
    assert {one.threshold for one in fitted.values()} == {0.5}
    assert {one.gold for one in fitted.values()} == {0}


@pytest.mark.parametrize(
    ("texts", "entities", "labels", "options", "match"),
    [
        ([], [], LABELS, {}, "texts is empty"),
        (TEXTS, [[]], LABELS, {}, "2 texts and 1 lists of entities"),
        (TEXTS, [[(0, 3)], []], LABELS, {}, r"text 1 has the entity \(0, 3\); give"),
        (TEXTS, [[], [("a", 3, "city")]], LABELS, {}, "text 2 has the entity"),
        (
            TEXTS,
            [[(0, 99, "city")], []],
            LABELS,
            {},
            "text 1 has an entity from 0 to 99, and it has 20 characters",
        ),
        (TEXTS, [[(3, 3, "city")], []], LABELS, {}, "from 3 to 3"),
        (TEXTS, [[(0, 3, "drug")], []], LABELS, {}, "label 'drug', which is not among the labels"),
        (TEXTS, [3, []], LABELS, {}, "the entities of text 1"),
        (TEXTS, [[], []], [], {}, "labels is empty"),
        (TEXTS, [[], []], LABELS, {"lowest": 2}, "lowest"),
    ],
)
def test_bad_input_is_refused(model, texts, entities, labels, options, match):
    with pytest.raises(InvalidRequest, match=match):
        unmask.fit_thresholds(model, texts, entities, labels, **options)


def test_a_model_without_such_a_head_is_refused():
    with pytest.raises(InvalidRequest, match="has no head for labels"):
        unmask.fit_thresholds("default", TEXTS, [[], []], LABELS)
