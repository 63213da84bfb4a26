"""RoBERTa, ALBERT, DistilBERT and ELECTRA where `transformers` has nothing to compare with: what is refused,
and what their published code did otherwise."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.specs import random_encoder
from unmask.base.json_settings import JsonSettings
from unmask.errors import TensorMismatch, UnknownArchitecture
from unmask.families import (
    FAMILIES,
    albert,
    family_of,
    roberta,
)
from unmask.spec import MaskedLM, Transform
from unmask.weights import Source, read_checkpoint
from unmask.weights.build import build
from unmask.weights.write.save import their_tensors

LAYERS, GROUPS, INNER = "num_hidden_layers", "num_hidden_groups", "inner_group_num"
SIZES = {"hidden_size": 6, "num_attention_heads": 3, "intermediate_size": 5}


def write_roberta(folder, *, tied):
    """A small one of theirs, with its predictor of words; returns the tensors in its file."""
    import transformers

    config = transformers.RobertaConfig(
        vocab_size=13,
        hidden_size=6,
        num_attention_heads=3,
        num_hidden_layers=1,
        intermediate_size=5,
        tie_word_embeddings=tied,
    )
    transformers.RobertaForMaskedLM(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    return load_file(folder / "model.safetensors")


def test_a_matrix_of_its_own_is_refused_where_config_says_that_there_is_none(tmp_path):
    tensors = write_roberta(tmp_path, tied=True)
    tensors["lm_head.decoder.weight"] = tensors["roberta.embeddings.word_embeddings.weight"] + 1
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(TensorMismatch, match=r"lm_head.decoder.weight differs from roberta.embeddings.word"):
        build(read_checkpoint(Source(tmp_path, "tiny")))


def test_the_bias_of_an_untied_matrix_is_the_one_that_is_added(tmp_path):
    tensors = write_roberta(tmp_path, tied=False)
    masked = lambda: build(read_checkpoint(Source(tmp_path, "tiny"))).heads["masked"]  # noqa: E731
    x_MD, words_VE = torch.randn(4, 6), torch.full((13, 6), torch.nan)
    before = masked()(x_MD, words_VE)
    for name, change in (("lm_head.bias", 0), ("lm_head.decoder.bias", 7)):
        tensors[name] = tensors[name] + 7
        save_file(tensors, tmp_path / "model.safetensors")
        torch.testing.assert_close(masked()(x_MD, words_VE), before + change)
    assert torch.equal(masked().bias, tensors["lm_head.bias"])  # kept, to be saved again


@pytest.mark.parametrize("name", ["bert", "roberta", "nomicbert"])
def test_a_tied_bias_under_its_second_name_alone_is_read(name, tmp_path):
    """As in NomicBERT's own files, whose predictor has no other."""
    family = next(family for family in FAMILIES if family.name == name)
    base = family.from_config(**SIZES, num_hidden_layers=1, vocab_size=13)
    masked = MaskedLM(Transform(6, "silu" if name == "nomicbert" else "gelu", base.layers[0].norm))
    encoder = random_encoder(replace(base, pooler=None, heads=(masked,)))
    tensors = their_tensors(encoder, family)
    head = "lm_head" if name == "roberta" else "cls.predictions"
    tensors[f"{head}.decoder.bias"] = tensors.pop(f"{head}.bias")
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(family.write(encoder.spec)))
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    loaded = build(read_checkpoint(Source(tmp_path, "tiny")))
    for ours, tensor in encoder.state_dict().items():
        assert torch.equal(loaded.state_dict()[ours], tensor), ours


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "xlm_roberta", "camembert", "mpnet", "electra", "jinabert", "modernbert"]
)
def test_the_class_decides_between_a_head_over_choices_and_others(name):
    family = next(family for family in FAMILIES if family.name == name)
    spec = family.published[0].spec
    shapes = {"classifier.weight": (1, spec.width), "pooler.dense.weight": (spec.width, spec.width)}
    stem = family.write(spec)["architectures"][0].removesuffix("Model")
    for suffix, role in (("ForMultipleChoice", "choice"), ("ForTokenClassification", "tokens")):
        config = JsonSettings("config.json", {"architectures": [stem + suffix]})
        (head,) = family.detect_heads(spec, shapes, config).heads
        assert (head.role, head.classes) == (role, 1)
        assert head.reads == "tokens" or role == "choice"


