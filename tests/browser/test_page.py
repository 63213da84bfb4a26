"""The explorer as people use it: a real browser, and where it is there, the real default model."""

import itertools
import re
import threading
from urllib.parse import parse_qs, quote, urlsplit

import numpy as np
import pytest
from colors import color_indexes, palette
from conftest import TOKEN, opened, running
from fake_model import HEADS, LAYERS, FakeModel

from tests.support.waiting import wait_until
from unmask.errors import InvalidRequest

TEXT = "The river bank was muddy, so we took the money to the bank 🙂."
SHORT = "the river bank was muddy"
VIEWS = ["tokens", "heads", "map", "flow", "sinks"]


def read(page, text):
    """Type a text, read it with the keyboard, wait for its map."""
    page.get_by_test_id("text").fill(text)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector('[data-testid="map"]:not([data-shown=""])')


def look(page, server, view, text=SHORT, **state):
    """Open an address of a view."""
    fields = "".join(f"&{name}={quote(str(value))}" for name, value in state.items())
    page.goto(f"{server.url}#v=2&view={view}&text={quote(text)}{fields}")


def shown(page, layer, head):
    page.wait_for_selector(f'[data-testid="map"][data-shown*="/{layer}/{head}/"]')


def geometry(page):
    """Layout of the map in device pixels."""
    data = page.get_by_test_id("map").evaluate("element => ({...element.dataset})")
    return {name: float(data[name]) for name in ("cell", "left", "top", "ratio")}


def point(page, query, key):
    """Bring the pointer to the middle of a cell."""
    page.get_by_test_id("map").evaluate("element => element.scrollIntoView({block: 'center'})")
    box = page.get_by_test_id("map").bounding_box()
    g = geometry(page)
    x = box["x"] + (g["left"] + (key + 0.5) * g["cell"]) / g["ratio"]
    y = box["y"] + (g["top"] + (query + 0.5) * g["cell"]) / g["ratio"]
    page.mouse.move(x, y)
    return x, y


def pixel(page, query, key):
    """The color of a cell, read back from the canvas."""
    g = geometry(page)
    x, y = g["left"] + (key + 0.5) * g["cell"], g["top"] + (query + 0.5) * g["cell"]
    return page.get_by_test_id("cells").evaluate(
        """(canvas, [x, y]) => [...canvas.getContext('2d')
            .getImageData(Math.floor(x), Math.floor(y), 1, 1).data]""",
        [x, y],
    )


def value(page):
    page.wait_for_selector('[data-testid="readout"][data-value]')
    return float(page.get_by_test_id("readout").get_attribute("data-value"))


def state(page):
    fields = parse_qs(urlsplit(page.url).fragment)
    return {name: values[0] for name, values in fields.items()}


def measured(page):
    """Wait until the whole text is measured."""
    page.wait_for_function("() => document.querySelector('[data-testid=progress]') === null")


def test_reads_a_pixel_and_a_value_of_the_default_model(page, explorer, default_model):
    page.goto(explorer.url)
    read(page, TEXT)
    view = default_model.attention(TEXT)
    names = [view.encoding.surface(index) for index in range(len(view))]
    measured(page)
    page.locator('[data-testid="heads"] [data-layer="3"][data-head="5"]').click()
    shown(page, 3, 5)
    whole = view.probabilities(3, 5, slice(0, len(view)), slice(0, len(view)))
    colors = palette("light")
    strongest = np.unravel_index(whole.argmax(), whole.shape)
    for query, key in [(0, 0), (3, 2), (len(view) - 1, 1), strongest]:
        point(page, query, key)
        page.wait_for_selector(f'[data-testid="readout"][data-query="{query}"][data-key="{key}"][data-value]')
        words = re.sub(r"\s+", " ", page.get_by_test_id("readout").inner_text())
        assert words.startswith(f"{query} {names[query]} → {key} {names[key]}")
        assert "raw attention, square-root scale" in words
        exact = value(page)
        assert np.float32(exact) == exact, "the readout holds a whole float32"
        assert exact == pytest.approx(float(whole[query, key]), rel=1e-5)
        assert f"{exact:.9g}" in words
        *color, opaque = pixel(page, query, key)
        assert color in [colors[index].tolist() for index in color_indexes("sqrt", exact)]
        assert opaque == 255


