"""An ELMo in the explorer: its states in geometry, senses and beside a BERT; what it lacks, said."""

import json

import numpy as np
import pytest

import unmask
from tests.parity.test_elmo import SMALL, random_elmo
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.explorer import Api
from unmask.explorer.sessions.loading import PageLoader
from unmask.explorer.wire.binary import unpack
from unmask.http.responses import Refused
from unmask.interpret.geometry import cka, geometry, random_baseline, read_texts
from unmask.weights.elmo_files import save_elmo

TEXT = "the river bank was muddy and the text said a word of the bank " * 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("elmo") / "small-elmo"
    save_elmo(random_elmo(SMALL), place)
    return place


@pytest.fixture(scope="module")
def elmo(folder):
    return unmask.load(folder, family="elmo")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    place = tmp_path_factory.mktemp("bert") / "bert"
    return unmask.load(write_checkpoint(place, tiny_bert(max_position_embeddings=200), sentence=False))


@pytest.fixture(scope="module")
def api(elmo, bert):
    api = Api([elmo, bert])
    yield api
    api.close()


@pytest.fixture(scope="module")
def text(api):
    read = api.ask("texts", {"text": TEXT})
    assert api.finish(read["id"], 60)
    return read["id"]


def arrays(api, path):
    answer = api.answer("GET", path)
    assert answer.status == 200, answer.data
    return unpack(answer.data)


def test_its_states_are_measured_as_by_the_library(api, elmo, text):
    state = api.ask(f"texts/{text}/state")
    assert (state["phase"], state["readable"], state["ready"]) == ("done", True, [True, True])
    encodings = elmo.tokenize([TEXT])
    found = api.ask(f"texts/{text}/geometry?random=yes")
    for levels, encoder in (
        (found["levels"], elmo.encoder),
        (found["random"], random_baseline(elmo.encoder)),
    ):
        expected = geometry(read_texts(encoder, encodings).states)
        assert [level["effective_rank"]["value"] for level in levels] == pytest.approx(
            [one.effective_rank.value for one in expected]
        )
    points, _ = arrays(api, f"texts/{text}/cloud")
    assert points["points"].shape == (3, len(encodings[0]), 3)


def test_the_senses_of_a_word(api):
    found = api.ask("bank?model=0&word=bank")
    assert [layer["layer"] for layer in found["report"]["layers"]] == [0, 1, 2]
    assert found["report"]["static"]["word"]["margin"]["value"] == pytest.approx(0, abs=1e-9)
    assert found["report"]["static"]["context"]["accuracy"]["value"] is not None
    points, meta = arrays(api, "bank/cloud?model=0&word=bank")
    assert points["points"].shape == (3, len(meta["sentences"]), 3)


def test_beside_a_bert_layers_are_compared_and_heads_are_not(api, elmo, bert, text):
    other = api.ask("texts", {"text": TEXT, "model": 1})["id"]
    assert api.finish(other, 60)
    for a, b in ((text, other), (other, text)):
        found, meta = arrays(api, f"compare/{a}/{b}")
        assert meta["no_distance"].startswith("the ELMo small-elmo has no attention")
        assert meta["matches"] == []
        assert "distance" not in found
    one, two = (read_texts(x.encoder, x.tokenize([TEXT])) for x in (elmo, bert))
    ends = np.cumsum([len(word) + 1 for word in TEXT.split()])
    spans = [
        (0, int(end - 1 - len(word)), int(end - 1)) for word, end in zip(TEXT.split(), ends, strict=True)
    ]
    states = [list(x.mean_states([x.tokens_of(span) for span in spans])) for x in (two, one)]
    np.testing.assert_allclose(found["cka"], cka(*states).debiased, atol=1e-5)


@pytest.mark.parametrize(
    "path", ["rollout", "edges/0", "lens?token=1", "relevance?target=embedding", "fill?token=1"]
)
def test_what_it_lacks_is_one_sentence(api, text, path):
    answer = api.answer("GET", f"texts/{text}/{path}")
    error = json.loads(answer.data)["error"]
    assert error["kind"] != "UnexpectedError"
    assert "the ELMo small-elmo has LSTM layers" in error["sentence"]


def test_a_second_text_is_refused(api):
    with pytest.raises(Refused, match="is an ELMo, which reads one text"):
        api.ask("texts", {"text": "a bank", "pair": "a river"})


def test_the_page_loads_a_folder(bert, folder):
    def load(name):
        return unmask.load(name, family="elmo")

    api = Api([bert], loader=PageLoader(load))
    try:
        found = api.ask("models/preview", {"name": str(folder)})
        elmo = load(folder)
        assert found["parameter_count"] == sum(parameter.numel() for parameter in elmo.encoder.parameters())
        assert (found["layers"], found["width"]) == (2, elmo.width)
        assert "<svg" in found["svg"]
        made = api.ask("models", {"name": str(folder)})
        read = api.ask("texts", {"text": TEXT, "model": made["index"]})
        info = api.ask("session")["models"][made["index"]]
        assert not info["maps"]
        assert info["no_maps"].startswith("the ELMo small-elmo has LSTM layers")
        stamp = api.ask(f"texts/{read['id']}/stamp")
        assert stamp["load"].startswith('unmask.load("small-elmo", family="elmo", dtype="float32")')
    finally:
        api.close()
