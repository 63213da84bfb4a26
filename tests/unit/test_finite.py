"""The one check of whether weights are finite."""

import re

import pytest
import torch

from tests.support.places import REPOSITORY
from unmask.encoder.encoder import is_finite

PLACES = ("model/weights", "model/elmo")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_number_that_is_not_finite_is_found(dtype, value):
    tensor = torch.zeros(3, 5, dtype=dtype)
    assert is_finite(tensor)
    assert is_finite(tensor - torch.finfo(dtype).max)
    for place in (0, 7, 14):
        wrong = tensor.clone()
        wrong.view(-1)[place] = value
        assert not is_finite(wrong)
        assert not is_finite(wrong.mT)


def test_other_tensors():
    assert is_finite(torch.zeros(0, 3))
    assert is_finite(torch.arange(3))
    assert is_finite(torch.tensor([True]))
    assert is_finite(torch.tensor([1j]))
    assert not is_finite(torch.tensor([1j, complex("nan")]))


@pytest.mark.parametrize("place", PLACES)
def test_files_of_weights_have_no_other_check(place):
    for path in (REPOSITORY / "unmask" / place).rglob("*.py"):
        assert not re.search(r"isfinite|isnan|isinf", path.read_text(encoding="utf-8")), path
