"""JSON of answers: the numbers come back as they were, and none that is not finite is written."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

from unmask.serve.app import to_json


@dataclass(frozen=True)
class Inner:
    rows: np.ndarray
    name: str | None


@pytest.mark.parametrize(
    "array",
    [
        np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32),
        np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32).T,
        np.array([1e-38, 3.4e38, -0.0, 0.1], np.float32),
        np.random.default_rng(2).normal(size=7),
        np.arange(5),
        np.float32(0.1),
        np.int64(7),
    ],
)
def test_arrays_come_back_exactly(array):
    found = np.array(json.loads(to_json({"found": array}))["found"], dtype=array.dtype)
    assert found.shape == array.shape
    assert found.tobytes() == np.ascontiguousarray(array).tobytes()


def test_a_float32_number_is_short():
    assert to_json([np.array([0.1], np.float32)]) == b"[[0.1]]"


def test_typed_results_and_rows():
    value = {"one": Inner(np.ones(2, np.float32), None), "rows": [np.zeros(1), np.ones(1)]}
    assert json.loads(to_json(value)) == {"one": {"rows": [1.0, 1.0], "name": None}, "rows": [[0.0], [1.0]]}


@pytest.mark.parametrize(
    "value",
    [
        np.array([1.0, np.nan], np.float32),
        {"rows": [np.array([np.inf])]},
        {"score": float("nan")},
        [1.0, float("-inf"), None],
        np.float32("inf"),
        Inner(np.array([np.nan]), None),
    ],
)
def test_numbers_that_are_not_finite_are_refused(value):
    with pytest.raises(ValueError, match=r"not finite|not JSON compliant"):
        to_json(value)


def test_what_orjson_refuses_is_escaped():
    assert json.loads(to_json({"said": "\ud800", "large": 1 << 70})) == {"said": "\ud800", "large": 1 << 70}
