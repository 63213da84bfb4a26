"""The clouds of the page, and analyses that tell how far they are."""

import threading
from dataclasses import asdict

import numpy as np
import pytest

from tests.explorer.conftest import TEXT, Asking
from tests.support.explorable import HEADS, LAYERS, FakeModel
from unmask.explorer import Api
from unmask.explorer.sessions.background import Analyses, name_of
from unmask.http.worker import Worker
from unmask.interpret.geometry import project, sense_cloud, shipped_senses


@pytest.fixture(scope="module")
def text_id(asking):
    return asking.measured()


@pytest.fixture(scope="module")
def view(model):
    return model.attention(TEXT)


@pytest.fixture(scope="module")
def long_asking():
    """An explorer whose model reads the sentences of the package."""
    model = FakeModel("long", max_tokens=64)
    api = Api([model])
    yield Asking(api), model
    api.close()


def test_the_cloud_of_a_text_is_that_of_its_states(asking, text_id, view):
    arrays, meta = asking.arrays(f"texts/{text_id}/cloud")
    states = [*view.cache.states[:-1], view.cache.final_ND]
    expected = project(states, special_N=view.encoding.special)
    np.testing.assert_allclose(arrays["points"], expected.points_LN3, atol=1e-5)
    np.testing.assert_allclose(arrays["explained"], expected.explained_L3, rtol=1e-5)
    assert meta == {"method": "pca", "basis": "own", "fitted": len(view.encoding) - 2}
    shared, meta = asking.arrays(f"texts/{text_id}/cloud?basis=shared")
    assert meta["basis"] == "shared"
    assert not np.allclose(shared["points"], arrays["points"])


def test_geometry_is_shown_with_and_without_random_weights(long_asking):
    asking, _ = long_asking
    text_id = asking.measured("the river bank was muddy and another text " * 5)
    alone = asking.json(f"texts/{text_id}/geometry")
    beside = asking.json(f"texts/{text_id}/geometry?random=yes")
    assert (alone["random"], alone["problem"]) == (None, None)
    assert beside["levels"] == alone["levels"]
    assert len(beside["random"]) == len(alone["levels"]) > 1


def test_what_a_cloud_cannot_be_is_said(asking, text_id):
    assert "'tsne'" in asking.problem(f"texts/{text_id}/cloud?method=tsne", 400)["sentence"]
    assert "shared" in asking.problem(f"texts/{text_id}/cloud?method=umap&basis=shared", 400)["sentence"]
    short = asking.measured("a b")
    assert "at least 4" in asking.problem(f"texts/{short}/cloud", 400)["sentence"]


def test_umap_that_is_not_installed_is_one_sentence(asking, text_id, monkeypatch):
    monkeypatch.setattr("unmask.base.optional.find_spec", lambda name: None)
    problem = asking.problem(f"texts/{text_id}/cloud?method=umap", 409)
    assert "pip install 'unmask[umap]'" in problem["sentence"]


def test_attention_received_is_the_mean_of_a_layers_heads(asking, text_id, view):
    arrays, _ = asking.arrays(f"texts/{text_id}/received")
    heads = range(HEADS)
    expected = [np.mean([view.probabilities(n, head).mean(0) for head in heads], 0) for n in range(LAYERS)]
    np.testing.assert_allclose(arrays["received"], expected, atol=1e-6)


def test_the_cloud_of_a_word(long_asking):
    asking, model = long_asking
    arrays, meta = asking.arrays("bank/cloud?model=0&word=bat")
    sense_set = shipped_senses("bat")
    expected = sense_cloud(model.encoder, model.tokenizer, sense_set)
    np.testing.assert_allclose(arrays["points"], expected.projection.points_LN3, atol=1e-5)
    assert meta["senses"] == list(sense_set.senses)
    assert meta["sentences"] == [asdict(sentence) for sentence in sense_set.sentences]
    for one in meta["sentences"]:
        assert one["text"][one["start"] : one["end"]].lower() == "bat"
    other, meta = asking.arrays("bank/cloud?model=0&word=bank")
    assert meta["senses"] == list(shipped_senses("bank").senses)
    assert len(meta["sentences"]) == other["points"].shape[1]
    assert "'cat'" in asking.problem("bank/cloud?model=0&word=cat", 400)["sentence"]


def test_nothing_is_underway_when_all_is_done(asking, text_id):
    asking.json(f"texts/{text_id}/geometry")
    assert asking.json(f"texts/{text_id}/analyses") == {"analyses": []}
    assert asking.json("analyses") == {"analyses": []}
    assert asking.json(f"texts/{text_id}/analyses/geometry/stop", "POST") == {"analyses": []}
    assert asking.json("analyses/bank/stop", "POST") == {"analyses": []}
    asking.problem("texts/none/analyses", 404)


def test_an_analysis_tells_how_far_it_is_and_stops_by_its_name(asking, text_id):
    """Two run at once; one is stopped, the other goes on, and the stopped one can be asked for again."""
    reading = asking.api._context.texts.get(text_id)
    begun = {name: threading.Event() for name in ("slow", "other")}
    free = threading.Event()
    outcomes = {}

    def slowly(name):
        def work(view, watch):
            while not free.is_set():
                watch("counting", 2, 7)
                begun[name].set()
            return name

        try:
            outcomes[name] = reading.analyse((name, 1), work)
        except Exception as error:
            outcomes[name] = error

    threads = [threading.Thread(target=slowly, args=(name,)) for name in begun]
    for thread in threads:
        thread.start()
    assert all(event.wait(20) for event in begun.values())
    found = {analysis["name"]: analysis for analysis in asking.json(f"texts/{text_id}/analyses")["analyses"]}
    assert set(found) == {"slow", "other"}
    assert (found["slow"]["what"], found["slow"]["done"], found["slow"]["total"]) == ("counting", 2, 7)
    assert found["slow"]["eta_s"] >= 0
    asking.raw(f"texts/{text_id}/analyses/slow/stop", "POST")
    threads[0].join(20)
    assert "stopped" in str(outcomes["slow"])
    assert [analysis["name"] for analysis in asking.json(f"texts/{text_id}/analyses")["analyses"]] == [
        "other"
    ]
    free.set()
    threads[1].join(20)
    assert outcomes["other"] == "other"
    assert reading.analyse(("slow", 1), lambda view, watch: "again") == "again"


def test_names_of_analyses():
    assert name_of("bank") == "bank"
    assert name_of(("cloud", "pca", "own")) == "cloud"
    analyses = Analyses(Worker())
    assert analyses.underway() == []