@pytest.mark.parametrize("name", ["deberta", "gte", "nomicbert", "mosaicbert", "neobert"])
def test_a_head_over_choices_is_not_taken_for_another(name):
    family = next(family for family in FAMILIES if family.name == name)
    spec = family.published[0].spec
    config = JsonSettings("config.json", {"architectures": [f"{family.stem}ForMultipleChoice"]})
    with pytest.raises(UnknownArchitecture, match=f"{family.stem}ForMultipleChoice, whose head is not built"):
        family.detect_heads(spec, {"classifier.weight": (1, spec.width)}, config)


@pytest.mark.parametrize(("key", "value"), [("summary_type", "mean"), ("summary_use_proj", False)])
def test_another_summary_of_electra_is_refused(key, value):
    family = next(family for family in FAMILIES if family.name == "electra")
    spec = family.published[0].spec
    config = JsonSettings("config.json", {"architectures": ["ElectraForMultipleChoice"], key: value})
    with pytest.raises(UnknownArchitecture, match=f"{key} is"):
        family.detect_heads(spec, {"classifier.weight": (1, spec.width)}, config)


@pytest.mark.parametrize(
    ("sizes", "sharing", "names"),
    [
        ({LAYERS: 4}, (0, 0, 0, 0), ["0.albert_layers.0"]),
        (
            {LAYERS: 3, GROUPS: 2},
            (0, 0, 1),
            ["0.albert_layers.0", "1.albert_layers.0"],
        ),
        (
            {LAYERS: 2, GROUPS: 2},
            (0, 1),
            ["0.albert_layers.0", "1.albert_layers.0"],
        ),
        ({LAYERS: 1}, (0,), ["0.albert_layers.0"]),
        (
            {LAYERS: 3, GROUPS: 2, INNER: 2},
            (0, 1, 0, 1, 2, 3),
            ["0.albert_layers.0", "0.albert_layers.1", "1.albert_layers.0", "1.albert_layers.1"],
        ),
    ],
)
def test_groups_and_inner_layers(sizes, sharing, names):
    spec = albert.ALBERT.from_config(**SIZES, **sizes)
    assert spec.sharing == sharing
    assert [albert.layer_name(spec, weights) for weights in range(len(names))] == names
    config = json.loads(json.dumps(albert.ALBERT.write(spec)))
    assert config[LAYERS] == sizes[LAYERS]
    assert (config[GROUPS], config[INNER]) == (
        sizes.get(GROUPS, 1),
        sizes.get(INNER, 1),
    )
    assert albert.ALBERT.read(JsonSettings("config.json", config), "published") == spec


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({LAYERS: 2, GROUPS: 3}, "3 groups for 2 layers would leave groups unused"),
        (
            {LAYERS: 2, GROUPS: 2, INNER: 2},
            "2 inner layers in each of 2 groups that run only once",
        ),
    ],
)
def test_groups_that_say_too_little_are_refused(sizes, sentence):
    with pytest.raises(UnknownArchitecture, match=sentence):
        albert.ALBERT.from_config(**SIZES, **sizes)


@pytest.mark.parametrize("key", ["net_structure_type", "gap_size", "num_memory_blocks"])
def test_an_experiment_of_the_albert_config_is_refused(key):
    config = {**albert.ALBERT.write(albert.ALBERT.published[0].spec), key: 1}
    with pytest.raises(UnknownArchitecture, match=f"{key} is 1; only 0 is built"):
        albert.ALBERT.read(JsonSettings("config.json", config), "published")


def test_one_layout_keeps_four_names():
    names = {}
    for family in FAMILIES:
        if family.heads is roberta.HEADS and family.encoder_rows is roberta.ROWS:
            config = family.write(family.published[0].pretraining)
            names[config["model_type"]] = config["architectures"]
            assert family_of(config) is family
            assert any(isinstance(head, MaskedLM) for head in family.published[0].pretraining.heads)
    assert names == {
        "roberta": ["RobertaForMaskedLM"],
        "xlm-roberta": ["XLMRobertaForMaskedLM"],
        "camembert": ["CamembertForMaskedLM"],
        "data2vec-text": ["Data2VecTextForMaskedLM"],
    }


def test_the_table_of_positions_ends_where_the_longest_text_does():
    assert roberta.ROBERTA.published[0].spec.max_tokens == 512
    assert roberta.ROBERTA.from_config(max_position_embeddings=514, pad_token_id=4).max_tokens == 509
