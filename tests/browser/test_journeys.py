"""Whole journeys: by keyboard alone, by address, two people at once, both tones."""

from urllib.parse import parse_qs, quote, urlencode

import pytest
from conftest import opened, running, settle
from fake_model import FakeModel
from looking import address_says, becomes, greeted
from rules import broken_rules, tab_through

from tests.support.waiting import wait_until
from unmask.explorer.page import VIEWS

pytestmark = pytest.mark.long

TEXT = (
    "The old man sat by the river bank and counted the money he had taken from the bank in town; "
    "it was not much, but it was enough for a boat."
)
SHORT = "the river bank was muddy"
RIVER = 7
KEYS = {view.key: view.id for view in VIEWS if view.needs != "index" and view.ability != "takes_labels"}

CONTROLS = """() => [...document.querySelectorAll('#stage :is(select, input[type=range], input:checked)')]
    .filter(one => one.checkVisibility() && !one.closest('form'))
    .map(one => [one.closest('fieldset')?.querySelector('legend').textContent
        ?? one.ariaLabel ?? one.labels?.[0]?.textContent.trim().split(/\\s+/)[0], one.value])"""


@pytest.fixture(scope="module")
def house():
    """Two models that know words, one of whose scores are made of parts."""
    import unmask

    with running([unmask.load("unmask-mini"), unmask.load("variant/disentangled")]) as server:
        yield server


def address(server, **state):
    fields = {"v": "2", "text": TEXT} | {name.replace("__", "."): value for name, value in state.items()}
    return f"{server.url}#{urlencode(fields, quote_via=quote)}"


def fragment(page):
    fields = parse_qs(page.evaluate("location.hash.slice(1)"))
    return {name: values[0] for name, values in fields.items()}


BROKEN = {
    "ids are unique": '<p id="one">a</p><p id="one">b</p>',
    "controls have names": "<button></button>",
    "pictures have names": "<canvas></canvas>",
    "tables have headings": "<table><caption>c</caption><tr><td>1</td></tr></table>",
    "headings follow each other": "<h3>deep</h3>",
    "order of the page": '<p tabindex="2">first</p>',
    "text can be read": '<p style="color: #999; background: #fff">faint</p>',
    "aria-controls names an element": '<button aria-controls="nothing">b</button>',
    "what is hidden takes no focus": '<div aria-hidden="true"><button>b</button></div>',
}


def test_the_rules_find_what_breaks_them(page):
    page.set_content("<h1>all is well</h1><p>dark on white</p><button>named</button>")
    assert broken_rules(page) == []
    for rule, html in BROKEN.items():
        page.set_content(f"<h1>a page</h1>{html}")
        assert [line.split(":")[0] for line in broken_rules(page)] == [rule]
    page.set_content('<h1>a page</h1><button style="outline: none">b</button>')
    assert [stop["shown"] for stop in tab_through(page)] == [False]


