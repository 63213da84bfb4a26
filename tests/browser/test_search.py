"""The Search view: what it highlights is the stored document, shares add up, and a result opens as a pair."""

from urllib.parse import quote

import pytest
from conftest import opened, running, settle
from looking import address_says, becomes, state
from rules import broken_rules, tab_through

pytestmark = pytest.mark.long

QUERY = "money from the river bank"
TEXTS = {
    "bank.md": "# The bank\n\nThe river bank 🙂 was muddy, so a man took his money to the bank in town.\n",
    "boat.md": "# The boat\n\nHe bought a boat with the money and rowed down the river in the evening.\n",
    "mill.md": "# The mill\n\nThe miller sat before his door, and the dog lay at his feet and slept.\n",
}


@pytest.fixture(scope="module")
def index(default_model, tmp_path_factory):
    from unmask.search.index import Index

    made = Index.create(tmp_path_factory.mktemp("browser") / "my-index", default_model)
    made.add([{"id": id, "text": text, "metadata": {"year": 1900}} for id, text in TEXTS.items()])
    return made


@pytest.fixture(scope="module")
def library(default_model, index):
    with running(default_model, index=index.path) as server:
        yield server


@pytest.fixture
def searched(page, library):
    """Open the results of a query."""

    def go(query=QUERY, **more):
        fields = "".join(f"&search.{name}={quote(str(value))}" for name, value in more.items())
        page.goto(f"{library.url}#v=2&view=search&search.text={quote(query)}{fields}")
        page.wait_for_selector("[data-testid=hit]")
        settle(page, "search")
        return page

    return go


def hits(page):
    return page.get_by_test_id("hit").evaluate_all("all => all.map(one => ({...one.dataset}))")


def marks(page):
    return page.locator("[data-testid=hit] mark").evaluate_all(
        """all => all.map(one => ({
            document: one.closest('[data-testid=hit]').dataset.document,
            start: Number(one.dataset.start), end: Number(one.dataset.end), text: one.textContent,
            share: Number(one.dataset.share), term: one.classList.contains('term'),
        }))"""
    )


def test_a_query_is_typed_searched_and_kept_in_the_address(page, library, index):
    # Changes closer together than a pause are one step back, however long the browser takes for them.
    page.add_init_script("window.now = 1000; performance.now = () => window.now;")
    page.goto(f"{library.url}#v=2&view=search")
    page.get_by_test_id("search-empty").wait_for()
    page.evaluate("window.now += 1000")
    assert "3 documents" in page.get_by_test_id("search-empty").inner_text()
    page.keyboard.type(QUERY)  # the box has the focus
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-testid=hit]")
    settle(page, "search")
    address_says(page, search__text=QUERY)
    wanted = index.search(QUERY)
    assert [one["document"] for one in hits(page)] == [hit.document for hit in wanted]
    page.evaluate("window.now += 1000")
    page.locator("label", has_text="BM25").first.click()
    settle(page)
    address_says(page, search__mode="bm25")
    assert [one["document"] for one in hits(page)] == [
        hit.document for hit in index.search(QUERY, mode="bm25")
    ]
    page.go_back()
    page.go_back()
    page.get_by_test_id("search-empty").wait_for()
    becomes(page.get_by_test_id("query").input_value, "")


@pytest.mark.parametrize("tint", ["bm25", "dense", "attribution"])
def test_highlights_are_characters_of_the_stored_document(searched, tint):
    page = searched(tint=tint)
    found = marks(page)
    assert len(found) > 3
    for mark in found:
        assert mark["text"] == TEXTS[mark["document"]][mark["start"] : mark["end"]], mark
    shown = page.get_by_test_id("passage").evaluate_all("all => all.map(one => one.textContent)")
    assert shown == [TEXTS[one["document"]][int(one["start"]) : int(one["end"])] for one in hits(page)]
    # The sign of a heading is in the text and not in sight.
    assert all(text.startswith("# ") for text in shown)
    assert not any("#" in text for text in page.get_by_test_id("passage").all_inner_texts())
    if tint == "bm25":
        assert {mark["text"].lower() for mark in found if mark["share"]} == {"money", "river", "bank"}
    else:
        assert {mark["text"].lower() for mark in found if mark["term"]} == {"money", "river", "bank"}


def test_shares_are_those_of_the_index_and_add_up_to_the_score(searched, index):
    page = searched(mode="dense")
    (wanted,) = index.search(QUERY, k=1, mode="dense", why=True)[0].why
    own = {share.spans[0]: share.share for share in wanted.shares}
    for mark in marks(page):
        if mark["document"] == hits(page)[0]["document"]:
            assert mark["share"] == pytest.approx(own[mark["start"], mark["end"]], abs=1e-6)
    for total in page.get_by_test_id("sum").all():
        assert float(total.get_attribute("data-total")) == pytest.approx(
            float(total.get_attribute("data-score")), abs=1e-5
        )
    lines = page.get_by_test_id("parts").first.locator("li[data-share]")
    assert sum(float(line.get_attribute("data-share")) for line in lines.all()) == pytest.approx(
        wanted.score, abs=1e-5
    )


