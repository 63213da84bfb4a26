"""``unmask convert``: pickled weights become safetensors, and nothing in a pickle runs."""

import json
import os
import pickle
from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.support.tiny import WIDTH, change_json, tiny_bert, write_checkpoint
from unmask.errors import UnsafeCheckpoint
from unmask.weights.write.convert import convert_pickled

IDS = [[2, 60, 61, 3], [2, 7, 8, 9, 33, 3]]
PICKLE = "pytorch_model.bin"
INDEX = "pytorch_model.bin.index.json"
SHARDS = ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")


@pytest.fixture
def state(tiny_folder):
    return load_file(tiny_folder / "model.safetensors")


@pytest.fixture
def folder(tiny_copy):
    """The tiny checkpoint without weights."""
    (tiny_copy / "model.safetensors").unlink()
    return tiny_copy


@pytest.fixture
def out(tmp_path):
    """A folder of results, empty so far, and the name of one in it."""
    (tmp_path / "results").mkdir()
    return tmp_path / "results" / "safe"


def save_shards(state, folder):
    names = sorted(state)
    halves = names[::2], names[1::2]
    for shard, half in zip(SHARDS, halves, strict=True):
        torch.save({name: state[name] for name in half}, folder / shard)
    of = {name: shard for shard, half in zip(SHARDS, halves, strict=True) for name in half}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": of}))


def save_legacy(state, folder):
    torch.save(state, folder / PICKLE, _use_new_zipfile_serialization=False)


def save_shared(state, folder):
    """One memory under two names, and a view that is not contiguous, as tied and sliced weights are."""
    word = state["embeddings.word_embeddings.weight"]
    table = torch.arange(0.0, 100.0).reshape(50, 2)
    state = state | {
        "cls.predictions.decoder.weight": word,
        "embeddings.word_embeddings.weight": word,
        "pooler.dense.bias": table[:30, 1],
    }
    torch.save(state, folder / PICKLE)


def save_parameters(state, folder):
    """Parameters rather than tensors, in an ordered dict, as a training script saves them."""
    parameters = OrderedDict((name, torch.nn.Parameter(tensor)) for name, tensor in state.items())
    torch.save(parameters, folder / PICKLE)


def save_plain(state, folder):
    torch.save(state, folder / PICKLE)


@pytest.mark.parametrize("save", [save_plain, save_legacy, save_shards, save_parameters])
def test_the_copy_gives_the_outputs_of_transformers(save, state, folder, out):
    save(state, folder)
    ran = run_here("convert", folder, out, "--json")
    assert (ran.code, ran.err, json.loads(ran.out)) == (0, "", {"folder": str(out)})

    model = unmask.load(out)
    reference = tiny_bert()
    for ids, hidden in zip(IDS, model.hidden_states(IDS), strict=True):
        with torch.no_grad():
            wanted = reference(torch.tensor([ids])).last_hidden_state[0]
        torch.testing.assert_close(hidden, wanted, rtol=0, atol=2e-5)
    for name, tensor in load_file(out / "model.safetensors").items():
        assert torch.equal(tensor, state[name]), name
    for path in folder.rglob("*"):
        if path.is_file() and "pytorch_model" not in path.name:
            assert (out / path.relative_to(folder)).read_bytes() == path.read_bytes()
    assert not list(out.rglob("*.bin*"))


def test_tensors_that_share_memory_are_each_stored_whole(state, folder, out):
    save_shared(state, folder)
    assert run_here("convert", folder, out).code == 0
    stored = load_file(out / "model.safetensors")
    word = state["embeddings.word_embeddings.weight"]
    assert torch.equal(stored["cls.predictions.decoder.weight"], word)
    assert torch.equal(stored["embeddings.word_embeddings.weight"], word)
    assert torch.equal(stored["pooler.dense.bias"], torch.arange(1.0, 61.0, 2.0))


# --- what is refused -----------------------------------------------------------------------------------


