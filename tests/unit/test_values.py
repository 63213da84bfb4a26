"""Results of uneven shape are checked when they are made, and outputs know their width."""

import numpy as np
import pytest

from tests.support.specs import SPECS
from unmask.errors import InvalidRequest
from unmask.spec import (
    Dense,
    MultiVector,
    PairScore,
    PooledVector,
    SparseVector,
    UnknownOutput,
)
from unmask.tasks.values import Logits

SPEC = SPECS["post-norm"]


def offsets(*values):
    return np.array(values, dtype=np.int64)


def test_logits():
    per_text, per_token = Logits("sequence", np.eye(3), None), Logits("tokens", np.eye(3), offsets(0, 1, 3))
    assert (len(per_text), len(per_token)) == (3, 2)
    assert [one.shape for one in per_text] == [(3,)] * 3
    assert [one.shape for one in per_token] == [(1, 3), (2, 3)]
    np.testing.assert_array_equal(per_token[-1], np.eye(3)[1:])
    assert len(Logits("tokens", np.zeros((0, 2)), offsets(0))) == 0
    for wrong in (offsets(), offsets(1, 3), offsets(0, 2), offsets(0, 3, 2, 3), np.zeros((1, 4), np.int64)):
        with pytest.raises(InvalidRequest, match="offsets must rise from 0 to 3"):
            Logits("tokens", np.eye(3), wrong)
    with pytest.raises(InvalidRequest, match=r"shape \(9,\); they must have two axes"):
        Logits("tokens", np.eye(3).reshape(-1), offsets(0, 9))


def test_widths_of_outputs():
    assert PooledVector(("mean", "max")).width(SPEC) == 2 * SPEC.width
    assert PooledVector(projections=(Dense(7), Dense(9))).width(SPEC) == 9
    assert PooledVector(dimensions=3).width(SPEC) == 3
    assert PooledVector(dimensions=10**6).width(SPEC) == SPEC.width
    assert (MultiVector().width(SPEC), MultiVector((Dense(8),)).width(SPEC)) == (SPEC.width, 8)
    assert SparseVector().width(SPEC) == SPEC.embedding.vocabulary
    assert PairScore(3).width(SPEC) == 3
    with pytest.raises(InvalidRequest, match="because; name a pooling, for instance mean"):
        UnknownOutput("because").width(SPEC)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: PooledVector(()), "pooling is .*; give a tuple"),
        (lambda: PooledVector("mean"), "pooling is 'mean'; give a tuple"),
        (lambda: PooledVector(("first",)), "pooling is 'first'; it can be"),
        (lambda: PooledVector(dimensions=0), "dimensions is 0; it must be at least 1"),
        (lambda: Dense(0), "Dense.width is 0"),
        (lambda: PairScore(0), "PairScore.labels is 0"),
    ],
)
def test_an_output_that_cannot_be(make, sentence):
    with pytest.raises(InvalidRequest, match=sentence):
        make()


def test_first_dimensions_are_kept_before_vectors_are_normalized():
    import torch

    from unmask.encoder import heads
    from unmask.text import SequenceLayout

    x_TD = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    layout = SequenceLayout.of_lengths([2, 3])
    whole, short = (heads.embed(x_TD, layout, PooledVector(dimensions=some)) for some in (None, 3))
    assert torch.equal(short, whole[:, :3])
    unit = heads.embed(x_TD, layout, PooledVector(normalize=True, dimensions=3))
    torch.testing.assert_close(unit.norm(dim=1), torch.ones(2))
    with pytest.raises(InvalidRequest, match="has 1 layers after pooling and the encoder has 0"):
        heads.embed(x_TD, layout, PooledVector(projections=(Dense(3),)))
