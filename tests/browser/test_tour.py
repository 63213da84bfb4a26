"""The tour as a reader goes through it: guesses, steps, terms, links into the views, and the end."""

from urllib.parse import parse_qs, urlencode

import pytest
from conftest import opened, running, settle
from looking import becomes

from unmask.explorer.experiments import handshake
from unmask.explorer.experiments.recorded_text import record_text

pytestmark = pytest.mark.long

TEXT = "The woman lost her keys, so she waited by the door."

SIDE_BY_SIDE = """() => [...document.querySelectorAll('.term')].flatMap(term => {
    let next = term.nextSibling;
    while (next?.nodeType === Node.COMMENT_NODE || next?.data === '') next = next.nextSibling;
    if (next?.nodeType !== Node.TEXT_NODE || !/^[ \\n]*[.,;:?!]/.test(next.data)) return [];
    const range = document.createRange();
    const at = next.data.search(/[.,;:?!]/);
    range.setStart(next, at);
    range.setEnd(next, at + 1);
    const [mark, word] = [range.getBoundingClientRect(), [...term.getClientRects()].at(-1)];
    const same = Math.abs(mark.bottom - word.bottom) < 4;
    return [{ word: term.textContent, gap: mark.left - word.right, same }];
})"""
"""Marks of punctuation after a term: whether they stand on its line, and how far from it."""


@pytest.fixture(scope="module")
def server(default_model):
    with running([default_model]) as found:
        yield found


@pytest.fixture
def page(browser, server):
    with opened(browser) as one:
        yield one


def go(page, server, **state):
    fields = {"v": "2", "view": "tour"} | {name.replace("__", "."): value for name, value in state.items()}
    page.goto(f"{server.url}#{urlencode(fields)}")
    page.locator("[data-testid=tour-answer] .lead, [data-testid=tour-summary]").first.wait_for()


def fragment(page):
    settle(page)
    return parse_qs(page.evaluate("location.hash.slice(1)"))


def test_a_guess_is_judged_kept_and_leads_on(page, server, default_model):
    go(page, server, text=TEXT)
    encoding = default_model.tokenizer.encode(TEXT)
    heard = record_text(default_model.encoder, encoding)
    pair = handshake.clearest_pair(heard)
    shares = heard.probabilities(pair.layer)[pair.head, pair.query].numpy()
    assert page.get_by_test_id("tour-measured").count() == 0, "the answer waits for the guess"
    least = int(shares.argmin())
    page.get_by_test_id("tour-guess-words").get_by_role("button").nth(least).click()
    verdict = page.get_by_test_id("tour-verdict")
    assert verdict.get_attribute("data-score") == "far"
    assert f"“{encoding.surface(pair.key)}” receives the most" in verdict.inner_text()
    drawn = page.get_by_test_id(f"tour-shares-{pair.key}").get_attribute("data-value")
    assert float(drawn) == pytest.approx(float(shares[pair.key]), abs=1e-4)
    assert fragment(page)["tour.guess.handshake"] == [str(least)]
    page.reload()
    verdict.wait_for()
    page.get_by_test_id("tour-next").click()
    focused = "[document.activeElement.tagName, document.activeElement.textContent]"
    becomes(lambda: page.evaluate(focused), ["H2", "Values and the residual stream"])
    page.get_by_test_id("tour-guess-skip").click()
    page.get_by_test_id("tour-measured").wait_for()
    go(page, server, **{**{k: v[0] for k, v in fragment(page).items()}, "tour.chapter": "end"})
    page.get_by_test_id("tour-score").filter(has_text="You made 1 guess; 0 were right").wait_for()
    page.get_by_test_id("tour-restart").click()
    assert not [name for name in fragment(page) if name.startswith("tour.guess")]


def test_what_is_typed_is_the_pages_text_and_links_show_the_same_pair(page, server, default_model):
    go(page, server, **{"tour.skip": "1"})
    page.get_by_test_id("tour-text").fill(TEXT)
    page.get_by_test_id("tour-read").click()
    settle(page)
    page.wait_for_function("() => document.querySelectorAll('[data-testid=tour-words] button').length === 15")
    heard = record_text(default_model.encoder, default_model.tokenizer.encode(TEXT))
    pair = handshake.clearest_pair(heard)
    page.get_by_test_id("tour-see").locator("[data-view=map]").click()
    page.wait_for_selector(f'[data-testid="map"][data-shown*="/{pair.layer}/{pair.head}/"]')
    found = fragment(page)
    assert found["text"] == [TEXT]
    names = ("layer", "head", "query", "key")
    assert [int(found[name][0]) for name in names] == [pair.layer, pair.head, pair.query, pair.key]
    assert page.locator("#text").count() == 0, "the text was read, so its box is closed"


def test_steps_play_or_with_reduced_motion_are_taken(browser, server):
    with opened(browser) as page:
        go(page, server, text=TEXT, **{"tour.chapter": "tiles", "tour.skip": "1"})
        page.get_by_test_id("tour-play").click()
        page.wait_for_function("() => new URLSearchParams(location.hash).get('tour.step') >= '1'")
    with opened(browser, reduced_motion="reduce") as page:
        go(page, server, text=TEXT, **{"tour.chapter": "tiles", "tour.skip": "1"})
        assert page.get_by_test_id("tour-play").count() == 0
        page.get_by_test_id("tour-step").click()
        assert fragment(page)["tour.step"] == ["1"]


def test_a_term_opens_by_keyboard_and_escape_closes_it(page, server):
    go(page, server, text=TEXT, **{"tour.skip": "1"})
    card = page.get_by_test_id("term-card")
    term = page.locator(".lead .term[data-term=softmax]")
    term.focus()
    card.wait_for()
    assert "Bridle 1990" in card.inner_text()
    assert term.get_attribute("aria-describedby") == card.get_attribute("id")
    page.keyboard.press("Escape")
    card.wait_for(state="detached")
    term.hover()
    card.wait_for()
    box = card.bounding_box()
    size = page.viewport_size
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= size["width"]
    page.mouse.move(0, 0)
    card.wait_for(state="detached")


@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.slow)])
def test_punctuation_stays_with_its_term(browser, server, width):
    with opened(browser) as page:
        page.set_viewport_size({"width": width, "height": 844})
        seen = 0
        for chapter in ("handshake", "values", "layers", "search"):
            go(page, server, text=TEXT, **{"tour.chapter": chapter, "tour.skip": "1"})
            for one in page.evaluate(SIDE_BY_SIDE):
                assert one["same"], one
                assert abs(one["gap"]) < 1, one
                seen += 1
        assert seen >= 4
