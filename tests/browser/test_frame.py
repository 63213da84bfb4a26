"""What surrounds the views: titles, help, tables, texts from right to left, the tour's focus."""

import pytest
from conftest import opened, running, settle
from fake_model import FakeModel
from looking import SHORT, address_says, becomes, look, measured, shown

from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

FOCUSED = "() => document.activeElement.tagName + ' ' + document.activeElement.textContent"


TITLES = """
window.titles = [];
new MutationObserver(() => window.titles.push(document.title)).observe(document, {
    subtree: true, childList: true, characterData: true,
});
"""
"""Keeps every title that the page has had, also those that pass before a test looks."""


def test_the_title_says_what_is_looked_at(page, fake_explorer):
    page.add_init_script(TITLES)
    page.goto(fake_explorer.url)
    page.wait_for_function("() => window.titles.includes('unmask explorer')")
    look(page, fake_explorer, "map", layer=1, head=2)
    shown(page, 1, 2)
    becomes(page.title, f"Map 1.2: {SHORT} · unmask")
    page.keyboard.press("g")
    page.wait_for_function(f"() => document.title === 'Geometry: {SHORT} · unmask'")


def test_a_dialog_that_opens_while_another_closes_stays(page, fake_explorer):
    """The close event of the first comes after the key that opens the second."""
    look(page, fake_explorer, "map")
    shown(page, 0, 0)
    page.keyboard.press("/")
    page.get_by_test_id("palette").wait_for()
    page.evaluate("""() => {
        document.querySelector("dialog").close();
        const key = new KeyboardEvent("keydown", { key: "?", bubbles: true, cancelable: true });
        document.body.dispatchEvent(key);
    }""")
    page.get_by_role("dialog", name="Keys and terms").wait_for()
    settle(page, "map")
    assert page.get_by_role("dialog", name="Keys and terms").is_visible()
    assert not page.get_by_test_id("palette").is_visible()


def test_help_says_what_rows_are_first_and_cuts_no_line(page, fake_explorer):
    look(page, fake_explorer, "map")
    shown(page, 0, 0)
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    inside = (
        page.get_by_role("dialog")
        .locator("*")
        .evaluate_all(
            "all => all.filter(one => one.scrollHeight > one.clientHeight + 1"
            " && getComputedStyle(one).overflowY !== 'visible').map(one => one.outerHTML.slice(0, 80))"
        )
    )
    assert inside == []
    box = page.get_by_role("dialog").bounding_box()
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= 900
    words = page.get_by_role("dialog").inner_text()
    assert words.index("A row of the map is a query") < words.index("previous, next layer")


def test_a_table_of_a_short_text_is_whole_and_a_long_one_fades(page, fake_explorer, explorer):
    scroll = "table => [table.parentElement.clientHeight, table.scrollHeight, "
    scroll += "getComputedStyle(table.parentElement, '::after').content]"
    look(page, fake_explorer, "tokens", text="the river bank was muddy and the bank was far from the river")
    settle(page, "tokens")
    height, whole, sign = page.get_by_test_id("tokens-table").evaluate(scroll)
    assert height >= whole
    assert sign == "none"
    page.goto("about:blank")
    look(page, explorer, "tokens", text="bank " * 60)
    settle(page, "tokens")
    height, whole, sign = page.get_by_test_id("tokens-table").evaluate(scroll)
    assert height < whole
    assert sign == '""'


def test_views_without_a_server_say_so_and_not_that_nothing_is_measured(browser):
    with running(FakeModel()) as server, opened(browser, expected_errors=["ERR_CONNECTION_REFUSED"]) as page:
        look(page, server, "map")
        shown(page, 0, 0)
        measured(page)
        server.stop()
        page.keyboard.press("s")
        page.get_by_test_id("gone").wait_for()
        page.get_by_test_id("sinks").get_by_text("server does not respond").wait_for()
        assert "not been measured" not in page.get_by_test_id("stage").inner_text()
        page.keyboard.press("k")
        page.wait_for_selector('[data-testid="page"][data-view="tokens"]')
        page.get_by_test_id("stage").get_by_text("server does not respond").wait_for()


