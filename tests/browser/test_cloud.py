"""The cloud of tokens: turned, moved through the levels, linked with the curves, stopped, saved."""

from contextlib import contextmanager
from urllib.parse import quote

import pytest
from conftest import opened, running, settle
from fake_model import LAYERS, FakeModel
from looking import address_says, becomes
from test_export import opened_file

from tests.support.waiting import wait_until
from unmask.explorer.routes import geometry as geometry_routes

pytestmark = pytest.mark.long

TEXT = "the river bank was muddy and another text of the bank . " * 4


@pytest.fixture(scope="module")
def live():
    with running(FakeModel(max_tokens=64)) as server:
        yield server


@contextmanager
def shown(browser, live, *, text=TEXT, **fields):
    options = {name: fields.pop(name) for name in ("reduced_motion", "expected_errors") if name in fields}
    rest = "".join(f"&{name.replace('_', '.')}={quote(value)}" for name, value in fields.items())
    with opened(browser, color_scheme="light", **options) as page:
        page.goto(f"{live.url}#v=2&view=geometry&text={quote(text)}{rest}")
        page.get_by_test_id("cloud").wait_for()
        yield page


def camera(page):
    return [float(part) for part in page.get_by_test_id("cloud").get_attribute("data-camera").split(",")]


def level(page):
    return float(page.get_by_test_id("cloud").get_attribute("data-level"))


def drifting(page):
    return page.get_by_test_id("cloud").get_attribute("data-drifting")


def colored(page):
    """How many pixels of the cloud are neither white nor gray."""
    return page.evaluate(
        """() => {
            const canvas = document.querySelector('[data-testid=cloud] canvas');
            const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            let found = 0;
            for (let at = 0; at < data.length; at += 4) {
                const [red, green, blue] = [data[at], data[at + 1], data[at + 2]];
                if (Math.max(red, green, blue) - Math.min(red, green, blue) > 40) found++;
            }
            return found;
        }"""
    )


def test_it_turns_by_itself_until_it_is_touched(browser, live):
    with shown(browser, live) as page:
        cloud = page.get_by_test_id("cloud")
        becomes(lambda: drifting(page), "true")
        before = camera(page)[0]
        page.wait_for_function(
            "yaw => document.querySelector('[data-testid=cloud]').dataset.camera.split(',')[0] != yaw",
            arg=before,
        )
        wait_until(lambda: colored(page) > 500)
        box = cloud.bounding_box()
        middle = box["x"] + box["width"] / 2, box["y"] + 40
        page.mouse.move(*middle)
        page.mouse.down()
        page.mouse.move(middle[0] + 100, middle[1] + 20, steps=5)
        page.mouse.up()
        becomes(lambda: drifting(page), "false")
        settle(page, "geometry")
        turned = camera(page)
        address_says(page, cloud__turn=",".join(f"{part:g}" for part in turned))
        page.reload()
        cloud.wait_for()
        becomes(lambda: camera(page), turned)
        assert drifting(page) == "false"


def test_keys_turn_zoom_and_choose_and_reduced_motion_holds_it_still(browser, live):
    with shown(browser, live, reduced_motion="reduce") as page:
        cloud = page.get_by_test_id("cloud")
        becomes(lambda: drifting(page), "false")
        yaw, pitch, zoom = camera(page)
        cloud.focus()
        for key in ("ArrowRight", "ArrowUp", "+"):
            page.keyboard.press(key)
        becomes(lambda: camera(page), pytest.approx([yaw + 7.5, pitch + 7.5, 1.2 * zoom], abs=0.51))
        page.keyboard.press("Shift+ArrowRight")
        # The first token is [CLS], which is hidden.
        page.locator("[data-testid=strip] [data-token='1'][aria-pressed=true]").wait_for()
        page.keyboard.press("0")
        becomes(lambda: camera(page), [yaw, pitch, zoom])
        page.keyboard.press("[")
        becomes(lambda: level(page), LAYERS - 1)
        page.get_by_test_id("cloud-explained").filter(has_text="layer 1").wait_for()


