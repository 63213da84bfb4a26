"""Links that open, a page that says when its server was started again, and keys that stay in the box."""

import re
import shlex
from urllib.parse import parse_qs, quote

import pytest
from conftest import TOKEN, opened, running
from fake_model import FakeModel
from looking import greeted, state

from tests.browser.test_export import close
from tests.support.waiting import wait_until
from unmask.explorer.server.server import _address

pytestmark = pytest.mark.long

SHORT = "the river bank was muddy"
PLACE = f"#v=2&layer=1&head=2&text={quote(SHORT)}"
MAP = '[data-testid="map"][data-shown*="/1/2/"]'

TYPES_ON = """() => new MutationObserver((_, observer) => {
    if (document.getElementById('text')) return;
    observer.disconnect();
    for (const key of 'skeeping ]?/')
        document.body.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
    window.typed = true;
}).observe(document.body, { childList: true, subtree: true })"""
"""Types in the very moment in which the text box goes, whatever time that takes on a busy machine."""


def copied(page, link):
    """What a button of the export menu puts on the clipboard."""
    page.keyboard.press("e")
    page.get_by_test_id(link).click()
    page.get_by_text(re.compile("^The (link|command) is copied.$")).wait_for()
    close(page)
    return page.evaluate("navigator.clipboard.readText()")


def unlock(page, pasted):
    box = page.get_by_test_id("unlock")
    box.get_by_role("textbox").fill(pasted)
    box.get_by_role("button").click()


@pytest.fixture
def linked(browser, fake_explorer):
    """A page with a text, and the link and the command that it copies."""
    grants = {"permissions": ["clipboard-read", "clipboard-write"]}
    with opened(browser, expected_errors=["401"], **grants) as page:
        page.goto(fake_explorer.url + PLACE)
        page.wait_for_selector(MAP)
        yield page, copied(page, "copy-link"), copied(page, "copy-command")


def test_the_copied_link_opens_in_another_tab(linked):
    page, link, _ = linked
    assert TOKEN in link
    other = page.context.new_page()
    other.goto(link)
    other.wait_for_selector(MAP)
    assert TOKEN not in other.url


def test_the_command_to_share_has_no_token_and_opens_the_same_view(linked, fake_explorer):
    page, _, command = linked
    assert TOKEN not in command
    name, explore, *options = shlex.split(command)
    assert (name, explore, options[:2]) == ("unmask", "explore", ["--model", "fake"])
    assert options[2] == "--open"
    opens = _address("127.0.0.1", 80, TOKEN, None, options[3])
    assert opens == f"http://127.0.0.1:80/?token={TOKEN}{options[3]}"
    said = {name: state(page)[name] for name in ("text", "layer", "head")}
    named = {name: values[0] for name, values in parse_qs(options[3][1:]).items()}
    assert named == {"v": "3", "view": "map", **said}
    # The whole address of a page says the same, and another explorer asks for its token.
    whole = f"http://127.0.0.1:1234/?token=a{options[3]}"
    assert _address("127.0.0.1", 80, TOKEN, None, whole) == opens
    other = page.context.new_page()
    other.goto(fake_explorer.origin + "/" + options[3])
    other.get_by_test_id("locked").wait_for()
    for wrong, words in (
        ("not that", "neither an address nor a token"),
        ("http://evil.example/?token=a", "not the explorer of this machine"),
        (fake_explorer.origin, "has no token"),
        ("another-token", "not the token of the running explorer"),
    ):
        unlock(other, wrong)
        other.get_by_test_id("unlock-said").filter(has_text=re.compile(words, re.IGNORECASE)).wait_for()
    unlock(other, TOKEN)
    other.wait_for_selector(MAP)
    other.reload()
    other.wait_for_selector(MAP)


def test_a_pasted_address_opens_a_locked_page(browser, fake_explorer):
    with opened(browser, expected_errors=["401"]) as page:
        page.goto(fake_explorer.origin)
        page.get_by_test_id("locked").wait_for()
        unlock(page, f" {fake_explorer.url}{PLACE}\n")
        page.wait_for_selector(MAP)


def test_a_locked_page_leads_to_the_explorer_of_another_port(browser, fake_explorer):
    with running(FakeModel()) as other, opened(browser, expected_errors=["401"]) as page:
        page.goto(fake_explorer.origin + PLACE)
        page.get_by_test_id("locked").wait_for()
        unlock(page, other.url)
        page.wait_for_selector(MAP)
        assert page.url.startswith(other.origin)


def test_a_server_started_again_is_recognized_at_once(browser):
    """Its answer to the old token is an answer, and not silence."""
    with opened(browser, expected_errors=["ERR_CONNECTION_REFUSED", "401", "404"]) as page:
        with running(FakeModel()) as server:
            page.goto(server.url + PLACE)
            page.wait_for_selector(MAP)
            page.wait_for_function("() => document.querySelector('[data-testid=progress]') === null")
            server.stop()
            page.keyboard.press(".")
            page.get_by_test_id("gone").wait_for()
        port = int(server.origin.rsplit(":", 1)[1])
        with running(FakeModel(), port=port, token="another-token"):
            # Nothing is touched meanwhile.
            page.get_by_test_id("locked-again").wait_for()
            assert "was started again" in page.get_by_test_id("locked-again").inner_text()
            assert page.get_by_test_id("gone").count() == 0
            assert page.get_by_test_id("map").count() == 1, "what was read stays"
            unlock(page, "another-token")
            page.wait_for_selector('[data-testid="map"][data-shown*="/1/3/"]')
            page.get_by_test_id("locked-again").wait_for(state="detached")


def test_keys_typed_while_a_text_is_read_stay_in_the_box(page, fake_explorer):
    page.goto(fake_explorer.url)
    greeted(page)
    page.get_by_test_id("text").fill(SHORT)
    held = []

    def hold(route):
        held.append(route)

    page.route("**/api/texts", hold, times=1)
    page.keyboard.press("Control+Enter")
    wait_until(lambda: page.wait_for_timeout(10) or held)  # Playwright calls `hold` while it waits
    page.keyboard.type(" h and s")
    held[0].continue_()
    page.wait_for_selector('[data-testid="page"][data-busy="false"]')
    page.keyboard.type(", then k")
    assert page.get_by_test_id("text").input_value() == f"{SHORT} h and s, then k"
    assert page.get_by_test_id("page").get_attribute("data-view") == "overview"


def test_keys_typed_after_the_box_closed_do_nothing(page, fake_explorer):
    page.goto(fake_explorer.url)
    greeted(page)
    page.get_by_test_id("text").fill(SHORT)
    page.evaluate(TYPES_ON)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#text", state="hidden")
    page.wait_for_function("() => window.typed")
    assert page.get_by_test_id("page").get_attribute("data-view") == "overview"
    assert page.locator("dialog").count() == 0
    # A key that writes nothing ends it, and so does a pause.
    page.keyboard.press("Tab")
    page.keyboard.press("s")
    page.wait_for_selector('[data-testid="page"][data-view="sinks"]')
