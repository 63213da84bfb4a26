"""Flow, and attention without special tokens or between two texts, against the maps of the library."""

import numpy as np
import pytest
from conftest import opened, running, settle
from fake_model import HEADS, LAYERS, FakeModel
from looking import SHORT, address_says, look, reads, shown
from test_export import opened_file, saved

from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

PAIR = "the bank was a text"


def opened_flow(page, server, **state):
    """The flow of an address, once all of its lines are drawn."""
    look(page, server, "flow", **state)
    flow = page.get_by_test_id("flow")
    flow.locator("canvas[data-drawn]:not([data-drawn=''])").wait_for()
    return flow


def says(flow, **numbers):
    """Wait until the flow has so many edges, or so many that stand out, and they are drawn."""
    wanted = {f"data-{name}": str(number) for name, number in numbers.items()}
    wait_until(lambda: all(flow.get_attribute(name) == one for name, one in wanted.items()), pause=0.05)
    flow.locator("canvas[data-drawn]:not([data-drawn=''])").wait_for()


def listed(page):
    """The table of edges: layer where there are several, head, query, key, share."""
    page.get_by_test_id("all-edges-twin").click()
    rows = page.locator("table tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => cell.dataset.value))"
    )
    return [([*map(int, row[:-4]), int(row[-3])], float(row[-1])) for row in rows if row[-4] != ""]


def colors_of(flow):
    """The colors of the canvas that are not gray, and how many pixels have them."""
    return flow.locator("canvas").evaluate(
        """canvas => {
            const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            const found = new Map();
            for (let at = 0; at < data.length; at += 4) {
                const [red, green, blue] = data.slice(at, at + 3);
                if (Math.max(red, green, blue) - Math.min(red, green, blue) < 100) continue;
                const name = `${red} ${green} ${blue}`;
                found.set(name, (found.get(name) ?? 0) + 1);
            }
            return [...found.keys()].map(name => name.split(' ').map(Number));
        }"""
    )


def test_flow_of_all_heads(page, fake_explorer, fake):
    flow = opened_flow(page, fake_explorer, layer=1, **{"flow.least": "0"})
    view = fake.attention(SHORT)
    tokens = len(view)
    says(flow, edges=HEADS * tokens * 3)
    chips = page.get_by_test_id("chips").locator(".chip")
    chips.nth(1).click()
    says(flow, edges=(HEADS - 1) * tokens * 3)
    chips.nth(2).dblclick()
    says(flow, edges=tokens * 3)
    address_says(page, flow__heads="2")
    # Lines are painted in the color of head 2, a green; no other head has any.
    assert all(green > max(red, blue) for red, green, blue in colors_of(flow))
    assert colors_of(flow)
    flow.locator('[data-query="3"]').click()
    page.mouse.move(2, 2)
    says(flow, lit=3)
    rows = listed(page)
    assert len(rows) == 3 * tokens
    whole = view.probabilities(1, 2)
    for (head, query, key), share in rows:
        assert head == 2
        assert share == pytest.approx(float(whole[query, key]), rel=1e-4)


def test_flow_of_all_layers(page, fake_explorer, fake):
    flow = opened_flow(page, fake_explorer, **{"flow.as": "all", "flow.least": "0", "flow.edges": "1"})
    view = fake.attention(SHORT)
    tokens = len(view)
    says(flow, edges=LAYERS * HEADS * tokens)
    chips = page.get_by_test_id("chips")
    # A layer is taken out, and one of its heads in again; then that head stands alone.
    chips.locator('[data-chip="2."]').click()
    says(flow, edges=(LAYERS - 1) * HEADS * tokens)
    chips.locator('[data-chip="2.3"]').click()
    says(flow, edges=((LAYERS - 1) * HEADS + 1) * tokens)
    address_says(page, flow__all="0,1,2.3")
    assert chips.locator('[data-chip="2."]').get_attribute("aria-pressed") == "true"
    chips.locator('[data-chip="2.3"]').dblclick()
    says(flow, edges=tokens)
    address_says(page, flow__all="2.3")
    # The last layer has the last color of the spectrum, a dark red.
    assert all(red > max(green, blue) for red, green, blue in colors_of(flow))
    assert colors_of(flow)
    chips.get_by_text("All", exact=True).click()
    says(flow, edges=LAYERS * HEADS * tokens)
    # A token's lines stand out under the pointer, of every head of every layer; so do those of a layer.
    flow.locator('[data-query="3"]').hover()
    says(flow, lit=LAYERS * HEADS)
    chips.locator('[data-chip="1."]').hover()
    says(flow, lit=HEADS * tokens)
    page.keyboard.press("Tab")
    rows = listed(page)
    assert len(rows) == LAYERS * HEADS * tokens
    for (layer, head, query, key), share in rows:
        row = view.probabilities(layer, head)[query]
        assert share == pytest.approx(float(row.max()), rel=1e-4)
        assert share == pytest.approx(float(row[key]), rel=1e-4)


