"""Beyond the trained length: learned positions refuse, the others run and say so."""

import warnings

import numpy as np
import pytest
import torch
import transformers

import unmask
from tests.contracts.test_transformers import write_vocabulary
from tests.support.tiny import change_json
from unmask.cli.inputs import LongestText
from unmask.errors import BeyondTraining

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
}
TRAINED = 8
LONG = "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12"

RELATIVE = {
    "ModernBertModel": {"max_position_embeddings": TRAINED, "local_attention": 4},
    "DebertaV2Model": {
        "max_position_embeddings": TRAINED,
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_biased_input": False,
        "position_buckets": 4,
    },
    "NomicBertModel": {"max_position_embeddings": TRAINED},
}
LEARNED = {
    "BertModel": {"max_position_embeddings": TRAINED},
    "RobertaModel": {"max_position_embeddings": TRAINED + 2, "pad_token_id": 1},
    "AlbertModel": {"max_position_embeddings": TRAINED, "embedding_size": 6},
    "MPNetModel": {"max_position_embeddings": TRAINED + 2, "pad_token_id": 1},
}


def written(name, settings, folder):
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    keys = model_class.config_class().to_dict().keys()
    config = {**SIZES, **{key: value for key, value in special.items() if key in keys}, **settings}
    model_class(model_class.config_class(**config)).save_pretrained(folder)
    write_vocabulary(folder, SIZES["vocab_size"])
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    return unmask.load(folder)


@pytest.mark.parametrize("name", RELATIVE)
def test_relative_positions_run_and_say_so(name, tmp_path):
    model = written(name, RELATIVE[name], tmp_path)
    assert model.max_tokens is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.hidden_states(["w1 w2", "w1 w2 w3 w4 w5 w6"])  # with special tokens as many as in training
    with pytest.warns(BeyondTraining, match="14 tokens and the model was trained on at most 8"):
        (states,) = model.hidden_states([LONG])
    assert states.shape == (14, 16)
    assert np.isfinite(states.numpy()).all()


@pytest.mark.parametrize(("name", "most"), [("ModernBertModel", None), ("BertModel", 6)])
def test_the_limit_of_a_tokenizer_is_the_models_where_positions_have_one(name, most, tmp_path):
    written(name, (RELATIVE | LEARNED)[name], tmp_path)
    change_json(tmp_path / "tokenizer_config.json", model_max_length=6)
    assert unmask.load(tmp_path).max_tokens == most


def test_a_command_names_the_longest_text_of_all_parts(tmp_path):
    name = next(iter(RELATIVE))
    model, read = written(name, RELATIVE[name], tmp_path), LongestText()
    for text in ("w1 w2", LONG, "w1"):
        read.encode(model, [text], "error", str)
    with pytest.warns(BeyondTraining, match="the longest text has 14 tokens and the model was trained on"):
        read.warn()


@pytest.mark.parametrize("name", LEARNED)
def test_learned_positions_refuse_in_one_sentence(name, tmp_path):
    model = written(name, LEARNED[name], tmp_path)
    with pytest.raises(unmask.UnmaskError, match="14 tokens and the model reads at most 8"):
        model.hidden_states([LONG])
    (states,) = model.hidden_states([LONG], truncation="end")
    assert states.shape == (TRAINED, 16)
