"""ESM C's tokenizer and layers beside `transformers`, and what its config.json cannot say."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

import unmask
from unmask.base.json_settings import JsonSettings
from unmask.errors import CheckpointError, UnknownArchitecture
from unmask.families import family_of

SIZES = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 10}
TEXTS = ["MKTAYIAKQR", "MGA|GK", "M K T<mask>", "<mask>", "MK<eos>A", "Zz.-"]


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(3)
    transformers.EsmcForMaskedLM(transformers.EsmcConfig(vocab_size=33, **SIZES)).save_pretrained(tmp_path)
    transformers.EsmcTokenizer().save_pretrained(tmp_path)
    return tmp_path


def test_a_protein_with_a_gap_is_filled_as_by_transformers(folder):
    model, theirs = unmask.load(str(folder)), transformers.EsmcTokenizer()
    for text in TEXTS:
        (encoding,) = model.tokenize([text])
        assert encoding.ids.tolist() == theirs(text)["input_ids"], text
    network = transformers.EsmcForMaskedLM.from_pretrained(folder).eval()
    with torch.inference_mode():
        logits_V = network(**theirs("MKTA<mask>IAKQR", return_tensors="pt")).logits[0, 5]
    best = torch.softmax(logits_V, -1).topk(3)
    (mask,) = model.fill(["MKTA<mask>IAKQR"], top_k=3)[0]
    assert [guess.piece for guess in mask.predictions] == theirs.convert_ids_to_tokens(best.indices)
    np.testing.assert_allclose(
        [guess.probability for guess in mask.predictions], best.values.numpy(), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_key_value_heads": 1}, "num_key_value_heads is 1 and num_attention_heads is 3; .* are equal"),
        (
            {"head_dim": 6},
            "head_dim is 6 and num_attention_heads is 3; .* product is hidden_size, which is 12",
        ),
        ({"hidden_size": 14}, "width 14 does not divide into 3 heads"),
        ({"hidden_act": "tanh"}, "hidden_act is 'tanh'"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_type is 'llama3'"),
        ({"token_classification_bias": False}, "token_classification_bias is False"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ],
)
def test_what_its_code_cannot_build_is_refused_by_its_key(changes, sentence):
    config = {"model_type": "esmc", **SIZES, **changes}
    with pytest.raises(CheckpointError, match=sentence):
        family_of(config).read(JsonSettings("config.json", config), "published")


def test_a_scale_of_another_depth_cannot_be_written():
    family = family_of({"model_type": "esmc"})
    spec = family.from_config(**SIZES)
    assert spec.layers[0].output_scale == pytest.approx(18**0.5)
    with pytest.raises(UnknownArchitecture, match=r"multiplied by 4\.24264; with 1 layers it is .* by 6"):
        family.write(replace(spec, layers=spec.layers[:1]))