def test_chips_are_reached_by_the_keyboard(page, fake_explorer):
    flow = opened_flow(page, fake_explorer, **{"flow.as": "all", "flow.least": "0", "flow.edges": "1"})
    chips = page.get_by_test_id("chips")
    assert chips.locator('.chip[tabindex="0"]').count() == 1
    chips.locator('[data-chip="0.0"]').focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.dataset.chip") == "1.2"
    page.keyboard.press("Alt+Enter")
    tokens = flow.locator("[data-query]").count()
    says(flow, edges=tokens)
    address_says(page, flow__all="1.2")


def test_flow_between_the_texts_of_a_pair(page, fake_explorer, fake):
    state = {"pair": PAIR, "layer": 1, "pair.edges": "ab", "flow.least": "0", "flow.edges": "8"}
    flow = opened_flow(page, fake_explorer, **state)
    view = fake.attention(SHORT, PAIR)
    special, second = view.encoding.special, view.encoding.sequence_ids == 1
    first = ~special & ~second
    second &= ~special
    says(flow, edges=HEADS * first.sum() * second.sum())
    page.get_by_test_id("chips").locator(".chip").nth(2).dblclick()
    says(flow, edges=first.sum() * second.sum())
    whole = view.probabilities(1, 2)
    kept = f"A → B only, {100 * whole[first][:, second].sum(-1).mean():.1f}\u00a0% of the attention"
    wait_until(lambda: kept in page.get_by_test_id("all-edges").inner_text(), pause=0.05)
    rows = listed(page)
    assert {query for (_, query, _), _ in rows} == set(np.flatnonzero(first))
    for (_, query, key), share in rows:
        assert second[key]
        assert share == pytest.approx(float(whole[query, key]), rel=1e-4)
    page.get_by_text("Sums to 1", exact=True).click()
    rest = whole * second / (whole * second).sum(-1, keepdims=True)

    def shares():
        cells = page.locator("table tbody tr").evaluate_all(
            "rows => rows.map(row => [...row.querySelectorAll('td')].map(cell => cell.dataset.value))"
        )
        return [float(cell[-1]) for cell in cells], [rest[int(cell[1]), int(cell[3])] for cell in cells]

    wait_until(lambda: np.allclose(*shares(), rtol=1e-4), pause=0.05)


def test_without_special_tokens_everywhere(page, fake_explorer, fake):
    look(page, fake_explorer, "map", layer=1, head=2)
    shown(page, 1, 2)
    page.get_by_test_id("without-special").check()
    view = fake.attention(SHORT)
    whole = view.probabilities(1, 2)[1:-1, 1:-1]
    kept = whole / whole.sum(-1, keepdims=True)
    reads(page, 2, 4, float(kept[1, 3]), rel=1e-4)
    left = f"{100 * (1 - whole.sum(-1).mean()):.0f} % of attention is left out"
    wait_until(lambda: left in page.get_by_test_id("left-out").inner_text(), pause=0.05)
    page.keyboard.press("f")
    flow = page.get_by_test_id("flow")
    flow.wait_for()
    assert page.get_by_test_id("without-special").is_checked()
    assert flow.locator('[data-query="0"]').count() == 0
    assert flow.locator('[data-query="1"]').count() == 1
    wait_until(lambda: "special=hide" in page.evaluate("location.hash"), pause=0.05)
    page.keyboard.press("m")
    page.locator("label").get_by_text("Words", exact=True).click()
    # Every word of this text is one token.
    reads(page, 2, 4, float(kept[1, 3]), rel=1e-4)
    page.locator("[data-tab=head]").click()
    page.get_by_test_id("head-page").wait_for()
    wait_until(lambda: left in page.get_by_test_id("left-out").inner_text(), pause=0.05)
    page.locator("[data-tab=overview]").click()
    page.get_by_test_id("of-all-tokens").wait_for()


