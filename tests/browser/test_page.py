"""The explorer as people use it: a real browser, and where it is there, the real default model."""

import re
from urllib.parse import parse_qs, quote, urlsplit

import numpy as np
import pytest
from colours import code, palette
from conftest import TOKEN, opened, running
from fake_model import FakeModel

TEXT = "The river bank was muddy, so we took the money to the bank 🙂."


def read(page, text):
    """Type a text, read it with the keyboard, wait for its map."""
    page.get_by_test_id("text").fill(text)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector('[data-testid="map"]:not([data-shown=""])')


def shown(page, layer, head):
    page.wait_for_selector(f'[data-testid="map"][data-shown="{layer},{head}"]')


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
    """The colour of a cell, read back from the canvas."""
    g = geometry(page)
    x, y = g["left"] + (key + 0.5) * g["cell"], g["top"] + (query + 0.5) * g["cell"]
    return page.get_by_test_id("cells").evaluate(
        """(canvas, [x, y]) => [...canvas.getContext('2d')
            .getImageData(Math.floor(x), Math.floor(y), 1, 1).data]""",
        [x, y],
    )


def value(page):
    return float(page.get_by_test_id("readout").get_attribute("data-value"))


def state(page):
    fields = parse_qs(urlsplit(page.url).fragment)
    return {name: values[0] for name, values in fields.items()}


def test_reads_a_pixel_and_a_value_of_the_default_model(page, explorer, default_model):
    page.goto(explorer.url)
    read(page, TEXT)
    view = default_model.attention(TEXT)
    names = [view.encoding.surface(index) for index in range(len(view))]
    page.locator('[data-testid="heads"] [data-layer="3"][data-head="5"]').click()
    shown(page, 3, 5)
    assert "layer 3 head 5" in page.get_by_test_id("caption").inner_text()
    whole = view.probabilities(3, 5, slice(0, len(view)), slice(0, len(view)))
    colours = palette("light")
    strongest = np.unravel_index(whole.argmax(), whole.shape)
    for query, key in [(0, 0), (3, 2), (len(view) - 1, 1), strongest]:
        point(page, query, key)
        readout = page.get_by_test_id("readout")
        page.wait_for_selector(f'[data-testid="readout"][data-query="{query}"][data-key="{key}"]')
        words = re.sub(r"\s+", " ", readout.inner_text())
        assert words.startswith(f"{names[query]} → {names[key]}")
        exact = value(page)
        assert np.float32(exact) == exact, "the readout holds a whole float32"
        assert exact == pytest.approx(float(whole[query, key]), rel=1e-5)
        if exact >= 0.001:
            assert f"{whole[query, key]:.4f}" in words
        assert f"{exact:.9g}" in words
        red, green, blue, opaque = pixel(page, query, key)
        assert [red, green, blue] == colours[code("sqrt", exact)].tolist()
        assert opaque == 255


@pytest.mark.parametrize("tone", ["light", "dark"])
def test_colours_of_every_scale(page, explorer, tone):
    page.goto(f"{explorer.url}#v=1&theme={tone}&text={quote(TEXT)}")
    shown(page, 0, 0)
    colours = palette(tone)
    legend = page.get_by_test_id("legend").evaluate(
        "canvas => [...canvas.getContext('2d').getImageData(0, 0, 256, 1).data]"
    )
    assert np.reshape(legend, (256, 4))[:, :3].tolist() == colours.tolist()
    point(page, 3, 5)
    exact = value(page)
    for words, scale in [("Linear", "linear"), ("Root", "sqrt"), ("Log", "log")]:
        page.get_by_text(words, exact=True).click()
        assert pixel(page, 3, 5)[:3] == colours[code(scale, exact)].tolist(), scale


