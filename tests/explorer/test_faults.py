"""What goes wrong while somebody looks: a clear state each, and nothing hangs."""

import json
import re
import threading
from functools import partial

import pytest

from tests.explorer.conftest import TEXT, Asking
from tests.support.explorable import FakeModel
from tests.support.held_measuring import STATISTICS, held_measuring
from tests.support.waiting import HANG_SECONDS, wait_until
from unmask.errors import CheckpointNotFound, UnknownArchitecture, UnmaskError
from unmask.explorer import Api
from unmask.explorer.sessions.background import Analyses
from unmask.http.worker import Worker

LONG = "the river bank was muddy , " * 40
"""Enough for its analysis to be met half way."""


@pytest.fixture(scope="module")
def large():
    """A model whose long texts take a while."""
    return FakeModel("large", max_tokens=260, num_hidden_layers=5)


@pytest.fixture
def released(monkeypatch):
    """Set by a test that wants analyses to go past their second layer."""
    with held_measuring(monkeypatch, first_layer=2) as released:
        yield released


@pytest.fixture
def held(large, released):
    """An explorer whose analyses stay at their third layer, block after block, until they are released."""
    asking = Asking(Api([large], held_texts=4))
    yield asking
    asking.api.close()


def until(asking, text_id, reached):
    """The first state for which ``reached`` holds."""

    def found():
        state = asking.json(f"texts/{text_id}/state")
        return state if reached(state) else None

    return wait_until(found)


def some_ready(state):
    return any(state["ready"]) and not all(state["ready"])


def test_stopped_half_way_what_is_done_stays_and_goes_on(held, released):
    text_id, read = held.read(LONG)
    state = until(held, text_id, some_ready)
    assert (state["phase"], state["readable"]) == ("measuring", True)
    assert 0 < state["done"] < state["total"]
    held.json(f"texts/{text_id}/stop", "POST", {})
    state = until(held, text_id, lambda state: state["phase"] == "stopped")
    ready = state["ready"]
    assert some_ready(state)
    assert state["problem"] is None
    # What is measured is there, the rest says why it is not.
    done, missing = ready.index(True), ready.index(False)
    held.arrays(f"texts/{text_id}/head/{done}/0")
    assert held.problem(f"texts/{text_id}/head/{missing}/0", 409)["kind"] == "NotReady"
    arrays, _ = held.arrays(f"texts/{text_id}/heads")
    assert arrays["ready"].tolist() == ready
    assert not arrays["entropy"][missing].any()
    # Exact values of any layer are there too.
    held.arrays(f"texts/{text_id}/values/{missing}/0?rows=0:2")
    assert len(held.json(f"texts/{text_id}/sinks")["layers"]) == sum(ready)
    again = held.json(f"texts/{text_id}/go", "POST", {})
    assert again["ready"] == ready, "what was measured is not measured again"
    released.set()
    assert held.api.finish(text_id, HANG_SECONDS)
    assert held.json(f"texts/{text_id}/state")["ready"] == [True] * read["layers"]


def test_questions_are_answered_while_a_text_is_measured(held):
    text_id, _ = held.read(LONG)
    until(held, text_id, some_ready)
    for row in range(5):
        held.arrays(f"texts/{text_id}/values/4/1?rows={row}:{row + 1}")
    assert held.json(f"texts/{text_id}/state")["phase"] == "measuring"


def test_two_pages_at_once_both_get_on(held, released):
    first, _ = held.read(LONG)
    second, _ = held.read(LONG + " another")
    until(held, second, some_ready)
    assert not all(held.json(f"texts/{first}/state")["ready"]), "the second did not wait for the first's end"
    released.set()
    assert held.api.finish(first, HANG_SECONDS)
    assert held.api.finish(second, HANG_SECONDS)
    assert held.json(f"texts/{second}/state")["phase"] == "done"


def test_the_same_text_twice_is_one(held):
    ids = []
    hands = [threading.Thread(target=lambda: ids.append(held.read(LONG)[0])) for _ in range(4)]
    for hand in hands:
        hand.start()
    for hand in hands:
        hand.join()
    assert len(set(ids)) == 1
    held.json(f"texts/{ids[0]}", "DELETE", status=204)


