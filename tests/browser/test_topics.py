"""The topics of the corpus: their names and sizes, one of them alone, and a text of the cloud."""

from urllib.parse import quote

import pytest
from conftest import opened, running, settle
from looking import address_says, becomes

import unmask
from tests.search.test_index import write_reader
from unmask.interpret.corpus.texts import Corpus
from unmask.search.topics import topics_and_vectors

pytestmark = pytest.mark.long

GROUPS = ("river", "bank", "mud"), ("text", "word", "page")
TEXTS = [f"the {a} and the {b} {n}" for group in GROUPS for a in group for b in group for n in range(3)]


CORPUS = Corpus.of_strings(TEXTS, "rivers and pages")
ORDERED = [text.text for text in CORPUS.texts]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return unmask.load(write_reader(tmp_path_factory.mktemp("topics") / "tiny"))


@pytest.fixture(scope="module")
def live(model):
    pytest.importorskip("sklearn", reason="the topics extra is not installed")
    with running(model, corpus=CORPUS) as server:
        yield server


def shown(page, live, **fields):
    more = "".join(f"&topics.{name}={quote(value)}" for name, value in fields.items())
    page.goto(f"{live.url}#v=3&view=geometry&text={quote('the river')}&geometry.part=topics{more}")
    page.get_by_test_id("topic-cloud").wait_for()
    settle(page, "geometry")


def buttons(page):
    return page.get_by_role("list", name="Topics").get_by_role("button")


@pytest.fixture(scope="module")
def expected(model):
    """What Python says of the same texts, by the number of topics that is asked for."""

    def answer(count):
        found, _ = topics_and_vectors(
            ORDERED,
            model,
            topics=count,
            min_size=len(TEXTS) // (2 * count),
            resamples=5,
            truncation="end",
            pooling="mean",
        )
        return found

    return answer


def test_topics_are_those_of_python_and_each_can_be_shown_alone(browser, live, expected):
    wanted = expected(6)
    with opened(browser, reduced_motion="reduce") as page:
        shown(page, live, count="6")
        said = [button.inner_text().removesuffix(", unstable").strip() for button in buttons(page).all()]
        assert said == [f"{topic.name} {topic.size}" for topic in wanted.topics]
        buttons(page).nth(1).click()
        address_says(page, topics__only="1")
        page.reload()
        page.get_by_test_id("topic-cloud").wait_for()
        assert buttons(page).nth(1).get_attribute("aria-pressed") == "true"
        page.get_by_test_id("topic-space-twin").click()
        rows = page.get_by_test_id("topic-table").locator("tbody tr")
        becomes(rows.count, wanted.topics[1].size)
        page.get_by_test_id("topic-space-twin").click()
        # Another number of topics begins with all of them.
        page.get_by_test_id("topics-count").select_option("12")
        becomes(lambda: buttons(page).count(), len(expected(12).topics))
        assert not [
            button for button in buttons(page).all() if button.get_attribute("aria-pressed") == "true"
        ]
        page.get_by_test_id("topic-space-twin").click()
        becomes(rows.count, len(TEXTS))


def test_a_text_is_chosen_by_keyboard_and_read(browser, live, expected):
    wanted = expected(12)
    with opened(browser, reduced_motion="reduce") as page:
        shown(page, live)
        page.get_by_test_id("topic-cloud").focus()
        page.keyboard.press("Shift+ArrowRight")
        said = page.get_by_test_id("topic-text")
        said.filter(has_text=ORDERED[0]).wait_for()
        label = wanted.labels[0]
        assert ("no topic" if label is None else wanted.topics[label].name) in said.inner_text()
        said.get_by_role("button", name="Read this text").click()
        address_says(page, text=ORDERED[0])