def test_address_holds_the_state_and_back_undoes(page, explorer):
    page.goto(explorer.url)
    assert TOKEN not in page.url
    read(page, TEXT)
    page.locator('[data-token="3"]').click()
    page.wait_for_timeout(800)  # changes closer together than this are one step
    page.keyboard.press("]")
    page.wait_for_timeout(800)
    page.get_by_text("Log", exact=True).click()
    page.get_by_text("Dark", exact=True).click()
    page.get_by_text("Table", exact=True).click()
    wanted = {
        "v": "1",
        "text": TEXT,
        "layer": "1",
        "query": "3",
        "scale": "log",
        "theme": "dark",
        "side": "table",
    }
    assert state(page) == wanted
    page.reload()
    shown(page, 1, 0)
    assert state(page) == wanted
    assert page.get_by_test_id("text").input_value() == TEXT
    assert page.locator('[data-token="3"]').get_attribute("aria-pressed") == "true"
    assert page.locator("html").get_attribute("data-tone") == "dark"
    page.get_by_test_id("table").wait_for()
    page.go_back()
    page.wait_for_function("location.hash.includes('layer=1') && !location.hash.includes('log')")
    page.get_by_test_id("flow").wait_for()
    page.go_back()
    shown(page, 0, 0)
    page.go_back()
    page.wait_for_function("!location.hash.includes('query')")


def test_flow_of_a_clicked_token(page, explorer, default_model):
    page.goto(explorer.url)
    read(page, TEXT)
    page.locator('[data-token="3"]').click()
    flow = page.get_by_test_id("flow")
    flow.wait_for()
    edges = flow.evaluate(
        """svg => [...svg.querySelectorAll('[data-edge]')]
            .map(edge => [+edge.dataset.edge, +edge.dataset.value])"""
    )
    view = default_model.attention(TEXT)
    row = view.probabilities(0, 0, slice(3, 4), slice(0, len(view)))[0]
    assert {token for token, _ in edges} == set(np.argsort(-row, kind="stable")[:8].tolist())
    for token, probability in edges:
        assert probability == pytest.approx(float(row[token]), rel=1e-5)
    flow.get_by_text("river", exact=True).first.hover()
    assert page.get_by_test_id("readout").get_attribute("data-query") == "2"


