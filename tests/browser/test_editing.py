"""A word replaced by keyboard: what the page shows of both texts, undone, and saved."""

import re

import numpy as np
import pytest
from conftest import opened, running, settle
from looking import address_says, press_after_typing
from test_export import opened_file, saved, show

from tests.support.explorable import LAYERS, FakeModel
from unmask.interpret.attention.comparison import attention_change, compare_texts
from unmask.interpret.words.words import word_map, words

pytestmark = pytest.mark.long

BEFORE, AFTER = "The river bank was muddy.", "The river text was muddy."


@pytest.fixture(scope="module")
def views():
    model = FakeModel()
    return model.attention(BEFORE), model.attention(AFTER)


def replaced(page, server):
    """The third word replaced by another one, with no other device than the keyboard."""
    show(page, f"{server.url}#v=2&layer=1&head=2&query=3&text={BEFORE.replace(' ', '+')}")
    page.keyboard.press("r")
    page.wait_for_function("() => document.activeElement.dataset.testid === 'replacement'")
    page.keyboard.type("text")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-testid=edit-bar][data-current=true]")
    settle(page)


def cells(page, testid):
    rows = page.get_by_test_id(testid).locator("tbody tr").all()
    return [[cell.inner_text() for cell in row.locator("td").all()] for row in rows]


def number(written):
    return float(written.replace("−", "-").replace("+", "").replace(" %", ""))


def test_a_word_is_replaced_by_keyboard_and_everything_shows_what_changed(
    browser, fake_explorer, views, tmp_path
):
    with opened(browser) as page:
        replaced(page, fake_explorer)
        address_says(page, text=AFTER, against=BEFORE)
        bar = page.get_by_test_id("edit-bar").inner_text()
        assert "bank → text" in bar
        expected = compare_texts(*(view.cache for view in views))
        assert f"{expected.embedding_cosine:.4f}" in bar

        page.locator("label", has_text="Difference").click()
        settle(page)
        before, after = (word_map(view, 1, 2, words(view.encoding)) for view in views)
        largest = np.abs(after - before).max()
        first = cells(page, "change-cells")[0]
        assert abs(number(first[4])) == pytest.approx(largest, abs=6e-5)
        assert number(first[3]) - number(first[2]) == pytest.approx(number(first[4]), abs=2e-4)
        moved = [number(row[1]) for row in cells(page, "change-moved")]
        np.testing.assert_allclose(moved, 50 * np.abs(after - before).sum(-1), atol=0.06)
        file = saved(page, "html", tmp_path)

        page.keyboard.press("c")
        settle(page, "compare")
        change = attention_change(*(view.cache for view in views))
        readout = page.get_by_test_id("change-heads-readout").inner_text()
        assert number(re.search(r"[\d.]+ %", readout)[0]) == pytest.approx(100 * change.moved[1, 2], abs=0.06)
        page.get_by_test_id("change-states-twin").click()
        levels = [row[0] for row in cells(page, "change-states-table")]
        assert list(dict.fromkeys(levels)) == ["emb.", *map(str, range(LAYERS))]
        page.keyboard.press("w")
        settle(page, "words")
        assert "both texts are the same" in page.get_by_test_id("prediction-change").inner_text()

        press_after_typing(page, "u")
        page.wait_for_function("() => !location.hash.includes('against')")
        address_says(page, text=BEFORE)
        page.go_back()
        page.wait_for_function("() => location.hash.includes('against')")
        page.wait_for_selector("[data-testid=edit-bar][data-current=true]")
        address_says(page, text=AFTER)

    with opened_file(browser, file) as page:
        page.goto(file.as_uri())
        page.wait_for_selector("[data-testid=edit-bar][data-current=true]")
        settle(page, "map")
        assert cells(page, "change-cells")[0] == first
        assert page.get_by_test_id("undo").count() == 0
        page.locator("label", has_text="Before").click()
        settle(page)
        assert page.get_by_test_id("change-before-canvas").count() == 1


def test_guesses_replace_the_word_and_a_special_token_is_not_replaced(browser, fake_explorer):
    with opened(browser) as page:
        show(page, f"{fake_explorer.url}#v=2&query=0&text={BEFORE.replace(' ', '+')}")
        page.keyboard.press("r")
        assert "belongs to the model" in page.get_by_test_id("replace-none").inner_text()
        page.get_by_test_id("strip").locator('[data-token="3"]').click()
        guess = page.get_by_test_id("guesses").locator("button").first
        word = guess.inner_text().split()[0]
        guess.click()
        page.wait_for_selector("[data-testid=edit-bar][data-current=true]")
        address_says(page, text=BEFORE.replace("bank", word))


