"""A value in a config.json that no encoder can have is refused by the name of its key, in every family."""

import math
import re

import pytest

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, InvalidRequest, UnknownArchitecture
from unmask.families import FAMILIES
from unmask.spec.config import in_words_of
from unmask.spec.config_keys import Key, KeyGroup

BAD = (-5, 0, 1, 33, 1.5, -0.5, math.nan, 2**40, "12", "gelu", [1], {}, None, True, False)
"""Values that are wrong for most keys; what a family accepts is no subject here."""
FIELD_OF_A_SPEC = re.compile(r"\b[A-Z]\w*\.\w+ is\b|\bfeed-forward width is\b|\bembedding width is\b")
"""What a spec calls the value: no word of a config.json."""
OWN = [family for family in FAMILIES if family.published]


def smallest(family):
    """The config.json of a family's smallest published checkpoint."""
    published = min(family.published, key=lambda one: len(one.spec.layers) * one.spec.width)
    return {"pad_token_id": 0, **family.write(published.spec)}


WORDS = {
    name
    for family in OWN
    for name in (
        *smallest(family),
        *(key.name for key in family.keys if not isinstance(key, KeyGroup)),
        *(name for key in family.keys if isinstance(key, Key) for name in (key.older, key.overriding)),
    )
} - {"", "architectures", "model_type"}
"""The keys that any family reads."""


def refusal(family, config):
    """The sentence that refuses a config, "" for none; and the keys that nothing read."""
    reader = JsonSettings("config.json", config)
    try:
        family.read(reader, "published")
    except (CorruptCheckpoint, InvalidRequest, UnknownArchitecture) as error:
        return str(error), reader.unread()
    return "", reader.unread()


@pytest.mark.parametrize("family", OWN, ids=lambda family: family.name)
def test_every_refusal_of_a_value_names_its_key(family):
    config, unnamed = smallest(family), []
    read = [word for word in sorted(WORDS) if word not in refusal(family, {**config, word: None})[1]]
    assert len(read) > 5
    for key in read:
        for bad in BAD:
            sentence, _ = refusal(family, {**config, key: bad})
            if sentence and (key not in sentence or FIELD_OF_A_SPEC.search(sentence)):
                unnamed.append((key, bad, sentence))
    assert unnamed == []


@pytest.mark.parametrize("bad", [["a", "b"], [[1], [1]], [True, False], [4], [4, 4, 4], [4, 6], [-1, -1], 5])
@pytest.mark.parametrize(
    ("model_type", "key"),
    [("ultrabert", "attention_windows"), ("ultrabert", "rope_theta"), ("longformer", "attention_window")],
)
def test_a_list_with_a_value_a_layer_is_checked_by_element_and_length(model_type, key, bad):
    family = next(family for family in FAMILIES if model_type in family.model_types)
    sentence, _ = refusal(
        family, {"num_hidden_layers": 2, "layer_types": ["sliding_attention"] * 2, key: bad}
    )
    accepted = model_type == "longformer" and bad == [4, 6]
    assert accepted or key in sentence


def test_old_configs_of_ultrabert_list_windows_and_thetas():
    family = next(family for family in FAMILIES if family.name == "ultrabert")
    old = {"num_hidden_layers": 3, "attention_windows": [7, None, 7], "rope_theta": [10.0, 500.0, 10.0]}
    new = {
        "num_hidden_layers": 3,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_theta": 10.0, "rope_type": "default"},
            "full_attention": {"rope_theta": 500.0, "rope_type": "default"},
        },
    }
    read = [family.read(JsonSettings("config.json", config), "published") for config in (old, new)]
    assert read[0] == read[1]


@pytest.mark.parametrize(
    ("config", "said", "wanted"),
    [
        ({"position_buckets": 1, "layers": 1}, "Disentangled.buckets is 1; no", "position_buckets is 1; no"),
        (
            {"hidden_size": 7, "heads": 3},
            "width 7 has 3",
            "width 7 has 3 (in config.json: hidden_size 7, heads 3)",
        ),
        ({"hidden_size": 7}, "hidden_size is 7; no", "hidden_size is 7; no"),
        ({"a": 2, "b": 2}, "Spec.field is 2; no", "Spec.field is 2; no (in config.json: a 2, b 2)"),
        ({"a": True}, "there is 1", "there is 1"),
        ({"buckets_": 0, "b": 0}, "T.buckets is 0; no", "buckets_ is 0; no"),
    ],
)
def test_fields_give_way_to_keys(config, said, wanted):
    assert in_words_of(config, said) == wanted
