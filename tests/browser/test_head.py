"""The page of a head: its examples of a corpus, a click that reads one, and the same in a saved file."""

import pytest
from conftest import CORPUS, settle
from looking import address_says, look
from rules import broken_rules
from test_export import opened_file

pytestmark = pytest.mark.long


def opened_head(page, server, **more):
    look(page, server, "head", layer=1, head=2, **more)
    page.wait_for_selector("[data-testid=head-corpus][data-phase=done]")
    page.wait_for_selector("[data-testid=examples] li")
    settle(page, "head")


def marked(page):
    return page.locator("[data-testid=examples] li").evaluate_all(
        """all => all.map(one => ({
            score: Number(one.querySelector('b').textContent),
            query: one.querySelector('mark.query, mark.both').textContent,
            key: one.querySelector('mark.key, mark.both').textContent,
            text: one.querySelector('.text').firstChild ? one.querySelector('.text').textContent : '',
        }))"""
    )


def test_examples_are_those_of_python_and_a_click_reads_one(page, fake_explorer, fake):
    opened_head(page, fake_explorer, **{"head.by": "next"})
    wanted = fake.attention_over(list(CORPUS)).examples(1, 2, "next")
    found = marked(page)
    assert [(one["query"], one["key"], one["score"]) for one in found] == [
        (one.text[slice(*one.query)], one.text[slice(*one.key)], round(one.score, 3)) for one in wanted
    ]
    assert [one.text in shown["text"] for one, shown in zip(wanted, found, strict=True)] == [True] * 4
    page.locator("[data-testid=examples] li button").first.click()
    page.wait_for_selector('[data-testid="map"][data-shown*="/1/2/"]')
    settle(page, "map")
    address_says(page, text=wanted[0].text, layer="1", head="2")
    address_says(page, query=str(wanted[0].query_token), key=str(wanted[0].key_token))
    page.get_by_test_id("to-head").click()
    settle(page, "head")
    assert page.get_by_test_id("head-title").inner_text().startswith("Head 1.2 ")


def test_words_and_keys_of_the_page(page, fake_explorer):
    opened_head(page, fake_explorer)
    page.get_by_test_id("query-word").fill("RIVER")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-testid=head-found] [data-testid=examples] li")
    address_says(page, head__query="RIVER")
    assert {one["query"] for one in marked(page)} == {"river"}
    page.get_by_test_id("head-found").filter(has_text="3 texts have this word").wait_for()
    page.get_by_test_id("query-word").fill("unheard of")
    page.keyboard.press("Enter")
    page.get_by_test_id("no-examples").wait_for()
    page.get_by_test_id("head-title").click()
    page.keyboard.press(".")
    settle(page, "head")
    assert page.get_by_test_id("head-title").inner_text().startswith("Head 1.3 ")


def test_it_fits_a_phone_and_keeps_the_rules(page, fake_explorer):
    page.set_viewport_size({"width": 390, "height": 844})
    for theme in ("light", "dark"):
        opened_head(page, fake_explorer, theme=theme)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert broken_rules(page) == []


def test_a_saved_page_shows_the_same(page, browser, fake_explorer, tmp_path):
    opened_head(page, fake_explorer)
    before = marked(page)
    page.keyboard.press("e")
    with page.expect_download() as download:
        page.get_by_test_id("save-html").click()
    download.value.save_as(tmp_path / "head.html")
    with opened_file(browser, tmp_path / "head.html") as file:
        file.goto((tmp_path / "head.html").as_uri())
        file.wait_for_selector("[data-testid=examples] li")
        assert marked(file) == before
        assert "not saved" not in file.get_by_test_id("stage").inner_text()
