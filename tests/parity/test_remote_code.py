"""Families whose published checkpoints run on code of their own, which is not installed here.

MosaicBERT, JinaBERT and NeoBERT are computed again in float64 from tensors in their published layout,
straight from the formulas and with nothing of `unmask`. The first configs and prefixes of ModernBERT,
NomicBERT and GTE are read as what `transformers` makes of the same numbers.
"""

import json
import math

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from scipy.special import erf, log_softmax

from tests.contracts.cases import Case
from tests.contracts.test_transformers import random_model, texts_of, their_outputs, write_vocabulary
from tests.support.plain import press_slopes
from unmask.base.json_settings import JsonSettings
from unmask.encoder.hooks import HookPoint
from unmask.errors import TensorMismatch, UnknownArchitecture
from unmask.families import family_of
from unmask.text import PackedBatch
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.write.save import save

VOCABULARY = 61
TEXTS = [[7], [9, 8, 60, 12, 5, 33, 33, 41, 17, 20, 6], [11, 12, 13]]
SEGMENTS = [[1], [0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 1], [0, 1, 0]]


class Weights(dict):
    """Random tensors by name, drawn as they are asked for, so that the formulas say which there are."""

    def __init__(self):
        super().__init__()
        self.random = np.random.default_rng(8)

    def draw(self, name, *shape):
        around = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
        scale = 0.2 if len(shape) < 2 else 1 / math.sqrt(shape[-1])
        return self.setdefault(name, around + scale * self.random.standard_normal(shape))

    def linear(self, x, name, width, bias=True):
        y = x @ self.draw(name + ".weight", width, x.shape[-1]).T
        return y + self.draw(name + ".bias", width) if bias else y


def softmax(scores):
    return np.exp(log_softmax(scores, axis=-1))


