"""The views of further analyses: what they draw is what the API and the library say."""

import re
from urllib.parse import urlencode

import numpy as np
import pytest
from colors import palette
from conftest import opened, running, settle
from looking import address_says, becomes

from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

TEXT = "The old man sat by the river bank and counted the money in the bank."
RIVER = 7


@pytest.fixture(scope="module")
def mini():
    import unmask

    return unmask.load("unmask-mini")


@pytest.fixture(scope="module")
def two(mini, default_model):
    with running([mini, default_model]) as server:
        yield server


@pytest.fixture
def show(browser, two):
    """Open the page at a state of its address."""
    with opened(browser) as page:

        def go(**state):
            fields = {"v": "2", "text": TEXT}
            fields |= {name.replace("__", "."): value for name, value in state.items()}
            page.goto(f"{two.url}#{urlencode(fields)}")
            page.get_by_test_id("stage").wait_for()
            return page

        yield go


def cells(page, testid):
    """Values of a table's rows, by column."""
    rows = page.locator(f"[data-testid={testid}] tbody tr").all()
    return [[cell.get_attribute("data-value") for cell in row.locator("td").all()] for row in rows]


def test_the_shares_of_a_rollout_are_those_of_the_library(show, mini):
    from unmask.interpret.effects.attribution import rollout

    page = show(view="paths", query=RIVER, paths__fusion="max")
    page.get_by_test_id("paths-table").wait_for()
    row = rollout(mini.attention(TEXT).cache, RIVER, fusion="max").values[0]
    shown = cells(page, "paths-table")
    assert [int(token) for token, *_ in shown] == np.argsort(-row, kind="stable")[: len(shown)].tolist()
    np.testing.assert_allclose([float(one[2]) for one in shown], np.sort(row)[::-1][: len(shown)], atol=1e-6)


def test_at_the_top_a_rollout_is_the_token_itself_and_the_address_holds_the_level(show):
    page = show(view="paths", query=RIVER)
    slider = page.get_by_test_id("paths-level")
    slider.focus()
    page.keyboard.press("End")
    address_says(page, paths__level="6")
    page.get_by_test_id("paths-level-words").filter(has_text="where it starts").wait_for()
    settle(page, "paths")
    assert float(cells(page, "paths-table")[0][2]) == pytest.approx(1)
    assert "not an explanation" in page.get_by_test_id("caution").inner_text()


def test_guesses_are_those_of_fill_and_heads_are_taken_out_by_key(show, mini):
    page = show(view="words", query=RIVER)
    first = page.locator("[data-testid=predictions] li").first
    first.wait_for()
    masked = TEXT.replace("river", mini.tokenizer.engine.id_to_token(mini.tokenizer.mask_id))
    expected = mini.fill(masked)[0].predictions[0]
    assert float(first.get_attribute("data-probability")) == pytest.approx(expected.probability, rel=1e-4)

    grid = page.locator("[data-testid=importance] [role=grid]")
    grid.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")

    def named():
        return page.locator(f"#{grid.get_attribute('aria-activedescendant')}").inner_text()

    wait_until(lambda: named().startswith("layer 1, head 1: "))
    page.keyboard.press("Enter")
    page.get_by_test_id("ablation-table").wait_for()
    name, effect, _estimate, before, after = cells(page, "ablation-table")[0]
    assert name == "1.1"
    assert float(effect) == pytest.approx(float(before) - float(after), abs=1e-5)


def test_a_cell_has_the_color_of_its_value(show):
    page = show(view="words", query=RIVER)
    page.get_by_test_id("importance-canvas").wait_for()
    settle(page, "words")
    pixels = page.get_by_test_id("importance-canvas").evaluate(
        "canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
    )
    page.get_by_test_id("importance-twin").click()
    values = np.array([float(value) for *_, value in cells(page, "importance-table")])
    most = np.abs(values).max()
    middle, ends = np.array([246, 245, 240]), np.array([[18, 78, 160], [176, 72, 4]])
    code = np.floor(255 * (values + most) / (2 * most) + 0.5)
    place = 2 * code / 255 - 1
    expected = middle + (ends[(place >= 0).astype(int)] - middle) * np.abs(place)[:, None]
    np.testing.assert_allclose(np.array(pixels).reshape(-1, 4)[:, :3], expected, atol=1)