@pytest.mark.parametrize("tone", ["light", "dark"])
def test_colors_of_every_scale(page, fake_explorer, tone):
    look(page, fake_explorer, "map", theme=tone)
    shown(page, 0, 0)
    colors = palette(tone)
    legend = page.get_by_test_id("legend").evaluate(
        "canvas => [...canvas.getContext('2d').getImageData(0, 0, 256, 1).data]"
    )
    assert np.reshape(legend, (256, 4))[:, :3].tolist() == colors.tolist()
    point(page, 3, 5)
    exact = value(page)
    for words, scale in [("Linear", "linear"), ("Root", "sqrt"), ("Log", "log")]:
        page.get_by_text(words, exact=True).click()
        wanted = [colors[index].tolist() for index in color_indexes(scale, exact)]
        assert pixel(page, 3, 5)[:3] in wanted, scale
    page.get_by_test_id("clip").fill("254")
    assert pixel(page, 3, 5)[:3] == colors[0].tolist()


def test_address_holds_the_state_and_back_undoes(page, fake_explorer):
    page.goto(fake_explorer.url)
    assert TOKEN not in page.url
    read(page, SHORT)
    page.locator('[data-token="3"]').click()
    page.wait_for_timeout(800)  # changes closer together than this are one step
    page.keyboard.press("]")
    page.wait_for_timeout(800)
    page.get_by_text("Log", exact=True).click()
    page.get_by_text("Dark", exact=True).click()
    page.get_by_text("Norm-weighted", exact=True).click()
    page.wait_for_timeout(300)
    wanted = {
        "v": "2",
        "text": SHORT,
        "layer": "1",
        "query": "3",
        "scale": "log",
        "weight": "norm",
        "theme": "dark",
    }
    assert state(page) == wanted
    page.reload()
    shown(page, 1, 0)
    assert state(page) == wanted
    assert page.locator('[data-token="3"]').get_attribute("aria-pressed") == "true"
    assert page.locator("html").get_attribute("data-tone") == "dark"
    page.go_back()
    page.wait_for_function("() => location.hash.includes('layer=1') && !location.hash.includes('log')")
    page.go_back()
    shown(page, 0, 0)
    page.go_back()
    page.wait_for_function("() => !location.hash.includes('query')")


def test_an_address_of_the_first_version_still_opens(page, fake_explorer):
    page.goto(f"{fake_explorer.url}#v=1&text={quote(SHORT)}&layer=2&head=1&query=3&side=table")
    shown(page, 2, 1)
    assert page.locator('[data-token="3"]').get_attribute("aria-pressed") == "true"


def test_norm_weighted_values_are_those_of_the_view(page, fake_explorer, fake):
    look(page, fake_explorer, "map", layer=1, head=2, weight="norm")
    shown(page, 1, 2)
    view = fake.attention(SHORT)
    whole = view.probabilities(1, 2, slice(0, len(view)), slice(0, len(view)), weight="norm")
    point(page, 2, 4)
    # The readout may still hold the value of the cell that was under the pointer before.
    wait_until(lambda: value(page) == pytest.approx(float(whole[2, 4]), rel=1e-5), pause=0.05)
    assert "norm-weighted" in page.get_by_test_id("drawn").inner_text()


def test_flow_of_a_clicked_token(page, fake_explorer, fake):
    look(page, fake_explorer, "flow", layer=1)
    page.locator('[data-token="3"]').click()
    page.wait_for_selector('[data-testid="flow"][data-token="3"]')
    flow = page.get_by_test_id("flow")
    edges = flow.evaluate(
        """svg => [...svg.querySelectorAll('[data-edge]')]
            .map(edge => [+edge.dataset.edge, +edge.dataset.value])"""
    )
    view = fake.attention(SHORT)
    row = view.probabilities(1, 0, slice(3, 4), slice(0, len(view)))[0]
    assert {token for token, _ in edges} == set(np.argsort(-row, kind="stable")[:8].tolist())
    for token, probability in edges:
        assert probability == pytest.approx(float(row[token]), rel=1e-5)
    flow.get_by_text("river", exact=True).first.hover()
    page.wait_for_selector('[data-testid="strip"] [data-token="2"].query')
    page.get_by_text("All tokens", exact=True).click()
    edges = page.get_by_test_id("edges")
    edges.wait_for()
    assert edges.locator('path[data-query="3"]').count() == 3
    page.get_by_text("Across layers", exact=True).click()
    page.get_by_test_id("through").locator("svg path").first.wait_for()


