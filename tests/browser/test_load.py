"""Another model, chosen and loaded from inside the page."""

import json

import pytest
from conftest import opened, running
from fake_model import FakeModel
from looking import becomes, greeted, look, shown

from tests.support.explorable import CONFIG, folder_of
from unmask.explorer.sessions.loading import PageLoader
from unmask.models.load import load


@pytest.fixture(scope="module")
def loading():
    with running(FakeModel(), loader=PageLoader(load)) as server:
        yield server


def chosen(page):
    return page.get_by_test_id("model").locator("select").first


def test_a_folder_is_looked_at_loaded_and_shown(browser, loading):
    with opened(browser, expected_errors=["409"]) as page:
        walk(page, loading)


def walk(page, loading):
    folder = folder_of("another", 5, json.dumps(CONFIG | {"num_hidden_layers": 2}, sort_keys=True))
    look(page, loading, "map")
    shown(page, 0, 0)
    chosen(page).select_option("")
    dialog = page.get_by_test_id("load")
    dialog.get_by_role("textbox").fill("nowhere")
    dialog.get_by_role("button", name="Look").click()
    dialog.get_by_text("nowhere is not a folder").wait_for()
    assert dialog.locator("img").count() == 0
    assert chosen(page).input_value() == "fake"
    dialog.get_by_role("textbox").fill(str(folder))
    dialog.get_by_role("button", name="Look").click()
    dialog.get_by_text("2 layers of width 16").wait_for()
    dialog.get_by_text("of memory in float32").wait_for()
    picture = dialog.locator("img")
    page.wait_for_function(
        "image => image.complete && image.naturalWidth > 100", arg=picture.element_handle()
    )
    # Another name is looked at before it is loaded.
    dialog.get_by_role("textbox").press_sequentially("x")
    dialog.get_by_role("button", name="Look").wait_for()
    dialog.get_by_role("textbox").press("Backspace")
    dialog.get_by_role("button", name="Look").click()
    dialog.get_by_role("button", name="Load").click()
    dialog.wait_for(state="detached")
    becomes(lambda: chosen(page).input_value(), "another")
    page.wait_for_selector('[data-testid="page"][data-busy="false"]')
    page.get_by_text("2 layers, width 16").wait_for()


def test_without_permission_nothing_is_offered(page, fake_explorer):
    page.goto(fake_explorer.url)
    greeted(page)
    assert "Load another…" not in chosen(page).inner_text()


def test_on_a_phone_the_dialog_fits_the_screen(browser, loading):
    with opened(browser) as page:
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(loading.url)
        greeted(page)
        chosen(page).select_option("")
        dialog = page.get_by_test_id("load")
        dialog.get_by_role("textbox").fill("unmask-mini")
        dialog.get_by_role("button", name="Look").click()
        dialog.locator("img").wait_for()
        box, picture = dialog.bounding_box(), dialog.locator("img").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        assert picture["x"] >= box["x"]
        assert picture["x"] + picture["width"] <= box["x"] + box["width"]
