"""EuroBERT and mmBERT from files as they are published, with their tokenizers, beside `transformers`."""

import json

import numpy as np
import pytest
import torch
import transformers

import unmask
from tests.support.command import run_here
from tests.support.tokenizers_built import write_eurobert, write_mmbert
from unmask.errors import TensorMismatch, UnknownArchitecture
from unmask.families.native import NATIVE

TEXTS = ["the river bank", "le bord de la rivière, 1234", "日本 <|mask|> x", "a\n\n  b"]

EURO = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token": "<|begin_of_text|>",
    "clf_pooling": "mean",
    "eos_token": "<|end_of_text|>",
    "hidden_act": "silu",
    "hidden_size": 24,
    "initializer_range": 0.3,
    "intermediate_size": 32,
    "mask_token": "<|mask|>",
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "eurobert",
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token": "<|end_of_text|>",
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 250_000,
    "tie_word_embeddings": False,
    "use_cache": False,
}
"""The keys of a published config.json, smaller; ids of special tokens are added."""


def write(folder, engine, model_class, config, ids):
    """A random checkpoint of theirs, with a config.json as its authors published it."""
    config = config | {
        "vocab_size": engine.get_vocab_size(),
        **{k: engine.token_to_id(v) for k, v in ids.items()},
    }
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [model_class]}))
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(transformers.AutoConfig.from_pretrained(folder)).eval()
    model.save_pretrained(folder / "saved")
    (folder / "saved" / "model.safetensors").rename(folder / "model.safetensors")
    return model


@pytest.fixture(params=[True, False], ids=["both ends", "beginning only"])
def eurobert(request, tmp_path):
    engine = write_eurobert(tmp_path, ends=request.param)
    ids = {
        "bos_token_id": "<|begin_of_text|>",
        "eos_token_id": "<|end_of_text|>",
        "pad_token_id": "<|end_of_text|>",
        "mask_token_id": "<|mask|>",
    }
    return tmp_path, write(tmp_path, engine, "EuroBertForMaskedLM", EURO, ids)


def compare(folder, theirs, texts):
    """States and words of every text, alone and in a batch, beside theirs."""
    tokenizer, model = transformers.AutoTokenizer.from_pretrained(folder), unmask.load(folder)
    assert model.checkpoint.unread_config == ()
    states = model.hidden_states(texts)
    for text, mine in zip(texts, states, strict=True):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        assert model.tokenizer.encode(text).ids.tolist() == ids[0].tolist()
        with torch.inference_mode():
            expected = theirs.base_model(ids).last_hidden_state[0].numpy()
        np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-5)
    return model


def test_a_published_eurobert_reads_as_theirs_does(eurobert):
    folder, theirs = eurobert
    model = compare(folder, theirs, TEXTS)
    assert model.max_tokens is None or model.max_tokens >= 8192
    text = "the <|mask|> bank"
    (found,) = model.fill(text, top_k=3)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        logits = theirs(ids).logits[0, ids[0].tolist().index(tokenizer.mask_token_id)]
    assert [one.id for one in found.predictions] == logits.topk(3).indices.tolist()


def test_every_head_of_a_eurobert_has_its_own_map_of_shared_keys(eurobert):
    folder, _ = eurobert
    theirs = transformers.EuroBertModel.from_pretrained(folder, attn_implementation="eager").eval()
    model = unmask.load(folder)
    view = model.attention(TEXTS[1])
    with torch.inference_mode():
        maps = theirs(torch.tensor([view.encoding.ids.tolist()]), output_attentions=True).attentions
    for layer, expected in enumerate(maps):
        for head in range(6):
            np.testing.assert_allclose(view.probabilities(layer, head), expected[0, head], rtol=0, atol=1e-5)
    assert len(view.summaries()) == 12


def test_a_eurobert_is_described_with_its_heads(eurobert):
    folder, _ = eurobert
    found = run_here("inspect", folder)
    assert "6 heads of width 4 with 2 heads of keys and values, RoPE with theta 250,000" in " ".join(
        found.out.split()
    )


