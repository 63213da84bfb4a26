"""Checkpoints with a little too much: pieces without a vector, and tensors that are no part of the model."""

import pickle

import numpy as np
import pytest
import torch

import unmask
from tests.support.command import run_here
from tests.support.tiny import VOCABULARY, change_tensors, write_tokenizer
from unmask.errors import InvalidRequest, InvalidText, TensorMismatch
from unmask.training.finetune.settings import settings_of_table
from unmask.training.run import base_model
from unmask.training.run.settings import run_of_table
from unmask.weights.build import build


def test_only_a_text_with_a_piece_beyond_the_table_is_refused(tiny_copy, tiny_model):
    write_tokenizer(tiny_copy, (*VOCABULARY, *"αβγδεζ"))
    model = unmask.load(tiny_copy)
    texts = ["the river bank", "the bank"]
    np.testing.assert_array_equal(model.embed(texts), tiny_model.embed(texts))
    known = model.spec.embedding.vocabulary
    with pytest.raises(InvalidText, match=f"the piece 'ζ' with the id {known + 1}.*below {known}"):
        model.embed(["the river", "the ε ζ bank"])
    with pytest.raises(InvalidText, match="the piece 'ε'"):
        model.tokenize("the bank", "ε")


def test_a_leftover_tensor_is_left_out_by_name(tiny_copy, tiny_model, tmp_path):
    change_tensors(tiny_copy, lambda tensors: tensors.update({"loss_fct.weight": torch.ones(2)}))
    with pytest.raises(TensorMismatch, match=r"loss_fct.weight.*--ignore-tensor \(ignore_tensors="):
        unmask.load(tiny_copy)
    model = unmask.load(tiny_copy, ignore_tensors=["loss_fct.weight"])
    texts = ["the river bank"]
    for one in (model, pickle.loads(pickle.dumps(model)), unmask.load(**model.load_arguments())):
        np.testing.assert_array_equal(one.embed(texts), tiny_model.embed(texts))
    with pytest.raises(InvalidRequest, match=r"'loss.weight' is to be ignored and .* does not have it"):
        unmask.load(tiny_copy, ignore_tensors=["loss.weight"])
    missing = next(name for name in model.checkpoint.tensors if "query.weight" in name)
    with pytest.raises(TensorMismatch, match="1 tensor is missing"):
        unmask.load(tiny_copy, ignore_tensors=["loss_fct.weight", missing])


@pytest.mark.parametrize(
    "command", ["inspect FOLDER", "convert FOLDER OUT", "similarity -m FOLDER the river"]
)
def test_commands_leave_tensors_out(command, tiny_copy, tmp_path):
    change_tensors(tiny_copy, lambda tensors: tensors.update({"loss_fct.weight": torch.ones(2)}))
    places = {"FOLDER": str(tiny_copy), "OUT": str(tmp_path / "out")}
    arguments = [places.get(one, one) for one in command.split()]
    refused = run_here(*arguments)
    assert refused.code != 0
    assert "--ignore-tensor" in refused.err
    assert run_here(*arguments, "--ignore-tensor", "loss_fct.weight").code == 0


def test_a_picture_and_a_comparison_leave_tensors_out(tiny_copy, tmp_path):
    change_tensors(tiny_copy, lambda tensors: tensors.update({"loss_fct.weight": torch.ones(2)}))
    for option, value in (("--picture", tmp_path / "shown.svg"), ("--against", tiny_copy)):
        assert run_here("inspect", tiny_copy, option, value, "--ignore-tensor", "loss_fct.weight").code == 0
        refused = run_here("inspect", tiny_copy, option, value, "--ignore-tensor", "loss.weight")
        assert "'loss.weight' is to be ignored" in refused.err


def test_run_files_leave_tensors_out(tiny_copy):
    """Of the checkpoint that a run starts from; what the folder does not have is refused, as in commands."""
    change_tensors(tiny_copy, lambda tensors: tensors.update({"loss_fct.weight": torch.ones(2)}))
    tuned = {"name": "x", "task": "classification", "data": {"train": ["a.tsv"]}}
    trained = {
        "name": "x",
        "steps": 1,
        "data": {"cache": "c", "sources": [{"name": "s", "files": ["a.txt"]}]},
        "objective": {"kind": "masked"},
        "batch": {"tokens": 64, "micro_tokens": 64},
        "optimizer": {"learning_rate": 1e-3},
    }
    for read, given, begin in (
        (settings_of_table, tuned, base_model.first_checkpoint),
        (run_of_table, trained, base_model.first_checkpoint),
    ):
        model = {"start_from": tiny_copy.name}
        with pytest.raises(TensorMismatch, match=r"under \[model\] in a run file"):
            build(begin(read({**given, "model": model}), tiny_copy.parent))
        named = {**model, "ignore_tensors": ["loss_fct.weight"]}
        build(begin(read({**given, "model": named}), tiny_copy.parent))
        with pytest.raises(InvalidRequest, match=r"'loss.weight' is to be ignored"):
            begin(read({**given, "model": {**model, "ignore_tensors": ["loss.weight"]}}), tiny_copy.parent)
