"""Copies of a checkpoint in another number format and in shards."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

import unmask
from tests.support.command import assert_one_sentence, run_here
from unmask.errors import CorruptCheckpoint
from unmask.spec.tensor_map import Reorder
from unmask.weights.tensors import in_our_order, in_their_order


def test_shards_hold_every_tensor_once_within_the_limit(tiny_model, tmp_path):
    tiny_model.save(tmp_path / "whole")
    tiny_model.save(tmp_path / "parts", shard_bytes=4000)
    whole = load_file(tmp_path / "whole" / "model.safetensors")
    files = sorted((tmp_path / "parts").glob("*.safetensors"))
    assert len(files) > 3
    parts: dict[str, torch.Tensor] = {}
    for path in files:
        shard = load_file(path)
        assert len(shard) == 1 or sum(tensor.nbytes for tensor in shard.values()) <= 4000
        assert not parts.keys() & shard.keys()
        parts |= shard
    assert parts.keys() == whole.keys()
    assert all(torch.equal(parts[name], whole[name]) for name in whole)
    index = json.loads((tmp_path / "parts" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.values())

    again = unmask.load(tmp_path / "parts")
    theirs = AutoModel.from_pretrained(tmp_path / "parts").state_dict()
    for name, tensor in AutoModel.from_pretrained(tmp_path / "whole").state_dict().items():
        assert torch.equal(theirs[name], tensor)
    for name, tensor in tiny_model.trainable_encoder(replace=False).state_dict().items():
        assert torch.equal(again.trainable_encoder().state_dict()[name], tensor)


def test_a_tensor_that_is_larger_than_a_shard_has_its_own(tiny_model, tmp_path):
    tiny_model.save(tmp_path / "parts", shard_bytes=1)
    files = sorted((tmp_path / "parts").glob("*.safetensors"))
    assert [len(load_file(path)) for path in files] == [1] * len(files)
    index = json.loads((tmp_path / "parts" / "model.safetensors.index.json").read_text())
    assert len(index["weight_map"]) == len(files)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_convert_to_another_number_format(dtype, tiny_folder, tiny_model, tmp_path):
    assert run_here("convert", tiny_folder, tmp_path / "new", "--dtype", dtype).code == 0
    stored = load_file(tmp_path / "new" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {getattr(torch, dtype)}
    assert json.loads((tmp_path / "new" / "config.json").read_text())["dtype"] == dtype
    back = unmask.load(tmp_path / "new", dtype=dtype).trainable_encoder().state_dict()
    for name, tensor in tiny_model.trainable_encoder(replace=False).state_dict().items():
        assert torch.equal(back[name], tensor.to(getattr(torch, dtype)))


def test_convert_without_a_dtype_keeps_it(tiny_folder, tmp_path):
    assert run_here("convert", tiny_folder, tmp_path / "half", "--dtype", "bfloat16").code == 0
    assert run_here("convert", tmp_path / "half", tmp_path / "kept", "--shard-megabytes", "1").code == 0
    stored = load_file(tmp_path / "kept" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}


@pytest.mark.parametrize("number", ["0", "-3"])
def test_a_shard_has_room(number, tiny_folder, tmp_path):
    ran = run_here("convert", tiny_folder, tmp_path / "new", "--shard-megabytes", number)
    assert_one_sentence(ran, f"--shard-megabytes is {number}; it must be at least 1")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_tokenizer_reads_ids_and_is_saved(tiny_copy, tiny_model, tmp_path):
    (tiny_copy / "vocab.txt").unlink()
    model = unmask.load(tiny_copy)
    (states,) = model.hidden_states([[2, 60, 61, 3]])
    assert torch.equal(states, tiny_model.hidden_states([[2, 60, 61, 3]])[0])
    calls = (lambda: model.embed("the"), lambda: model.attention("the"), lambda: model.fill("[MASK]"))
    for call in (*calls, lambda: model.tokenizer):
        with pytest.raises(CorruptCheckpoint, match=r"checkpoint holds no tokenizer .*give token ids"):
            call()
    model.save(tmp_path / "saved")
    assert not list((tmp_path / "saved").glob("*token*"))
    assert torch.equal(unmask.load(tmp_path / "saved").hidden_states([[2, 60, 61, 3]])[0], states)


def test_inspect_says_that_there_is_no_tokenizer(tiny_copy):
    (tiny_copy / "vocab.txt").unlink()
    ran = run_here("inspect", tiny_copy)
    assert (ran.code, ran.err) == (0, "")
    assert "reads token ids only" in ran.out
    assert json.loads(run_here("inspect", tiny_copy, "--json").out)["tokenizer"] is None


def test_rows_are_reordered_and_back():
    reorder = Reorder("theirs", "ours", lambda spec: (2, 0, 1))
    theirs = torch.arange(12).reshape(6, 2)
    ours = in_our_order(theirs, reorder, None)
    assert ours[:, 0].tolist() == [8, 10, 0, 2, 4, 6]
    assert torch.equal(in_their_order(ours, reorder, None), theirs)
    assert in_our_order(theirs, None, None) is theirs is in_their_order(theirs, None, None)