def test_keyboard_alone(page, explorer, default_model):
    page.goto(explorer.url)
    page.get_by_test_id("model").wait_for()
    page.keyboard.press("Tab")
    while page.evaluate("document.activeElement.id") != "text":
        page.keyboard.press("Tab")
    page.keyboard.type("A rose is a rose")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector('[data-testid="map"]:not([data-shown=""])')
    while page.evaluate("document.activeElement.dataset.testid") != "map":
        page.keyboard.press("Tab")
    for key in ["]", "]", ".", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight"]:
        page.keyboard.press(key)
    shown(page, 2, 1)
    view = default_model.attention("A rose is a rose")
    whole = view.probabilities(2, 1, slice(0, len(view)), slice(0, len(view)))
    assert value(page) == pytest.approx(float(whole[2, 1]), rel=1e-5)
    live = page.locator("[aria-live]").inner_text()
    assert re.sub(r"\s+", " ", live).startswith("query 2 rose, key 1 A, ")
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press(",")
    shown(page, 2, 0)


def test_table_lists_the_row(page, fake_explorer, fake):
    page.goto(fake_explorer.url + "#v=1&side=table&query=2&layer=1&text=" + quote(TEXT))
    table = page.get_by_test_id("table")
    table.wait_for()
    listed = table.evaluate(
        """table => [...table.tBodies[0].rows]
            .map(row => [...row.querySelectorAll('td')].map(cell => +cell.dataset.value))"""
    )
    whole = fake.attention(TEXT).whole(1, 0).astype(np.float64)
    assert listed == np.stack([whole[2], whole[:, 2]], axis=1).tolist()


def test_tokens_keep_the_text_s_own_characters(page, fake_explorer, fake):
    text = "a👩‍🚀b  Café\n<b>naïve</b> & 𐍈!"
    page.goto(fake_explorer.url)
    read(page, text)
    encoding = fake.attention(text).encoding
    strip = page.get_by_test_id("strip")
    surfaces = strip.locator("[data-token]").all_text_contents()
    assert surfaces == [encoding.surface(index) for index in range(len(encoding))]
    assert strip.evaluate("e => e.textContent") == f"[CLS]{text}[SEP]"


def test_too_long_offers_to_cut(browser, fake_explorer):
    with opened(browser, expected_errors=["422"]) as page:
        page.goto(fake_explorer.url)
        page.get_by_test_id("text").fill("word " * 40)
        page.get_by_test_id("read").click()
        page.get_by_text("Read the first 32 of 42 tokens").click()
        shown(page, 0, 0)
        assert "first 32 of 42" in page.get_by_test_id("was-cut").inner_text()
        assert state(page)["cut"] == "1"
        page.get_by_test_id("text").fill("  ")
        page.get_by_test_id("read").click()
        page.wait_for_selector('[data-testid="problem"][data-kind="EmptyText"]')
        assert "The text has no words." in page.get_by_test_id("problem").inner_text()


@pytest.mark.parametrize(("query", "words"), [("", "without its"), ("?token=old", "another run")])
def test_without_the_token_the_page_is_locked(browser, fake_explorer, query, words):
    with opened(browser, expected_errors=["401"]) as page:
        page.goto(f"{fake_explorer.origin}/{query}")
        page.get_by_test_id("locked").wait_for()
        assert words in page.get_by_test_id("locked").inner_text()


def test_a_text_the_server_dropped_is_sent_again(browser):
    model = FakeModel()
    with (
        running(model, held_texts=1) as server,
        opened(browser, expected_errors=["404"]) as page,
    ):
        page.goto(server.url)
        read(page, TEXT)
        page.evaluate(
            """() => fetch('/api/texts', {method: 'POST', body: '{"text": "other"}', headers: {
                'Content-Type': 'application/json',
                'X-Unmask-Token': sessionStorage.getItem('unmask-token')}})"""
        )
        page.keyboard.press("Tab")
        page.keyboard.press(".")
        shown(page, 0, 1)
        assert model.calls == 3
        assert page.get_by_test_id("problem").count() == 0


def test_a_server_that_stopped(browser):
    with (
        running(FakeModel()) as server,
        opened(browser, expected_errors=["ERR_CONNECTION_REFUSED"]) as page,
    ):
        page.goto(server.url)
        read(page, TEXT)
        server.stop()
        page.keyboard.press("Tab")
        page.keyboard.press(".")
        page.get_by_test_id("gone").wait_for()
        shown(page, 0, 0)
        point(page, 1, 1)
        assert value(page) > 0, "what was read stays"


def test_five_hundred_tokens_stay_smooth(page):
    text = " ".join(f"word{number}" for number in range(510))
    with running(FakeModel(max_tokens=512)) as server:
        page.goto(server.url)
        read(page, text)
        start_x, start_y = point(page, 5, 5)
        # The longest pause between two frames while the pointer crosses the map.
        page.evaluate(
            """() => {
                window.pauses = []; let last = performance.now();
                const tick = now => { window.pauses.push(now - last); last = now;
                    window.ticking = requestAnimationFrame(tick); };
                window.ticking = requestAnimationFrame(tick);
            }"""
        )
        page.mouse.move(start_x + 400, start_y + 400, steps=40)
        pauses = page.evaluate("() => { cancelAnimationFrame(window.ticking); return window.pauses; }")
        assert np.median(pauses) < 60
        page.keyboard.press("Tab")
        for _ in range(4):
            page.keyboard.press("+")
        assert geometry(page)["cell"] >= 12
        exact = FakeModel(max_tokens=512).attention(text).whole(0, 0)
        point(page, 4, 6)
        assert value(page) == float(exact[4, 6])
        assert pixel(page, 4, 6)[:3] == palette("light")[code("sqrt", value(page))].tolist()