def test_keyboard_alone(page, fake_explorer, fake):
    page.goto(fake_explorer.url)
    page.get_by_test_id("model").wait_for()
    page.keyboard.press("Tab")
    while page.evaluate("document.activeElement.id") != "text":
        page.keyboard.press("Tab")
    page.keyboard.type(SHORT)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector('[data-testid="map"]:not([data-shown=""])')
    while page.evaluate("document.activeElement.dataset.testid") != "map":
        page.keyboard.press("Tab")
    for key in ["]", "]", ".", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight"]:
        page.keyboard.press(key)
    shown(page, 2, 1)
    view = fake.attention(SHORT)
    whole = view.probabilities(2, 1, slice(0, len(view)), slice(0, len(view)))
    assert value(page) == pytest.approx(float(whole[2, 1]), rel=1e-5)
    said = f"query 2 'river' → key 1 'the' {whole[2, 1]:.4f}"
    page.wait_for_function("words => document.querySelector('[aria-live]').textContent === words", arg=said)
    active = page.get_by_test_id("map").get_attribute("aria-activedescendant")
    assert page.locator(f"[id='{active}']").inner_text() == said
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press(",")
    shown(page, 2, 0)
    page.keyboard.press("h")
    page.get_by_test_id("all-heads").wait_for()
    page.keyboard.press("/")
    page.get_by_test_id("palette").wait_for()
    page.keyboard.type("1 3")
    page.keyboard.press("Enter")
    page.keyboard.press("m")
    shown(page, 1, 3)


def test_table_lists_the_row(page, fake_explorer, fake):
    look(page, fake_explorer, "map", query=2, layer=1)
    table = page.get_by_test_id("table")
    table.wait_for()
    page.wait_for_function(
        "() => document.querySelectorAll('[data-testid=table] tbody tr:first-child td').length === 4"
    )
    listed = table.evaluate(
        """table => [...table.tBodies[0].rows]
            .map(row => [...row.querySelectorAll('td')].slice(2).map(cell => +cell.dataset.value))"""
    )
    view = fake.attention(SHORT)
    whole = view.probabilities(1, 0, slice(0, len(view)), slice(0, len(view)))
    assert np.allclose(listed, np.stack([whole[2], whole[:, 2]], axis=1), rtol=1e-5)


def test_tokens_keep_the_text_s_own_characters(page, fake_explorer, fake):
    text = "a👩‍🚀b  bank\n<b>the</b> & 𐍈!"
    look(page, fake_explorer, "tokens", text)
    encoding = fake.attention(text).encoding
    strip = page.get_by_test_id("strip")
    strip.wait_for()
    surfaces = strip.locator("[data-token]").all_text_contents()
    assert surfaces == [encoding.surface(index) for index in range(len(encoding))]
    assert strip.evaluate("e => e.textContent") == f"[CLS]{text}[SEP]"


def test_all_heads_and_their_order(page, fake_explorer, fake):
    look(page, fake_explorer, "heads")
    measured(page)
    heads = page.get_by_test_id("all-heads")
    page.wait_for_function(
        "n => document.querySelectorAll('[data-testid=all-heads] canvas').length === n", arg=LAYERS * HEADS
    )
    page.get_by_test_id("order").select_option("most")
    page.wait_for_selector('[data-testid="all-heads"][data-order="most"]')
    order = heads.evaluate("box => [...box.children].map(one => [+one.dataset.layer, +one.dataset.head])")
    share = fake.attention(SHORT).entropy_share.mean(axis=-1)
    ranked = [share[layer, head] for layer, head in order]
    assert all(one >= other - 1e-6 for one, other in itertools.pairwise(ranked))
    heads.locator("button").first.click()
    shown(page, *order[0])


def test_sinks_follow_the_slider(page, fake_explorer, fake):
    look(page, fake_explorer, "sinks")
    measured(page)
    received = fake.attention(SHORT).attention_received
    for epsilon in (0.1, 0.3):
        page.get_by_test_id("epsilon").fill(str(int(100 * epsilon)))
        page.wait_for_function("e => location.hash.includes('sinks.epsilon=' + e)", arg=int(100 * epsilon))
        page.wait_for_timeout(300)
        rows = page.get_by_test_id("sink-tokens").evaluate(
            "table => [...table.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.dataset.value))"
        )
        for row in rows:
            token, mass, share = int(row[0]), float(row[2]), float(row[3])
            assert mass == pytest.approx(float(received[:, :, token].mean()), rel=1e-4)
            assert share == pytest.approx(float((received[:, :, token] > epsilon).mean()), abs=1e-6)


def test_a_long_text_can_be_truncated(browser, fake_explorer):
    with opened(browser, expected_errors=["422"]) as page:
        page.goto(fake_explorer.url)
        page.get_by_test_id("text").fill("bank " * 40)
        page.get_by_test_id("read").click()
        page.get_by_text("Read the first 32 of 42 tokens").click()
        shown(page, 0, 0)
        assert "first 32 of 42" in page.get_by_test_id("was-cut").inner_text()
        assert state(page)["cut"] == "1"
        page.get_by_test_id("edit").click()
        page.get_by_test_id("text").fill("  ")
        page.get_by_test_id("read").click()
        page.wait_for_selector('[data-testid="problem"][data-kind="EmptyText"]')


@pytest.mark.parametrize(("query", "words"), [("", "without its"), ("?token=old", "another run")])
def test_without_the_token_the_page_is_locked(browser, fake_explorer, query, words):
    with opened(browser, expected_errors=["401"]) as page:
        page.goto(f"{fake_explorer.origin}/{query}")
        page.get_by_test_id("locked").wait_for()
        assert words in page.get_by_test_id("locked").inner_text()


def test_a_text_the_server_dropped_is_sent_again(browser):
    with (
        running(FakeModel(), held_texts=1) as server,
        opened(browser, expected_errors=["404"]) as page,
    ):
        page.goto(server.url)
        read(page, SHORT)
        measured(page)
        page.evaluate(
            """() => fetch('/api/texts', {method: 'POST', body: '{"text": "bank"}', headers: {
                'Content-Type': 'application/json',
                'X-Unmask-Token': sessionStorage.getItem('unmask-token')}})"""
        )
        page.keyboard.press("Tab")
        page.keyboard.press(".")
        shown(page, 0, 1)
        assert page.get_by_test_id("problem").count() == 0


def test_a_server_that_stopped(browser):
    with (
        running(FakeModel()) as server,
        opened(browser, expected_errors=["ERR_CONNECTION_REFUSED"]) as page,
    ):
        page.goto(server.url)
        read(page, SHORT)
        point(page, 1, 1)
        value(page)
        measured(page)
        server.stop()
        page.keyboard.press("Tab")
        page.keyboard.press(".")
        page.get_by_test_id("gone").wait_for()
        shown(page, 0, 0)
        page.keyboard.press(",")
        point(page, 1, 1)
        assert value(page) > 0, "what was read stays"


def test_a_server_that_came_back_goes_on(browser):
    model = FakeModel()
    with opened(browser, expected_errors=["ERR_CONNECTION_REFUSED", "404"]) as page:
        with running(model) as server:
            page.goto(server.url)
            read(page, SHORT)
            measured(page)
            server.stop()
            page.keyboard.press("Tab")
            page.keyboard.press(".")
            page.get_by_test_id("gone").wait_for()
            port = int(server.origin.rsplit(":", 1)[1])
        with running(model, port=port):
            page.wait_for_selector('[data-testid="page"][data-phase="ready"]')
            shown(page, 0, 1)
            assert page.get_by_test_id("gone").count() == 0


def test_a_long_text_stays_smooth(browser):
    text = "bank " * 1998
    with running(FakeModel(max_tokens=2000)) as server, opened(browser) as page:
        page.goto(server.url)
        read(page, text)
        page.evaluate(
            """() => { window.moves = [];
                document.querySelector('[data-testid=map]').addEventListener('pointermove', () => {
                    const began = performance.now();
                    requestAnimationFrame(() =>
                        setTimeout(() => window.moves.push(performance.now() - began)));
                }, true); }"""
        )
        x, y = point(page, 5, 5)
        page.mouse.move(x + 300, y + 300, steps=40)
        page.wait_for_timeout(200)
        assert np.median(page.evaluate("window.moves")) < 50
        assert int(page.get_by_test_id("map").get_attribute("data-level")) > 0
        assert "largest of" in page.get_by_test_id("drawn").inner_text()
        while page.get_by_test_id("map").get_attribute("data-level") != "0":
            page.keyboard.press("+")
        page.locator('[data-token="4"]').click()
        page.get_by_test_id("inset").wait_for()
        page.wait_for_function("() => document.querySelector('[data-testid=map]').scrollTop < 50")


def test_an_analysis_is_stopped_and_goes_on(browser):
    text = "bank " * 1990
    with running(FakeModel(max_tokens=2000)) as server, opened(browser) as page:
        page.goto(server.url)
        read(page, text)
        page.get_by_test_id("stop").click()
        page.wait_for_selector('[data-testid="progress"][data-phase="stopped"]')
        assert "the measured layers can be viewed" in page.get_by_test_id("progress").inner_text()
        page.get_by_test_id("go").click()
        page.wait_for_selector('[data-testid="progress"][data-phase="measuring"]')


def test_the_page_is_there_before_the_models(browser):
    may_load = threading.Event()

    def load():
        may_load.wait(20)
        return FakeModel()

    with running([("slow", load)]) as server, opened(browser) as page:
        look(page, server, "map")
        page.get_by_test_id("text").wait_for()
        # The quickest of three: another process may take a core for a second.
        times = []
        for _ in range(3):
            page.reload()
            page.get_by_test_id("text").wait_for()
            paints = "performance.getEntriesByName('first-contentful-paint')"
            page.wait_for_function(f"() => {paints}.length > 0")
            times.append(page.evaluate(f"{paints}[0].startTime"))
        assert min(times) < 1000
        page.get_by_text("Loading the model").wait_for()
        may_load.set()
        shown(page, 0, 0)


def test_a_model_that_cannot_be_loaded_says_why(browser):
    def fail():
        raise InvalidRequest("there is no model of that name")

    with running([FakeModel(), ("gone", fail)]) as server, opened(browser) as page:
        page.goto(server.url)
        page.get_by_test_id("model-failed").wait_for()
        assert "There is no model of that name." in page.get_by_test_id("model-failed").inner_text()
        read(page, SHORT)


def test_a_model_without_a_map_keeps_its_other_views(page, fake_explorer):
    def without(route):
        answer = route.fetch()
        session = answer.json()
        session["models"][0] |= {"maps": False, "no_maps": "It mixes tokens by sums."}
        route.fulfill(response=answer, json=session)

    page.route("**/api/session", without)
    look(page, fake_explorer, "map")
    page.get_by_test_id("no-maps").wait_for()
    assert "It mixes tokens by sums." in page.get_by_test_id("no-maps").inner_text()
    page.locator("#tab-tokens").click()
    page.get_by_test_id("strip").wait_for()
    page.locator("#tab-compare").click()
    page.get_by_test_id("needs-two").wait_for()


def test_two_models_read_one_text(browser):
    with running([FakeModel("one"), FakeModel("two", seed=1)]) as server, opened(browser) as page:
        look(page, server, "map", beside="two", query=2)
        shown(page, 0, 0)
        page.get_by_test_id("beside").wait_for()
        assert state(page)["beside"] == "two"
        page.locator("#tab-compare").click()
        page.wait_for_selector('[data-testid="page"][data-view="compare"]')
        assert page.get_by_test_id("needs-two").count() == 0
