"""Checkpoints with a little too much: pieces without a vector, and tensors that are no part of the model."""

import pickle

import numpy as np
import pytest
import torch

import unmask
from tests.support.command import run_here
from tests.support.tiny import VOCABULARY, change_tensors, write_tokenizer
from unmask.errors import InvalidRequest, InvalidText, TensorMismatch


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
