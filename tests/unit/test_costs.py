"""docs/costs.md: its tables follow from the assumptions."""

from statistics import NormalDist

import numpy as np
import pytest

from benchmarks import costs


def test_the_page_is_computed_from_the_assumptions():
    page = costs.PAGE.read_text(encoding="utf-8")
    assert costs.filled(page) == page
    assert {found["name"] for found in costs.BLOCK.finditer(page)} == {
        "pretraining",
        "embedding",
        "searching",
    }


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


def test_a_single_machine_waits_as_queueing_theory_says(monkeypatch):
    """Random arrivals, equal times: the mean wait is ``load * time / (2 * (1 - load))`` (Pollaczek 1930)."""
    monkeypatch.setattr(costs, "SEARCHERS", 1)
    monkeypatch.setattr(costs, "SPREAD", 0.0)
    monkeypatch.setattr(costs, "PASSAGES", 50_000_000)
    alone = costs.response_times(0.0)
    assert np.ptp(alone) < 1e-12
    busy = alone[0] - costs.QUERY - costs.NETWORK - costs.DISK
    wait = costs.response_times(0.5).mean() - alone[0]
    assert wait == pytest.approx(0.5 * busy / (2 * 0.5), rel=0.05)


def test_the_slowest_of_many_machines_decides(monkeypatch):
    middle = {}
    for count in (1, 20):
        monkeypatch.setattr(costs, "SEARCHERS", count)
        monkeypatch.setattr(costs, "PASSAGES", count * 50_000_000)
        middle[count] = [np.median(costs.response_times(0.0, from_store=far)) for far in (False, True)]
    assert middle[1] < middle[20]
    # The largest of 512 reads of each machine, by the inverse of the normal distribution.
    for count, (_, far) in middle.items():
        rank = NormalDist().inv_cdf(0.5 ** (1 / (512 * count)))
        assert far == pytest.approx(0.03 * np.exp(0.6 * rank) + 0.025, rel=0.1)