def test_a_eurobert_in_the_native_format_is_the_same(eurobert, tmp_path):
    from dataclasses import replace

    from unmask.weights.build import build
    from unmask.weights.write.save import save

    folder, _ = eurobert
    model = unmask.load(folder)
    save(build(model.checkpoint), replace(model.checkpoint, family=NATIVE, config={}), tmp_path / "native")
    again = unmask.load(tmp_path / "native")
    assert again.spec == model.spec
    for one, other in zip(again.hidden_states(TEXTS), model.hidden_states(TEXTS), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_older_name_of_the_pooling_is_read_and_the_newer_precedes_it(eurobert, tmp_path):
    from safetensors.torch import load_file, save_file

    folder, _ = eurobert
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    tensors |= {"dense.weight": torch.eye(24), "dense.bias": torch.zeros(24)}
    tensors |= {"classifier.weight": torch.ones(2, 24), "classifier.bias": torch.zeros(2)}
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    for keys, reads in (
        ({}, "late"),
        ({"clf_pooling": "bos"}, "first"),
        ({"clf_pooling": "bos", "classifier_pooling": "mean"}, "mean"),
    ):
        del config["clf_pooling"]
        (folder / "config.json").write_text(json.dumps(config | keys))
        (head,) = unmask.load(folder).spec.heads
        assert head.reads == reads
        config["clf_pooling"] = None
    (folder / "config.json").write_text(json.dumps(config | {"clf_pooling": "max"}))
    with pytest.raises(UnknownArchitecture, match="clf_pooling is 'max'; only 'late' or 'bos' or 'mean'"):
        unmask.load(folder)


def test_keys_of_another_number_of_heads_are_refused(eurobert):
    folder, _ = eurobert
    config = json.loads((folder / "config.json").read_text())
    for heads, asked in ((3, "12 x 24"), (None, "24 x 24")):
        (folder / "config.json").write_text(json.dumps(config | {"num_key_value_heads": heads}))
        with pytest.raises(TensorMismatch, match=rf"k_proj.weight has shape 8 x 24 and .* asks for {asked}"):
            unmask.load(folder)


MMBERT = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "embedding_dropout": 0.0,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160_000,
    "gradient_checkpointing": False,
    "hidden_activation": "gelu",
    "hidden_size": 24,
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.3,
    "intermediate_size": 36,
    "layer_norm_eps": 1e-05,
    "local_attention": 4,
    "local_rope_theta": 160_000,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 3,
    "num_hidden_layers": 4,
    "position_embedding_type": "sans_pos",
    "repad_logits_with_grad": False,
    "sparse_pred_ignore_index": -100,
    "sparse_prediction": False,
}
"""The keys of mmBERT's config.json (Marone et al. 2025), smaller: one theta for every layer."""


def test_a_published_mmbert_reads_as_theirs_does(tmp_path):
    ids = {"bos_token_id": "<bos>", "cls_token_id": "<bos>", "eos_token_id": "<eos>", "sep_token_id": "<eos>"}
    ids |= {"pad_token_id": "<pad>", "mask_token_id": "<mask>"}
    engine = write_mmbert(tmp_path)
    theirs = write(tmp_path, engine, "ModernBertForMaskedLM", MMBERT, ids)
    texts = ["the river bank, the river", "日本 é <mask> b", "a  b\nthe bank" * 8]
    model = compare(tmp_path, theirs, texts)
    assert {layer.mixer.position.theta for layer in model.spec.layers} == {160_000.0}
    encoding = model.tokenizer.encode("日本 é")
    assert encoding.pieces[0] == "<bos>"
    assert encoding.pieces[-1] == "<eos>"
    assert "<0xC3>" in encoding.pieces  # a letter that is not in the vocabulary, byte by byte
    (found,) = model.fill("the <mask>", top_k=1)
    assert len(found.predictions) == 1
    model.save(tmp_path / "copy")
    back = transformers.ModernBertForMaskedLM.from_pretrained(tmp_path / "copy")
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    ("role", "reads", "dense"), [("sequence", "late", True), ("tokens", "tokens", False)]
)
def test_a_new_head_of_a_eurobert_is_that_of_its_class(role, reads, dense, eurobert):
    from unmask.weights.heads.classes import with_heads
    from unmask.weights.write.new_checkpoint import new_checkpoint

    folder, _ = eurobert
    begun = unmask.load(folder).checkpoint
    config = {key: value for key, value in begun.config.items() if key != "clf_pooling"}
    checkpoint = new_checkpoint(with_heads(config, frozenset({role})), begun.tokenizer.files, name="new")
    (head,) = checkpoint.spec.heads
    assert (head.role, head.reads, head.transform is not None) == (role, reads, dense)
