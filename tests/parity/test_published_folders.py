"""Retrieval models laid out as they are published, each with the keys of its config.json and its modules.

The sizes are tiny and the weights random; `sentence-transformers` reads the same folder, except for the types
of config.json that only code beside the weights defines.
"""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import unmask
from tests.parity.test_downloaded import IDENTITY, SIZES, write_modules
from tests.support.tiny import VOCABULARY, WIDTH, change_json, write_tokenizer
from unmask.families import FAMILIES, published_config
from unmask.spec import Dense, SlidingWindow

st = pytest.importorskip("sentence_transformers")

TEXTS = ["the river bank", "another text was muddy!", "a", "the river, the bank, a muddy text"]

MODERN = {
    "model_type": "modernbert",
    **SIZES,
    "num_hidden_layers": 4,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "decoder_bias": True,
    "embedding_dropout": 0.0,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "hidden_activation": "gelu",
    "initializer_cutoff_factor": 2.0,
    "local_attention": 8,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 40,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "norm_bias": False,
    "norm_eps": 1e-5,
    "bos_token_id": 2,
    "cls_token_id": 2,
    "eos_token_id": 3,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "sep_token_id": 3,
    "sparse_pred_ignore_index": -100,
    "sparse_prediction": False,
}
ETTIN = MODERN | {"local_rope_theta": 160000.0, "classifier_pooling": "cls", "layer_norm_eps": 1e-5}
MMBERT = ETTIN | {"position_embedding_type": "sans_pos"}
GRANITE = MODERN | {"global_rope_theta": 150000.0, "local_rope_theta": 160000.0, "rope_scaling": None}

EUROBERT = {
    "model_type": "eurobert",
    **SIZES,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "clf_pooling": "late",
    "head_dim": 6,
    "hidden_act": "silu",
    "hidden_dropout": 0.0,
    "mask_token_id": 4,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "num_key_value_heads": 5,
    "pad_token_id": 0,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 250000,
    "tie_word_embeddings": False,
    "use_cache": False,
}

GTE = {
    "model_type": "gte",
    **SIZES,
    "attention_probs_dropout_prob": 0.0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 8192,
    "pad_token_id": 1,
    "type_vocab_size": 1,
}
GTE_KEYS = {
    "auto_map": {"AutoModel": "modeling_hf_alibaba_nlp_gte.GteModel"},
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "pack_qkv": True,
    "position_embedding_type": "rope",
    "unpad_inputs": True,
    "use_memory_efficient_attention": True,
}
XLM_R = {
    "model_type": "xlm-roberta",
    **SIZES,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 52,
    "output_past": True,
    "pad_token_id": 1,
    "position_embedding_type": "absolute",
    "type_vocab_size": 1,
}
MINILM = {
    "model_type": "bert",
    **SIZES,
    "max_position_embeddings": 50,
    "tokenizer_class": "XLMRobertaTokenizer",
}

CLS, MEAN, LAST, UNIT = "1_Pooling cls", "1_Pooling mean", "1_Pooling lasttoken", "2_Normalize"

DENSE = {
    "ibm-granite/granite-embedding-97m-multilingual-r2": (GRANITE | {"hidden_activation": "silu"}, {}, [CLS]),
    "ibm-granite/granite-embedding-311m-multilingual-r2": (GRANITE, {}, [CLS]),
    "lightonai/DenseOn": (MODERN, {}, [CLS]),
    "lightonai/mDenseOn": (MMBERT, {}, [CLS]),
    "Alibaba-NLP/gte-modernbert-base": (MODERN, {}, [CLS]),
    "jinaai/jina-embeddings-v5-text-nano-retrieval": (EUROBERT, {}, [LAST, UNIT]),
    "Snowflake/snowflake-arctic-embed-m-v2.0": (
        GTE,
        GTE_KEYS | {"rope_theta": 160000, "rope_scaling": None, "matryoshka_dimensions": [256]},
        [CLS, UNIT],
    ),
    "NovaSearch/stella_en_400M_v5": (
        GTE | {"type_vocab_size": 2, "pad_token_id": 0},
        GTE_KEYS
        | {"model_type": "new", "rope_theta": 160000, "rope_scaling": {"factor": 2.0, "type": "ntk"}},
        [MEAN, f"2_Dense {IDENTITY} 17"],
    ),
    "intfloat/multilingual-e5-small": (MINILM, {}, [MEAN, UNIT]),
    "intfloat/multilingual-e5-base": (XLM_R, {}, [MEAN, UNIT]),
    "intfloat/multilingual-e5-large": (XLM_R, {}, [MEAN, UNIT]),
}
"""config.json as both libraries read it, published keys for code beside the weights, and modules."""