def test_the_level_is_that_of_the_curves_and_back(browser, live):
    with shown(browser, live, reduced_motion="reduce") as page:
        page.get_by_test_id("geometry-n").wait_for()
        settle(page, "geometry")
        page.get_by_test_id("cloud-slider").fill("1")
        becomes(lambda: level(page), 1)
        readout = page.get_by_test_id("geometry-norm-readout")
        wait_until(lambda: readout.inner_text().startswith("layer 0"))
        chart = page.locator("[data-testid=geometry-norm] svg[role=img]")
        chart.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        wait_until(lambda: level(page) in (0, 2))
        address_says(page, geometry__level=f"{level(page):.0f}")


def test_a_click_on_a_point_chooses_its_token_and_the_table_has_its_coordinates(browser, live):
    with shown(browser, live, reduced_motion="reduce", cloud_turn="0,0,1") as page:
        wait_until(lambda: colored(page) > 500)
        place = page.evaluate(
            """() => {
                const canvas = document.querySelector('[data-testid=cloud] canvas');
                const {width, height} = canvas;
                const data = canvas.getContext('2d').getImageData(0, 0, width, height).data;
                for (let y = height - 1; y > 0; y--) for (let x = 0; x < width; x++) {
                    const rgb = [...data.subarray(4 * (y * width + x)).subarray(0, 3)];
                    if (Math.max(...rgb) - Math.min(...rgb) > 60)
                        return [x * canvas.clientWidth / width, y * canvas.clientHeight / height];
                }
            }"""
        )
        box = page.get_by_test_id("cloud").bounding_box()
        page.mouse.click(box["x"] + place[0], box["y"] + place[1])
        chosen = page.locator("[data-testid=strip] [aria-pressed=true]")
        chosen.wait_for()
        number = chosen.get_attribute("data-token")
        address_says(page, query=number)
        page.get_by_test_id("space-twin").click()
        row = page.locator("[data-testid=space-table] tr.on")
        becomes(lambda: row.locator("td").first.get_attribute("data-value"), number)
        assert len(row.locator("td.number").all()) == 4


def test_a_short_text_leads_to_a_sample(browser, live):
    with shown(browser, live, text="the river bank was muddy .", expected_errors=("422",)) as page:
        page.get_by_test_id("geometry-refused").wait_for()
        assert page.get_by_test_id("sample").count() == 1
        page.get_by_test_id("sample").first.click()
        page.wait_for_function("location.hash.includes('entangled')")


def test_what_takes_long_shows_how_far_it_is_and_can_be_stopped(browser, live, monkeypatch):
    real, held = geometry_routes.geometry, [True]

    def slow(*given, watch, **options):
        while held[0]:
            watch("geometry", 1, LAYERS + 1)
        return real(*given, watch=watch, **options)

    monkeypatch.setattr(geometry_routes, "geometry", slow)
    text = "another river text was muddy . " * 6
    with shown(browser, live, text=text, reduced_motion="reduce", expected_errors=("409",)) as page:
        page.get_by_test_id("underway").wait_for()
        page.get_by_test_id("underway").filter(has_text=f"layer 2 of {LAYERS + 1}").wait_for()
        page.get_by_test_id("underway-stop").click()
        page.get_by_test_id("geometry-answer-problem").wait_for()
        held[0] = False
        page.get_by_test_id("geometry-answer-again").click()
        page.get_by_test_id("geometry-n").wait_for()
        page.get_by_test_id("underway").wait_for(state="detached")


def test_a_saved_page_holds_the_cloud(browser, live, tmp_path):
    with shown(browser, live, reduced_motion="reduce", cloud_turn="40,10,1.5", geometry_level="1") as page:
        page.get_by_test_id("geometry-n").wait_for()
        settle(page, "geometry")
        page.keyboard.press("e")
        with page.expect_download() as download:
            page.get_by_role("button", name="Web page").click()
        path = tmp_path / "cloud.html"
        download.value.save_as(path)
    with opened_file(browser, path) as page:
        page.goto(path.as_uri())
        page.get_by_test_id("cloud").wait_for()
        becomes(lambda: (camera(page), level(page)), ([40, 10, 1.5], 1))
        wait_until(lambda: colored(page) > 500)
        page.get_by_test_id("cloud").focus()
        page.keyboard.press("ArrowLeft")
        becomes(lambda: camera(page)[0], pytest.approx(32.5, abs=0.51))
