"""A number in a config.json that no encoder can have is refused by the name of its key, in every family."""

import math

import pytest

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint, InvalidRequest, UnknownArchitecture
from unmask.families import FAMILIES
from unmask.families.config_words import in_words_of

BAD = (-5, 0, 1, 33, 1.5, -0.5, math.nan, "12", [1], {})
"""Values that are wrong for most keys; what a family accepts is no subject here."""
OWN = [family for family in FAMILIES if family.published]


def smallest(family):
    """The config.json of a family's smallest published checkpoint."""
    published = min(family.published, key=lambda one: len(one.spec.layers) * one.spec.width)
    return {"pad_token_id": 0, **family.write(published.spec)}


@pytest.mark.parametrize("family", OWN, ids=lambda family: family.name)
def test_every_refusal_of_a_number_names_its_key(family):
    config, unnamed = smallest(family), []
    numbers = [key for key, value in config.items() if type(value) in (int, float)]
    assert numbers
    for key in numbers:
        for bad in BAD:
            try:
                family.read(JsonSettings("config.json", {**config, key: bad}), "published")
            except (CorruptCheckpoint, InvalidRequest, UnknownArchitecture) as refusal:
                if key not in str(refusal):
                    unnamed.append((key, bad, str(refusal)))
    assert unnamed == []


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
    ],
)
def test_fields_give_way_to_keys(config, said, wanted):
    assert in_words_of(config, said) == wanted
