"""An ELMo through `unmask.load`: both forms on disk, texts as strings and as words, and what is refused."""

import json
import shutil

import numpy as np
import pytest
import torch

import unmask
from tests.parity.test_elmo import SENTENCES, SMALL, published, random_elmo, run, write_published
from unmask.base import checksums
from unmask.base.checksums import CHECKSUMS
from unmask.errors import CheckpointNotFound, CorruptCheckpoint, EmptyText, InvalidRequest, NonFiniteResult
from unmask.weights.elmo_files import read_published_elmo, save_elmo


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("elmo") / "small"
    save_elmo(random_elmo(SMALL), place)
    return place


@pytest.fixture
def model(folder):
    return unmask.load(folder, dtype="float64", family="elmo")


def test_states_and_embeddings_are_those_of_the_network(model):
    expected = run(model.network, SENTENCES)
    for kind, wanted in (
        ("mixed", [mixed for _, mixed in expected]),
        ("last", [layers[-1] for layers, _ in expected]),
        ("all", [layers for layers, _ in expected]),
    ):
        found = model.hidden_states(SENTENCES, layers=kind, tokens_per_pass=4)
        for states, one in zip(found, wanted, strict=True):
            np.testing.assert_allclose(states, one, rtol=0, atol=1e-12)
    done = []
    vectors = model.embed(SENTENCES, tokens_per_pass=4, progress=lambda at, total: done.append((at, total)))
    np.testing.assert_allclose(vectors, [mixed.mean(0) for _, mixed in expected], rtol=0, atol=1e-6)
    assert done == [(1, 3), (3, 3)]
    assert vectors.dtype == np.float32
    norms = np.linalg.norm(model.embed(SENTENCES, pooling="max", normalize=True), axis=1)
    np.testing.assert_allclose(norms, 1, rtol=0, atol=1e-6)


def test_a_string_is_its_words_and_one_text(model):
    words = SENTENCES[0]
    np.testing.assert_array_equal(model.embed(" ".join(words)), model.embed([words])[0])
    np.testing.assert_array_equal(model.hidden_states(" ".join(words)), model.hidden_states([words])[0])
    assert (model.embed([]).shape, model.hidden_states([])) == ((0, model.width), [])


def test_the_authors_files_are_found_by_how_their_names_end(tmp_path):
    tensors, options = published(SMALL)
    paths = write_published(tmp_path, tensors, options)
    expected = read_published_elmo(*paths)
    for path in paths:
        path.rename(tmp_path / f"elmo_2x4096_{path.name}")
    found = unmask.load(tmp_path, family="elmo")
    assert "2 layers, width 14, on cpu" in repr(found)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(found.network.state_dict()[name], tensor)


def test_a_changed_file_is_found_by_its_checksum(folder, tmp_path, monkeypatch):
    """In the same way as for an encoder: sizes always, contents of small folders or on request."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert set(json.loads((copy / CHECKSUMS).read_text())["files"]) == {"config.json", "model.safetensors"}
    assert unmask.load(copy, family="elmo", verify=True).name == "copy"
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    with pytest.raises(CorruptCheckpoint, match=r"model\.safetensors is not the file that was saved"):
        unmask.load(copy, family="elmo")
    assert unmask.load(copy, family="elmo", verify=False).name == "copy"
    monkeypatch.setattr(checksums, "ALWAYS_HASHED_BYTES", 100)
    assert unmask.load(copy, family="elmo").name == "copy"
    with pytest.raises(CorruptCheckpoint, match="SHA-256"):
        unmask.load(copy, family="elmo", verify=True)
    (copy / "model.safetensors").write_bytes(weights + b"0")
    with pytest.raises(CorruptCheckpoint, match=r"bytes and had [\d,]+ when it was saved"):
        unmask.load(copy, family="elmo", verify=False)


def test_the_authors_files_have_no_checksums(tmp_path):
    write_published(tmp_path, *published(SMALL))
    assert unmask.load(tmp_path, family="elmo", verify=False).width == 14
    with pytest.raises(InvalidRequest, match=r"holds no unmask_checksums\.json"):
        unmask.load(tmp_path, family="elmo", verify=True)


def test_what_is_refused(model, folder, tiny_folder):
    for call, error, sentence in (
        (lambda: unmask.load(folder), InvalidRequest, "holds an ELMo, which is not a Transformer; load it"),
        (lambda: unmask.load(tiny_folder, family="elmo"), CheckpointNotFound, "holds no ELMo; leave family"),
        (
            lambda: unmask.load(tiny_folder, family="bert"),
            InvalidRequest,
            "family is 'bert'; it can be 'elmo'",
        ),
        (lambda: unmask.load(folder, family="elmo", dtype="int8"), InvalidRequest, "an ELMo has no"),
        (lambda: unmask.load(folder, family="elmo", kernel="reference"), InvalidRequest, "an ELMo has no"),
        (
            lambda: unmask.load(folder, family="elmo", ignore_tensors=["mix.gamma"]),
            InvalidRequest,
            "an ELMo has no .* ignore_tensors",
        ),
        (lambda: model.embed(["a", " "]), EmptyText, "text 2 has no words"),
        (lambda: model.embed([["a", 1]]), InvalidRequest, r"text 1 is \['a', 1\]; give a string or a list"),
        (lambda: model.embed([5]), InvalidRequest, "text 1 is 5"),
        (lambda: model.hidden_states("a", layers="first"), InvalidRequest, "layers is 'first'"),
        (lambda: model.embed("a", pooling="median"), InvalidRequest, "pooling is 'median'"),
        (lambda: model.embed("a", tokens_per_pass=0), InvalidRequest, "tokens_per_pass is 0"),
    ):
        with pytest.raises(error, match=sentence):
            call()
    with torch.no_grad():
        model.network.mix.gamma.fill_(torch.inf)
    with pytest.raises(NonFiniteResult, match="the embedding of text 1 is not finite"):
        model.embed(["a"])
