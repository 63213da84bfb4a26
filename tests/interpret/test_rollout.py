"""Rollout of one token equals the row of the whole product, in every kind of encoder."""

import functools

import numpy as np
import pytest

from tests.support import dense
from tests.support.heads import recorded
from tests.support.specs import SPECS
from unmask.errors import Cancelled, InvalidRequest
from unmask.interpret.effects import attribution as module
from unmask.interpret.effects.attribution import rollout


def fuse(p, norms, fusion):
    if fusion == "norm":
        return (p * norms).sum(0) / (p * norms).sum((0, 2))[:, None]
    return {"mean": p.mean, "max": p.max, "min": p.min}[fusion](axis=0)


@functools.cache
def read(name, length=23):
    """A text that was recorded, and its whole maps."""
    cache = recorded(name, length)
    return cache, dense.maps(cache.encoder, cache.encoding, cache.globals_N)


def dense_levels(maps, fusion):
    """The product from each level to the last, (L + 1, N, N), as the authors' code makes it."""
    itself = np.eye(maps[0][0].shape[-1])
    levels = [itself]
    for p, norms, _ in reversed(maps):
        step = fuse(p, norms, fusion) + itself
        levels.insert(0, levels[0] @ (step / step.sum(-1, keepdims=True)))
    return np.stack(levels)


@pytest.mark.parametrize("fusion", ["mean", "max", "min", "norm"])
@pytest.mark.parametrize("name", SPECS)
def test_a_row_is_that_of_the_whole_product(name, fusion, monkeypatch):
    monkeypatch.setattr(module, "CELLS_AT_ONCE", 200)  # several blocks of rows
    cache, maps = read(name)
    levels = dense_levels(maps, fusion)
    for token in (0, 4, 11, 22):
        found = rollout(cache, token, fusion=fusion).values
        np.testing.assert_allclose(found, levels[:, token], rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-12)
    everywhere = rollout(cache, fusion=fusion).values
    np.testing.assert_allclose(everywhere, levels.mean(1), rtol=1e-6, atol=1e-12)


def test_two_hundred_tokens():
    cache, maps = read("rotary-windows", 200)
    levels = dense_levels(maps, "mean")
    np.testing.assert_allclose(rollout(cache, 100).values, levels[:, 100], rtol=1e-6, atol=1e-12)
    assert (rollout(cache, 100).values[0, :90] == 0).all()  # two windows of radius 2 below


def test_what_is_asked_must_be_there():
    cache = recorded("post-norm", 5)
    with pytest.raises(InvalidRequest, match="tokens 0 to 4"):
        rollout(cache, 5)
    with pytest.raises(InvalidRequest, match="mean, max, min, norm"):
        rollout(cache, 0, fusion="sum")


def test_it_stops_when_told_to():
    told = []

    def watch(what, done, total):
        told.append((what, done, total))
        raise Cancelled("enough")

    with pytest.raises(Cancelled):
        rollout(recorded("post-norm", 5), 0, watch=watch)
    assert told == [("rollout", 0, 3)]