PROMPTS = {
    "lightonai/DenseOn": {"query": "the ", "document": "a "},
    "jinaai/jina-embeddings-v5-text-nano-retrieval": {"query": "a ", "document": "the "},
}


def write_encoder(folder, config, kind="AutoModel"):
    """Random weights under published names, the config's own keys, and the tokenizer; returns the folder."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(3)
    model = getattr(transformers, kind).from_config(transformers.AutoConfig.from_pretrained(folder)).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    transformers.BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=512).save_pretrained(folder)
    change_json(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    (folder / "vocab.txt").unlink(missing_ok=True)
    return folder


def last_token(folder):
    """Pooling of the last token, which `write_modules` does not know."""
    path = folder / "1_Pooling/config.json"
    modes = (
        "cls_token",
        "mean_tokens",
        "max_tokens",
        "mean_sqrt_len_tokens",
        "weightedmean_tokens",
        "lasttoken",
    )
    pooling = {f"pooling_mode_{mode}": mode == "lasttoken" for mode in modes}
    path.write_text(json.dumps({"word_embedding_dimension": WIDTH, **pooling, "include_prompt": True}))


@pytest.mark.parametrize("name", DENSE)
def test_one_vector_for_each_text(name, tmp_path):
    config, remote, modules = DENSE[name]
    theirs = write_encoder(tmp_path / "theirs", config)
    write_modules(theirs, modules)
    if modules[0] == LAST:
        last_token(theirs)
    if name in PROMPTS:
        settings = {"prompts": PROMPTS[name], "default_prompt_name": None, "similarity_fn_name": "cosine"}
        (theirs / "config_sentence_transformers.json").write_text(json.dumps(settings))
    folder = shutil.copytree(theirs, tmp_path / "ours")
    (folder / "config.json").write_text(json.dumps(config | remote))
    if remote.get("model_type") == "new":
        tensors = load_file(folder / "model.safetensors")
        prefixed = {f"new.{name}": tensor for name, tensor in tensors.items()}
        save_file(prefixed, folder / "model.safetensors", metadata={"format": "pt"})
    change_json(theirs / "config.json", rope_parameters=their_rope(config, remote))
    reference, model = st.SentenceTransformer(str(theirs), device="cpu"), unmask.load(folder)
    expected = reference.encode(TEXTS)
    # A dense layer without a norm gives numbers up to 10.
    np.testing.assert_allclose(model.embed(TEXTS), expected, rtol=1e-5, atol=3e-5)
    np.testing.assert_allclose(model.embed_query(TEXTS), reference.encode_query(TEXTS), rtol=1e-5, atol=3e-5)
    assert np.abs(expected - expected[0])[1:].max() > 0.05
    if name in PROMPTS:
        assert np.abs(model.embed_query(TEXTS) - model.embed_document(TEXTS)).max() > 0.01
    model.save(tmp_path / "saved")
    again = st.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), expected, rtol=1e-5, atol=3e-5)


def their_rope(config, remote):
    """Rotary positions of GTE in the words of `transformers`, which has no name for the authors' ``ntk``."""
    if config["model_type"] != "gte":
        return None
    if remote["rope_scaling"] is None:
        return {"rope_type": "default", "rope_theta": 160000.0}
    factor, half = remote["rope_scaling"]["factor"], WIDTH // SIZES["num_attention_heads"] // 2
    return {"rope_type": "linear", "rope_theta": 160000.0 * factor, "factor": factor ** (1 / half)}


LATE = {
    "lightonai/LateOn": (MODERN, [(7, False)]),
    "lightonai/LateOn-Code": (MODERN, [(7, False)]),
    "lightonai/GTE-ModernColBERT-v1": (MODERN, [(7, False)]),
    "mixedbread-ai/mxbai-edge-colbert-v0-17m": (ETTIN, [(22, False), (6, False)]),
    "mixedbread-ai/mxbai-edge-colbert-v0-32m": (ETTIN, [(22, False), (6, False)]),
    "lightonai/mLateOn": (MMBERT, [(22, True), (WIDTH, True), (7, False)]),
}
"""config.json, and the width of each dense layer and whether it has a residual."""