def test_a_forgotten_text_stops_and_is_unknown(held):
    text_id, _ = held.read(LONG)
    until(held, text_id, some_ready)
    reading = held.api._context.texts.get(text_id)
    held.json(f"texts/{text_id}", "DELETE", status=204)
    assert reading.wait(HANG_SECONDS)
    assert reading.state().phase == "stopped"
    assert held.problem(f"texts/{text_id}/state", 404)["kind"] == "UnknownText"
    held.json(f"texts/{text_id}", "DELETE", status=204)
    assert held.read(LONG)[0] == text_id, "posted again, it is the same"


def test_a_text_that_makes_room_for_another_stops(held):
    """Nobody can ask for what is still measured of it, so it may not hold up the others."""
    first, _ = held.read(LONG)
    until(held, first, some_ready)
    reading = held.api._context.texts.get(first)
    for number in range(4):
        held.read(f"{TEXT} {number}")
    assert held.problem(f"texts/{first}", 404)["kind"] == "UnknownText"
    assert reading.wait(HANG_SECONDS)
    assert reading.state().phase == "stopped"


def test_an_analysis_that_runs_stays_within_reach(monkeypatch):
    """Others that are asked for meanwhile may not push it out of the store, where it could not be stopped."""
    monkeypatch.setattr("unmask.explorer.sessions.background.KEPT", 2)
    worker = Worker()
    analyses = Analyses(worker)
    running, problems = threading.Event(), []

    def endless(watch):
        while True:
            running.set()
            watch("going", 0, 1)

    def ask():
        try:
            analyses.once("endless", endless)
        except UnmaskError as error:
            problems.append(str(error))

    hand = threading.Thread(target=ask, daemon=True)
    hand.start()
    assert running.wait(10)
    assert [analyses.once(number, lambda watch, number=number: number) for number in range(5)] == [*range(5)]
    made = []
    assert analyses.once(4, lambda watch: made.append(1)) == 4
    assert analyses.once(0, lambda watch: made.append(1)) is None, "the oldest that has ended leaves"
    analyses.stop()
    hand.join(5)
    said = list(problems)
    worker.close()
    assert len(said) == 1
    assert "stopped" in said[0]


def test_only_the_latest_texts_are_held(model):
    asking = Asking(Api([model], held_texts=2))
    ids = [asking.measured(text) for text in ("one", "two")]
    assert asking.raw(f"texts/{ids[0]}/heads").status == 200
    asking.measured("three")
    assert asking.raw(f"texts/{ids[0]}/heads").status == 200
    assert asking.raw(f"texts/{ids[1]}/heads").status == 404
    assert asking.measured("two") == ids[1]
    asking.api.close()


