"""Sentence-embedding files of a folder are read as one kind of output, and what is written reads back."""

import json

import pytest

from unmask.spec import PooledVector, UnknownOutput
from unmask.weights.heads.embedding_head import read_head, write_head

SENTENCE, PROMPTS = "sentence_bert_config.json", "config_sentence_transformers.json"


def read(*kinds, pooling=None, **settings):
    """The output of a folder with these modules; ``settings`` are files by their name without .json."""
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": f"1_{kind}"} for kind in kinds]
    files = {"modules.json": modules} | {f"{name}.json": value for name, value in settings.items()}
    inside = {"1_Pooling/config.json": json.dumps(pooling or {"pooling_mode_mean_tokens": True}).encode()}
    return read_head({name: json.dumps(value).encode() for name, value in files.items()}, inside.get)


def test_a_folder_without_modules_says_nothing():
    found = read_head({}, {}.get)
    assert isinstance(found, UnknownOutput)
    assert not found.normalize


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    ("kinds", "settings", "reason"),
    [
        (("Transformer", "Pooling", "WordWeights"), {}, "asks for a WordWeights module"),
        (("Transformer", "Dense", "Pooling"), {}, "asks for a Dense module before pooling"),
        (("WordEmbeddings", "Pooling"), {}, "asks for a WordEmbeddings module"),
        (("Transformer",), {}, "does not name one Pooling module"),
    ],
)
def test_what_would_change_every_vector_makes_the_output_unknown(kinds, settings, reason, normalize):
    """Whether vectors are normalized is kept for a pooling that the caller names."""
    kinds += ("Normalize",) * normalize
    found = read(*kinds, **{name.removesuffix(".json"): value for name, value in settings.items()})
    assert isinstance(found, UnknownOutput)
    assert reason in found.reason
    assert found.normalize == normalize


def test_what_changes_every_text_is_read():
    prompts = {"prompts": {"query": "q: "}, "default_prompt_name": "query"}
    found = read(
        "Transformer",
        "Pooling",
        sentence_bert_config={"do_lower_case": True},
        config_sentence_transformers=prompts | {"truncate_dim": 3},
    )
    expected = PooledVector(
        dimensions=3, prompts=(("query", "q: "),), default_prompt="query", lower_case=True
    )
    assert found == expected
    files = write_head(expected, 8, None)
    assert read_head(files, files.get) == expected


def test_prompts_that_are_empty_are_none():
    prompts = {"prompts": {"query": "q: ", "document": ""}, "default_prompt_name": "document"}
    found = read("Transformer", "Pooling", config_sentence_transformers=prompts)
    assert found == PooledVector(("mean",), prompts=(("query", "q: "),))


@pytest.mark.parametrize(
    ("pooling", "modes"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ("cls", "mean")),
        ({"pooling_mode": ["mean", "cls"]}, ("mean", "cls")),
        ({"pooling_mode": "max", "pooling_mode_mean_tokens": True}, ("max",)),
    ],
)
def test_modes_of_both_forms(pooling, modes):
    assert read("Transformer", "Pooling", pooling=pooling) == PooledVector(modes)


@pytest.mark.parametrize("flag", ["pooling_mode_weighted_by_length", "pooling_mode_first_and_last"])
def test_a_mode_that_is_not_built_is_not_left_out_of_several(flag):
    found = read("Transformer", "Pooling", pooling={"pooling_mode_mean_tokens": True, flag: True})
    assert isinstance(found, UnknownOutput)
    assert flag in found.reason


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    "modes", [("mean",), ("cls", "max"), ("mean", "cls"), ("mean_sqrt_len",), ("weighted_mean", "last")]
)
def test_what_is_written_reads_back(modes, normalize):
    head = PooledVector(modes, normalize)
    files = write_head(head, 8, 40)
    assert read_head(files, files.get) == head
    assert json.loads(files[SENTENCE]) == {"max_seq_length": 40, "do_lower_case": False}
    assert SENTENCE not in write_head(head, 8, None)
