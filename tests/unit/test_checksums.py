"""Checksums of saved folders: written last, compared at load, with a way out for a change on purpose."""

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.support.tiny import change_json
from unmask.base import checksums
from unmask.base.checksums import CHECKSUMS, check_files
from unmask.base.files import replaced_folder, whole_folder
from unmask.errors import CorruptCheckpoint, InvalidRequest, OutputError, not_finite
from unmask.weights import Source, read_checkpoint


@pytest.fixture(scope="module")
def saved(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "tiny"
    tiny_model.save(folder, shard_bytes=20_000)
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def entries(folder):
    return json.loads((folder / CHECKSUMS).read_text())["files"]


def test_every_file_of_a_saved_folder_is_listed(saved):
    listed = {path.relative_to(saved).as_posix() for path in saved.rglob("*") if path.is_file()}
    assert entries(saved).keys() == listed - {CHECKSUMS}
    assert "1_Pooling/config.json" in listed
    found = check_files(saved)
    assert found is not None
    assert (found.files, found.hashed) == (len(listed) - 1, True)


@pytest.mark.parametrize(
    "name", ["config.json", "vocab.txt", "1_Pooling/config.json", "model-00002-of-00005.safetensors"]
)
def test_a_bit_that_flipped_names_its_file(name, copy):
    flip_a_bit(copy / name)
    with pytest.raises(CorruptCheckpoint, match=rf"copy/{name} is not the file that was saved.*SHA-256"):
        unmask.load(copy)


def test_a_file_of_another_size_or_none(copy):
    name = "model-00001-of-00005.safetensors"
    shutil.copyfile(copy / "model-00002-of-00005.safetensors", copy / name)
    with pytest.raises(CorruptCheckpoint, match=rf"{name} has [\d,]+ bytes and had [\d,]+ when it was saved"):
        read_checkpoint(Source(copy, "x"), verify=False)
    (copy / name).unlink()
    with pytest.raises(CorruptCheckpoint, match=rf"{name} is missing"):
        read_checkpoint(Source(copy, "x"), verify=False)


def test_large_folders_are_hashed_on_request_only(copy, monkeypatch):
    total = sum(one["bytes"] for one in entries(copy).values())
    flip_a_bit(copy / "model-00001-of-00005.safetensors")
    monkeypatch.setattr(checksums, "ALWAYS_HASHED_BYTES", total - 1)
    assert not unmask.load(copy).checkpoint.verified.hashed
    with pytest.raises(CorruptCheckpoint, match="SHA-256"):
        unmask.load(copy, verify=True)
    monkeypatch.setattr(checksums, "ALWAYS_HASHED_BYTES", total)
    with pytest.raises(CorruptCheckpoint, match="SHA-256"):
        unmask.load(copy)
    assert not unmask.load(copy, verify=False).checkpoint.verified.hashed


def test_a_change_on_purpose_has_the_way_out_that_the_sentence_says(copy):
    change_json(copy / "config.json", layer_norm_eps=1e-5)
    with pytest.raises(CorruptCheckpoint, match=rf"remove the entry of config\.json from {CHECKSUMS}"):
        unmask.load(copy)
    lines = (copy / CHECKSUMS).read_text().splitlines()
    (copy / CHECKSUMS).write_text("\n".join(line for line in lines if '"config.json"' not in line))
    assert unmask.load(copy).checkpoint.verified.files == len(lines) - 5


def test_a_folder_without_checksums_is_read_and_cannot_be_verified(tiny_folder):
    assert read_checkpoint(Source(tiny_folder, "tiny")).verified is None
    with pytest.raises(InvalidRequest, match=f"tiny holds no {CHECKSUMS}"):
        unmask.load(tiny_folder, verify=True)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"files": []}',
        '{"files": {"config.json": 3}}',
        '{"files": {"config.json": {"bytes": "1", "sha256": ""}}}',
        '{"files": {"../other/config.json": {"bytes": 1, "sha256": ""}}}',
        '{"files": {"/etc/passwd": {"bytes": 1, "sha256": ""}}}',
    ],
)
def test_a_damaged_list_is_one_sentence(content, copy):
    (copy / CHECKSUMS).write_text(content)
    assert_one_sentence(run_here("inspect", copy), CHECKSUMS)


@pytest.mark.parametrize("absolute", [False, True])
def test_files_outside_the_folder_are_not_looked_at(absolute, copy):
    other = copy.parent / "other.txt"
    other.write_bytes(b"a")
    name = str(other) if absolute else "../other.txt"
    entry = {"bytes": 1, "sha256": hashlib.sha256(b"a").hexdigest()}
    (copy / CHECKSUMS).write_text(json.dumps({"files": {name: entry}}))
    assert_one_sentence(run_here("inspect", copy), f"has no valid entry for {name}")


def test_inspect_verifies(copy):
    ran = run_here("inspect", copy, "--verify")
    assert (ran.code, ran.err) == (0, "")
    assert "SHA-256" in ran.out
    flip_a_bit(copy / "model-00003-of-00005.safetensors")
    assert_one_sentence(run_here("inspect", copy, "--verify"), "model-00003-of-00005.safetensors", "SHA-256")


def test_a_converted_pickle_has_checksums_too(tiny_copy, tmp_path):
    from safetensors.torch import load_file

    torch.save(load_file(tiny_copy / "model.safetensors"), tiny_copy / "pytorch_model.bin")
    (tiny_copy / "model.safetensors").unlink()
    assert run_here("convert", tiny_copy, tmp_path / "new").code == 0
    assert "model.safetensors" in entries(tmp_path / "new")


def test_other_libraries_load_a_folder_with_checksums(saved, tiny_model):
    from transformers import AutoModel, AutoTokenizer

    assert AutoModel.from_pretrained(saved).config.hidden_size == tiny_model.width
    assert AutoTokenizer.from_pretrained(saved)("the river")["input_ids"] == [2, 57, 58, 3]


def test_a_saved_folder_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """After a power cut there is the whole folder or none: contents first, then the name, then its parent."""
    order, fsync, replace = [], os.fsync, os.replace
    folder = tmp_path / "out"

    def synced(handle):
        order.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def named(source, target):
        if target == folder:
            inside = {str(path) for path in [source, *source.rglob("*")]}
            assert inside <= set(order)
            order.append("named")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", named)
    with whole_folder(folder) as partial:
        (partial / "inner").mkdir()
        (partial / "inner" / "file").write_text("content")
    assert len(order) == 5
    assert order[-2:] == ["named", str(tmp_path)]


def test_a_folder_whose_replacement_fails_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "model"
    path.mkdir()
    (path / "a").write_text("old")
    replace, refused = os.replace, []

    def refusing(source, target):
        if Path(source).name == "model" and Path(target) == path and not refused:
            refused.append(source)
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refusing)
    with pytest.raises(OutputError, match="Input/output error"), replaced_folder(path) as new:
        (new / "a").write_text("new")
    assert refused
    assert (path / "a").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("dtype", "part"),
    [
        ("torch.float16", "65504, so use float32 or bfloat16"),
        ("float32", "weights may be damaged"),
        ("torch.bfloat16", "weights may be damaged"),
    ],
)
def test_what_a_result_that_is_not_finite_is_blamed_on(dtype, part):
    sentence = str(not_finite("the embedding of text 1", dtype))
    assert sentence.startswith("the embedding of text 1 is not finite; ")
    assert part in sentence
    assert "wider dtype" not in sentence
