"""What tests of the page share: opening it, and looking at its map."""

from urllib.parse import parse_qs, quote

import pytest
from conftest import DRAWN

from tests.support.waiting import wait_until

SHORT = "the river bank was muddy"


def read(page, text):
    """Type a text, read it with the keyboard, wait for the map of head 0.0."""
    greeted(page)
    page.get_by_test_id("text").fill(text)
    page.keyboard.press("Control+Enter")
    # The map of the example that the page began with may be there still.
    page.evaluate(DRAWN)
    page.wait_for_selector('[data-testid="page"][data-busy="false"]')
    page.locator("[data-tab=map]").click()
    page.wait_for_selector('[data-testid="map"]:not([data-shown=""])')
    if "/0/0/" not in page.get_by_test_id("map").get_attribute("data-shown"):
        # The overview was there first and chose the clearest head.
        page.evaluate("location.hash = location.hash.replace(/&(layer|head)=\\d+/g, '')")
        shown(page, 0, 0)


def greeted(page):
    """Wait until the page knows its models: a text that is sent before is sent twice."""
    page.wait_for_selector('[data-testid="page"][data-phase="ready"]')


def look(page, server, view, text=SHORT, **state):
    """Open an address of a view."""
    fields = "".join(f"&{name}={quote(str(value))}" for name, value in state.items())
    page.goto(f"{server.url}#v=3&view={view}&text={quote(text)}{fields}")


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


TYPING_MS = 700
"""`PAUSE_MS` of the page: for so long after a box has closed, keys still belong to what was typed."""


def press_after_typing(page, key):
    page.wait_for_timeout(TYPING_MS + 50)
    page.keyboard.press(key)


def state(page):
    # Asked of the page: what Playwright knows of its address may be old.
    fields = parse_qs(page.evaluate("location.hash.slice(1)"))
    return {name: values[0] for name, values in fields.items()}


def address_says(page, **fields):
    """Wait until the address holds these fields; a name's dots are written as two underscores.

    The page writes changes that follow each other closely only when they rest.
    """
    wanted = {name.replace("__", "."): value for name, value in fields.items()}
    wait_until(lambda: wanted.items() <= state(page).items(), pause=0.05)


def becomes(what, wanted):
    """Wait until ``what()`` equals ``wanted``; a failure shows what it was instead."""
    found = []

    def same():
        found[:] = [what()]
        return found[0] == wanted

    try:
        wait_until(same, pause=0.05)
    except AssertionError:
        assert found[0] == wanted


def reads(page, query, key, wanted, rel=1e-5):
    """Wait until the readout of a cell shows a value.

    The pointer is brought there again each time: the map may be laid out anew under it.
    """

    def shows():
        point(page, query, key)
        return value(page) == pytest.approx(wanted, rel=rel)

    wait_until(shows, pause=0.05)


def measured(page):
    """Wait until the whole text is measured."""
    page.wait_for_selector('[data-testid="page"][data-measured="true"]')