def write_late(folder, config, layers):
    """A folder as PyLate writes it: two more tokens, and dense layers without a bias."""
    write_encoder(folder, config | {"vocab_size": len(VOCABULARY) + 2})
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["[Q] ", "[D] "])
    tokenizer.save_pretrained(folder)
    listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    width = WIDTH
    for number, (features, residual) in enumerate(layers, start=1):
        path = folder / f"{number}_Dense"
        path.mkdir()
        dense = {
            "in_features": width,
            "out_features": features,
            "bias": False,
            "activation_function": IDENTITY,
        }
        (path / "config.json").write_text(json.dumps(dense | ({"use_residual": True} if residual else {})))
        tensors = {"linear.weight": torch.randn(features, width)}
        if residual:
            tensors["residual.weight"] = torch.randn(features, width)
        save_file(tensors, path / "model.safetensors")
        listed.append(
            {"idx": number, "name": str(number), "path": path.name, "type": "pylate.models.Dense.Dense"}
        )
        width = features
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 22, "do_lower_case": False})
    )
    settings = {
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "MaxSim",
        "query_prefix": "[Q] ",
        "document_prefix": "[D] ",
        "query_length": 13,
        "document_length": 15,
        "attend_to_expansion_tokens": False,
        "skiplist_words": [".", ",", "!"],
        "do_query_expansion": False,
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("name", LATE)
def test_one_vector_for_each_token(name, tmp_path):
    config, layers = LATE[name]
    folder = write_late(tmp_path / "model", config, layers)
    reference, model = st.MultiVectorEncoder(str(folder), device="cpu"), unmask.load(folder)
    assert model.checkpoint.head.projections == tuple(
        Dense(width, bias=False, residual=residual) for width, residual in layers
    )
    assert any(isinstance(layer.mixer.pattern, SlidingWindow) for layer in model.spec.layers)
    for kind, encode in (("query", reference.encode_query), ("document", reference.encode_document)):
        expected = encode(TEXTS, convert_to_numpy=True)
        found = model.multi_vectors(TEXTS, kind, truncation="end")
        for mine, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine.vectors_NE, other, rtol=0, atol=1e-5)


def test_a_reranker(tmp_path):
    """Alibaba-NLP/gte-reranker-modernbert-base: one label on the mean of the tokens."""
    config = MODERN | {
        "architectures": ["ModernBertForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
    }
    folder = write_encoder(tmp_path / "model", config, "AutoModelForSequenceClassification")
    reference, model = st.CrossEncoder(str(folder), device="cpu"), unmask.load(folder)
    pairs = [("the river", text) for text in TEXTS]
    queries, texts = zip(*pairs, strict=True)
    found = model.score_pairs(list(queries), list(texts))
    np.testing.assert_allclose(found, reference.predict(pairs), rtol=0, atol=1e-5)
    assert np.ptp(found) > 0.01


def test_mdeberta(tmp_path):
    """microsoft/mdeberta-v3-base: DeBERTa v3's keys and its vocabulary without token types."""
    config = {
        "model_type": "deberta-v2",
        **SIZES,
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "max_position_embeddings": 40,
        "relative_attention": True,
        "position_buckets": 4,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": "p2c|c2p",
        "layer_norm_eps": 1e-7,
        "max_relative_positions": -1,
        "position_biased_input": False,
        "type_vocab_size": 0,
    }
    folder = write_encoder(tmp_path / "model", config)
    model = unmask.load(folder)
    reference = transformers.AutoModel.from_pretrained(folder).eval()
    for text in TEXTS:
        ids = model.tokenize(text).ids
        with torch.no_grad():
            expected = reference(torch.tensor([list(ids)])).last_hidden_state[0]
        np.testing.assert_allclose(model.hidden_states([text])[0], expected, rtol=0, atol=2e-5)


def test_each_of_them_is_listed_with_what_it_is_for():
    listed = {one.name: one for family in FAMILIES for one in family.published}
    for name in (*DENSE, *LATE, "Alibaba-NLP/gte-reranker-modernbert-base", "sentence-transformers/LaBSE"):
        if name == "lightonai/LateOn-Code":
            continue
        assert listed[name].use, name
    assert listed["answerdotai/ModernBERT-base"].use == ""


SAME_SIZES = {
    "granite-embedding-97m-multilingual-r2": 97_441_152,
    "granite-embedding-311m-multilingual-r2": 311_664_384,
    "DenseOn": 149_014_272,
    "bge-m3": 567_754_752,
    "multilingual-e5-small": 117_653_760,
    "LaBSE": 470_926_848,
}
"""Parameters as their publishers and MTEB count them."""


@pytest.mark.parametrize("name", SAME_SIZES)
def test_listed_sizes_are_the_published_ones(name):
    from unmask.families import find_architecture
    from unmask.spec.shapes import parameter_count

    assert parameter_count(find_architecture(name)[1].spec) == SAME_SIZES[name]
    assert published_config(name)["vocab_size"] == find_architecture(name)[1].spec.embedding.vocabulary
