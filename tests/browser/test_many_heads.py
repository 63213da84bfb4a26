"""The map of many heads as one: shown, in the address, and taken along as CSV, Python and a file."""

import numpy as np
import pytest
from conftest import running, settle
from fake_model import FakeModel
from looking import SHORT, address_says, look, reads, value
from test_export import map_of, opened_file, point, python_of, run, saved, tables_of

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def live():
    with running(FakeModel()) as server:
        yield server


def drawn(page, over):
    page.wait_for_selector(f'[data-testid="map"][data-shown*="/{over}/"]')


def choose(page, label, value):
    page.get_by_role("radiogroup", name=label).or_(page.get_by_role("group", name=label)).get_by_text(
        value, exact=True
    ).click()


def test_the_heads_of_a_layer_and_all_heads(page, browser, live, tmp_path, monkeypatch):
    view = FakeModel().attention(SHORT)
    look(page, live, "map", layer=1, head=2, query=3)
    settle(page, "map")
    choose(page, "Heads on the map", "Layer")
    drawn(page, "layer_mean")
    reads(page, 1, 2, view.pooled(1, "mean")[1, 2])
    choose(page, "Value over heads", "Maximum")
    address_says(page, **{"map__over": "layer_max", "layer": "1"})
    drawn(page, "layer_max")
    reads(page, 1, 2, view.pooled(1, "max")[1, 2])
    choose(page, "Heads on the map", "All heads")
    address_says(page, map__over="all_max")
    page.reload()
    drawn(page, "all_max")
    reads(page, 1, 2, view.pooled(None, "max")[1, 2])
    assert "maximum over all heads" in page.get_by_test_id("drawn").inner_text()
    *_, table = tables_of(saved(page, "csv", tmp_path).read_bytes().decode().split("\r\n"))
    np.testing.assert_allclose(map_of(table), view.pooled(None, "max"), rtol=1e-5)
    np.testing.assert_array_equal(run(python_of(page), monkeypatch), view.pooled(None, "max"))
    with opened_file(browser, path := saved(page, "html", tmp_path)) as file:
        file.goto(path.as_uri())
        drawn(file, "all_max")
        choose(file, "Value over heads", "Mean")
        drawn(file, "all_mean")
        point(file, 1, 2)
        assert value(file) == pytest.approx(view.pooled()[1, 2], rel=1e-5)
    page.locator('[data-testid=heads] [data-layer="2"][data-head="3"]').click()
    reads(page, 1, 2, view.probabilities(2, 3)[1, 2])
    address_says(page, layer="2", head="3")
    assert "map.over" not in page.url
