"""The page while its server loads, measures, refuses, stops and comes back."""

import threading

import pytest
from conftest import opened, running, settle
from fake_model import NAME, FakeModel
from looking import SHORT, address_says, greeted, look, measured, point, read, shown, value
from test_export import opened_file

from tests.support.held_measuring import held_measuring
from tests.support.waiting import HANG_SECONDS
from unmask.errors import InvalidRequest

pytestmark = pytest.mark.long


def test_too_long_offers_to_cut(browser, fake_explorer):
    with opened(browser, expected_errors=["422"]) as page:
        page.goto(fake_explorer.url)
        greeted(page)
        page.get_by_test_id("text").fill("bank " * 40)
        page.get_by_test_id("read").click()
        page.get_by_text("Read the first 32 of 42 tokens").click()
        page.locator("[data-tab=map]").click()
        page.wait_for_selector('[data-testid="map"]:not([data-shown=""])')
        page.get_by_test_id("was-cut").filter(has_text="first 32 of 42").wait_for()
        address_says(page, cut="1")
        page.get_by_test_id("edit").click()
        page.get_by_test_id("text").fill("  ")
        page.get_by_test_id("read").click()
        page.wait_for_selector('[data-testid="problem"][data-kind="EmptyText"]')


@pytest.mark.parametrize(("query", "words"), [("", "without its"), ("?token=old", "another run")])
def test_without_the_token_the_page_is_locked(browser, fake_explorer, query, words):
    with opened(browser, expected_errors=["401"]) as page:
        page.goto(f"{fake_explorer.origin}/{query}")
        page.get_by_test_id("locked").wait_for()
        assert words in page.get_by_test_id("locked").inner_text()


def test_a_text_the_server_dropped_is_sent_again(browser):
    with (
        running(FakeModel(), held_texts=1) as server,
        opened(browser, expected_errors=["404"]) as page,
    ):
        look(page, server, "map")
        shown(page, 0, 0)
        measured(page)
        page.evaluate(
            """() => fetch('/api/texts', {method: 'POST', body: '{"text": "bank"}', headers: {
                'Content-Type': 'application/json',
                'X-Unmask-Token': sessionStorage.getItem('unmask-token')}})"""
        )
        page.keyboard.press(".")
        shown(page, 0, 1)
        assert page.get_by_test_id("problem").count() == 0


def test_a_server_that_stopped(browser):
    with (
        running(FakeModel()) as server,
        opened(browser, expected_errors=["ERR_CONNECTION_REFUSED"]) as page,
    ):
        look(page, server, "map")
        shown(page, 0, 0)
        point(page, 1, 1)
        value(page)
        measured(page)
        server.stop()
        page.keyboard.press(".")
        page.get_by_test_id("gone").wait_for()
        shown(page, 0, 0)
        page.keyboard.press(",")
        point(page, 1, 1)
        assert value(page) > 0, "what was read stays"


def test_a_server_that_came_back_goes_on(browser):
    model = FakeModel()
    with opened(browser, expected_errors=["ERR_CONNECTION_REFUSED", "404"]) as page:
        with running(model) as server:
            look(page, server, "map")
            shown(page, 0, 0)
            measured(page)
            server.stop()
            page.keyboard.press(".")
            page.get_by_test_id("gone").wait_for()
            port = int(server.origin.rsplit(":", 1)[1])
        with running(model, port=port):
            page.wait_for_selector('[data-testid="page"][data-phase="ready"]')
            shown(page, 0, 1)
            page.get_by_test_id("gone").wait_for(state="detached")


def test_an_analysis_is_stopped_and_goes_on(browser, monkeypatch):
    with (
        held_measuring(monkeypatch) as released,
        running(FakeModel()) as server,
        opened(browser) as page,
    ):
        page.goto(server.url)
        read(page, SHORT)
        page.get_by_test_id("stop").click()
        page.wait_for_selector('[data-testid="progress"][data-phase="stopped"]')
        page.get_by_test_id("progress").filter(has_text="the measured layers can be viewed").wait_for()
        page.get_by_test_id("go").click()
        page.wait_for_selector('[data-testid="progress"][data-phase="measuring"]')
        released.set()
        measured(page)


def test_the_page_is_there_before_the_models(browser):
    may_load = threading.Event()

    def load():
        may_load.wait(HANG_SECONDS)
        return FakeModel()

    with running([("slow", load)]) as server, opened(browser) as page:
        look(page, server, "map")
        page.get_by_test_id("text").wait_for()
        # One quick one is enough: other programs may take the cores for seconds.
        times = []
        while len(times) < 3 or (min(times) >= 1000 and len(times) < 30):
            page.reload()
            page.get_by_test_id("text").wait_for()
            paints = "performance.getEntriesByName('first-contentful-paint')"
            page.wait_for_function(f"() => {paints}.length > 0")
            times.append(page.evaluate(f"{paints}[0].startTime"))
        assert min(times) < 1000
        page.get_by_text("Loading the model").wait_for()
        may_load.set()
        shown(page, 0, 0)


def test_a_model_that_cannot_be_loaded_says_why(browser):
    def fail():
        raise InvalidRequest("there is no model of that name")

    with running([FakeModel(), ("gone", fail)]) as server, opened(browser) as page:
        page.goto(server.url)
        page.get_by_test_id("model-failed").wait_for()
        assert "There is no model of that name." in page.get_by_test_id("model-failed").inner_text()
        read(page, SHORT)


def test_a_model_without_a_map_keeps_its_other_views(page, fake_explorer):
    def without(route):
        answer = route.fetch()
        session = answer.json()
        session["models"][0] |= {"maps": False, "no_maps": "It mixes tokens by sums."}
        route.fulfill(response=answer, json=session)

    page.route("**/api/session", without)
    look(page, fake_explorer, "map")
    page.get_by_test_id("no-maps").wait_for()
    assert "It mixes tokens by sums." in page.get_by_test_id("no-maps").inner_text()
    page.locator("[data-group=Measure]").click()
    page.get_by_test_id("strip").wait_for()
    page.locator("#tab-compare").click()
    page.get_by_test_id("needs-two").wait_for()


def test_two_models_read_one_text(browser):
    with running([FakeModel("one"), FakeModel("two", seed=1)]) as server, opened(browser) as page:
        look(page, server, "map", beside="two", query=2)
        shown(page, 0, 0)
        page.get_by_test_id("beside").wait_for()
        address_says(page, beside="two")
        page.locator("#tab-compare").click()
        page.wait_for_selector('[data-testid="page"][data-view="compare"]')
        assert page.get_by_test_id("needs-two").count() == 0


def test_a_model_beside_itself_differs_in_nothing(page, browser, fake_explorer, tmp_path):
    look(page, fake_explorer, "compare", beside=NAME, layer=1, head=2)
    settle(page, "compare")

    def differences(shown):
        shown.get_by_test_id("map-difference-twin").click()
        rows = shown.locator("[data-testid=map-difference-table] tbody tr td:last-child")
        rows.first.wait_for()
        return {float(one) for one in rows.evaluate_all("all => all.map(one => one.dataset.value)")}

    assert differences(page) == {0}
    assert page.get_by_test_id("matches").count() == 1
    page.keyboard.press("e")
    with page.expect_download() as download:
        page.get_by_test_id("save-html").click()
    download.value.save_as(tmp_path / "itself.html")
    with opened_file(browser, tmp_path / "itself.html") as file:
        file.goto((tmp_path / "itself.html").as_uri())
        assert differences(file) == {0}