class Malicious:
    """An object whose unpickling makes a folder."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def malicious_value(state, folder, mark):
    torch.save(state | {"x": Malicious(mark)}, folder / PICKLE)


def malicious_legacy(state, folder, mark):
    save_legacy(state | {"x": Malicious(mark)}, folder)


def malicious_bare(_, folder, mark):
    (folder / PICKLE).write_bytes(pickle.dumps(Malicious(mark)))


def malicious_shard(state, folder, mark):
    save_shards(state, folder)
    torch.save({"x": Malicious(mark)}, folder / SHARDS[1])


@pytest.mark.parametrize(
    ("save", "named"),
    [
        (malicious_value, "mkdir"),
        (malicious_legacy, "mkdir"),
        (malicious_shard, "mkdir"),
        (malicious_bare, ""),  # stopped at an instruction before the name is known
    ],
)
def test_code_in_a_pickle_does_not_run(save, named, state, folder, out, tmp_path):
    mark = tmp_path / "the code ran"
    save(state, folder, mark)
    ran = run_here("convert", folder, out)
    assert_one_sentence(ran, str(folder), "holds more than tensors", named)
    assert "weights_only" not in ran.err, "advice to open it all the same"
    assert not mark.exists()
    assert list(out.parent.iterdir()) == []

    with pytest.raises(unmask.UnmaskError, match="pickled"):
        unmask.load(folder)
    assert not mark.exists()


def shortened(share, save=save_plain):
    def damage(state, folder):
        save(state, folder)
        content = (folder / PICKLE).read_bytes()
        (folder / PICKLE).write_bytes(content[: int(len(content) * share)])

    return damage


def one_bit_flipped(state, folder):
    save_plain(state, folder)
    content = bytearray((folder / PICKLE).read_bytes())
    where = content.find(state["pooler.dense.weight"].numpy().tobytes())
    assert where > 0
    content[where + 40] ^= 0x01
    (folder / PICKLE).write_bytes(content)


def written(content):
    return lambda _, folder: (folder / PICKLE).write_bytes(content)


def saved(change):
    return lambda state, folder: torch.save(change(state), folder / PICKLE)


def index(content):
    return lambda _, folder: (folder / INDEX).write_text(content)


def shard_absent(state, folder):
    save_shards(state, folder)
    (folder / SHARDS[1]).unlink()


def other_architecture(state, folder):
    save_plain(state, folder)
    change_json(folder / "config.json", model_type="gpt2")


REFUSED = {
    "nothing to convert": (lambda *_: None, ("holds no model.safetensors",)),
    "empty": (written(b""), (PICKLE, "damaged")),
    "text": (written(b"hello"), (PICKLE,)),
    "a web page": (written(b"<!doctype html>"), (PICKLE,)),
    **{f"{share:.1%} of it": (shortened(share), (PICKLE, "damaged")) for share in (0.01, 0.5, 0.999)},
    **{
        f"{share:.1%} of a legacy one": (shortened(share, save_legacy), (PICKLE, "damaged"))
        for share in (0.001, 0.01, 0.5, 0.99)
    },
    "one bit flipped": (one_bit_flipped, (PICKLE, "damaged")),
    "a list": (saved(lambda state: list(state.values())), (PICKLE, "named tensors")),
    "a dict of dicts": (saved(lambda state: {"state_dict": state}), (PICKLE, "named tensors")),
    "a number for a name": (saved(lambda state: state | {3: torch.ones(1)}), (PICKLE, "named tensors")),
    "a sparse tensor": (
        saved(lambda state: state | {"pooler.dense.bias": torch.ones(30).to_sparse()}),
        ("pooler.dense.bias",),
    ),
    "a tensor that is missing": (
        saved(lambda state: {name: t for name, t in state.items() if name != "pooler.dense.bias"}),
        ("missing", "pooler.dense.bias"),
    ),
    "a tensor of another shape": (
        saved(lambda state: state | {"pooler.dense.bias": torch.ones(7)}),
        ("pooler.dense.bias", "7", "30"),
    ),
    "a number that is not finite": (
        saved(lambda state: state | {"pooler.dense.bias": torch.full((30,), float("nan"))}),
        ("pooler.dense.bias", "not finite"),
    ),
    "a shard that is not there": (shard_absent, (SHARDS[1], "not")),
    "an index that is no JSON": (index("{"), (INDEX,)),
    "an index of numbers": (index('{"weight_map": {"a": 3}}'), (INDEX,)),
    "an index that leaves the folder": (
        index('{"weight_map": {"a": "../config.json"}}'),
        (INDEX, "../config"),
    ),
    "another architecture": (other_architecture, ("model_type", "'gpt2'")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_leaves_nothing(case, state, folder, out):
    save, parts = REFUSED[case]
    save(state, folder)
    assert_one_sentence(run_here("convert", folder, out), *parts)
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize("case", ["full folder", "file", "below a file", "the same folder"])
def test_an_output_that_is_taken(case, state, folder, out):
    save_plain(state, folder)
    out.mkdir()
    (out / "kept").write_text("kept")
    target = {"file": out / "kept", "below a file": out / "kept" / "new", "the same folder": folder}.get(
        case, out
    )
    before = {path: path.stat().st_mtime_ns for path in (*folder.rglob("*"), *out.rglob("*"))}
    assert_one_sentence(run_here("convert", folder, target), target)
    assert {path: path.stat().st_mtime_ns for path in (*folder.rglob("*"), *out.rglob("*"))} == before
    assert (out / "kept").read_text() == "kept"


def test_an_empty_folder_is_filled(state, folder, out):
    save_plain(state, folder)
    out.mkdir()
    assert run_here("convert", folder, out).code == 0
    assert unmask.load(out).hidden_states(IDS)[0].shape == (4, 30)


def test_there_must_be_a_folder(out, tmp_path):
    assert_one_sentence(run_here("convert", tmp_path / "nowhere", out), "nowhere", "no")


@pytest.mark.parametrize("own", ["pickled", "safe"])
def test_modules_are_converted_too(own, tmp_path):
    """A dense layer after pooling, whose weights are pickled; the encoder's may already be safe."""
    folder = write_checkpoint(tmp_path / "m")
    listed = json.loads((folder / "modules.json").read_text())
    listed[2] = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense/config.json").write_text(json.dumps({"in_features": WIDTH, "out_features": 4}))
    weights = {"linear.weight": torch.ones(4, WIDTH), "linear.bias": torch.zeros(4)}
    torch.save(weights, folder / "2_Dense/pytorch_model.bin")
    if own == "pickled":
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    with pytest.raises(UnsafeCheckpoint, match="unmask convert"):
        unmask.load(folder)
    convert_pickled(folder, tmp_path / "new")
    found = unmask.load(tmp_path / "new").embed("the river")
    assert found.shape == (4,)
    np.testing.assert_allclose(found, found[0])
