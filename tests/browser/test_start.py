"""The first view: a question about a word, guesses, and typing that is followed at once."""

import re

import pytest
from conftest import DRAWN, opened, running, settle
from looking import becomes, state
from test_export import opened_file, saved

import unmask
from unmask.interpret import AttentionView

pytestmark = pytest.mark.long

FIRST = "The bank of the river was muddy."
SECOND = "The bank approved my loan."


@pytest.fixture(scope="module")
def real():
    with running([unmask.load("default")]) as server:
        yield server


def cosines(page):
    page.wait_for_selector("[data-testid=question]:not([data-cosines=''])[aria-busy=false]")
    return [float(one) for one in page.get_by_test_id("question").get_attribute("data-cosines").split()]


def states(text, word):
    model = unmask.load("default")
    encoding = model.tokenizer.encode(text)
    cache = AttentionView(model.encoder, encoding).cache
    at = max(number for number in range(len(encoding)) if encoding.surface(number) == word)
    return [level[at].double() for level in (*cache.states[:-1], cache.final_ND)]


def expected(first, one, second, other):
    pairs = zip(states(first, one), states(second, other), strict=True)
    return [float(a @ b / (a.norm() * b.norm())) for a, b in pairs]


def test_two_senses_of_a_word_have_the_cosines_of_python(browser, real):
    with opened(browser) as page:
        page.goto(real.url)
        assert cosines(page) == pytest.approx(expected(FIRST, "bank", SECOND, "bank"), abs=6e-5)
        verdict = page.get_by_test_id("verdict").inner_text()
        lowest = min(cosines(page))
        assert f"farthest apart after layer 5 ({lowest:.3f})" in verdict
        assert "The two “bank” start as the same vector" in verdict
        # The level looked at is where they are farthest apart; arrow keys move it, and the arcs with it.
        levels = page.get_by_test_id("levels")
        becomes(lambda: levels.get_attribute("aria-valuenow"), "6")
        levels.press("ArrowUp")
        assert levels.get_attribute("aria-valuetext").startswith("layer 4: cosine 0.89")


def test_a_word_is_replaced_in_place_and_the_old_line_stays(browser, real):
    with opened(browser) as page:
        page.goto(real.url)
        before = cosines(page)
        sentence = page.get_by_role("group", name="First sentence")
        sentence.get_by_role("button", name="bank").click()
        page.keyboard.type("shore")
        wanted = expected("The shore of the river was muddy.", "shore", SECOND, "bank")
        becomes(lambda: cosines(page) == pytest.approx(wanted, abs=6e-5), True)
        assert page.locator("circle.old").count() == 2 * len(before)
        page.keyboard.press("Enter")
        assert "“shore” or “bank”?" in page.get_by_test_id("question").inner_text()
        becomes(lambda: state(page).get("start.a"), "The shore of the river was muddy.")
        page.reload()
        assert cosines(page) == pytest.approx(wanted, abs=6e-5), "the address keeps the compared words"


def test_the_address_keeps_the_level_the_words_and_the_hidden_future(browser, real):
    with opened(browser) as page:
        page.goto(real.url)
        shown = cosines(page)
        for choose in (
            lambda: page.get_by_label("compared word").first.select_option("river"),
            lambda: page.get_by_label("Hide the future").check(),
        ):
            choose()
            becomes(lambda before=shown: cosines(page) == before, False)
            shown = cosines(page)
        page.get_by_test_id("levels").press("Home")
        becomes(lambda: page.get_by_test_id("levels").get_attribute("aria-valuenow"), "0")
        page.reload()
        becomes(lambda: cosines(page), shown)
        assert page.get_by_label("Hide the future").is_checked()
        assert page.get_by_label("compared word").first.locator("option:checked").inner_text() == "river"
        assert page.get_by_test_id("levels").get_attribute("aria-valuenow") == "0"
        page.get_by_role("button", name="Back to the example").click()
        becomes(lambda: set(state(page)) <= {"v", "view"}, True)


