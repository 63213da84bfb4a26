"""What the page says where there is nothing to show, and what it keeps when another text is read."""

from urllib.parse import quote

import pytest
from conftest import opened, running, settle
from fake_model import FakeModel
from looking import SHORT, address_says, becomes, look, state
from test_export import opened_file, saved

import unmask
from unmask.interpret.overview.overview import overview

pytestmark = pytest.mark.long

IN_SIGHT = """element => {
    const box = element.getBoundingClientRect();
    return box.top >= -1 && box.bottom <= innerHeight + 1;  // pages scroll by whole pixels
}"""
LONGER = "the muddy river was open"


@pytest.fixture(scope="module")
def live():
    labels = {"id2label": {str(number): f"class {number}" for number in range(3)}}
    classes = FakeModel("classes", architectures=["BertForSequenceClassification"], **labels)
    with running([classes]) as server:
        yield server


def test_an_empty_text_is_refused_and_the_one_before_stays(browser, live):
    with opened(browser) as page:
        look(page, live, "tokens")
        settle(page, "tokens")
        before = state(page)
        page.get_by_role("button", name="Change text").click()
        page.get_by_test_id("text").fill("")
        page.keyboard.press("Control+Enter")
        assert "The text is empty" in page.get_by_test_id("problem").inner_text()
        assert state(page)["text"] == before["text"] == SHORT


def test_another_text_is_not_asked_about_the_class_of_the_text_before(browser, live):
    with opened(browser) as page:
        look(page, live, "paths", paths__method="relevance")
        page.evaluate("location.hash += '&paths.method=relevance&paths.target=class&paths.class=1'")
        page.get_by_role("heading", name="What does the class rest on?").wait_for()
        address_says(page, **{"paths.class": "1"})
        page.get_by_role("button", name="Change text").click()
        page.get_by_test_id("text").fill(LONGER)
        page.keyboard.press("Control+Enter")
        becomes(lambda: state(page).get("text"), LONGER)
        assert "paths.class" not in state(page)
        assert state(page)["paths.method"] == "relevance", "how it is asked stays"


def test_a_head_changes_an_embedding_and_does_not_help_it(browser):
    """The cosine of an embedding with itself is 1, and without a head never more: it is no praise."""
    with running([FakeModel()]) as server, opened(browser) as page:
        look(page, server, "head")
        said = page.get_by_test_id("head-effect")
        said.get_by_text("without it: the head changes the embedding by their difference.").wait_for()
        of_embedding, of_word = said.locator(".one").all_inner_texts()
        assert "helps" not in of_embedding
        assert any(verdict in of_word for verdict in ("helps", "works against it"))


def test_the_page_of_a_head_tells_its_work_beside_its_label(browser):
    """A head that mostly rests on [CLS] is told by what the overview found it for."""
    model = unmask.load("unmask-mini")
    found = next(one for one in overview(model.attention(SHORT)).findings if one.kind in ("edge", "same"))
    with running([model]) as server, opened(browser) as page:
        page.goto(f"{server.url}#v=3&view=head&text={quote(SHORT)}&layer={found.layer}&head={found.head}")
        page.get_by_test_id("head-work").get_by_text(found.sentence).wait_for()


def test_an_address_of_no_view_says_so(browser, live):
    with opened(browser) as page:
        page.goto(f"{live.url}#v=3&view=scaling&text={quote(SHORT)}")
        said = page.get_by_test_id("unknown-view")
        said.get_by_text("There is no view “scaling”; this is Arcs.").wait_for()
        said.get_by_role("button", name="Close").click()
        said.wait_for(state="detached")


def test_a_flow_without_a_strong_edge_and_a_text_longer_than_any_in_training_say_so(browser):
    mini = unmask.load("unmask-mini")
    layer, head = next(
        (layer, head)
        for layer in range(mini.layer_count)
        for head in range(4)
        if mini.attention(SHORT).probabilities(layer, head).max() < 0.85
    )
    with running([mini]) as server, opened(browser) as page:
        said = page.get_by_text("No edge of these tokens reaches 0.90")
        place = f"#v=3&view=flow&text={quote(SHORT)}&layer={layer}&flow.heads={head}"
        page.goto(f"{server.url}{place}&flow.least=90")
        said.wait_for()
        page.evaluate("location.hash = location.hash.replace('least=90', 'least=1')")
        said.wait_for(state="detached")
        look(page, server, "tokens", text=" ".join([SHORT] * 40))
        note = page.get_by_test_id("note").inner_text()
        assert "unmask-mini was trained on at most 128" in note


@pytest.mark.parametrize(
    "tab", ["map", "words", *(pytest.param(tab, marks=pytest.mark.slow) for tab in ("head", "heads"))]
)
def test_every_tab_of_a_saved_overview_opens_or_says_why_not(browser, live, tmp_path, tab):
    with opened(browser) as page:
        look(page, live, "overview")
        settle(page, "overview")
        path = saved(page, "html", tmp_path)
    with opened_file(browser, path) as file:
        file.goto(path.as_uri())
        file.get_by_test_id("tabs").wait_for()
        file.evaluate("scrollTo(0, document.body.scrollHeight)")
        if tab == "words":
            file.locator("[data-group=Measure]").evaluate("tab => tab.click()")  # without scrolling to it
        file.locator(f"[data-tab={tab}]").evaluate("tab => tab.click()")
        settle(file)
        opens = file.locator(f"[data-tab={tab}]").get_attribute("aria-selected") == "true"
        said = file.locator("[data-testid=problem], [data-testid=stage]").all_inner_texts()
        assert opens or any("is not in this file" in words for words in said)
        problem = file.get_by_test_id("problem")
        assert opens or (problem.is_visible() and problem.evaluate(IN_SIGHT))
