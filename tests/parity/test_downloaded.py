"""Folders laid out as much-downloaded encoders are published: which load, and how others are refused.

The folders are tiny replicas; config.json and modules.json have the keys and paths of the published files.
"""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers

import unmask
from tests.support.tiny import VOCABULARY, WIDTH, change_json, tiny_bert, write_checkpoint, write_tokenizer
from unmask.errors import UnmaskError

sentence_transformers = pytest.importorskip("sentence_transformers")

TEXTS = ["the river bank", "another text was muddy!", "a"]
SIZES = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": WIDTH,
    "num_attention_heads": 5,
    "num_hidden_layers": 2,
    "intermediate_size": 37,
    "initializer_range": 0.4,
}
DISTIL = {"vocab_size": len(VOCABULARY), "dim": WIDTH, "n_heads": 5, "n_layers": 2, "hidden_dim": 37}


def of(name, **config):
    """A random encoder of `transformers`."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config_class = getattr(transformers, name.removesuffix("Model") + "Config")
        return getattr(transformers, name)(config_class(**config)).eval()


MODULES = "sentence_transformers.models."
TANH, IDENTITY = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"

LOADED = {
    "sentence-transformers/all-mpnet-base-v2": (
        lambda: of("MPNetModel", **SIZES, pad_token_id=1, max_position_embeddings=40),
        ["1_Pooling mean", "2_Normalize"],
    ),
    "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2": (tiny_bert, ["1_Pooling mean"]),
    "BAAI/bge-small-en-v1.5": (tiny_bert, ["1_Pooling cls", "2_Normalize"]),
    "BAAI/bge-m3": (
        lambda: of("XLMRobertaModel", **SIZES, pad_token_id=1, max_position_embeddings=50, type_vocab_size=1),
        ["1_Pooling cls", "2_Normalize"],
    ),
    "sentence-transformers/LaBSE": (
        tiny_bert,
        ["1_Pooling cls", f"2_Dense {TANH} {WIDTH}", "3_Normalize"],
    ),
    "sentence-transformers/distiluse-base-multilingual-cased-v2": (
        lambda: of("DistilBertModel", **DISTIL),
        ["1_Pooling mean", f"2_Dense {TANH} 11"],
    ),
    "NovaSearch/stella_en_1.5B_v5 (its folders)": (
        tiny_bert,
        ["1_Pooling mean", f"2_Dense_1024 {IDENTITY} 17"],
    ),
    "Snowflake/snowflake-arctic-embed-m-long": (
        lambda: of("NomicBertModel", **SIZES),
        ["1_Pooling cls", "2_Normalize"],
    ),
    "mixedbread-ai/mxbai-embed-large-v1": (tiny_bert, ["1_Pooling cls"]),
}
"""The encoder of each, and its modules: folder, pooling, or activation and width of a dense layer."""


def write_modules(folder, modules):
    """modules.json and the files of every module, as `sentence-transformers` wrote them for these models."""
    listed = [{"idx": 0, "name": "0", "path": "", "type": MODULES + "Transformer"}]
    for number, described in enumerate(modules, start=1):
        path, *words = described.split()
        kind = path.split("_")[1]
        listed.append({"idx": number, "name": str(number), "path": path, "type": MODULES + kind})
        (folder / path).mkdir()
        if kind == "Pooling":
            config = {"word_embedding_dimension": WIDTH} | {
                f"pooling_mode_{mode}": mode.startswith(words[0])
                for mode in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
                if mode != "mean_sqrt_len_tokens" or words[0] != "mean"
            }
            (folder / path / "config.json").write_text(json.dumps(config))
        elif kind == "Dense":
            own = {"in_features": WIDTH, "out_features": int(words[1]), "bias": True}
            dense = {**own, "activation_function": words[0]}
            (folder / path / "config.json").write_text(json.dumps(dense))
            tensors = {
                "linear.weight": torch.randn(own["out_features"], WIDTH),
                "linear.bias": torch.randn(own["out_features"]),
            }
            from safetensors.torch import save_file

            save_file(tensors, folder / path / "model.safetensors")
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 16, "do_lower_case": False})
    )


@pytest.mark.parametrize("name", LOADED)
def test_what_loads_embeds_as_theirs(name, tmp_path):
    make, modules = LOADED[name]
    make().save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    write_modules(tmp_path, modules)
    shutil.copytree(
        tmp_path, tmp_path / "theirs", dirs_exist_ok=True, ignore=shutil.ignore_patterns("theirs")
    )
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "theirs"), device="cpu")
    model = unmask.load(tmp_path)
    # Dense layers give numbers up to 10, so float32 rounds both sides by more than 1e-5 together.
    np.testing.assert_allclose(model.embed(TEXTS), theirs.encode(TEXTS), rtol=1e-5, atol=1e-5)
    model.save(tmp_path / "copy")
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "copy"), device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), theirs.encode(TEXTS), rtol=0, atol=1e-6)


def configured(**changes):
    def change(folder):
        write_checkpoint(folder)
        change_json(folder / "config.json", **changes)

    return change


def with_modules(*kinds, config=True):
    def change(folder):
        write_checkpoint(folder)
        listed = [
            {
                "idx": number,
                "name": str(number),
                "path": f"{number}_{kind}" if number else "",
                "type": MODULES + kind,
            }
            for number, kind in enumerate(kinds)
        ]
        (folder / "modules.json").write_text(json.dumps(listed))
        if not config:
            (folder / "config.json").unlink()

    return change


def pickled(folder):
    write_checkpoint(folder, sentence=False)
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


REFUSED = {
    "sentence-transformers/clip-ViT-B-32": (
        with_modules("CLIPModel", config=False),
        "begins with a CLIPModel module, which is not built",
    ),
    "an XLM-R with positions by ALiBi": (
        configured(model_type="xlm-roberta", position_embedding_type="alibi"),
        "position_embedding_type is 'alibi'",
    ),
    "a NomicBERT whose experts have gates": (
        configured(model_type="nomic_bert", num_experts=8, moe_every_n_layers=2),
        "num_experts is 8",
    ),
    "allenai/scibert_scivocab_uncased": (configured(model_type=None), "does not say its model_type"),
    "microsoft/codebert-base": (pickled, "only pickled weights.* unmask convert"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_built_is_refused_in_a_sentence(name, tmp_path):
    change, sentence = REFUSED[name]
    change(tmp_path / "model")
    with pytest.raises(UnmaskError, match=sentence):
        unmask.load(tmp_path / "model").embed(TEXTS)
