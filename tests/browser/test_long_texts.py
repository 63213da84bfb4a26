"""Long texts: the page stays smooth, and says its limits."""

import json

import numpy as np
import pytest
from conftest import DRAWN, opened, running
from fake_model import FakeModel
from looking import greeted, point, read

from tests.support.held_measuring import held_measuring

pytestmark = pytest.mark.long


def test_a_long_text_stays_smooth(browser):
    text = "bank " * 1998
    with running(FakeModel(max_tokens=2000)) as server, opened(browser) as page:
        page.goto(server.url)
        read(page, text)
        page.evaluate(
            """() => { window.moves = [];
                document.querySelector('[data-testid=map]').addEventListener('pointermove', () => {
                    const began = performance.now();
                    requestAnimationFrame(() =>
                        setTimeout(() => window.moves.push(performance.now() - began)));
                }, true); }"""
        )
        for _ in range(30):  # a busy machine may join all moves to one, drop them, or take long for each
            page.evaluate("window.moves = []")
            x, y = point(page, 5, 5)
            page.mouse.move(x + 300, y + 300, steps=40)
            page.evaluate(DRAWN)
            page.wait_for_function("() => window.timers.size === 0")
            moves = page.evaluate("window.moves")
            if len(moves) >= 10 and np.median(moves) < 50:
                break
        assert len(moves) >= 10
        assert np.median(moves) < 50
        assert int(page.get_by_test_id("map").get_attribute("data-level")) > 0
        page.get_by_test_id("drawn").filter(has_text="largest of").wait_for()
        while page.get_by_test_id("map").get_attribute("data-level") != "0":
            page.keyboard.press("+")
        page.locator('[data-token="4"]').click()
        page.get_by_test_id("inset").wait_for()
        page.wait_for_function("() => document.querySelector('[data-testid=map]').scrollTop < 50")


def longest_task(trace):
    """Milliseconds of processor time of the page's longest task; what other processes took does not count."""
    events = json.loads(trace)["traceEvents"]
    mains = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    tasks = [event for event in events if event["name"].endswith("RunTask") and "tdur" in event]
    times = [event["tdur"] / 1000 for event in tasks if (event["pid"], event["tid"]) in mains]
    assert times, "the trace holds no task"
    return max(times)


@pytest.mark.slow
def test_a_document_of_8192_tokens_stays_smooth_while_it_is_measured(browser, monkeypatch):
    text = "bank river muddy " * 2730
    # What the page has to do depends on the tokens, not on the heads.
    model = FakeModel(max_tokens=8192, num_hidden_layers=2, num_attention_heads=1)
    with held_measuring(monkeypatch), running(model) as server, opened(browser) as page:
        page.goto(server.url)
        greeted(page)
        page.get_by_test_id("text").fill(text)
        browser.start_tracing(page=page, categories=["toplevel", "disabled-by-default-devtools.timeline"])
        page.keyboard.press("Control+Enter")
        page.get_by_text("8,192 tokens").wait_for()
        page.locator("[data-tab=map]").click()
        page.wait_for_selector('[data-testid="map"]:not([data-shown=""])')
        page.wait_for_selector('[data-testid="progress"]')
        page.evaluate(
            """() => { window.moves = [];
                document.querySelector('[data-testid=map]').addEventListener('pointermove', () => {
                    const began = performance.now();
                    requestAnimationFrame(() =>
                        setTimeout(() => window.moves.push(performance.now() - began)));
                }, true); }"""
        )
        box = page.get_by_test_id("map").bounding_box()
        for _ in range(10):  # another program may take the machine for seconds
            page.evaluate("window.moves = []")
            for step in range(40):
                page.mouse.move(box["x"] + 120 + 6 * step, box["y"] + 60 + 4 * step)
                page.wait_for_timeout(40)
            if np.median(page.evaluate("window.moves")) < 50:
                break
        assert page.get_by_test_id("progress").count() == 1, "it is still being measured"
        assert np.median(page.evaluate("window.moves")) < 50
        # The aim is 200 ms on a quiet machine (63 to 74 in docs/log/2026.md). Other processes slow caches and
        # clocks, up to 230 ms so far; a task that grows with the map takes seconds.
        assert longest_task(browser.stop_tracing()) < 600
        page.get_by_test_id("stop").click()
        page.wait_for_selector('[data-testid="progress"][data-phase="stopped"]')


def test_a_long_text_is_brightened_and_says_its_limit_in_the_reader_s_words(browser):
    model = FakeModel(max_tokens=1100, num_hidden_layers=1, num_attention_heads=1)
    with running(model) as server, opened(browser, expected_errors=["422"]) as page:
        page.goto(server.url)
        read(page, "bank river " * 500)
        said = page.get_by_test_id("brightened")
        assert "Brightened × 2 for a text of 1,002 tokens" in said.inner_text()
        assert "brightness × 2" in page.get_by_test_id("drawn").inner_text()
        assert "gain" not in page.evaluate("location.hash"), "the address holds what was chosen by hand"
        page.get_by_test_id("dim").click()
        page.wait_for_function("() => location.hash.includes('gain=0')")
        assert "brightness" not in page.get_by_test_id("drawn").inner_text()
        page.reload()
        page.get_by_test_id("brighten").click()
        page.wait_for_function("() => !location.hash.includes('gain')")
        page.keyboard.press("h")
        page.get_by_test_id("all-heads").wait_for()
        assert "Brightened × 2" in said.inner_text()
        page.get_by_test_id("edit").click()
        page.get_by_test_id("text").fill("bank river " * 600)
        with page.expect_response("**/api/texts"):
            page.keyboard.press("Control+Enter")
        said = page.get_by_test_id("problem").inner_text()
        assert "The text has 1,202 tokens, and" in said
        assert "reads at most 1,100" in said
        assert "cut'" not in said, "how it is said on the command line"