def test_ranks_add_up_to_the_fused_score(searched):
    page = searched()
    fused = page.get_by_test_id("fused").all_inner_texts()
    scores = page.get_by_test_id("score").evaluate_all("all => all.map(one => Number(one.dataset.score))")
    assert [float(text) for text in fused] == pytest.approx(scores, abs=1e-5)


def test_a_bar_and_its_characters_light_up_together(searched):
    page = searched(mode="bm25")
    row = page.get_by_test_id("parts").first.locator("li", has_text="money")
    row.hover()
    lit = page.locator("mark.lit")
    lit.first.wait_for()
    assert {text.lower() for text in lit.all_inner_texts()} == {"money"}


def test_a_result_opens_as_a_pair_and_back_finds_it_again(searched):
    page = searched()
    second = hits(page)[1]
    page.locator('[data-open="1"]').focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector('[data-testid="map"]:not([data-shown=""])')
    settle(page, "map")
    passage = TEXTS[second["document"]][int(second["start"]) : int(second["end"])]
    address_says(page, text=QUERY, pair=passage)
    assert "cut" not in state(page)
    page.go_back()
    settle(page, "search")
    page.wait_for_function("document.activeElement?.dataset.open === '2'")


def test_a_passage_that_is_too_long_is_truncated_and_that_is_said(browser, default_model, tmp_path):
    from unmask.search.index import Index

    made = Index.create(tmp_path / "long", default_model, whole_documents=True)
    made.add([{"id": "long", "text": "The river was muddy. " * 200}])
    with (
        running(default_model, index=made.path) as server,
        opened(browser, expected_errors=["422"]) as page,
    ):
        page.goto(f"{server.url}#v=2&view=search&search.text=river")
        page.get_by_role("button", name="See attention").click()
        page.get_by_test_id("was-cut").wait_for()
        settle(page, "map")
        limit = default_model.max_tokens
        assert f"only the first {limit}" in page.get_by_test_id("was-cut").inner_text()
        address_says(page, cut="1")


def test_the_results_as_tables_have_every_share(searched, index):
    page = searched(mode="dense")
    page.get_by_test_id("hits-twin").click()
    rows = page.locator("[data-testid=hits-table] tbody tr")
    becomes(rows.count, len(index.search(QUERY, mode="dense")))
    page.locator("[data-testid=shares-table] tbody tr").first.wait_for()
    shares = page.locator("[data-testid=shares-table] tbody tr").evaluate_all(
        "all => all.map(row => [...row.cells].map(cell => cell.dataset.value))"
    )
    (wanted,) = index.search(QUERY, k=1, mode="dense", why=True)[0].why
    first = [float(share) for rank, _, share, _ in shares if rank == "1"]
    assert sum(first) == pytest.approx(wanted.score, abs=1e-5)


def test_nothing_found_and_what_is_refused_are_said(browser, library):
    with opened(browser, expected_errors=["422"]) as page:
        page.goto(f"{library.url}#v=2&view=search&search.mode=bm25&search.text=xylophone")
        page.get_by_test_id("no-hits").wait_for()
        page.get_by_role("button", name="Rank by meaning").click()
        page.wait_for_selector("[data-testid=hit]")
        page.goto("about:blank")
        page.goto(f"{library.url}#v=2&view=search&search.text={quote('river ' * 300)}")
        problem = page.get_by_test_id("search-results-problem")
        problem.wait_for()
        problem.filter(has_text="tokens").wait_for()


@pytest.mark.parametrize("tone", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_the_view_keeps_the_rules(browser, library, tone):
    broken = []
    with opened(browser) as page:
        for text in ("", QUERY):
            page.goto("about:blank")
            page.goto(f"{library.url}#v=2&view=search&theme={tone}&search.text={quote(text)}")
            settle(page, "search")
            page.wait_for_selector("[data-testid=hit], [data-testid=search-empty]")
            settle(page)
            broken += broken_rules(page)
            assert [stop["what"] for stop in tab_through(page) if not stop["shown"]] == []
        page.set_viewport_size({"width": 390, "height": 844})
        settle(page)
        broken += broken_rules(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert broken == []


def test_without_an_index_there_is_no_search(page, fake_explorer):
    page.goto(fake_explorer.url)
    page.wait_for_selector('[data-testid="page"][data-phase="ready"]')
    assert page.locator("[data-tab=search]").count() == 0
    page.goto(f"{fake_explorer.url}#v=2&view=search")
    page.get_by_test_id("no-index").wait_for()
    assert "unmask index FOLDER -o INDEX" in page.get_by_test_id("no-index").inner_text()


def test_a_search_is_saved_as_tables_and_code_and_not_as_a_page(searched, index):
    page = searched()
    page.get_by_role("button", name="Share").click()
    page.get_by_test_id("python").wait_for()
    assert page.get_by_test_id("save-html").count() == 0
    found = {}
    exec(page.get_by_test_id("python").inner_text(), found)
    assert [hit.document for hit in found["result"]] == [hit.document for hit in index.search(QUERY)]
    with page.expect_download() as download:
        page.get_by_test_id("save-csv").click()
    written = download.value.path().read_text(encoding="utf-8")
    assert f"# query: {QUERY}" in written
    assert "# table: Shares" in written
    page.keyboard.press("Escape")
