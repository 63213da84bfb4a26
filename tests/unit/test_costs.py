"""docs/costs.md: its tables follow from the assumptions."""

import pytest

from benchmarks import costs


def test_the_page_is_computed_from_the_assumptions():
    page = costs.PAGE.read_text(encoding="utf-8")
    assert costs.filled(page) == page
    assert {found["name"] for found in costs.BLOCK.finditer(page)} == {"pretraining", "embedding"}


def test_another_assumption_gives_another_page(monkeypatch):
    page = costs.PAGE.read_text(encoding="utf-8")
    monkeypatch.setattr(costs, "PEAK", 2 * costs.PEAK)
    assert costs.filled(page) != page


def test_operations_are_those_of_the_usual_rule_and_attention():
    """Six for each parameter and token (Kaplan et al. 2020), the vocabulary's for 30 % of the tokens."""
    short, long = costs.Phase.of(1), costs.Phase.of(2)
    body, vocabulary = 110e6, 768 * 50_368
    assert short.operations == pytest.approx(6 * (body + 0.3 * vocabulary), rel=0.15)
    assert 1.4 < long.operations / short.operations < 2, "every third layer sees all"
    assert short.tokens == pytest.approx(1.7e12, rel=0.01)
