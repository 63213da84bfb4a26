"""Weights read into numpy beside the same weights read into torch."""

import json
import os

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from tests.support.tiny import WIDTH, tiny_bert, write_checkpoint
from unmask.base.checksums import CHECKSUMS
from unmask.engines.native import library
from unmask.errors import CorruptCheckpoint
from unmask.weights import find, read_checkpoint
from unmask.weights.build import build
from unmask.weights.read.checkpoint_tensors import StoredArrays


@pytest.fixture
def folder(tmp_path):
    unmask.load("variant/alibi").save(tmp_path / "model")
    return tmp_path / "model"


def rewritten(folder, change):
    """The folder with other tensors, without the checksums of the old ones."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / CHECKSUMS).unlink()
    return read_checkpoint(find(str(folder)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_every_tensor_is_that_of_torch(folder, dtype):
    checkpoint = rewritten(folder, lambda found: found.update({k: v.to(dtype) for k, v in found.items()}))
    arrays, wanted = StoredArrays(checkpoint), build(checkpoint).state_dict()
    arrays.check("float32")
    assert set(arrays) == set(wanted)
    assert len(arrays) == len(wanted)
    for name, tensor in wanted.items():
        assert arrays[name].dtype == np.float32
        np.testing.assert_array_equal(arrays[name], tensor.numpy())
        np.testing.assert_array_equal(np.concatenate(list(arrays.parts(name, 3))), tensor.numpy())
    assert "layers.0.attention.qkv.weight" in arrays
    assert "nothing" not in arrays


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3.4e38])
def test_numbers_that_are_not_finite_are_refused_as_by_torch(folder, value):
    name = next(iter(load_file(folder / "model.safetensors")))
    checkpoint = rewritten(folder, lambda found: found[name].view(-1)[3:4].fill_(value))
    for dtype in ("float32", "bfloat16"):
        said = []
        for read in (StoredArrays(checkpoint).check, lambda dtype: build(checkpoint, dtype=dtype)):
            try:
                read(dtype)
            except CorruptCheckpoint as error:
                said.append(str(error))
        assert len(said) in (0, 2), "both refuse, or neither"
        assert len(set(said)) <= 1, "in the same words"
        assert bool(said) == (not np.isfinite(value) or dtype == "bfloat16")


def test_layers_after_the_encoder_are_read_too(tiny_copy):
    modules = json.loads((tiny_copy / "modules.json").read_text())
    place = f"{len(modules)}_Dense"
    (tiny_copy / place).mkdir()
    modules.append({"idx": len(modules), "name": str(len(modules)), "path": place, "type": "a.Dense"})
    (tiny_copy / "modules.json").write_text(json.dumps(modules))
    config = {
        "in_features": WIDTH,
        "out_features": 4,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    (tiny_copy / place / "config.json").write_text(json.dumps(config))
    for value in (1.0, torch.nan):
        tensors = {"linear.weight": torch.ones(4, WIDTH), "linear.bias": torch.full((4,), value)}
        save_file(tensors, tiny_copy / place / "model.safetensors")
        checkpoint = read_checkpoint(find(str(tiny_copy)))
        if value == 1.0:
            StoredArrays(checkpoint).check("float32")
            continue
        for read in (StoredArrays(checkpoint).check, lambda dtype, read=checkpoint: build(read, dtype=dtype)):
            with pytest.raises(CorruptCheckpoint, match=r"linear\.bias"):
                read("float32")


def test_a_file_that_shrank_after_it_was_read_is_refused(folder):
    checkpoint = rewritten(folder, lambda found: None)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CorruptCheckpoint, match="is damaged or incomplete"):
        StoredArrays(checkpoint).check("float32")
    weights.write_bytes(b"")
    with pytest.raises(CorruptCheckpoint, match="is damaged or incomplete"):
        StoredArrays(checkpoint).check("float32")


@pytest.mark.skipif(isinstance(library.connected(), str), reason="heads are read by the native engine")
def test_a_head_whose_file_was_written_again_is_not_read(tmp_path):
    folder = write_checkpoint(tmp_path / "model", tiny_bert("BertForSequenceClassification"))
    model, weights = unmask.load(folder), folder / "model.safetensors"
    replaced = unmask.load(folder)
    content = weights.read_bytes()
    weights.rename(tmp_path / "old")
    weights.write_bytes(content[:-100])
    wanted = replaced.logits("a text").values  # the file that it has read is still there
    os.utime(tmp_path / "old")
    weights.unlink()
    (tmp_path / "old").rename(weights)
    np.testing.assert_array_equal(replaced.logits("a text").values, wanted)
    with pytest.raises(CorruptCheckpoint, match="has changed since it was loaded; load the model again"):
        model.logits("a text")