@pytest.mark.parametrize(("text", "backwards"), [("he said שלום to me", False), ("שלום he said", True)])
def test_words_from_right_to_left_are_read_from_the_right(page, explorer, text, backwards):
    look(page, explorer, "tokens", text=text)
    page.get_by_test_id("strip").wait_for()
    marks = page.get_by_test_id("strip").locator("[data-token]")
    names = marks.all_inner_texts()
    hebrew = [at for at, name in enumerate(names) if name in set("שלום")]
    assert len(hebrew) == 4
    lefts = [marks.nth(at).bounding_box()["x"] for at in hebrew]
    assert lefts == sorted(lefts, reverse=True)
    said = marks.nth(names.index("said")).bounding_box()["x"]
    assert said < min(lefts)
    # Each token is chosen by keyboard as before.
    marks.nth(hebrew[0]).focus()
    page.keyboard.press("Enter")
    becomes(lambda: marks.nth(hebrew[0]).get_attribute("aria-pressed"), "true")
    page.keyboard.press("ArrowLeft")
    chosen = hebrew[0] + (1 if backwards else -1)
    page.wait_for_selector(f'[data-token="{chosen}"][aria-pressed="true"]')


def test_the_next_chapter_of_the_tour_has_the_focus(page, fake_explorer):
    page.goto(f"{fake_explorer.url}#v=2&view=tour")
    page.get_by_test_id("tour-next").focus()
    title = page.get_by_test_id("tour-next").inner_text().removesuffix(" →")
    page.keyboard.press("Enter")
    page.wait_for_function(f"({FOCUSED})() === 'H2 ' + {title!r}")


def test_tabs_are_grouped_and_the_chosen_one_is_in_sight_on_a_phone(browser, fake_explorer):
    with opened(browser) as page:
        look(page, fake_explorer, "map")
        shown(page, 0, 0)
        assert page.get_by_role("tablist", name="Views").inner_text().split() == [
            "Start", "Look", "Compare", "Measure", "Tour",
        ]  # fmt: skip
        assert page.get_by_role("tablist", name="Look").inner_text().split() == [
            "Arcs", "Map", "Flow", "Heads", "Head",
        ]  # fmt: skip
        page.set_viewport_size({"width": 390, "height": 844})
        page.keyboard.press("l")
        tab, row = page.locator("#tab-roofline"), page.get_by_role("tablist", name="Measure")
        page.wait_for_selector('#tab-roofline[aria-selected="true"]')

        def in_sight():
            box, room = tab.bounding_box(), row.bounding_box()
            right = room["x"] + room["width"] + 1  # parts of a pixel
            return room["x"] <= box["x"] and box["x"] + box["width"] <= right

        wait_until(in_sight)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        # From the last of the row round to the first, and the tab of the group leads back to it.
        tab.focus()
        for expected in ("tokens", "sinks"):
            page.keyboard.press("ArrowRight")
            page.wait_for_selector(f'#tab-{expected}[aria-selected="true"]')
            page.wait_for_function(f"() => document.activeElement.id === 'tab-{expected}'")
        page.locator("#tab-tour").click()
        settle(page, "tour")
        page.locator("[data-group=Measure]").click()
        settle(page, "sinks")


def test_the_drawer_slides_over_the_picture_and_gives_the_focus_back(browser, fake_explorer):
    with opened(browser) as page:
        look(page, fake_explorer, "map")
        shown(page, 0, 0)
        boxes = [page.get_by_test_id(name) for name in ("strip", "heads")]
        before = [box.bounding_box() for box in boxes]
        page.locator("[data-group=Measure]").click()
        settle(page, "tokens")
        page.wait_for_function("() => document.activeElement.id === 'tab-tokens'")
        # The text and the heads stay where they are.
        wait_until(lambda: [box.bounding_box() for box in boxes] == before)
        page.keyboard.press("Escape")
        settle(page, "map")
        assert page.evaluate("document.activeElement.dataset.group") == "Measure"
        assert page.get_by_test_id("drawer").count() == 0
        # The arrow keys pass its tab without going into it.
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowRight")
        settle(page, "tokens")
        assert page.evaluate("document.activeElement.dataset.group") == "Measure"
        # The text above it stays one to choose tokens in.
        page.keyboard.press("s")
        page.locator("[data-token='2']").click()
        address_says(page, view="sinks", query="2")
        page.get_by_test_id("drawer").get_by_role("button", name="Close").click()
        settle(page, "map")


def test_one_button_changes_the_theme_and_names_it(browser, fake_explorer):
    with opened(browser, color_scheme="dark") as page:
        page.goto(fake_explorer.url)
        theme = page.get_by_test_id("theme")
        for name, tone in (
            ("as the system", "dark"),
            ("light", "light"),
            ("dark", "dark"),
            ("as the system", "dark"),
        ):
            page.get_by_role("button", name=f"Theme: {name}", exact=True).wait_for()
            becomes(lambda: page.locator("html").get_attribute("data-tone"), tone)
            theme.click()
