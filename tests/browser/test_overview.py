"""The page opens on the overview of an example, and what it shows can be opened, typed over and saved."""

import re
from urllib.parse import parse_qs, quote

import pytest
from conftest import opened, running, settle
from fake_model import FakeModel
from looking import SHORT
from test_export import opened_file, saved

from unmask.explorer.page import EXAMPLES

pytestmark = pytest.mark.long

OLD = f"#v=2&layer=1&head=2&text={quote(SHORT)}"


def fragment(page):
    fields = parse_qs(page.evaluate("location.hash.slice(1)"))
    return {name: values[0] for name, values in fields.items()}


def sentences(page):
    return page.locator("[data-testid=hero] .sentence, [data-testid=finding] .sentence").all_inner_texts()


def test_the_arcs_of_a_page_without_a_text_are_of_an_example_and_give_way_to_typing(page, fake_explorer):
    page.goto(fake_explorer.url)
    settle(page, "start")
    assert fragment(page) == {}
    page.locator("[data-group=Look]").click()
    settle(page, "overview")
    page.wait_for_selector("[data-testid=hero]")
    assert fragment(page)["text"] == EXAMPLES[0]
    told = sentences(page)
    assert len(told) >= 4
    # The head at the top is the one that other views open at, unless one was chosen.
    hero = page.get_by_test_id("hero").get_attribute("data-head")
    if re.fullmatch(r"\d+\.\d+", hero):
        layer, head = hero.split(".")
        assert (fragment(page).get("layer", "0"), fragment(page).get("head", "0")) == (layer, head)
    page.get_by_test_id("type-own").click()
    page.keyboard.type(SHORT)
    page.keyboard.press("Control+Enter")
    page.wait_for_function(
        f"() => location.hash.includes({SHORT.split()[1]!r}) && !location.hash.includes('money')"
    )
    settle(page, "overview")
    assert fragment(page)["text"] == SHORT
    assert sentences(page) != told
    # A card opens its view.
    page.get_by_test_id("also").locator("summary").click()
    card = page.locator('[data-kind="states"]')
    card.click()
    settle(page, "heads")
    page.go_back()
    settle(page, "overview")


def test_findings_are_asked_for_again_when_the_corpus_is_read_to_its_end(browser):
    with running(FakeModel()) as server, opened(browser) as page:
        page.goto(f"{server.url}#v=3&text={quote(SHORT)}")
        settle(page, "overview")
        page.wait_for_selector("[data-testid=hero]")
        with page.expect_request(lambda request: "findings?texts=4" in request.url):
            # Opening the view of a head begins to read the corpus.
            page.keyboard.press("i")
            page.wait_for_selector("[data-testid=head-corpus][data-phase=done]")
            page.keyboard.press("o")
        settle(page, "overview")
        page.locator(".rare").first.wait_for()


def test_what_is_typed_early_is_not_replaced_by_the_example(browser, fake_explorer):
    with opened(browser) as page:
        held = []

        def hold(route):
            held.append(route)

        page.route("**/api/session", hold)
        page.goto(fake_explorer.url)
        page.get_by_test_id("text").fill("my own words")
        page.wait_for_timeout(100)
        for route in held:
            route.continue_()
        page.unroute("**/api/session")
        page.wait_for_selector('[data-testid="page"][data-phase="ready"]')
        settle(page)
        assert page.get_by_test_id("text").input_value() == "my own words"
        assert "text" not in fragment(page)


@pytest.mark.parametrize("place", [OLD, OLD.replace("v=2", "v=1")])
def test_a_link_that_was_copied_earlier_opens_the_map(page, fake_explorer, place):
    page.goto(fake_explorer.url + place)
    settle(page, "map")
    page.wait_for_selector('[data-testid="map"][data-shown*="/1/2/"]')


def test_a_saved_overview_shows_the_same_without_a_server(browser, page, fake_explorer, tmp_path):
    page.goto(f"{fake_explorer.url}#v=3&text={quote(SHORT)}&query=2")
    settle(page, "overview")
    page.wait_for_selector("[data-kind=effect]", state="attached")
    told = sentences(page)
    maps = page.locator("[data-testid=overview] canvas").count()
    path = saved(page, "html", tmp_path)
    with opened_file(browser, path) as file:
        file.goto(path.as_uri())
        settle(file, "overview")
        file.wait_for_selector("[data-kind=effect]", state="attached")
        assert sentences(file) == told
        assert file.locator("[data-testid=overview] canvas").count() == maps
        # Another chosen token needs no other answer.
        file.evaluate("location.hash = location.hash.replace('query=2', 'query=3')")
        settle(file, "overview")
        assert sentences(file) == told