def gelu(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


# --- MosaicBERT ---------------------------------------------------------------------------------------

MOSAIC = {
    "alibi_starting_size": 4,
    "attention_probs_dropout_prob": 0.0,
    "auto_map": {"AutoConfig": "configuration_bert.BertConfig"},
    "classifier_dropout": None,
    "hidden_act": "silu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 18,
    "intermediate_size": 7,
    "layer_norm_eps": 1e-3,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": VOCABULARY,
}


def layer_norm(x, weights, name, eps):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    return x * weights.draw(name + ".weight", x.shape[-1]) + weights.draw(name + ".bias", x.shape[-1])


def mosaic(weights, ids, segments, head):
    """States after each part of the model, and the logits of ``head``."""
    width, heads, eps = MOSAIC["hidden_size"], MOSAIC["num_attention_heads"], MOSAIC["layer_norm_eps"]
    words = weights.draw("bert.embeddings.word_embeddings.weight", VOCABULARY, width)
    kinds = weights.draw("bert.embeddings.token_type_embeddings.weight", 2, width)
    x = layer_norm(words[ids] + kinds[segments], weights, "bert.embeddings.LayerNorm", eps)
    states = [x]
    distance = np.abs(np.arange(len(ids))[:, None] - np.arange(len(ids)))
    for number in range(MOSAIC["num_hidden_layers"]):
        at = f"bert.encoder.layer.{number}."
        qkv = weights.linear(x, at + "attention.self.Wqkv", 3 * width)
        query, key, value = qkv.reshape(len(ids), 3, heads, width // heads).transpose(1, 2, 0, 3)
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(width // heads)
        scores = scores - np.array(press_slopes(heads))[:, None, None] * distance
        mixed = (softmax(scores) @ value).transpose(1, 0, 2).reshape(len(ids), width)
        mixed = weights.linear(mixed, at + "attention.output.dense", width)
        x = layer_norm(x + mixed, weights, at + "attention.output.LayerNorm", eps)
        inner = MOSAIC["intermediate_size"]
        both = weights.linear(x, at + "mlp.gated_layers", 2 * inner, bias=False)
        network = weights.linear(gelu(both[:, :inner]) * both[:, inner:], at + "mlp.wo", width)
        x = layer_norm(x + network, weights, at + "mlp.layernorm", eps)
        states.append(x)
    if head == "masked":
        y = weights.linear(x, "cls.predictions.transform.dense", width)
        y = layer_norm(y / (1 + np.exp(-y)), weights, "cls.predictions.transform.LayerNorm", 1e-12)
        return states, y @ words.T + weights.draw("cls.predictions.decoder.bias", VOCABULARY)
    first = np.tanh(weights.linear(x[:1], "bert.pooler.dense", width))
    return states, weights.linear(first, "classifier", 3)[0]


# --- JinaBERT -----------------------------------------------------------------------------------------

JINA = {
    "attention_probs_dropout_prob": 0.0,
    "attn_implementation": "torch",
    "auto_map": {"AutoConfig": "jinaai/jina-bert-implementation--configuration_bert.JinaBertConfig"},
    "classifier_dropout": None,
    "emb_pooler": "mean",
    "feed_forward_type": "reglu",
    "hidden_act": "silu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 18,
    "intermediate_size": 7,
    "layer_norm_eps": 1e-3,
    "max_position_embeddings": 8192,
    "model_type": "bert",
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "position_embedding_type": "alibi",
    "type_vocab_size": 2,
    "vocab_size": VOCABULARY,
}


CODE = "jinaai/jina-bert-v2-qk-post-norm"

JINA_CODE = JINA | {
    "auto_map": {"AutoConfig": f"{CODE}--configuration_bert.JinaBertConfig"},
    "feed_forward_type": "geglu",
}


def jina_code(weights, ids, segments, head):
    return jina(weights, ids, segments, head, code=True)


def jina(weights, ids, segments, head, *, code=False):
    width, heads, eps = JINA["hidden_size"], JINA["num_attention_heads"], JINA["layer_norm_eps"]
    words = weights.draw("bert.embeddings.word_embeddings.weight", VOCABULARY, width)
    kinds = weights.draw("bert.embeddings.token_type_embeddings.weight", 2, width)
    x = layer_norm(words[ids] + kinds[segments], weights, "bert.embeddings.LayerNorm", eps)
    states = [x]
    distance = np.abs(np.arange(len(ids))[:, None] - np.arange(len(ids)))
    for number in range(JINA["num_hidden_layers"]):
        at = f"bert.encoder.layer.{number}."
        projected = [
            weights.linear(x, f"{at}attention.self.{part}", width) for part in ("query", "key", "value")
        ]
        if code:
            for part, name in enumerate("qk"):
                projected[part] = layer_norm(
                    projected[part], weights, f"{at}attention.self.layer_norm_{name}", eps
                )
        query, key, value = (
            part.reshape(len(ids), heads, width // heads).transpose(1, 0, 2) for part in projected
        )
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(width // heads)
        scores = scores - np.array(press_slopes(heads))[:, None, None] * distance
        mixed = (softmax(scores) @ value).transpose(1, 0, 2).reshape(len(ids), width)
        mixed = weights.linear(mixed, at + "attention.output.dense", width)
        inner = JINA["intermediate_size"]
        summed = layer_norm(x + mixed, weights, at + "attention.output.LayerNorm", eps)
        if code:
            x = layer_norm(x + summed, weights, at + "layer_norm_1", eps)
            both = weights.linear(x, at + "mlp.up_gated_layer", 2 * inner, bias=False)
            gate = both[:, inner:] / (1 + np.exp(-both[:, inner:]))
            network = weights.linear(both[:, :inner] * gate, at + "mlp.down_layer", width)
            x = layer_norm(x + network, weights, at + "layer_norm_2", eps)
            states.append(x)
            continue
        x = summed
        both = weights.linear(x, at + "mlp.gated_layers", 2 * inner, bias=False)
        network = weights.linear(np.maximum(both[:, :inner], 0) * both[:, inner:], at + "mlp.wo", width)
        x = layer_norm(x + network, weights, at + "mlp.layernorm", eps)
        states.append(x)
    if head == "masked":
        y = weights.linear(x, "cls.predictions.transform.dense", width)
        y = layer_norm(y / (1 + np.exp(-y)), weights, "cls.predictions.transform.LayerNorm", eps)
        return states, y @ words.T + weights.draw("cls.predictions.bias", VOCABULARY)
    first = np.tanh(weights.linear(x[:1], "bert.pooler.dense", width))
    return states, weights.linear(first, "classifier", 3)[0]


# --- NeoBERT ------------------------------------------------------------------------------------------

NEO = {
    "auto_map": {"AutoConfig": "model.NeoBERTConfig"},
    "classifier_init_range": 0.02,
    "decoder_init_range": 0.02,
    "dim_head": 4,
    "embedding_init_range": 0.02,
    "hidden_size": 8,  # with 3 heads the order of heads and parts would be its own inverse
    "intermediate_size": 26,
    "max_length": 4096,
    "model_type": "neobert",
    "norm_eps": 1e-3,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "pad_token_id": 0,
    "vocab_size": VOCABULARY,
}


def rms_norm(x, weights, name):
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + NEO["norm_eps"])
    return x * weights.draw(name + ".weight", x.shape[-1])


def turned(x_HNK):
    """Neighboring features as the real and imaginary part of one number."""
    length, width = x_HNK.shape[-2:]
    frequency = 10_000.0 ** (-np.arange(0, width, 2) / width)
    numbers = x_HNK[..., 0::2] + 1j * x_HNK[..., 1::2]
    numbers = numbers * np.exp(1j * np.outer(np.arange(length), frequency))
    return np.stack((numbers.real, numbers.imag), axis=-1).reshape(x_HNK.shape)


def neo(weights, ids, segments, head):
    width, heads = NEO["hidden_size"], NEO["num_attention_heads"]
    inner = 24  # two thirds of 26 are 17, and the next multiple of 8 is 24
    x = weights.draw("model.encoder.weight", VOCABULARY, width)[ids]
    states = [x]
    for number in range(NEO["num_hidden_layers"]):
        at = f"model.transformer_encoder.{number}."
        inside = rms_norm(x, weights, at + "attention_norm")
        qkv = weights.linear(inside, at + "qkv", 3 * width, bias=False)
        per_head = qkv.reshape(len(ids), heads, 3 * width // heads).transpose(1, 0, 2)
        query, key, value = np.split(per_head, 3, axis=-1)
        scores = turned(query) @ turned(key).transpose(0, 2, 1) / math.sqrt(width // heads)
        mixed = (softmax(scores) @ value).transpose(1, 0, 2).reshape(len(ids), width)
        x = x + weights.linear(mixed, at + "wo", width, bias=False)
        inside = rms_norm(x, weights, at + "ffn_norm")
        both = weights.linear(inside, at + "ffn.w12", 2 * inner, bias=False)
        network = both[:, :inner] / (1 + np.exp(-both[:, :inner])) * both[:, inner:]
        x = x + weights.linear(network, at + "ffn.w3", width, bias=False)
        states.append(x)
    states[-1] = x = rms_norm(x, weights, "model.layer_norm")
    if head == "masked":
        return states, weights.linear(x, "decoder", VOCABULARY)
    first = np.tanh(weights.linear(x[:1], "dense", width))
    return states, weights.linear(first, "classifier", 3)[0]


# --- both ---------------------------------------------------------------------------------------------


def write_folder(folder, config, tensors):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, folder / "model.safetensors"
    )
    write_vocabulary(folder, config["vocab_size"])
    return read_checkpoint(Source(folder, folder.name))


def states_of(encoder, ids, segments=None):
    """The batch, and hidden states of the embedding and of every layer; the last is normalized."""
    batch, states = PackedBatch.of_ids(ids, segments), []

    def listen(place, layer, tensor):
        if place in (HookPoint.EMBEDDED, HookPoint.LAYER):
            states.append(tensor)

    with torch.inference_mode():
        states[-1:] = [encoder.encode(batch, hook=listen)]
    return batch, states


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
@pytest.mark.parametrize("head", ["masked", "sequence"])
@pytest.mark.parametrize(
    ("formulas", "config"),
    [(mosaic, MOSAIC), (jina, JINA), (jina_code, JINA_CODE), (neo, NEO)],
    ids=["mosaicbert", "jinabert", "jinabert-code", "neobert"],
)
def test_published_folders_give_what_the_formulas_give(formulas, config, head, dtype, tolerance, tmp_path):
    weights = Weights()
    expected = [formulas(weights, *text, head) for text in zip(TEXTS, SEGMENTS, strict=True)]
    checkpoint = write_folder(tmp_path / "published", config, weights)
    assert checkpoint.unread_config == ()
    encoder = build(checkpoint, dtype=dtype)
    batch, states = states_of(encoder, TEXTS, SEGMENTS)
    with torch.inference_mode():
        logits = encoder.logits(head, states[-1], batch.layout)
    for sequence, (their_states, their_logits) in enumerate(expected):
        rows = batch.layout.rows(sequence)
        for ours, theirs in zip(states, their_states, strict=True):
            np.testing.assert_allclose(ours[rows].double().numpy(), theirs, rtol=0, atol=tolerance)
        ours = logits[rows if head == "masked" else sequence]
        np.testing.assert_allclose(ours.double().numpy(), their_logits, rtol=0, atol=10 * tolerance)


@pytest.mark.parametrize("head", ["masked", "sequence"])
@pytest.mark.parametrize(
    ("formulas", "config"),
    [(mosaic, MOSAIC), (jina, JINA), (jina_code, JINA_CODE), (neo, NEO)],
    ids=["mosaicbert", "jinabert", "jinabert-code", "neobert"],
)
def test_published_folders_are_written_as_they_were_read(formulas, config, head, tmp_path):
    weights = Weights()
    formulas(weights, TEXTS[1], SEGMENTS[1], head)
    checkpoint = write_folder(tmp_path / "published", config, weights)
    save(build(checkpoint, dtype="float64"), checkpoint, tmp_path / "ours")
    written = load_file(tmp_path / "ours" / "model.safetensors")
    assert written.keys() == weights.keys()
    assert all(np.array_equal(written[name], tensor) for name, tensor in weights.items())
    assert read_checkpoint(Source(tmp_path / "ours", "ours")).spec == checkpoint.spec


# --- ModernBERT in the config it was published with ---------------------------------------------------

SIZES = {"hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 7, "num_hidden_layers": 2}


def test_modernbert_in_its_first_config(tmp_path):
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    old = {
        "global_attn_every_n_layers": 2,
        "global_rope_theta": 70.0,
        "local_attention": 5,
        "local_rope_theta": 9.0,
    }
    case = Case("ModernBertForMaskedLM", SIZES | ids | old | {"num_hidden_layers": 3})
    model = random_model(case)
    keys = SIZES | ids | old | {"model_type": "modernbert", "num_hidden_layers": 3, "vocab_size": VOCABULARY}
    checkpoint = renamed_folder(model, tmp_path, keys, "")
    assert checkpoint.unread_config == ()
    close_to_transformers(checkpoint, model, case)


# --- NomicBERT and GTE --------------------------------------------------------------------------------


def renamed_folder(model, folder, keys, prefix):
    """What `transformers` saves, under the config keys and the prefix that the authors used."""
    model.save_pretrained(folder / "theirs")
    tensors = load_file(folder / "theirs" / "model.safetensors")
    return write_folder(
        folder / "published", keys, {prefix + name: tensor for name, tensor in tensors.items()}
    )


def close_to_transformers(checkpoint, model, case):
    ids, segments = texts_of(case, model)
    _, states = states_of(build(checkpoint, dtype="float64"), ids, segments)
    last = torch.cat(
        [
            torch.tensor(their_outputs(model, case, text, segments and segments[i])[0][-1])
            for i, text in enumerate(ids)
        ]
    )
    np.testing.assert_allclose(states[-1].numpy(), last, rtol=0, atol=1e-10)


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_nomicbert_in_its_first_config(prefix, tmp_path):
    case = Case("NomicBertModel", SIZES)
    model = random_model(case)
    keys = {
        "activation_function": "swiglu",
        "attn_pdrop": 0.0,
        "causal": False,
        "layer_norm_epsilon": 1e-12,
        "mlp_fc1_bias": False,
        "model_type": "nomic_bert",
        "n_embd": 12,
        "n_head": 2,
        "n_inner": 7,
        "n_layer": 2,
        "n_positions": 8192,
        "prenorm": False,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "use_flash_attn": True,
        "vocab_size": VOCABULARY,
    }
    checkpoint = renamed_folder(model, tmp_path, keys, prefix)
    assert checkpoint.unread_config == ()
    close_to_transformers(checkpoint, model, case)


GTE_NEW = SIZES | {
    "layer_norm_eps": 1e-12,
    "model_type": "new",
    "pack_qkv": True,
    "position_embedding_type": "rope",
    "rope_theta": 500.0,
    "type_vocab_size": 1,
    "unpad_inputs": False,
    "vocab_size": VOCABULARY,
}


def test_gte_in_its_first_config(tmp_path):
    rope = {"rope_type": "default", "rope_theta": 500.0}
    case = Case("GteModel", SIZES | {"rope_parameters": rope})
    model = random_model(case)
    checkpoint = renamed_folder(model, tmp_path, GTE_NEW, "new.")
    assert checkpoint.unread_config == ()
    close_to_transformers(checkpoint, model, case)


def test_gte_stretched_as_its_authors_do(tmp_path):
    """Frequencies (f theta) ** (-2 i / K) / f ** (2 / K), put into the other library's buffer by hand."""
    case = Case("GteModel", SIZES)
    model = random_model(case)
    factor, theta, width = 8.0, 500.0, 6
    frequency = (factor * theta) ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    model.rotary_emb.inv_freq = frequency / factor ** (2 / width)
    config = GTE_NEW | {"rope_scaling": {"type": "ntk", "factor": factor}}
    checkpoint = renamed_folder(model, tmp_path, config, "new.")
    close_to_transformers(checkpoint, model, case)
    save(build(checkpoint, dtype="float64"), checkpoint, tmp_path / "ours")
    back = transformers.GteModel.from_pretrained(tmp_path / "ours", dtype=torch.float64)
    torch.testing.assert_close(
        back.rotary_emb.inv_freq.double(), model.rotary_emb.inv_freq, rtol=1e-6, atol=0
    )


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "type is 'dynamic'"),
        ({"logn_attention_scale": True}, "logn_attention_scale"),
        ({"layer_norm_type": "rms_norm"}, "layer_norm_type"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1.0}}, "rope_type is 'dynamic'"),
    ],
)
def test_what_is_not_built_is_refused(changes, what):
    from unmask.families.gte import GTE

    with pytest.raises(UnknownArchitecture, match=what):
        GTE.read(JsonSettings("config.json", GTE_NEW | changes), "published")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"position_embedding_type": "absolute"}, "position_embedding_type is 'absolute'"),
        ({"feed_forward_type": "original"}, "feed_forward_type is 'original'"),
    ],
)
def test_what_is_not_built_of_jinabert_is_refused(changes, what):
    config = JINA | changes
    with pytest.raises(UnknownArchitecture, match=what):
        family_of(config).read(JsonSettings("config.json", config), "published")


def test_jinabert_for_code_without_the_name_of_its_code_is_refused(tmp_path):
    weights = Weights()
    jina(weights, TEXTS[1], SEGMENTS[1], "masked")
    weights.draw("bert.encoder.layer.0.attention.self.layer_norm_q.weight", JINA["hidden_size"])
    with pytest.raises(TensorMismatch, match="layer_norm_q"):
        build(write_folder(tmp_path / "later", JINA, weights))
