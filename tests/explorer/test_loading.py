"""Models that the page names: stated before they are loaded, loaded beside the others, or refused."""

import json
import subprocess
import sys
import threading
from contextlib import closing
from xml.etree import ElementTree

import pytest

from tests.explorer.conftest import TEXT, Asking
from tests.support.command import environment
from tests.support.explorable import CONFIG, folder_of
from tests.support.hub import serving
from tests.support.waiting import wait_until
from unmask.errors import CheckpointNotFound
from unmask.explorer import Api
from unmask.explorer.sessions import loading, models
from unmask.explorer.sessions.loading import PageLoader
from unmask.models.load import load


@pytest.fixture
def folder():
    return str(folder_of("another", 3, json.dumps(CONFIG | {"num_hidden_layers": 2}, sort_keys=True)))


@pytest.fixture
def asking(model):
    with closing(Api([model], loader=PageLoader(load))) as api:
        yield Asking(api)


def phases(asking):
    return [model["phase"] for model in asking.json("session")["models"]]


def test_nothing_is_loaded_where_it_was_not_allowed(model, folder):
    with closing(Api([model])) as api:
        asking = Asking(api)
        assert asking.json("session")["loads"] is False
        for path in ("models", "models/preview"):
            problem = asking.problem(path, 403, "POST", {"name": folder})
            assert problem["kind"] == "LoadingOff"
        assert len(asking.json("session")["models"]) == 1


def test_what_a_model_takes_is_said_before_it_is_loaded(asking):
    assert asking.json("session")["loads"] is True
    answer = asking.json("models/preview", "POST", {"name": "unmask-mini"})
    assert (answer["where"], answer["family"], answer["layers"], answer["width"]) == (
        "folder",
        "modernbert",
        6,
        256,
    )
    assert answer["parameter_count"] == 6_991_360
    assert answer["memory_bytes"] == 4 * 6_991_360
    assert answer["download_bytes"] == 0
    assert "7.0 million parameters: 28 MB of memory in float32" in answer["sentence"]
    assert "it is on this machine" in answer["sentence"]
    assert ElementTree.fromstring(answer["svg"]).get("width") == "234pt"
    assert phases(asking) == ["ready"]


def test_memory_is_of_the_number_format_that_is_loaded(model):
    with closing(Api([model], loader=PageLoader(load, "bfloat16"))) as api:
        found = Asking(api).json("models/preview", "POST", {"name": "unmask-mini"})
    assert (found["dtype"], found["memory_bytes"]) == ("bfloat16", 2 * 6_991_360)


def test_a_folder_is_loaded_beside_the_others_and_reads_texts(asking, folder):
    info = asking.json("models", "POST", {"name": folder}, 202)
    assert (info["index"], info["name"]) == (1, "another")
    _, read = asking.read(TEXT, model=1)
    assert (read["model"], read["layers"]) == ("another", 2)
    assert phases(asking) == ["ready", "ready"]
    again = asking.json("models", "POST", {"name": folder + "/"}, 202)
    assert again["index"] == 1
    assert len(asking.json("session")["models"]) == 2


def test_a_model_that_is_there_from_the_start_is_not_loaded_twice(model):
    with closing(Api([("unmask-mini", lambda: model)], loader=PageLoader(load))) as api:
        asking = Asking(api)
        assert asking.json("models", "POST", {"name": "unmask-mini"}, 202)["index"] == 0
        assert len(asking.json("session")["models"]) == 1


def test_another_model_of_the_same_name_gets_a_name_of_its_own(asking, model):
    twin = str(folder_of("fake", 9, json.dumps(CONFIG, sort_keys=True)))
    names = [model["name"] for model in asking.json("session")["models"]]
    info = asking.json("models", "POST", {"name": twin}, 202)
    assert info["name"] not in names
    assert asking.json("session")["models"][0]["name"] == names[0]


def test_one_that_could_not_be_loaded_is_tried_again(model, folder):
    calls = []

    def moody(name):
        calls.append(name)
        if len(calls) == 1:
            raise CheckpointNotFound("the disk is away")
        return load(name)

    with closing(Api([model], loader=PageLoader(moody))) as api:
        asking = Asking(api)
        asking.json("models", "POST", {"name": folder}, 202)
        wait_until(lambda: phases(asking)[1] == "failed")
        assert asking.json("session")["models"][1]["problem"]["sentence"] == "the disk is away"
        assert asking.json("models", "POST", {"name": folder}, 202)["index"] == 1
        wait_until(lambda: phases(asking) == ["ready", "ready"])
        assert calls == [folder, folder]


