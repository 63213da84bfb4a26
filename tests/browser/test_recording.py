"""Recordings of views that move: looping GIFs with the numbers of every layer."""

import numpy as np
import pytest
from colors import palette
from conftest import opened
from fake_model import LAYERS, FakeModel
from PIL import Image, ImageSequence
from test_cloud import TEXT as LONGER
from test_cloud import live as longer  # noqa: F401
from test_cloud import shown
from test_export import PLACE, TEXT, live, saved, show, wait_for_map  # noqa: F401


def frames_of(path):
    """The frames as a viewer composes them, and what the file says of itself."""
    with Image.open(path) as gif:
        frames = [np.asarray(one.convert("RGB")).astype(int) for one in ImageSequence.Iterator(gif)]
        return gif.info, frames


def test_the_map_goes_through_the_layers(page, live, tmp_path):  # noqa: F811
    show(page, live.url + PLACE)
    wait_for_map(page)
    grid = page.get_by_test_id("map")
    left, top, cell, wide, high = grid.evaluate(
        """e => [+e.dataset.left, +e.dataset.top, +e.dataset.cell,
            e.querySelector('canvas').width, e.querySelector('canvas').height]"""
    )
    path = saved(page, "gif", tmp_path)
    assert path.name == "fake-map-1.2.gif"
    info, frames = frames_of(path)
    assert (len(frames), info["loop"], info["duration"]) == (LAYERS, 0, 900)
    assert b"model: fake; " in info["comment"]
    share = min(1, 1280 / wide, 720 / np.sqrt(wide * high))
    view, colors = FakeModel().attention(TEXT), palette("light")
    for layer, frame in enumerate(frames):
        weights = view.probabilities(layer, 2)
        for query, key in np.ndindex(weights.shape):
            x, y = (round((start + (at + 0.5) * cell) * share) for start, at in ((left, key), (top, query)))
            expected = colors[int(255 * np.sqrt(weights[query, key]) + 0.5)]
            assert np.abs(frame[y, x] - expected).max() < 24, (layer, query, key)


@pytest.mark.slow
def test_the_cloud_turns_once(browser, longer, tmp_path):  # noqa: F811
    with shown(browser, longer, text=LONGER, cloud_turn="30,10,1.4") as page:
        page.get_by_test_id("cloud-explained").wait_for()
        info, frames = frames_of(saved(page, "gif", tmp_path))
    assert (len(frames), info["loop"]) == (60, 0)
    changes = [
        np.abs(one - other).mean() for one, other in zip(frames, [*frames[1:], frames[0]], strict=True)
    ]
    assert min(changes) > 0
    # The last frame goes over into the first as any frame into the next.
    assert changes[-1] < 2 * np.median(changes)


def test_flow_goes_through_the_layers_and_is_as_before(page, live, tmp_path):  # noqa: F811
    show(page, live.url + PLACE + "&flow.as=through&flow.step=1&flow.least=0", "flow")
    page.wait_for_selector("path.edge", state="attached")
    before = page.locator("path.edge").count()
    info, frames = frames_of(saved(page, "gif", tmp_path))
    assert (len(frames), info["loop"]) == (5 * LAYERS + 8, 0)
    # Edges come layer by layer, and at the end the whole stands still.
    colored = [int((np.ptp(frame, axis=2) > 60).sum()) for frame in frames]
    assert colored[0] < colored[5] < colored[10] < colored[15] == colored[-1]
    assert page.locator("path.edge").count() == before
    assert page.get_by_role("group", name="Strongest edges").get_attribute("data-step") == "1"


def test_a_view_that_does_not_move_offers_no_recording(browser, live):  # noqa: F811
    with opened(browser) as page:
        show(page, live.url + PLACE, "sinks")
        page.keyboard.press("e")
        page.get_by_test_id("save-png").wait_for()
        assert page.get_by_test_id("save-gif").count() == 0
