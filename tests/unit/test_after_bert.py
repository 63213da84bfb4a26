"""RoBERTa, ALBERT, DistilBERT and ELECTRA where `transformers` has nothing to compare with: what is refused,
and what their published code did otherwise."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from unmask.errors import TensorMismatch, UnknownArchitecture
from unmask.model.families import FAMILIES, albert, family_of, roberta
from unmask.model.spec import Classifier, MaskedLM
from unmask.model.weights import Source, read_checkpoint
from unmask.model.weights.build import build
from unmask.model.weights.save import save
from unmask.settings import Settings

SIZES = {"width": 6, "heads": 3, "feedforward": 5}


def untied_roberta(folder, *, equal):
    """A RoBERTa whose config says that its predictor of words has a matrix and a bias of its own."""
    import transformers

    config = transformers.RobertaConfig(
        vocab_size=13,
        hidden_size=6,
        num_attention_heads=3,
        num_hidden_layers=1,
        intermediate_size=5,
        tie_word_embeddings=False,
    )
    transformers.RobertaForMaskedLM(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    tensors = load_file(folder / "model.safetensors")
    if equal:
        tensors["lm_head.decoder.weight"] = tensors["roberta.embeddings.word_embeddings.weight"].clone()
        tensors["lm_head.decoder.bias"] = tensors["lm_head.bias"].clone()
        save_file(tensors, folder / "model.safetensors")
    return read_checkpoint(Source(folder, "tiny"))


def test_a_matrix_of_its_own_is_refused_where_their_class_has_a_bias_that_it_does_not_use(tmp_path):
    with pytest.raises(TensorMismatch, match=r"lm_head.decoder.weight differs from roberta.embeddings.word"):
        build(untied_roberta(tmp_path, equal=False))


def test_equal_matrices_are_tied_and_saved_as_tied(tmp_path):
    import transformers

    (tmp_path / "theirs").mkdir()
    checkpoint = untied_roberta(tmp_path / "theirs", equal=True)
    save(build(checkpoint), checkpoint, tmp_path / "ours")
    back = transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "ours").eval()
    theirs = transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "theirs").eval()
    ids = torch.tensor([[2, 9, 4, 11, 3]])
    with torch.inference_mode():
        torch.testing.assert_close(back(ids).logits, theirs(ids).logits, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["roberta", "xlm_roberta", "camembert", "electra"])
def test_a_head_over_choices_is_not_taken_for_one_of_tokens(name):
    family = next(family for family in FAMILIES if family.name == name)
    spec = family.published[0].spec
    shapes = {"classifier.weight": (1, spec.width)}
    stem = family.write(spec)["architectures"][0].removesuffix("Model")
    config = Settings("config.json", {"architectures": [stem + "ForMultipleChoice"]})
    with pytest.raises(UnknownArchitecture, match=f"{stem}ForMultipleChoice"):
        family.adapt(spec, shapes, config)
    tokens = Settings("config.json", {"architectures": [stem + "ForTokenClassification"]})
    assert family.adapt(spec, shapes, tokens).heads == (Classifier("tokens", 1, "tokens"),)


@pytest.mark.parametrize(
    ("sizes", "sharing", "names"),
    [
        ({"layers": 4}, (0, 0, 0, 0), ["0.albert_layers.0"]),
        ({"layers": 3, "groups": 2}, (0, 0, 1), ["0.albert_layers.0", "1.albert_layers.0"]),
        ({"layers": 2, "groups": 2}, (0, 1), ["0.albert_layers.0", "1.albert_layers.0"]),
        ({"layers": 1}, (0,), ["0.albert_layers.0"]),
        (
            {"layers": 3, "groups": 2, "inner": 2},
            (0, 1, 0, 1, 2, 3),
            ["0.albert_layers.0", "0.albert_layers.1", "1.albert_layers.0", "1.albert_layers.1"],
        ),
    ],
)
def test_groups_and_inner_layers(sizes, sharing, names):
    spec = albert.spec(**SIZES, **sizes)
    assert spec.sharing == sharing
    assert [albert.layer_name(spec, weights) for weights in range(len(names))] == names
    config = json.loads(json.dumps(albert.write(spec)))
    assert config["num_hidden_layers"] == sizes["layers"]
    assert (config["num_hidden_groups"], config["inner_group_num"]) == (
        sizes.get("groups", 1),
        sizes.get("inner", 1),
    )
    assert albert.read(Settings("config.json", config), "published") == spec


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"layers": 2, "groups": 3}, "3 groups for 2 layers would leave groups unused"),
        ({"layers": 2, "groups": 2, "inner": 2}, "2 inner layers in each of 2 groups that run only once"),
    ],
)
def test_groups_that_say_too_little_are_refused(sizes, sentence):
    with pytest.raises(UnknownArchitecture, match=sentence):
        albert.spec(**SIZES, **sizes)


@pytest.mark.parametrize("key", ["net_structure_type", "gap_size", "num_memory_blocks"])
def test_an_experiment_of_the_albert_config_is_refused(key):
    config = {**albert.write(albert.BASE), key: 1}
    with pytest.raises(UnknownArchitecture, match=f"{key} is 1; only 0 is built"):
        albert.read(Settings("config.json", config), "published")


def test_one_layout_keeps_three_names():
    names = {}
    for family in FAMILIES:
        if family.rows is roberta.ROWS:
            config = family.write(family.published[0].pretraining)
            names[config["model_type"]] = config["architectures"]
            assert family_of(config) is family
            assert any(isinstance(head, MaskedLM) for head in family.published[0].pretraining.heads)
    assert names == {
        "roberta": ["RobertaForMaskedLM"],
        "xlm-roberta": ["XLMRobertaForMaskedLM"],
        "camembert": ["CamembertForMaskedLM"],
    }


def test_the_table_of_positions_ends_where_the_longest_text_does():
    assert roberta.BASE.max_tokens == 512
    assert roberta.after_padding(roberta.BASE, 4).max_tokens == 509
