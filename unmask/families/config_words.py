"""Errors about a spec in the words of the config.json that it was read from."""

import re
from collections.abc import Mapping
from typing import Any

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
FIELD = re.compile(r"^(?:[A-Z]\w*\.)?(\w+) is ")
"""How an error about one field of a spec begins, such as ``Disentangled.buckets is 1``."""
MOST_KEYS = 4
LARGEST = 1 << 53
"""A larger number is named by the reader of its key."""


def in_words_of(config: Mapping[str, Any], sentence: str) -> str:
    """The sentence with the keys of the config whose values it is about.

    A field at its beginning gives way to the key of that value that is most like it. Keys of further numbers
    in the sentence are listed behind it, unless it names a key with that number.
    """
    said = {float(number) for number in NUMBER.findall(sentence)} - {0.0}
    keys = [key for key, value in config.items() if _number(value) in said]
    field = FIELD.match(sentence)
    if field is not None and field[1] not in config:
        value = NUMBER.match(sentence[field.end() :])
        own = [key for key in config if value is not None and _number(config[key]) == float(value[0])]
        like = [key for key in own if field[1] in key] or own
        if len(like) == 1:
            sentence = f"{like[0]} is {sentence[field.end() :]}"
    named = {_number(config[key]) for key in config if re.search(rf"\b{re.escape(key)}\b", sentence)}
    others = [f"{key} {config[key]}" for key in keys if _number(config[key]) not in named]
    return f"{sentence} (in config.json: {', '.join(others[:MOST_KEYS])})" if others else sentence


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST:
        return None
    return float(value)
