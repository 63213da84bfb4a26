"""The widget's script in a browser: a stand-in for the notebook's model answers from the API."""

import base64
import json

import pytest
from conftest import opened, settle
from fake_model import FakeModel

pytest.importorskip("anywidget", reason="the notebook extra is not installed")

TEXT = "The river bank was muddy, and another bank was 3."

STAND_IN = """
async ({ script, page, height }) => {
  const { default: widget } = await import(`data:text/javascript;base64,${script}`);
  const heard = new Set();
  const model = {
    get: (name) => ({ page, height })[name],
    on: (_, callback) => heard.add(callback),
    off: (_, callback) => heard.delete(callback),
    async send(message) {
      const [head, data] = await window.kernel(JSON.stringify(message));
      const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
      for (const callback of heard) callback(JSON.parse(head), [new DataView(bytes.buffer)]);
    },
  };
  const el = document.createElement('div');
  document.body.append(el);
  window.leave = widget.render({ model, el });
  window.heard = heard;
}
"""


def test_the_frame_shows_a_map_and_its_values(browser):
    import unmask
    from unmask.explorer.server import notebook

    model = FakeModel()
    widget = unmask.explore(model, TEXT, height=700)

    def kernel(message):
        head, data = notebook.reply(widget.api, json.loads(message))
        return [json.dumps(head), base64.b64encode(data).decode()]

    with opened(browser) as page:
        page.goto("about:blank")
        page.expose_function("kernel", kernel)
        script = base64.b64encode(notebook.SCRIPT.encode()).decode()
        page.evaluate(STAND_IN, {"script": script, "page": widget.page, "height": widget.height})
        frame = page.frame_locator("iframe")
        frame.locator("[data-tab=map]").click()
        frame.locator('[data-testid="map"]:not([data-shown=""])').wait_for()
        settle(page.frames[-1])
        assert page.locator("iframe").bounding_box()["height"] == 700
        grid = frame.get_by_test_id("map")
        box = grid.bounding_box()
        left, top, cell = grid.evaluate("e => [+e.dataset.left, +e.dataset.top, +e.dataset.cell]")
        page.mouse.move(box["x"] + left + 2.5 * cell, box["y"] + top + 3.5 * cell)
        readout = frame.locator('[data-testid="readout"][data-query="3"][data-key="2"][data-value]')
        value = float(readout.get_attribute("data-value"))
        # The page opens at the clearest head.
        layer, head = map(int, grid.get_attribute("data-shown").split("/")[1:3])
        exact = float(model.attention(TEXT).probabilities(layer, head)[3, 2])
        assert value == pytest.approx(exact, rel=1e-5)
        assert page.evaluate("window.heard.size") == 1
        page.evaluate("window.leave()")
        assert page.locator("iframe").count() == 0
        assert page.evaluate("window.heard.size") == 0
    widget.close()
