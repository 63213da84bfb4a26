"""The legend of patterns beside the map: the scores of Python, a card of each, and in a saved file."""

import pytest
from conftest import settle
from looking import becomes, look
from rules import broken_rules
from test_export import opened_file, saved

from unmask.interpret.attention.patterns import head_patterns

pytestmark = pytest.mark.long

TEXT = "the river bank was muddy . another text was the river . the bank was another bank ."


def number(written):
    return None if written is None else float(written)


def shown(page, layer, head):
    page.locator(f'[data-testid=patterns][data-head="{layer}.{head}"]').wait_for()
    rows = page.locator("[data-testid=patterns] li").all()
    return {row.get_attribute("data-pattern"): number(row.get_attribute("data-score")) for row in rows}


def is_of(page, view, layer, head):
    scores = head_patterns(view.cache, view.statistics(), layers=(layer,)).of(layer, head)
    scores["diagonal"] = max(scores.pop(name) for name in ("previous", "next", "self"))
    becomes(lambda: shown(page, layer, head), pytest.approx(scores))


def test_scores_of_the_shown_head(page, browser, fake_explorer, fake, tmp_path):
    view = fake.attention(TEXT)
    page.set_viewport_size({"width": 390, "height": 844})
    look(page, fake_explorer, "map", TEXT, layer=1, head=2)
    settle(page, "map")
    is_of(page, view, 1, 2)
    page.keyboard.press(".")
    is_of(page, view, 1, 3)
    term = page.locator("[data-testid=patterns] [data-term=block]")
    term.scroll_into_view_if_needed()
    # A scroll closes the card, and its event comes with the next frame.
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    term.click()
    assert "their own sentence" in page.get_by_test_id("term-card").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert broken_rules(page) == []
    page.keyboard.press("Escape")
    with opened_file(browser, path := saved(page, "html", tmp_path)) as file:
        file.goto(path.as_uri())
        is_of(file, view, 1, 3)
