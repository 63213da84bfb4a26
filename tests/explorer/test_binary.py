"""The container of arrays."""

import json

import numpy as np
import pytest

from unmask.errors import NonFiniteResult
from unmask.explorer.wire.binary import array_fields, pack, typed_answer, unpack
from unmask.interpret.effects.attribution import Rollout
from unmask.interpret.geometry import Projection


def test_arrays_come_back():
    given = {
        "codes": np.arange(7, dtype=np.uint8).reshape(1, 7),
        "ready": np.array([True, False, True]),
        "keys": np.array([[-1, 2**31 - 1]]),
        "values": np.linspace(0, 1, 5),
        "none": np.zeros((0, 3)),
    }
    data = pack(given, {"token": None, "fusion": "mean"})
    arrays, meta = unpack(data)
    assert meta == {"token": None, "fusion": "mean"}
    for name, array in given.items():
        assert arrays[name].shape == array.shape
        assert np.allclose(arrays[name], array)
    dtypes = {name: str(array.dtype) for name, array in arrays.items()}
    assert dtypes == {
        "codes": "uint8", "ready": "uint8", "keys": "int32", "values": "float32", "none": "float32",
    }  # fmt: skip


def test_layout_is_as_described():
    data = pack({"a": np.arange(3, dtype=np.uint8), "b": np.array([1.5])})
    assert data[:4] == b"UMK2"
    length = int.from_bytes(data[4:8], "little")
    assert (8 + length) % 8 == 0
    header = json.loads(data[8 : 8 + length])
    assert [array["offset"] % 8 for array in header["arrays"]] == [0, 0]
    assert np.frombuffer(data, "<f4", 1, 8 + length + header["arrays"][1]["offset"]).tolist() == [1.5]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
def test_what_is_not_finite_is_refused(bad):
    with pytest.raises(NonFiniteResult):
        pack({"values": np.array([0.5, bad])})


def test_meta_that_is_not_finite_is_refused():
    with pytest.raises(NonFiniteResult):
        pack({}, {"loss": float("nan")})


@pytest.mark.parametrize("array", [np.array([2**31]), np.array([256], dtype=np.uint16)])
def test_numbers_that_do_not_fit_are_refused(array):
    with pytest.raises(ValueError, match="do not fit"):
        pack({"numbers": array})


def test_other_bytes_are_refused():
    with pytest.raises(ValueError, match="not a UMK2"):
        unpack(b"UMK1" + bytes(20))


def test_a_typed_result_is_its_arrays_and_the_rest():
    arrays, meta = unpack(typed_answer(Rollout(np.eye(2), "mean", None)).data)
    assert (list(arrays), meta) == (["values"], {"fusion": "mean", "token": None})
    points = np.zeros((1, 2, 3), dtype=np.float32)
    assert array_fields(Projection) == {"points_LN3", "explained_L3"}
    arrays, meta = unpack(typed_answer(Projection("umap", "own", points, None, 2)).data)
    assert (list(arrays), meta) == (["points"], {"method": "umap", "basis": "own", "fitted": 2})
