"""The tour's chapters: which encoder each is told with, what its numbers say, and what it refuses."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import unmask
from unmask.errors import InvalidRequest, TextError
from unmask.explorer import Api
from unmask.explorer.tour import chapters as tour
from unmask.explorer.tour.models import READ_TOKENS

ANSWERS = Path(__file__).parents[2] / "web" / "src" / "views" / "tour" / "answers.ts"
CHAPTERS = [chapter.id for chapter in tour.chapters()]


@pytest.fixture(scope="module")
def told():
    """Every chapter with nothing loaded, on the tour's own sentence."""
    return {chapter: tour.run(chapter, [], "") for chapter in CHAPTERS}


def experiment(told, chapter, name):
    return next(one for one in told[chapter]["experiments"] if one["id"] == name)


def keys_of(value):
    if isinstance(value, dict):
        return {key for key in value if key.isidentifier()}.union(*map(keys_of, value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


def test_chapters_are_told_in_order():
    assert [chapter.order for chapter in tour.chapters()] == list(range(1, 14))
    assert len(set(CHAPTERS)) == 13


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_chapter_has_its_own_encoders_and_finite_numbers(told, chapter):
    answer = told[chapter]
    assert answer["text"] == tour.DEFAULT_TEXT
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    for experiment in answer["experiments"]:
        assert experiment["model"]["shipped"]
        assert experiment["total_tokens"] == len(experiment["tokens"]) == len(experiment["special"])


def test_the_page_knows_every_name(told):
    named = set(re.findall(r"^\s*(?:export interface )?(\w+)\??: ", ANSWERS.read_text(), re.MULTILINE))
    named |= set(re.findall(r"[{;] (\w+)\??: ", ANSWERS.read_text()))
    free = {"content", "content_position", "position_content", "exact", "elu", "favor"}
    assert keys_of(told) - set(CHAPTERS) - named - free == set()


def test_what_the_chapters_claim_is_measured(told):
    bare, placed = (experiment(told, "order", name)["shuffled"] for name in ("without", "with"))
    assert bare["without_positions"]
    assert max(bare["final"]) < 1e-5
    assert np.mean(placed["final"]) > 0.05
    for name in ("rotary", "alibi", "disentangled"):
        assert experiment(told, "positions", name)["twice"]["score_difference"][0] < 1e-5
    assert experiment(told, "positions", "learned")["twice"]["score_difference"][0] > 0.05
    assert experiment(told, "positions", "disentangled")["parts"]["shift_error"] == 0
    assert experiment(told, "positions", "rotary")["turned"]["errors"][-1] < 1e-8
    near, marked = (experiment(told, "reach", name)["reach"] for name in ("windows", "globals"))
    assert near["effect_outside"] < 1e-6
    count, target = len(near["reachable"][0]), near["target"]
    window = [min(count, target + 4 * level + 1) - max(0, target - 4 * level) for level in range(3)]
    assert [sum(row) for row in near["reachable"]][:3] == window
    swaps = [experiment(told, "order", name)["swap"] for name in ("without", "with")]
    assert all(swap["names"] == ["The", "dog", "bit", "the", "man", "."] for swap in swaps)
    assert max(swaps[0]["change"]) < 1e-5
    assert min(swaps[1]["change"]) > 1e-3
    assert all(marked["reachable"][2])
    assert experiment(told, "tiles", "tiles")["tiled"]["error"] < 1e-10
    assert np.sum(experiment(told, "handshake", "handshake")["handshake"]["shares"], axis=1) == pytest.approx(
        1, abs=1e-3
    )


def test_page_and_package_begin_with_the_same_text():
    guide = (ANSWERS.parent / "guide.ts").read_text()
    assert f"SAMPLE = '{tour.DEFAULT_TEXT}'" in guide


def test_predictions_and_matches_use_a_loaded_model_that_can():
    loaded = [unmask.load("variant/alibi")]
    (masked,) = tour.run("prediction", loaded, "a river by a bank")["experiments"]
    assert masked["model"]["shipped"] == ("masked" not in loaded[0].encoder.heads)
    (found,) = tour.run("search", loaded, "a river by a bank")["experiments"]
    assert found["model"]["name"].endswith("all-MiniLM-L6-v2")
    for passage in found["passages"]:
        for parts in ("query_parts", "passage_parts"):
            assert sum(passage[parts]) == pytest.approx(passage["cosine"], abs=1e-3)


def test_a_loaded_encoder_with_the_mechanism_is_used():
    loaded = [unmask.load("variant/alibi"), unmask.load("variant/linear")]
    names = {
        one["id"]: (one["model"]["name"], one["model"]["shipped"])
        for chapter in ("handshake", "positions")
        for one in tour.run(chapter, loaded, "a river by a bank")["experiments"]
    }
    assert names["handshake"] == names["alibi"] == ("variant/alibi", False)
    assert names["learned"] == ("variant/learned", True)


def test_what_is_asked_for_is_shown_and_long_texts_are_cut():
    answer = tour.run("handshake", [], "the river " * 200, layer=2, head=3)
    (one,) = answer["experiments"]
    assert (one["handshake"]["layer"], one["handshake"]["head"]) == (2, 3)
    assert len(one["tokens"]) == READ_TOKENS < one["total_tokens"]
    watched = tour.run("reach", [], "the river ran by the bank", token=2)["experiments"]
    assert {one["reach"]["target"] for one in watched} == {2}


@pytest.mark.parametrize(
    ("chapter", "text", "options", "said"),
    [
        ("nothing", "", {}, "handshake"),
        ("handshake", "x" * 4001, {}, "4,000"),
        ("handshake", "", {"layer": 99}, "0 to 5"),
        ("handshake", "", {"layer": 0, "head": 99}, "0 to 3"),
        ("blur", "", {"layer": 77}, "0 to 5"),
        ("order", "a", {}, "at least two"),
    ],
)
def test_refusals_say_the_limit(chapter, text, options, said):
    with pytest.raises(InvalidRequest, match=said) as raised:
        tour.run(chapter, [], text, **options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["\u200b", "!", "\ud800", "🎉🎉", "a", "[MASK]", "漢字かな"])
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_odd_words_give_numbers_or_a_sentence(chapter, text):
    try:
        said = json.dumps(tour.run(chapter, [], text), allow_nan=False)
    except (InvalidRequest, TextError) as error:
        said = str(error)
    assert said
    assert "\n" not in said


def test_the_routes():
    api = Api([unmask.load("variant/alibi")])
    listed = json.loads(api.answer("GET", "tour").data)["chapters"]
    assert [chapter["id"] for chapter in listed] == CHAPTERS
    answer = api.answer("GET", "tour/tiles?model=0&text=by%20the%20river&layer=1&head=2&token=1")
    (one,) = json.loads(answer.data)["experiments"]
    assert (one["tiled"]["layer"], one["tiled"]["head"], one["tiled"]["query"]) == (1, 2, 1)
    assert api.answer("GET", "tour/nothing").status in (400, 404)


def test_collapse_is_compared_where_more_models_are_loaded(told):
    models = [unmask.load("unmask-mini"), unmask.load("variant/alibi"), unmask.load("variant/linear")]
    both = tour.run("collapse", models, "")["experiments"]
    # Linear attention has no softmax to average with; a model named twice is one.
    assert [one["model"]["name"] for one in both] == [models[0].name, models[1].name]
    assert both[0]["collapse"] == experiment(told, "collapse", "collapse")["collapse"]
    alone = tour.run("collapse", models[1:], "")["experiments"]
    assert [one["collapse"] for one in alone] == [both[1]["collapse"]]
    assert len(tour.run("collapse", [models[0], *models], "")["experiments"]) == 2
