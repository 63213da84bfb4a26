"""Labels that a reader names: spans, the threshold, marks by keyboard, and what a score comes from."""

from urllib.parse import quote

import pytest
from conftest import opened, running, settle
from looking import becomes, state

import unmask
from tests.explorer.test_labels import LABELS
from tests.tasks.test_labels import write_gliner

TEXT = "Ada met Bob in Rome."


@pytest.fixture(scope="module")
def gliner(tmp_path_factory):
    return unmask.load(write_gliner(tmp_path_factory.mktemp("gliner") / "gliner"))


def at(server, **fields):
    more = "".join(f"&{name.replace('__', '.')}={quote(str(value))}" for name, value in fields.items())
    return f"{server.url}#v=3&view=labels&text={quote(TEXT)}&labels.named={quote(','.join(LABELS))}{more}"


def chips(page):
    return [chip.get_attribute("aria-label") for chip in page.get_by_test_id("labels-span").all()]


def found(model, threshold, nested=False):
    (tagging,) = model.tag([TEXT], labels=LABELS, threshold=threshold, nested=nested)
    spaced = {it.text: it.text.replace("Rome.", "Rome .") for it in tagging.entities}
    return sorted(f"{spaced[it.text]}: {it.label}, {it.score:.2f}" for it in tagging.entities)


def test_the_threshold_acts_at_once_and_marks_are_measured(browser, gliner):
    with running([gliner]) as server, opened(browser) as page:
        page.goto(at(server, labels__at=0.5))
        page.get_by_test_id("labels-text").wait_for()
        settle(page, "labels")
        becomes(lambda: sorted(chips(page)), found(gliner, 0.5))
        # Without a request: the answer holds all spans above the lowest threshold.
        asked = []
        page.on("request", lambda request: asked.append(request.url) if "/labels?" in request.url else None)
        page.get_by_test_id("labels-threshold").fill("0.71")
        becomes(lambda: sorted(chips(page)), found(gliner, 0.71))
        assert asked == []
        # Marks by the keyboard alone: the first word as the second label, then as what is found.
        page.locator('[data-token="0"]').focus()
        page.keyboard.press("Enter")
        page.keyboard.press("2")
        said = page.get_by_test_id("labels-agreement")
        said.wait_for()
        wanted = found(gliner, 0.71)
        hits = sum(one.startswith("Ada: city") for one in wanted)
        assert f"Of {len(wanted)} spans found and 1 marked, {hits} agree" in said.inner_text()
        page.keyboard.press("Shift+ArrowRight")
        page.keyboard.press("1")
        assert "and 2 marked" in said.inner_text()
        becomes(lambda: state(page).get("labels.marks", "").split(":")[-1], "0-0-city,0-1-person")
        page.keyboard.press("Delete")
        said.wait_for(state="detached")
        # Spans inside others.
        page.get_by_label("also spans inside others").check()
        becomes(lambda: sorted(chips(page)), found(gliner, 0.71, nested=True))


def test_a_score_is_explained_by_tokens_and_attention(browser, gliner):
    with running([gliner]) as server, opened(browser) as page:
        page.goto(at(server, labels__at=0.5))
        page.get_by_test_id("labels-span").first.click()
        page.get_by_test_id("labels-tokens").wait_for()
        settle(page, "labels")
        why = page.get_by_test_id("labels-why").inner_text()
        assert "the shares add up to the difference but for" in why
        assert "[MASK] in place of every word and label" in why
        page.get_by_test_id("labels-heads").wait_for()
        page.get_by_text("Label → span").click()
        settle(page, "labels")
        grid = page.get_by_test_id("labels-heads")
        grid.get_by_role("button", name="As a table").click()
        assert grid.locator("tbody tr").count() == 4


@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_runs_over_the_edge(browser, gliner, width):
    with running([gliner]) as server, opened(browser) as page:
        page.set_viewport_size({"width": width, "height": 844})
        page.goto(at(server, labels__at=0.3, labels__nested=1, labels__span="0-0-1"))
        page.get_by_test_id("labels-heads").wait_for()
        settle(page, "labels")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_model_without_labels_says_which_has_them(browser, gliner, fake):
    with running([fake, gliner]) as server, opened(browser) as page:
        page.goto(at(server))
        cannot = page.get_by_test_id("labels-cannot")
        cannot.wait_for()
        assert "takes no labels" in cannot.inner_text()
        cannot.get_by_role("button").click()
        page.get_by_test_id("labels-text").wait_for()
    with running(fake) as server, opened(browser) as page:
        page.goto(f"{server.url}#v=3&view=overview&text={quote(TEXT)}")
        page.locator("[data-tab]").first.wait_for()
        assert page.get_by_role("tab", name="Labels").count() == 0
        page.goto(at(server))
        page.get_by_text("None of the models here is one").wait_for()
