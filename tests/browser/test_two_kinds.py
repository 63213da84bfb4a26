"""Models of two more kinds in the page: global tokens chosen in a Longformer, and an ELMo beside it."""

import re

import numpy as np
import pytest
from conftest import opened, running, settle
from looking import address_says
from test_export import opened_file, saved, show

import unmask
from tests.parity.test_elmo import SMALL, random_elmo
from tests.support.longformer import write_longformer
from unmask.interpret.attention.comparison import GlobalText, global_effect
from unmask.spec.global_tokens import trained_global_tokens
from unmask.weights.elmo_files import save_elmo

pytestmark = pytest.mark.long

TEXT = "The river bank was muddy. A river was a text ! The bank"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    save_elmo(random_elmo(SMALL), place / "random-elmo")
    return write_longformer(place / "longformer"), place / "random-elmo"


@pytest.fixture(scope="module")
def models(folders):
    return unmask.load(folders[0]), unmask.load(folders[1], family="elmo")


@pytest.fixture(scope="module")
def live(models):
    with running(list(models)) as server:
        yield server


def effect(model, *spans):
    (encoding,) = model.tokenize([TEXT])
    trained = trained_global_tokens(model.spec, paired=False)
    return global_effect(model.encoder, encoding, GlobalText(spans=spans, beside=trained))


def current(page):
    page.wait_for_selector("[data-testid=edit-bar][data-current=true]")
    settle(page)
    return page.get_by_test_id("edit-bar").inner_text()


def test_a_clicked_word_and_a_sentence_become_global(browser, live, models, folders, tmp_path):
    address = f"{live.url}#v=3&text={TEXT.replace(' ', '+')}&view=compare"
    with opened(browser) as page:
        show(page, f"{address}&query=2", view="map")
        page.get_by_role("button", name="Global", exact=True).click()
        address_says(page, **{"global": "4-9"})
        expected = effect(models[0], (4, 9))
        assert f"{expected.states.embedding_cosine:.4f}" in current(page)
        page.get_by_test_id("compare-global").wait_for()
        said = page.get_by_test_id("compare-global").inner_text()
        before, after = (100 * x.mean() for x in (expected.received_before, expected.received_after))
        shares = [float(one) for one in re.findall(r"([\d.]+) %", said)[:2]]
        np.testing.assert_allclose(shares, [before, after], atol=0.06)

        page.get_by_role("button", name="Sentence global").click()
        address_says(page, **{"global": "4-9,0-25"})
        both = effect(models[0], (4, 9), (0, 25))
        assert f"{both.states.embedding_cosine:.4f}" in current(page)
        page.get_by_role("button", name="The river bank was muddy.").click()
        assert f"{expected.states.embedding_cosine:.4f}" in current(page)
        page.keyboard.press("k")
        settle(page, "tokens")
        marked = page.locator("[data-testid=strip] .all")
        assert [one.inner_text() for one in marked.all()] == ["[CLS]", "river"]

        page.keyboard.press("c")
        settle(page, "compare")
        page.keyboard.press("e")
        snippet = page.get_by_test_id("python").text_content()
        page.keyboard.press("Escape")
        found = {}
        exec(snippet.replace('unmask.load("longformer"', f'unmask.load("{folders[0]}"'), found)
        assert found["result"].after == expected.after
        np.testing.assert_allclose(found["result"].attention.moved, expected.attention.moved, atol=1e-6)
        file = saved(page, "html", tmp_path)
        page.go_back()

    with opened_file(browser, file) as page:
        page.goto(file.as_uri())
        assert f"{expected.states.embedding_cosine:.4f}" in current(page)
        assert page.get_by_test_id("compare-global").count() == 1
        assert page.get_by_role("button", name="Global", exact=True).count() == 0


def test_an_elmo_in_every_view(browser, live, folders, models):
    text = ((TEXT + ". ") * 3).replace(" ", "+")
    with opened(browser) as page:
        show(page, f"{live.url}#v=3&model=random-elmo&view=geometry&text={text}", view="map")
        page.get_by_test_id("space").wait_for()
        assert "received" not in page.get_by_test_id("cloud-color").inner_text()
        page.keyboard.press("e")
        snippet = page.get_by_test_id("python").text_content()
        page.keyboard.press("Escape")
        found = {}
        exec(snippet.replace('unmask.load("random-elmo"', f'unmask.load("{folders[1]}"'), found)
        assert len(found["result"]) == SMALL.layers + 1
        for key, view in (("m", "map"), ("w", "words"), ("o", "overview"), ("s", "sinks")):
            page.keyboard.press(key)
            settle(page, view)
            assert "The ELMo random-elmo has LSTM layers" in page.get_by_test_id("no-maps").inner_text()
        page.keyboard.press("k")
        settle(page, "tokens")
        assert page.get_by_test_id("tint").count() == 0
        page.get_by_test_id("beside").select_option("longformer")
        page.keyboard.press("c")
        settle(page, "compare")
        page.get_by_test_id("cka-canvas").wait_for()
        assert "The ELMo random-elmo has no attention" in page.get_by_test_id("compare-answer").inner_text()
        assert page.get_by_test_id("compare-maps").count() == 0
