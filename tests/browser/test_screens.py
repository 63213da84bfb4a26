"""What fits on a screen: the whole map of a sentence, and its first cells on a phone."""

import pytest
from conftest import settle
from looking import becomes, geometry, look, shown

SENTENCE = "the river bank was muddy " * 3 + "the"
"""18 tokens with [CLS] and [SEP]."""


def box(page, testid):
    return page.get_by_test_id(testid).first.bounding_box()


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1024, 768)])
def test_the_map_of_a_sentence_and_its_legend_are_seen_at_once(page, fake_explorer, width, height):
    page.set_viewport_size({"width": width, "height": height})
    look(page, fake_explorer, "map", SENTENCE)
    shown(page, 0, 0)
    settle(page, "map")
    assert "18 tokens" in page.get_by_test_id("count").inner_text()
    for part in ("map", "legend", "colors", "readout"):
        there = box(page, part)
        assert there["y"] >= 0
        assert there["y"] + there["height"] <= height, part
    # It is as large as the screen allows, not only small enough; Chromium's versions differ by a few pixels.
    assert box(page, "map")["height"] > 0.48 * height
    page.set_viewport_size({"width": width, "height": height - 150})
    page.wait_for_function(
        f"() => document.querySelector('[data-testid=map]').getBoundingClientRect().bottom <= {height - 150}"
    )


@pytest.mark.parametrize(("width", "height"), [(390, 844), (720, 450)])
def test_the_cells_begin_on_the_first_screen(page, fake_explorer, width, height):
    page.set_viewport_size({"width": width, "height": height})
    look(page, fake_explorer, "map", SENTENCE)
    shown(page, 0, 0)
    settle(page, "map")
    g = geometry(page)
    first = box(page, "map")["y"] + (g["top"] + 2 * g["cell"]) / g["ratio"]
    assert first < (height if height < 500 else height / 1.6), "two rows of cells are seen"
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_what_goes_on_at_the_side_of_a_phone_fades_there(page, fake_explorer):
    page.set_viewport_size({"width": 300, "height": 844})
    look(page, fake_explorer, "heads")
    settle(page, "heads")
    heads = page.get_by_test_id("all-heads")
    more = "element => [element.dataset.more, getComputedStyle(element).maskImage.includes('gradient')]"
    becomes(lambda: heads.evaluate(more), ["right", True])
    heads.evaluate("element => (element.scrollLeft = 9999)")
    becomes(lambda: heads.evaluate(more), ["left", True])
    page.set_viewport_size({"width": 1440, "height": 900})
    becomes(lambda: heads.evaluate(more), ["", False])
