"""Figures beside the libraries and the rules that define them."""

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from unmask.training.finetune.metrics import (
    answer_figures,
    answer_scores,
    class_figures,
    entity_figures,
    multi_label_figures,
    normalized,
    number_figures,
)


def test_classes():
    draw = np.random.default_rng(0)
    gold, found = draw.integers(0, 2, (2, 50))
    figures = class_figures(gold, found, ["no", "yes"])
    assert figures["accuracy"] == metrics.accuracy_score(gold, found)
    assert figures["f1"] == figures["f1[yes]"] == metrics.f1_score(gold, found)
    assert figures["f1[no]"] == metrics.f1_score(gold, found, pos_label=0)
    assert figures["matthews"] == pytest.approx(metrics.matthews_corrcoef(gold, found))
    gold, found = draw.integers(0, 3, (2, 50))
    three = class_figures(gold, found, ["a", "b", "c"])
    assert three["matthews"] == pytest.approx(metrics.matthews_corrcoef(gold, found))
    assert three["macro_f1"] == pytest.approx(metrics.f1_score(gold, found, average="macro"))
    assert "f1" not in three
    assert three["macro_f1"] == pytest.approx(np.mean([three[f"f1[{one}]"] for one in "abc"]))


def test_classes_that_do_not_occur():
    """As scikit-learn has them with zero_division=0, and without a warning."""
    zeros = np.zeros(4, dtype=np.int64)
    figures = class_figures(zeros, zeros, ["a", "b", "c"])
    assert (figures["accuracy"], figures["matthews"], figures["macro_f1"]) == (1, 0, pytest.approx(1 / 3))
    other = class_figures(zeros, np.array([0, 0, 1, 1]), ["a", "b", "c"])
    assert (other["matthews"], other["f1[c]"], other["f1[b]"]) == (0, 0, 0)


def test_numbers():
    gold, found = np.random.default_rng(0).normal(size=(2, 40))
    figures = number_figures(gold, found)
    assert figures["pearson"] == pytest.approx(stats.pearsonr(gold, found).statistic)
    assert figures["spearman"] == pytest.approx(stats.spearmanr(gold, found).statistic)
    assert figures["mean_squared_error"] == pytest.approx(metrics.mean_squared_error(gold, found))
    assert number_figures(gold, np.zeros(40))["pearson"] == 0


def test_several_labels():
    gold, found = np.random.default_rng(0).random((2, 30, 4)) < 0.4
    figures = multi_label_figures(gold, found)
    assert figures["micro_f1"] == pytest.approx(metrics.f1_score(gold, found, average="micro"))
    assert figures["macro_f1"] == pytest.approx(metrics.f1_score(gold, found, average="macro"))
    assert figures["exact"] == metrics.accuracy_score(gold, found)


def test_entities():
    gold = [[("PER", 0, 2), ("LOC", 4, 5)], [("PER", 1, 2)], []]
    found = [[("PER", 0, 2), ("PER", 4, 5)], [], [("LOC", 0, 1), ("LOC", 2, 3)]]
    figures = entity_figures(gold, found)
    assert figures["precision"] == 1 / 4
    assert figures["recall"] == 1 / 3
    assert figures["f1"] == pytest.approx(2 / 7)
    assert figures["f1[PER]"] == pytest.approx(0.5)
    assert figures["f1[LOC]"] == 0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("The  Bank!", "bank"), ("An apple, a day", "apple day"), ("the", ""), ("theory", "theory")],
)
def test_answers_are_compared_without_articles_and_punctuation(answer, expected):
    assert normalized(answer) == expected


def test_answers():
    gold = [["the river bank", "bank"], ["Denver Broncos"], [], []]
    found = ["Bank.", "the Broncos team", "", "something"]
    scores = [answer_scores(*pair) for pair in zip(gold, found, strict=True)]
    figures = answer_figures(*np.array(scores).T)
    assert figures["exact_match"] == 50
    assert figures["f1"] == pytest.approx(100 * (1 + 0.5 + 1 + 0) / 4)