@pytest.mark.parametrize("tone", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_every_view_keeps_the_rules(browser, house, tone):
    broken = []
    with opened(browser) as page:
        for view in [*KEYS.values(), ""]:
            beside = {"beside": "variant/disentangled"} if view == "compare" else {}
            text = {} if view else {"text": ""}
            page.goto(address(house, view=view or "map", query=RIVER, theme=tone, **beside, **text))
            settle(page, view or "map")
            broken += [f"{view or 'blank'}: {line}" for line in broken_rules(page)]
        page.keyboard.press("?")
        page.get_by_role("dialog").wait_for()
        broken += [f"help: {line}" for line in broken_rules(page)]
    assert not broken, "\n".join(broken)


def test_by_keyboard_alone_through_all_views(browser, house):
    with opened(browser) as page:
        page.goto(house.url)
        page.wait_for_selector("#text")
        greeted(page)
        while page.evaluate("document.activeElement.id") != "text":
            page.keyboard.press("Tab")
        page.keyboard.type(TEXT)
        page.keyboard.press("Control+Enter")
        address_says(page, text=TEXT)  # typed over the example
        settle(page, "overview")
        page.keyboard.press("Tab")  # no longer typing
        for key, view in KEYS.items():
            page.keyboard.press(key)
            settle(page, view)
            assert page.locator("[data-tab][aria-selected=true]").get_attribute("data-tab") == view
            stops = tab_through(page)
            assert [stop["what"] for stop in stops if not stop["shown"]] == [], view
            # The page ends with the view's own last control, not before it.
            assert stops[-1]["inside"] or view == "compare", view
            # Tab has left the page for the browser's own controls.
            page.locator("[data-tab][aria-selected=true]").focus()
        page.keyboard.press("h")
        settle(page, "heads")
        page.locator('[data-layer="2"][data-head="1"]').focus()
        page.keyboard.press("Enter")
        settle(page, "map")
        assert fragment(page)["layer"] == "2"
        page.keyboard.press("e")
        page.get_by_role("dialog").wait_for()
        page.keyboard.press("Escape")
        page.locator("dialog").wait_for(state="detached")
        page.locator("[data-tab][aria-selected=true]").focus()
        page.keyboard.press("ArrowRight")
        settle(page, "flow")
        assert page.evaluate("document.activeElement.id") == "tab-flow"


def turn(page):
    """Give every control of the view another value, and Switches their last."""
    number = -1
    # One control may hide others.
    while (number := number + 1) < page.locator("#stage select, #stage input").count():
        control = page.locator("#stage select, #stage input").nth(number)
        if not control.is_visible() or control.evaluate(
            "one => one.disabled || one.closest('form') !== null"
        ):
            continue
        control.evaluate(
            """one => {
                if (one.type === 'radio') return one.checked || one.click();
                if (one.type === 'checkbox') return one.click();
                const middle = (Number(one.min) + Number(one.max)) / 2;
                if (one.tagName === 'SELECT') one.selectedIndex = one.options.length - 1;
                else if (one.type === 'range') one.value = Math.round(middle);
                else return;
                one.dispatchEvent(new Event(one.tagName === 'SELECT' ? 'change' : 'input', {bubbles: true}));
            }"""
        )
    settle(page)


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(view, marks=() if view == "map" else pytest.mark.slow)
        for view in KEYS.values()
        if view not in ("roofline", "tour")
    ],
)
def test_address_to_state_to_address(browser, house, view):
    with opened(browser) as page:
        # The geometry of random weights is another reading; its switch is in the address like the rest.
        page.goto(address(house, view=view, model="variant/disentangled", beside="unmask-mini", query=3))
        settle(page, view)
        turn(page)
        wanted, controls = fragment(page), page.evaluate(CONTROLS)
        assert len(wanted) > 5 or view in ("compare",), wanted
        page.goto("about:blank")
        page.goto(f"{house.url}#{urlencode(wanted, quote_via=quote)}")
        settle(page, view)
        assert fragment(page) == wanted
        becomes(lambda: page.evaluate(CONTROLS), controls)


def test_two_people_at_once(browser):
    model = FakeModel()
    other = "bank money bank money muddy bank"
    with running(model) as server, opened(browser) as one, opened(browser) as two:
        pages = [(one, SHORT, 1, 2), (two, other, 2, 0)]
        for page, text, layer, head in pages:
            page.goto(f"{server.url}#v=2&text={quote(text)}&layer={layer}&head={head}")
        for _ in range(2):
            for page, text, layer, head in pages:
                settle(page)
                page.wait_for_selector(f'[data-testid="map"][data-shown*="/{layer}/{head}/"]')
                page.get_by_test_id("map").focus()
                page.keyboard.press("ArrowDown")
                page.keyboard.press("ArrowRight")
                view = model.attention(text)
                whole = view.probabilities(layer, head, slice(0, len(view)), slice(0, len(view)))
                page.wait_for_selector('[data-testid="readout"][data-key][data-value]')
                at = page.get_by_test_id("readout").evaluate("readout => ({...readout.dataset})")
                exact = float(whole[int(at["query"]), int(at["key"])])
                assert float(at["value"]) == pytest.approx(exact, rel=1e-5)


def test_attribution_for_another_word_and_for_a_class(browser):
    words = FakeModel("words")
    labels = {"id2label": {str(number): f"class {number}" for number in range(3)}}
    classes = FakeModel("classes", architectures=["BertForSequenceClassification"], **labels)
    with running([words, classes]) as server, opened(browser) as page:
        page.goto(address(server, text=SHORT, view="paths", query=2, paths__method="relevance"))
        choice = page.get_by_test_id("paths-word")
        page.wait_for_function(
            "() => document.querySelectorAll('[data-testid=paths-word] option').length > 3"
        )
        settle(page)
        own = page.get_by_test_id("paths-table").inner_text()
        choice.select_option(index=3)
        name = choice.locator("option").nth(3).inner_text().split(" ")[0]
        page.get_by_text(f"Attribution for the word “{name}” at token 2").wait_for()
        wait_until(lambda: page.get_by_test_id("paths-table").inner_text() != own)
        page.locator('[data-testid="model"] select').first.select_option("classes")
        page.get_by_text("of the classifier").wait_for()
        page.get_by_test_id("paths-word").wait_for(state="detached")
        becomes(page.get_by_role("radio", name="Class").is_checked, True)