def test_a_guess_is_answered_by_the_model(browser, real):
    model = unmask.load("default")
    preferred = []
    for size in ("big", "small"):
        encoding = model.tokenizer.encode(
            f"The trophy does not fit in the suitcase because it is too {size}."
        )
        names = [encoding.surface(token) for token in range(len(encoding))]
        view = AttentionView(model.encoder, encoding)
        it, trophy, case = (names.index(name) for name in ("it", "trophy", "suitcase"))
        preferred.append(
            [
                view.probabilities(layer, head)[it, trophy] > view.probabilities(layer, head)[it, case]
                for layer in range(6)
                for head in range(12)
            ]
        )
    flips = sum(one != other for one, other in zip(*preferred, strict=True))
    with opened(browser) as page:
        page.goto(real.url)
        cosines(page)
        dare = page.locator("[data-dare=it]")
        dare.get_by_role("button", name="in more than a tenth").click()
        said = dare.get_by_test_id("outcome").inner_text()
        assert f"“it” changes its preference in {flips} of 72 heads" in said
        assert said.startswith("Yes." if flips > 7.2 else "No.")
        for name, answer in (("order", "more than 0.9"), ("not", "the second")):
            card = page.locator(f"[data-dare={name}]")
            card.get_by_role("button", name=answer).click()
            assert re.search(r"\d\.\d\d", card.get_by_test_id("outcome").inner_text())


def test_a_shared_first_view_plays_without_a_server(browser, page, real, tmp_path):
    page.goto(real.url)
    told = cosines(page)
    path = saved(page, "html", tmp_path)
    with opened_file(browser, path) as file:
        file.goto(path.as_uri())
        assert cosines(file) == told
        file.locator("[data-dare=it]").get_by_role("button", name="in none").click()
        assert "of 72 heads" in file.locator("[data-dare=it]").get_by_test_id("outcome").inner_text()
        # No tab leads to what is not in the file.
        assert file.locator("[role=tab]").all_inner_texts() == ["Start"]


def test_typing_is_followed_without_a_button(browser, real):
    with opened(browser) as page:
        page.goto(f"{real.url}#v=3&text=A rose is a rose.")
        settle(page, "overview")
        page.get_by_test_id("edit").click()
        page.get_by_test_id("text").fill("The river was a rose.")
        arcs = page.get_by_test_id("arcs")
        becomes(lambda: "river" in arcs.text_content(), True)
        # When typing rests, everything is of the new text, and the box is still open.
        becomes(lambda: state(page)["text"], "The river was a rose.")
        settle(page, "overview")
        assert page.get_by_test_id("text").is_visible()
        assert page.evaluate("history.length") <= 3


def test_every_head_shows_the_row_of_the_word_that_is_pointed_at(browser, real):
    with opened(browser) as page:
        page.goto(f"{real.url}#v=3&view=map&text={FIRST}")
        settle(page, "map")
        page.locator("[data-testid=strip] [data-token='2']").hover()
        page.wait_for_selector("[data-testid=heads][data-row='2']")
        page.evaluate(DRAWN)
        view = AttentionView(unmask.load("default").encoder, unmask.load("default").tokenizer.encode(FIRST))
        most = {
            (layer, head): max(view.probabilities(layer, head)[2, key] for key in (1, 3, 4, 5, 6, 7))
            for layer in range(6)
            for head in range(12)
        }
        best = sorted(most, key=most.get, reverse=True)[:3]
        outlined = page.locator("[data-testid=heads] .best")
        places = outlined.evaluate_all("all => all.map(one => [+one.dataset.layer, +one.dataset.head])")
        assert {tuple(place) for place in places} == set(best)


def test_with_the_future_hidden_the_words_before_decide(browser, real):
    """Both sentences begin with "The bank": nothing that a causal model reads tells the two apart."""
    with opened(browser) as page:
        page.goto(real.url)
        assert min(cosines(page)) < 0.9
        page.get_by_label("Hide the future").check()
        becomes(lambda: min(cosines(page)) > 0.9999, True)
        assert "a word knows only what stands before it" in page.get_by_test_id("verdict").inner_text()
        assert page.get_by_test_id("static").inner_text().endswith("1.000")