def test_models_are_loaded_one_after_the_other(model, folder):
    go, running = threading.Event(), []

    def slow(name):
        running.append(name)
        assert go.wait(30)
        return model

    with closing(Api([model], loader=PageLoader(slow))) as api:
        asking = Asking(api)
        asking.json("models", "POST", {"name": folder}, 202)
        asking.json("models", "POST", {"name": "unmask-mini"}, 202)
        wait_until(lambda: phases(asking)[1] == "loading")
        assert phases(asking) == ["ready", "loading", "waiting"]
        assert running == [folder]
        go.set()
        wait_until(lambda: phases(asking) == ["ready"] * 3)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 400, "string `name`"),
        ({"name": 3}, 400, "string `name`"),
        ({"name": ""}, 400, "name a checkpoint folder"),
        ({"name": "a\nb"}, 400, "name a checkpoint folder"),
        ({"name": "x" * 2000}, 400, "name a checkpoint folder"),
        ({"name": "nowhere"}, 409, "nowhere is not a folder"),
        ({"name": "/etc/nowhere"}, 409, "there is no folder of that name"),
        ({"name": "/etc"}, 409, "config.json"),
    ],
)
@pytest.mark.parametrize("path", ["models", "models/preview"])
def test_names_of_nothing_are_refused_in_a_sentence(asking, path, body, status, said):
    assert said in asking.problem(path, status, "POST", body)["sentence"]
    assert phases(asking) == ["ready"]


def test_what_does_not_fit_is_refused_before_it_is_loaded(asking, monkeypatch):
    monkeypatch.setattr("unmask.bench.memory.free_bytes", lambda: 30_000_000)
    assert asking.json("models/preview", "POST", {"name": "unmask-mini"})["free_bytes"] == 30_000_000
    problem = asking.problem("models", 400, "POST", {"name": "unmask-mini"})
    assert problem["sentence"].startswith("unmask-mini needs 28 MB for its weights and 30 MB are free")
    monkeypatch.setattr("unmask.bench.memory.free_bytes", lambda: None)
    assert "free" not in asking.json("models/preview", "POST", {"name": "unmask-mini"})["sentence"]


def test_there_is_a_most_number_of_models(asking, folder, monkeypatch):
    monkeypatch.setattr(models, "MOST_MODELS", 1)
    assert "at most 1 models" in asking.problem("models", 409, "POST", {"name": folder})["sentence"]


def test_how_far_a_download_is(asking, folder, monkeypatch):
    monkeypatch.setattr("unmask.weights.read.find.cached_bytes", lambda name: 30)
    assert loading._share("a/b", 120) == 0.25
    assert loading._share("a/b", 20) == 1.0
    assert loading._share("a/b", 0) is None
    assert asking.json("session")["models"][0]["progress"] is None


HUB = """
import json, sys
from unmask.errors import UnmaskError
from unmask.explorer.sessions.loading import PageLoader, place_of
from unmask.weights.read.find import cached, cached_bytes
import unmask
loader = PageLoader(unmask.load)
found = vars(loader.preview("own/tiny"))
before = cached(), cached_bytes("own/tiny")
unmask.load("own/tiny")
after = place_of("own/tiny"), cached_bytes("own/tiny"), loader.preview("own/tiny").download_bytes
said = []
for name in ("own/none", "own/pickled"):
    try:
        loader.preview(name)
    except UnmaskError as error:
        said.append(str(error))
print(json.dumps([found, before, after, said]))
"""
OFFLINE = """
import time
from unmask.errors import UnmaskError
from unmask.explorer.sessions.loading import PageLoader
import unmask
try:
    PageLoader(unmask.load).preview("own/tiny")
except UnmaskError as error:
    print(error)
"""


def in_process(code, hub, cache):
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(HF_ENDPOINT=hub, HF_HOME=str(cache), HF_HUB_DISABLE_XET="1"),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()[-1]


def test_a_model_of_the_hub_is_stated_by_its_headers_and_offline_is_said(folder, tmp_path):
    from pathlib import Path

    from tests.support.hub import COMMIT

    source = Path(folder)
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_bytes((source / "config.json").read_bytes())
    (pickled / "pytorch_model.bin").write_bytes(b"no")
    folders = {"own/tiny": {COMMIT: source}, "own/pickled": {COMMIT: pickled}}
    with serving(folders) as hub:
        found, before, after, said = json.loads(in_process(HUB, hub.url, tmp_path / "cache"))
        url = hub.url
    sizes = [
        path.stat().st_size for path in source.iterdir() if path.suffix in (".json", ".txt", ".safetensors")
    ]
    assert (found["where"], found["layers"]) == ("hub", 2)
    assert found["download_bytes"] == sum(sizes)
    assert found["parameter_count"] == load(folder).parameter_count
    assert "will be downloaded" in found["sentence"]
    assert before == [[], 0]
    assert after == ["cache", sum(sizes), 0]
    assert "there is no own/none on the hub" in said[0]
    assert "no safetensors" in said[1]
    assert "the hub cannot be reached" in in_process(OFFLINE, url, tmp_path / "empty")
