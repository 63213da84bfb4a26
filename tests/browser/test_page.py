"""The explorer as people use it: a real browser, and where it is there, the real default model."""

import itertools
import re
from urllib.parse import quote

import numpy as np
import pytest
from colors import color_indexes, palette
from conftest import TOKEN
from fake_model import HEADS, LAYERS
from looking import (
    SHORT,
    address_says,
    becomes,
    greeted,
    look,
    measured,
    pixel,
    point,
    read,
    reads,
    shown,
    state,
    value,
)

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
        assert f"{exact:.7g}" in words
        assert f"{exact:.9g}" not in words.replace(f"{exact:.7g}", ""), "a float32 carries seven digits"
        *color, opaque = pixel(page, query, key)
        assert color in [colors[index].tolist() for index in color_indexes("sqrt", exact)]
        assert opaque == 255


@pytest.mark.parametrize("tone", [pytest.param("light", marks=pytest.mark.slow), "dark"])
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

    def has_the_color_on(scale):
        wanted = [colors[index].tolist() for index in color_indexes(scale, exact)]
        wait_until(lambda: pixel(page, 3, 5)[:3] in wanted, pause=0.05)

    page.get_by_test_id("colors").click()
    for words, scale in [("Linear", "linear"), ("Root", "sqrt"), ("Log", "log")]:
        page.get_by_text(words, exact=True).click()
        has_the_color_on(scale)
    page.get_by_test_id("clip").fill("254")
    becomes(lambda: pixel(page, 3, 5)[:3], colors[0].tolist())
    page.get_by_test_id("colors-reset").click()
    page.wait_for_function("() => !/scale|clip|gain/.test(location.hash)")
    has_the_color_on("sqrt")


def test_address_holds_the_state_and_back_undoes(page, fake_explorer):
    # Changes closer together than a pause are one step, however long the browser takes for them.
    page.add_init_script("window.now = 1000; performance.now = () => window.now;")
    page.goto(f"{fake_explorer.url}#v=3&view=map")
    assert TOKEN not in page.url
    page.get_by_test_id("edit").click()  # an example is there already
    read(page, SHORT)
    page.evaluate("window.now += 1000")
    page.locator('[data-token="3"]').click()
    page.evaluate("window.now += 1000")
    page.keyboard.press("Control")  # a key that writes nothing: the next one is meant for the page
    page.keyboard.press("]")
    page.evaluate("window.now += 1000")
    page.get_by_test_id("colors").click()
    page.get_by_text("Log", exact=True).click()
    for name in ("Theme: as the system", "Theme: light"):
        page.get_by_role("button", name=name, exact=True).click()
    page.get_by_role("button", name="Theme: dark", exact=True).wait_for()
    page.get_by_text("Norm-weighted", exact=True).click()
    wanted = {
        "v": "3",
        "view": "map",
        "text": SHORT,
        "layer": "1",
        "query": "3",
        "scale": "log",
        "weight": "norm",
        "theme": "dark",
    }
    becomes(lambda: state(page), wanted)
    page.reload()
    shown(page, 1, 0)
    becomes(lambda: state(page), wanted)
    page.wait_for_selector('[data-token="3"][aria-pressed=true]')
    page.wait_for_selector("html[data-tone=dark]")
    page.go_back()
    page.wait_for_function("() => location.hash.includes('layer=1') && !location.hash.includes('log')")
    page.go_back()
    shown(page, 0, 0)
    page.go_back()
    page.wait_for_function("() => !location.hash.includes('query')")


def test_an_address_of_the_first_version_still_opens(page, fake_explorer):
    page.goto(f"{fake_explorer.url}#v=1&text={quote(SHORT)}&layer=2&head=1&query=3&side=table")
    shown(page, 2, 1)
    page.wait_for_selector('[data-token="3"][aria-pressed=true]')


def test_norm_weighted_values_are_those_of_the_view(page, fake_explorer, fake):
    look(page, fake_explorer, "map", layer=1, head=2, weight="norm")
    shown(page, 1, 2)
    view = fake.attention(SHORT)
    whole = view.probabilities(1, 2, slice(0, len(view)), slice(0, len(view)), weight="norm")
    reads(page, 2, 4, float(whole[2, 4]))
    page.get_by_test_id("drawn").filter(has_text="norm-weighted").wait_for()


def tab_to(page, reached):
    """Press Tab until something has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate(reached):
            return
    raise AssertionError(f"60 stops, and never {reached}")


def test_keyboard_alone(page, fake_explorer, fake):
    page.goto(fake_explorer.url)
    greeted(page)
    tab_to(page, "document.activeElement.id === 'text'")
    page.keyboard.type(SHORT)
    page.keyboard.press("Control+Enter")
    page.wait_for_function(f"() => document.title.includes({SHORT!r})")
    page.wait_for_selector("#text", state="hidden")
    page.keyboard.press("Control")  # no longer typing
    page.keyboard.press("m")
    page.wait_for_selector('[data-testid="map"]:not([data-shown=""])')
    page.keyboard.press("/")  # the page opens at the clearest head
    page.get_by_test_id("palette").wait_for()
    page.keyboard.type("0 0")
    page.keyboard.press("Enter")
    shown(page, 0, 0)
    tab_to(page, "document.activeElement.dataset.testid === 'map'")
    for key in ["]", "]", ".", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight"]:
        page.keyboard.press(key)
    shown(page, 2, 1)
    view = fake.attention(SHORT)
    whole = view.probabilities(2, 1, slice(0, len(view)), slice(0, len(view)))
    becomes(lambda: value(page), pytest.approx(float(whole[2, 1]), rel=1e-5))
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
        address_says(page, sinks__epsilon=f"{100 * epsilon:.0f}")
