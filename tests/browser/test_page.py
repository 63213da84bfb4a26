"""The explorer as people use it: a real browser, and where it is there, the real default model."""

import itertools
import re
from urllib.parse import quote

import numpy as np
import pytest
from colors import color_indexes, palette
from conftest import TOKEN
from fake_model import HEADS, LAYERS
from looking import SHORT, look, measured, pixel, point, read, shown, state, value

from tests.support.waiting import wait_until

TEXT = "The river bank was muddy, so we took the money to the bank 🙂."


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
        # The cells are drawn in a frame of their own after the click.
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        wanted = [colors[index].tolist() for index in color_indexes(scale, exact)]
        assert pixel(page, 3, 5)[:3] in wanted, scale
    page.get_by_test_id("clip").fill("254")
    assert pixel(page, 3, 5)[:3] == colors[0].tolist()


def test_address_holds_the_state_and_back_undoes(page, fake_explorer):
    # Changes closer together than a pause are one step, however long the browser takes for them.
    page.add_init_script("window.now = 1000; performance.now = () => window.now;")
    page.goto(fake_explorer.url)
    assert TOKEN not in page.url
    read(page, SHORT)
    page.evaluate("window.now += 1000")
    page.locator('[data-token="3"]').click()
    page.evaluate("window.now += 1000")
    page.keyboard.press("Control")  # a key that writes nothing: the next one is meant for the page
    page.keyboard.press("]")
    page.evaluate("window.now += 1000")
    page.get_by_text("Log", exact=True).click()
    page.get_by_text("Dark", exact=True).click()
    page.get_by_text("Norm-weighted", exact=True).click()
    wanted = {
        "v": "2",
        "text": SHORT,
        "layer": "1",
        "query": "3",
        "scale": "log",
        "weight": "norm",
        "theme": "dark",
    }
    wait_until(lambda: state(page) == wanted, pause=0.05)
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

        def of_this_epsilon(epsilon=epsilon):
            rows = page.get_by_test_id("sink-tokens").evaluate(
                """table => [...table.tBodies[0].rows]
                    .map(row => [...row.cells].map(cell => cell.dataset.value))"""
            )
            shares = [(received[:, :, int(row[0])] > epsilon).mean() for row in rows]
            same = rows and [float(row[3]) for row in rows] == pytest.approx(shares, abs=1e-6)
            return rows if same else None

        for row in wait_until(of_this_epsilon, pause=0.05):
            assert float(row[2]) == pytest.approx(float(received[:, :, int(row[0])].mean()), rel=1e-4)
        wait_until(
            lambda percent=100 * epsilon: state(page).get("sinks.epsilon") == f"{percent:.0f}", pause=0.05
        )
