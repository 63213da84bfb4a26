"""Checkpoints from a hub: pinned, cached, refused with a sentence.

The client reads its endpoint and cache from the environment when it is imported, so every load runs in
a process of its own, against a stand-in server.
"""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

import unmask
from tests.support.command import assert_one_sentence
from tests.support.hub import COMMIT, OTHER_COMMIT, serving
from tests.support.tiny import tiny_bert, write_checkpoint

pytestmark = pytest.mark.long

TEXTS = ["the river bank was muddy", "another text"]
UNWANTED = (
    "pytorch_model.bin",
    "onnx/config.json",
    "onnx/model.safetensors",
    "onnx/model.onnx",
    "openvino/model.xml",
    "modeling_tiny.py",
    "README.md",
)
LOAD = """
import json, sys
import unmask
name, revisions, texts = json.loads(sys.argv[1])
models = [unmask.load(name, revision=revision) for revision in revisions]
print(json.dumps([[model.name, model.revision, model.embed(texts).tolist()] for model in models]))
sys.exit()
"""


@pytest.fixture(scope="module")
def repository(tiny_folder, tmp_path_factory):
    """The tiny checkpoint as a hub holds it: with files that are not wanted beside it."""
    folder = shutil.copytree(tiny_folder, tmp_path_factory.mktemp("hub") / "repository")
    for name in UNWANTED:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"never fetched")
    return folder


@pytest.fixture
def hub(repository):
    refusals = {
        "owner/gated": (403, "GatedRepo"),
        "owner/gated-too": (401, "GatedRepo"),
        "owner/private": (401, "RepoNotFound"),
        "owner/broken": (500, "Internal"),
    }
    with serving({"owner/tiny": {COMMIT: repository}}, refusals=refusals) as running:
        yield running


@pytest.fixture
def client(hub, tmp_path):
    return environment_of(hub, tmp_path / "home")


def environment_of(hub, home):
    """The environment of a process that knows the stand-in and keeps its cache under ``home``."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "0",
        "no_proxy": "127.0.0.1",
        "NO_PROXY": "127.0.0.1",
    }


def load_apart(apart, client, name, *revisions):
    """Name, revision and embeddings of each, loaded in one process."""
    ran = apart.run(json.dumps([name, revisions, TEXTS]), env=client, before=LOAD)
    assert ran.code == 0, ran.err
    return [
        (name, revision, np.array(rows, dtype=np.float32)) for name, revision, rows in json.loads(ran.out)
    ]


@pytest.fixture(scope="module")
def fetched(apart, repository, tmp_path_factory):
    """One load from the hub, which is stopped by now: what was fetched, what came out, and the cache."""
    home = tmp_path_factory.mktemp("home")
    with serving({"owner/tiny": {COMMIT: repository}}) as hub:
        (found,) = load_apart(apart, environment_of(hub, home), "owner/tiny", "main")
    return SimpleNamespace(home=home, hub=hub, found=found)


def files_of(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_branch_is_pinned_and_only_wanted_files_are_fetched(fetched, tiny_folder, tiny_model):
    name, revision, embeddings = fetched.found
    assert (name, revision) == ("owner/tiny", COMMIT)
    np.testing.assert_array_equal(embeddings, tiny_model.embed(TEXTS))
    assert fetched.hub.downloads == files_of(tiny_folder)


def test_the_same_loads_without_the_hub(apart, fetched):
    client = environment_of(fetched.hub, fetched.home)
    for name, revision, embeddings in load_apart(apart, client, "owner/tiny", "main", None, COMMIT):
        assert (name, revision) == fetched.found[:2]
        np.testing.assert_array_equal(embeddings, fetched.found[2])


def test_each_revision_has_its_own_weights(apart, hub, client, tmp_path, tiny_model):
    other = hub.folders["owner/tiny"][OTHER_COMMIT] = write_checkpoint(tmp_path / "other", tiny_bert(seed=1))

    first, second = load_apart(apart, client, "owner/tiny", None, "v2")

    assert (first[1], second[1]) == (COMMIT, OTHER_COMMIT)
    np.testing.assert_array_equal(second[2], unmask.load(other).embed(TEXTS))
    assert not np.allclose(second[2], tiny_model.embed(TEXTS))


@pytest.mark.parametrize(
    ("name", "revision", "parts"),
    [
        ("owner/nothing", None, ("there is no owner/nothing on the hub",)),
        ("owner/private", None, ("there is no owner/private on the hub",)),
        ("owner/tiny", "v3", ("owner/tiny has no revision 'v3'",)),
        ("owner/tiny", "f" * 40, ("owner/tiny has no revision", "f" * 40)),
        ("owner/gated", None, ("owner/gated asks for consent",)),
        ("owner/gated-too", "main", ("owner/gated-too asks for consent",)),
        ("owner/broken", None, ("owner/broken",)),
        ("owner/bad name", None, ("'owner/bad name' cannot be a hub id",)),
    ],
)
def test_what_the_hub_refuses_is_one_sentence(name, revision, parts, apart, client):
    asked = ["--revision", revision] if revision else []
    assert_one_sentence(apart.run("inspect", name, *asked, env=client), *parts)


def test_a_hub_out_of_reach_is_one_sentence_that_names_the_way_out(apart, hub, client):
    hub.stop()
    ran = apart.run("inspect", "owner/tiny", "--revision", "main", env=client)
    assert_one_sentence(ran, "owner/tiny at revision main is not in the cache", "cannot be reached")


def test_a_half_finished_download_is_not_taken_for_a_checkpoint(apart, fetched, tmp_path):
    home = shutil.copytree(fetched.home, tmp_path / "home", symlinks=True)
    (weights,) = home.rglob("snapshots/*/model.safetensors")
    weights.unlink()
    ran = apart.run("inspect", "owner/tiny", env=environment_of(fetched.hub, home))
    assert_one_sentence(ran, "owner/tiny", "not in the cache")


def test_a_repository_of_pickles_alone_is_one_sentence_with_the_way_out(apart, tiny_folder, tmp_path):
    folder = shutil.copytree(tiny_folder, tmp_path / "repository")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with serving({"owner/old": {COMMIT: folder}}) as hub:
        ran = apart.run("inspect", "owner/old", env=environment_of(hub, tmp_path / "home"))
    assert_one_sentence(ran, "owner/old", "pickled", "unmask convert")
    assert "pytorch_model.bin" not in hub.downloads


def test_the_error_is_a_hub_error(apart, client):
    script = """
import sys, unmask, unmask.errors
try:
    unmask.load("owner/nothing")
except unmask.errors.HubError:
    sys.exit(77)
"""
    assert apart.run(env=client, before=script).code == 77


def test_models_says_which_are_in_the_cache(apart, tiny_folder, tmp_path):
    name = "google-bert/bert-base-cased"
    with serving({name: {COMMIT: tiny_folder}}) as hub:
        client = environment_of(hub, tmp_path)
        load_apart(apart, client, name, None)
    rows = json.loads(apart.run("models", "--json", env=client).out)
    assert {row["name"] for row in rows if row["here"] == "in the hub's cache"} == {name}