@pytest.mark.parametrize("short", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_saved_flow_has_what_its_controls_offer(
    page, browser, fake_explorer, fake, tmp_path, monkeypatch, short
):
    if not short:
        monkeypatch.setattr("unmask.explorer.export.views.ALL_HEADS_BYTES", 1)
    flow = opened_flow(page, fake_explorer, pair=PAIR, layer=1, **{"flow.least": "0", "flow.edges": "1"})
    settle(page)
    path = saved(page, "html", tmp_path)
    tokens = len(fake.attention(SHORT, PAIR))
    words = tokens - 3
    with opened_file(browser, path) as file:
        file.goto(path.as_uri())
        flow = file.get_by_test_id("flow")
        says(flow, edges=HEADS * tokens)
        # A click leads to an answer, or there is nothing to click on.
        for label, edges in (
            ("Norm-weighted", HEADS * tokens),
            ("Without [CLS] and [SEP]", HEADS * words),
            ("All layers", LAYERS * HEADS * words),
            ("A → B", LAYERS * HEADS * 5),
        ):
            control = file.get_by_text(label, exact=True)
            if short or label in ("Norm-weighted", "Without [CLS] and [SEP]"):
                control.click()
                says(flow, edges=edges)
            else:
                assert control.count() == 0
            settle(file)
            assert "not saved" not in file.get_by_test_id("stage").inner_text()


def test_a_token_is_carried_through_the_layers(page, fake_explorer, fake):
    look(page, fake_explorer, "flow", **{"flow.as": "through", "query": 3, "flow.least": "0"})
    svg = page.get_by_test_id("through").locator("svg")
    svg.wait_for()
    edges = svg.locator(".edge")
    wait_until(lambda: edges.count() == 3 * 6, pause=0.05)
    view = fake.attention(SHORT)
    for layer in range(3):
        rows = np.stack([view.probabilities(layer, head, slice(3, 4))[0] for head in range(4)])
        shares = svg.locator(f'.edge[data-layer="{layer}"]').evaluate_all(
            "edges => edges.map(edge => [+edge.dataset.head, +edge.dataset.key, +edge.dataset.value])"
        )
        np.testing.assert_allclose([share for *_, share in shares], -np.sort(-rows, axis=None)[:6], rtol=1e-4)
        for head, key, share in shares:
            assert share == pytest.approx(float(rows[head, key]), rel=1e-4)
    page.get_by_label("One layer back").click()
    wait_until(lambda: edges.count() == 2 * 6, pause=0.05)
    wait_until(lambda: "flow.step=2" in page.evaluate("location.hash"), pause=0.05)
    page.keyboard.press("ArrowLeft")
    wait_until(lambda: edges.count() == 6, pause=0.05)
    page.get_by_test_id("flow-play").click()
    wait_until(
        lambda: edges.count() == 3 * 6 and svg.locator(".edge[stroke-dasharray]").count() == 0, pause=0.05
    )


def test_many_layers_of_a_long_text_fit_the_screen(browser):
    """The picture stays as high and wide as a phone, whatever a token reads; nothing is left out silently."""
    model = FakeModel(max_tokens=1200, num_hidden_layers=24)
    address = {"flow.as": "through", "query": 3, "flow.least": "0", "flow.edges": "12"}
    with running(model) as server, opened(browser) as page:
        page.set_viewport_size({"width": 390, "height": 844})
        look(page, server, "flow", "river bank muddy text " * 290, **address)
        svg = page.get_by_test_id("through").locator("svg")
        svg.locator(".edge").first.wait_for()
        box = svg.bounding_box()
        assert box["height"] <= 560
        assert box["width"] <= 600
        drawn = svg.locator(".name").count()
        assert 2 < drawn <= 20
        assert drawn - 1 <= svg.locator(".edge").count() <= 240
        note = page.get_by_test_id("through").inner_text()
        assert f"the {drawn - 1} with the largest sums are drawn" in note
        # Names end where the picture begins, and a menu of a thousand tokens is none.
        assert svg.locator(".name").evaluate_all("names => names.every(name => name.getBBox().x >= 0)")
        assert page.locator(".player select").count() == 0
        page.locator(".player input").fill("900")
        page.locator(".player input").press("Enter")
        address_says(page, query="900")
        page.get_by_test_id("through-twin").click()
        wait_until(lambda: page.locator("table tbody tr").count() == 240, pause=0.05)
