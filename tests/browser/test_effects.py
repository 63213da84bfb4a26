"""Patching between two texts, methods of attribution and features of a text, as the page shows them."""

import re
from urllib.parse import quote

import pytest
from conftest import opened, running, settle

import unmask
from unmask.interpret import AttentionView
from unmask.interpret.effects.patching import patch_activations
from unmask.interpret.effects.target import Embedding

BEFORE, AFTER = "the man went to the house", "the man went to the river"


@pytest.fixture(scope="module")
def mini():
    with running([unmask.load("unmask-mini")]) as server:
        yield server


def cache_of(model, text):
    return AttentionView(model.encoder, model.tokenizer.encode(text)).cache


def cells(page, testid):
    """Values of a matrix from its table, row by row."""
    page.get_by_test_id(testid).get_by_role("button", name="As a table").click()
    return page.get_by_test_id(testid).locator("tbody td").all_inner_texts()


def test_patching_shows_the_effect_of_every_state(browser, mini):
    model = unmask.load("unmask-mini")
    clean, corrupted = cache_of(model, BEFORE), cache_of(model, AFTER)
    wanted = patch_activations(clean, corrupted, Embedding()).effect
    with opened(browser) as page:
        compared = f"text={quote(AFTER)}&against={quote(BEFORE)}&compare.by=texts&patch.target=embedding"
        page.goto(f"{mini.url}#v=3&view=compare&{compared}")
        page.get_by_test_id("patching-matrix").wait_for()
        settle(page, "compare")
        shown = [
            float(one.replace("−", "-"))
            for one in cells(page, "patching-matrix")
            if re.search(r"\d\.\d", one)
        ]
        assert len(shown) == wanted.size
        assert shown == pytest.approx(wanted.ravel(), abs=0.002)
        # Texts of different lengths cannot exchange states.
        page.goto(f"{mini.url}#v=3&view=compare&" + compared.replace("river", "river and back"))
        page.get_by_text("States are exchanged token by token").wait_for()


def test_integrated_gradients_say_how_well_they_add_up(browser, mini):
    with opened(browser) as page:
        page.goto(
            f"{mini.url}#v=3&view=paths&text={quote(BEFORE)}&query=3&paths.method=relevance"
            "&paths.target=embedding&paths.rule=integrated_gradients"
        )
        settle(page, "paths")
        said = page.get_by_test_id("paths-answer").inner_text()
        assert "the attributions add up to their difference but for" in said
        assert page.get_by_test_id("paths-level").count() == 0, "it has no layers"
        page.get_by_test_id("paths-rule").select_option("attention_x_gradient")
        settle(page, "paths")
        assert "attention times its gradient" in page.get_by_test_id("paths-answer").inner_text()


def test_without_features_the_view_says_how_to_train_some(browser, mini, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with opened(browser) as page:
        page.goto(f"{mini.url}#v=3&view=features&text={quote(BEFORE)}")
        page.get_by_text("learn them with: unmask features train").wait_for()