def test_memory_is_bounded_and_stated_first(large):
    probe = Asking(Api([large]))
    needs, little = (
        probe.json(f"texts/{probe.read(text)[0]}/state")["stated_bytes"] for text in (LONG, TEXT)
    )
    probe.api.close()
    assert little < needs
    asking = Asking(Api([large], held_bytes=int(1.5 * needs)))
    first = asking.measured(LONG)
    second = asking.measured(LONG + "a")
    assert asking.raw(f"texts/{first}").status == 404, "both together are more than may be held"
    assert asking.raw(f"texts/{second}").status == 200
    asking.api.close()
    small = Asking(Api([large], held_bytes=(needs + little) // 2))
    error = small.problem("texts", 507, "POST", {"text": LONG})
    assert error["kind"] == "TooLarge"
    assert "GB" in error["sentence"]
    assert small.raw("texts", "POST", {"text": TEXT}).status == 200
    small.api.close()


def test_a_model_without_attention_says_why(model, monkeypatch):
    def refuse(*_, **__):
        raise UnknownArchitecture("Elmo has no attention, so there is none to show")

    monkeypatch.setattr("unmask.interpret.attention.view.ActivationCache.of", refuse)
    asking = Asking(Api([model]))
    text_id, _ = asking.read()
    assert asking.api.finish(text_id, HANG_SECONDS)
    state = asking.json(f"texts/{text_id}/state")
    assert (state["phase"], state["readable"]) == ("failed", False)
    assert "no attention" in state["problem"]["sentence"]
    for path in ("values/0/0", "rollout", "tiles/0/0/0/0/0", "geometry"):
        assert "no attention" in asking.problem(f"texts/{text_id}/{path}", 409)["sentence"]
    assert asking.json(f"texts/{text_id}/vocabulary")["words"] > 0, "what needs no attention still works"
    asking.api.close()


def test_memory_that_ends_is_a_sentence(model, monkeypatch):
    def exhaust(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 70900000000 bytes")

    monkeypatch.setattr(STATISTICS, "measure_layer", exhaust)
    asking = Asking(Api([model]))
    text_id, _ = asking.read()
    assert asking.api.finish(text_id, HANG_SECONDS)
    state = asking.json(f"texts/{text_id}/state")
    assert (state["phase"], state["problem"]["kind"], state["readable"]) == ("failed", "OutOfMemory", True)
    asking.api.close()


def test_the_page_comes_before_the_models(model):
    go = threading.Event()

    def late():
        go.wait(HANG_SECONDS)
        return model

    def never():
        raise CheckpointNotFound("nowhere is no folder; name a checkpoint folder")

    asking = Asking(Api([("late", late), ("nowhere", never)]))
    session = asking.json("session")
    assert [model["phase"] for model in session["models"]] == ["loading", "waiting"]
    assert session["models"][0]["name"] == "late"
    answers = []
    hand = threading.Thread(target=lambda: answers.append(asking.raw("texts", "POST", {"text": TEXT})))
    hand.start()
    go.set()
    hand.join(HANG_SECONDS)
    assert answers[0].status == 200, "a text that is posted meanwhile waits for its model"
    asking.raw("texts", "POST", {"text": TEXT, "model": 1})
    models = asking.json("session")["models"]
    assert [model["phase"] for model in models] == ["ready", "failed"]
    assert "no folder" in models[1]["problem"]["sentence"]
    error = asking.problem("texts", 409, "POST", {"text": TEXT, "model": 1})
    assert "no folder" in error["sentence"]
    asking.api.close()


def test_a_model_that_takes_too_long_is_said_to_be_loading(model, monkeypatch):
    monkeypatch.setattr("unmask.explorer.sessions.models.LOADING_SECONDS", 0.05)
    go = threading.Event()
    asking = Asking(Api([("late", lambda: go.wait(HANG_SECONDS) and model)]))
    assert asking.problem("texts", 503, "POST", {"text": TEXT})["kind"] == "ModelLoading"
    go.set()
    asking.api.close()


def test_a_saved_page_is_whole_and_asks_for_nothing(asking):
    text_id = asking.measured("the </script> bank")
    paths = [f"texts/{text_id}/heads", f"texts/{text_id}/values/0/0?rows=0:2"]
    body = {"paths": paths, "hash": "#v=3&text=</script>", "title": "a <b> title"}
    answer = asking.raw("export", "POST", body)
    assert (answer.status, answer.media_type) == (200, "text/html; charset=utf-8")
    page = answer.data.decode()
    assert "a &lt;b&gt; title" in page
    elements = re.sub(r"(<script[^>]*>).*?</script>", r"\1", page, flags=re.S)
    assert not re.search(r'(?:src|href)="(?!data:)', elements)
    assert "url(" not in page.split("<style>")[1].split("</style>")[0]
    data = page.split('id="unmask-saved">')[1].split("</script>")[0]
    saved = json.loads(data)
    assert saved["answers"].keys() >= {"session", f"texts/{text_id}", f"texts/{text_id}/state", *paths}
    assert saved["hash"] == body["hash"]
    assert "sha256" in saved["stamp"]
    assert "torch" in saved["stamp"]
    for refused in ({"paths": "session"}, {"paths": ["session"] * 5001}, {"paths": [], "hash": 1}):
        asking.problem("export", 400, "POST", refused)


def test_loading_is_lazy():
    """A loader is not called before its turn, and a name is known before it."""
    called = []
    api = Api([("one", partial(called.append, 1))])
    assert json.loads(api.answer("GET", "session").data)["models"][0]["name"] == "one"
    api.close()