def test_heads_are_shown_before_and_as_what_changed(browser, fake_explorer, views):
    def numbers():
        return [float(one) for one in page.locator("[data-testid=all-heads] .number").all_inner_texts()]

    with opened(browser) as page:
        show(page, f"{fake_explorer.url}#v=3&text={AFTER}&against={BEFORE}&query=3", "heads")
        page.wait_for_selector("[data-testid=edit-bar][data-current=true]")
        settle(page, "heads")
        now, before = (view.statistics().layers for view in (views[1], views[0]))
        for which, layers in (("This text", now), ("Before", before)):
            page.locator("label", has_text=which).click()
            settle(page)
            wanted = [share.mean() for layer in layers for share in layer.entropy_share_HN]
            np.testing.assert_allclose(numbers(), wanted, atol=0.0051)
        page.locator("label", has_text="Difference").click()
        settle(page)
        moved = attention_change(*(view.cache for view in views)).moved
        np.testing.assert_allclose(numbers(), moved.ravel(), atol=0.00051)
        maps = [word_map(view, 1, 2, words(view.encoding)) for view in views]
        pixels = page.locator('[data-layer="1"][data-head="2"] canvas').evaluate(
            "one => [...one.getContext('2d').getImageData(0, 0, one.width, one.height).data]"
        )
        red, _, blue, _ = np.reshape(pixels, (*maps[0].shape, 4)).transpose(2, 0, 1)
        change = maps[1] - maps[0]
        clear = np.abs(change) > 0.02
        assert clear.sum() > 10
        np.testing.assert_array_equal((red > blue)[clear], (change > 0)[clear])  # orange grew, blue shrank
        page.locator('[data-layer="1"][data-head="2"]').click()
        settle(page, "map")
        assert page.get_by_test_id("change-difference-canvas").count() == 1  # the map shows the same
        show(
            page,
            f"{fake_explorer.url}#v=3&text=The+muddy+river+bank&against={BEFORE}&map.show=difference",
            "heads",
        )
        page.wait_for_selector("[data-testid=edit-bar][data-current=true]")
        settle(page, "heads")
        assert "do not have the same tokens" in page.get_by_test_id("heads-changed").inner_text()
        assert page.locator("[data-testid=all-heads] canvas").count() == 0


def test_a_classifier_says_what_an_edit_changed(browser):
    labels = {"id2label": {"0": "calm", "1": "storm"}}
    model = FakeModel("classes", architectures=["BertForSequenceClassification"], **labels)
    with running(model) as server, opened(browser) as page:
        show(page, f"{server.url}#v=3&text={AFTER}&against={BEFORE}&compare.by=texts", "compare")
        page.locator("[data-testid=change-classes] tbody tr").first.wait_for()
        page.get_by_test_id("prediction").locator("button").first.wait_for()
        found = {label: [number(one) for one in values] for label, *values in cells(page, "change-classes")}
        before, after = (model.classify(text).scores for text in (BEFORE, AFTER))
        assert set(found) == {"calm", "storm"}
        for label, values in found.items():
            wanted = [before[label], after[label], after[label] - before[label]]
            np.testing.assert_allclose(values, wanted, atol=0.00051)
        chips = page.get_by_test_id("prediction").locator("button").all_inner_texts()
        best = max(after, key=after.get)
        assert any(best in chip for chip in chips)


def test_a_word_of_the_second_text_of_a_pair_is_replaced(browser, fake_explorer):
    text, old, new = "the river was muddy", "a river bank", "a river text"
    model = FakeModel()
    pair = model.attention(text, old)
    bank = next(at for at, token in enumerate(pair.encoding.pieces) if token == "bank")
    with opened(browser) as page:
        show(page, f"{fake_explorer.url}#v=2&text={text}&pair={old}&layer=1&head=2&query={bank}")
        page.keyboard.press("r")
        page.wait_for_function("() => document.activeElement.dataset.testid === 'replacement'")
        page.keyboard.type("text")
        page.keyboard.press("Enter")
        page.wait_for_selector("[data-testid=edit-bar][data-current=true]")
        page.locator("label", has_text="Difference").click()
        settle(page)
        address_says(page, text=text, pair=new, against=text, againstPair=old)
        assert "bank → text" in page.get_by_test_id("edit-bar").inner_text()
        views = pair, model.attention(text, new)
        before, after = (word_map(view, 1, 2, words(view.encoding)) for view in views)
        assert abs(number(cells(page, "change-cells")[0][4])) == pytest.approx(
            np.abs(after - before).max(), abs=6e-5
        )
        press_after_typing(page, "u")
        address_says(page, text=text, pair=old)


def test_on_a_phone_the_difference_is_in_the_first_screen(browser, fake_explorer):
    with opened(browser) as page:
        page.set_viewport_size({"width": 390, "height": 844})
        state = f"layer=1&head=2&query=3&text={AFTER}&against={BEFORE}&map.show=difference"
        show(page, f"{fake_explorer.url}#v=3&view=map&{state}")
        box = page.get_by_test_id("change-difference-canvas").bounding_box()
        assert box["y"] + box["height"] <= 844
        # What else there was is below it.
        for below in (page.get_by_test_id("change-drawn"), page.get_by_test_id("strip")):
            assert below.bounding_box()["y"] > box["y"]
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_no_bar_stands_where_nothing_can_be_replaced(browser):
    with running(FakeModel()) as server, opened(browser) as page:
        show(page, f"{server.url}#v=3&view=map&query=0&text={AFTER}")
        page.get_by_test_id("map").wait_for()
        assert page.get_by_test_id("edit-bar").count() == 0
        page.keyboard.press("r")
        page.get_by_test_id("replace-none").wait_for()
