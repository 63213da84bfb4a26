"""Charts whose titles keep clear of their numbers, and the one box for the text of the tour."""

import pytest
from conftest import settle
from looking import address_says, look

SENTENCE = "the river bank was muddy and the river was there"
OVERLAPS = """chart => {
    const boxes = [...chart.querySelectorAll('text')].map(one => [one, one.getBoundingClientRect()]);
    const hits = ([one, a], [other, b]) => a.left < b.right - 1 && b.left < a.right - 1
        && a.top < b.bottom - 1 && b.top < a.bottom - 1;
    return boxes.flatMap((a, at) => boxes.slice(at + 1).filter(b => hits(a, b))
        .map(b => [a[0].textContent, b[0].textContent]));
}"""


def chapter(page, server, name, text=SENTENCE):
    look(page, server, "tour", text, **{"tour.chapter": name})
    page.get_by_text("Show the answer without a guess").click()
    page.wait_for_selector(f'[data-testid="tour"][data-chapter="{name}"] figure')
    settle(page, "tour")


@pytest.mark.parametrize("name", [pytest.param("scaling", marks=pytest.mark.slow), "positions"])
def test_titles_of_charts_keep_clear_of_their_numbers(page, fake_explorer, name):
    chapter(page, fake_explorer, name)
    charts = page.locator("svg[role=img]").all()
    assert charts
    for chart in charts:
        assert chart.evaluate(OVERLAPS) == []


def test_the_words_of_the_tour_are_the_text_of_the_page(page, fake_explorer):
    chapter(page, fake_explorer, "handshake")
    boxes = "#stage input[type=text], textarea"
    assert page.locator(boxes).count() == 1
    page.locator(boxes).fill("bank muddy bank")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.hash.includes('text=bank')")
    settle(page, "tour")
    address_says(page, text="bank muddy bank")
    page.locator("[data-group=Look]").click()
    page.locator("[data-tab=map]").click()
    settle(page, "map")
    assert page.locator("[data-token]").all_inner_texts()[1:-1] == ["bank", "muddy", "bank"]


def test_the_tour_without_a_text_has_one_box_too(page, fake_explorer):
    page.goto(f"{fake_explorer.url}#v=2&view=tour")
    page.get_by_test_id("tour-text").wait_for()
    assert page.locator("input[type=text], textarea").count() == 1
