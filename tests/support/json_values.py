"""Values as JSON, and their comparison."""

import json
from dataclasses import asdict

import pytest


def as_json(value):
    """A dataclass as an answer shows it."""
    return json.loads(json.dumps(asdict(value)))


def same(found, expected):
    """Equal JSON values, numbers up to the last bits, which depend on what else is in a pass."""
    if isinstance(expected, dict):
        assert set(found) == set(expected)
        for key, value in expected.items():
            same(found[key], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    else:
        assert found == expected
