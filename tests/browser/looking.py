"""What tests of the page share: opening it, and looking at its map."""

from urllib.parse import parse_qs, quote

SHORT = "the river bank was muddy"


def read(page, text):
    """Type a text, read it with the keyboard, wait for its map."""
    greeted(page)
    page.get_by_test_id("text").fill(text)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector('[data-testid="map"]:not([data-shown=""])')


def greeted(page):
    """Wait until the page knows its models: a text that is sent before is sent twice."""
    page.wait_for_selector('[data-testid="page"][data-phase="ready"]')


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
    # Asked of the page: what Playwright knows of its address may be old.
    fields = parse_qs(page.evaluate("location.hash.slice(1)"))
    return {name: values[0] for name, values in fields.items()}


def measured(page):
    """Wait until the whole text is measured."""
    page.wait_for_function("() => document.querySelector('[data-testid=progress]') === null")
