"""Encoders whose attention is causal: what a token may depend on, and their config.json both ways."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from tests.support.specs import CAUSAL, POST_NORM, random_encoder
from unmask.base.json_settings import JsonSettings
from unmask.families import family_of
from unmask.spec import CausalAttention, Convolution, LayerNorm
from unmask.text import PackedBatch
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.write.save import save

TINY = {
    "hidden_size": 12,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "vocab_size": 40,
    "max_position_embeddings": 32,
}


@pytest.mark.parametrize("length", [9, 40])
def test_a_later_token_changes_no_earlier_state(length):
    encoder = random_encoder(CAUSAL, dtype=torch.float64)
    ids = np.random.default_rng(0).integers(5, 90, length).tolist()
    for place in (1, length // 2, length - 1):
        other = [*ids[:place], 4, *ids[place + 1 :]]
        with torch.inference_mode():
            states = encoder.encode(PackedBatch.of_ids([ids, other, ids[:place]]))
        first, second, alone = states[:length], states[length : 2 * length], states[2 * length :]
        torch.testing.assert_close(first[:place], second[:place], rtol=0, atol=1e-12)
        torch.testing.assert_close(first[:place], alone, rtol=0, atol=1e-12)
        assert (first[place:] - second[place:]).abs().amax(-1).min() > 1e-4


def test_only_an_encoder_that_hides_the_future_everywhere_is_causal():
    assert CAUSAL.causal
    assert not POST_NORM.causal
    assert not replace(CAUSAL, layers=(*CAUSAL.layers, POST_NORM.layers[0])).causal
    assert not replace(CAUSAL, convolution=Convolution(3, LayerNorm(1e-7), "gelu")).causal


CAUSAL_TYPES = (
    *("bert", "ernie", "megatron-bert", "roberta", "roberta-prelayernorm", "data2vec-text"),
    *("xlm-roberta", "xlm-roberta-xl", "camembert", "electra", "roformer", "rembert"),
)


@pytest.mark.parametrize("model_type", CAUSAL_TYPES)
def test_is_decoder_is_read_and_written(model_type):
    config = {"model_type": model_type, "is_decoder": True, **TINY}
    family = family_of(config)
    spec = family.read(JsonSettings("config.json", config), "published")
    assert {layer.mixer.pattern for layer in spec.layers} == {CausalAttention()}
    written = family.write(spec)
    assert written["is_decoder"] is True
    assert family.read(JsonSettings("config.json", json.loads(json.dumps(written))), "published") == spec
    both = family.read(JsonSettings("config.json", {**config, "is_decoder": False}), "published")
    assert not both.causal
    assert "is_decoder" not in family.write(both)


def test_transformers_reads_what_is_saved_as_a_decoder(tmp_path):
    model = transformers.BertLMHeadModel(transformers.BertConfig(is_decoder=True, **TINY)).eval()
    model.save_pretrained(tmp_path / "theirs")
    checkpoint = read_checkpoint(Source(tmp_path / "theirs", "tiny"))
    save(build(checkpoint), checkpoint, tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"] == ["BertLMHeadModel"]
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert type(again) is transformers.BertLMHeadModel
    ids = torch.randint(5, 40, (1, 11))
    with torch.inference_mode():
        torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=0, atol=1e-6)