def test_a_model_without_a_word_head_says_so_and_offers_one_that_has(show, default_model):
    page = show(view="words", query=RIVER, model=default_model.name)
    notice = page.get_by_test_id("words-cannot")
    notice.wait_for()
    page.get_by_test_id("importance").wait_for()
    notice.get_by_role("button").click()
    page.get_by_test_id("predictions").wait_for()
    notice.wait_for(state="detached")


def test_two_models_are_linked_by_characters_and_compared_by_words(show, mini, default_model):
    page = show(view="compare", beside=default_model.name, query=RIVER)
    page.get_by_test_id("map-difference").wait_for()
    page.locator("[data-testid=strip-a] [data-token]", has_text="money").hover()
    lit = page.locator("[data-testid=strip-b] .lit")
    lit.first.wait_for()
    becomes(lit.all_inner_texts, ["money"])
    page.get_by_test_id("matches").wait_for()
    assert len(cells(page, "matches")) > 0
    # Too short for CKA: said, not drawn.
    assert re.search(r"\d+ rows", page.get_by_test_id("cka-refused").inner_text())


def test_maps_that_are_compared_line_up_and_share_the_colors_of_the_page(show, default_model):
    page = show(view="compare", beside=default_model.name, compare__head="0.0")
    page.get_by_test_id("map-difference").wait_for()
    names = ("map-a", "map-b", "map-difference")
    canvases = [page.get_by_test_id(f"{name}-canvas") for name in names]
    wait_until(lambda: np.ptp([canvas.bounding_box()["y"] for canvas in canvases]) < 1)
    assert len({page.get_by_test_id(name).bounding_box()["x"] for name in names}) == 3, "side by side"
    # A weight has one color on all maps: that of its place on the scale, not among the values of its map.
    page.get_by_test_id("colors").click()
    page.get_by_test_id("gain").fill("2")
    address_says(page, gain="2")
    settle(page, "compare")
    pixels = page.get_by_test_id("map-a-canvas").evaluate(
        "canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
    )
    page.get_by_test_id("map-a-twin").click()
    values = [min(1.0, 4 * float(value)) for *_, value in cells(page, "map-a-table")]
    wanted = palette("light")[np.floor(255 * np.sqrt(values) + 0.5).astype(int)]
    np.testing.assert_array_equal(np.array(pixels).reshape(-1, 4)[:, :3], wanted)


def test_geometry_refuses_what_is_too_short_and_measures_what_is_not(show):
    page = show(view="geometry")
    page.get_by_test_id("geometry-refused").wait_for()
    assert "30" in page.get_by_test_id("geometry-refused").inner_text()
    page = show(view="geometry", text=" ".join(f"word {number} of {number * 7}." for number in range(60)))
    page.get_by_test_id("geometry-n").wait_for()
    chart = page.locator("[data-testid=geometry-spread] svg[role=img]")
    chart.focus()
    page.keyboard.press("ArrowRight")
    page.get_by_test_id("geometry-spread-readout").filter(has_text="participation ratio").wait_for()


def test_the_roofline_is_drawn_of_what_was_measured(show):
    """The dots and the table have the numbers of the request; an address of the view before opens it."""
    page = show(view="wall")
    page.get_by_test_id("roofline-table").wait_for(timeout=60_000)
    rows = cells(page, "roofline-table")
    assert [row[0] for row in rows] == ["64", "256", "1024", "4096"]
    page.get_by_test_id("roofline-chart-twin").click()
    drawn = cells(page, "roofline-chart-table")
    ridge = float(page.locator("[data-ridge]").get_attribute("data-ridge"))
    # Every length has its operations a byte in tiles and with stored scores; the roof has three.
    assert 2 * len(rows) < len(drawn) <= 2 * len(rows) + 3
    assert any(float(row[0]) == pytest.approx(ridge, rel=1e-3) for row in drawn)


def test_the_chosen_token_has_a_gap_where_others_have_an_effect(show):
    """What replacing it does to itself is the largest effect of all: a 0 there would be a false number."""
    page = show(view="tour", tour__chapter="reach", tour__token=RIVER)
    chart = page.get_by_test_id("line-chart")
    line = chart.locator("svg path.line").get_attribute("d")
    assert line.count("M") == 2, "a line in two segments, with the chosen token between them"
    page.get_by_test_id("line-chart-twin").click()
    rows = cells(page, "line-chart-table")
    assert [token for token, value in rows if value is None] == [str(RIVER)]
    assert chart.locator("tbody tr").nth(RIVER).inner_text().endswith("–")
    own = re.search(r"changes it by ([\d.]+)", chart.inner_text())[1]
    assert float(own) > max(float(value) for _, value in rows if value is not None)
