"""Codes and pooled tiles against a dense computation."""

import math

import numpy as np
import pytest

from tests.explorer.conftest import Asking
from tests.support.explorable import FakeModel
from unmask.errors import NonFiniteResult
from unmask.explorer import Api
from unmask.explorer.wire.tiles import (
    FLOOR,
    TILE,
    coarsest_maps,
    codes,
    levels,
    pooled,
    reduced,
    tile_of,
)
from unmask.kernels import Tile


def of_matrix(p_NN, tile, cell, step=7):
    """A tile of a matrix, a few rows at a time."""
    columns = slice(tile.first_column, tile.end_column)
    starts = range(tile.first_row, tile.end_row, step)
    return pooled(((at, p_NN[at : min(at + step, tile.end_row), columns]) for at in starts), tile, cell)


def whole(p_RC, cell):
    return of_matrix(p_RC, Tile(0, p_RC.shape[0], 0, p_RC.shape[1]), cell)


def decoded(coded):
    """What codes stand for."""
    share = np.exp(math.log(FLOOR) * (255 - coded.astype(np.float32)) / 254)
    return np.where(coded > 0, share, 0).astype(np.float32)


def test_codes_are_on_one_scale():
    assert codes(np.array([0.0, 0.99e-6, 1e-6, 1.0])).tolist() == [0, 0, 1, 255]
    p = np.exp(np.random.default_rng(0).uniform(math.log(FLOOR), 0, 1000)).astype(np.float32)
    coded = codes(p)
    expected = np.clip(np.round(255 + 254 * np.log(p.astype(np.float64)) / -math.log(1e-6)), 1, 255)
    assert np.abs(coded - expected).max() <= 1, "float32 may fall on the other side of a border"
    assert (coded != expected).mean() < 0.01
    # A step is a factor of 1.056, so what is decoded is within half of that.
    assert np.abs(np.log(decoded(coded) / p)).max() <= -math.log(FLOOR) / 254 / 2 + 1e-4
    assert decoded(codes(np.zeros(3))).tolist() == [0, 0, 0]
    every = np.arange(2, 256, dtype=np.uint8)  # 1 is the floor itself, which rounding may put below it
    assert np.array_equal(codes(decoded(every)), every), "codes come back as they were"


def test_codes_of_what_is_no_number_are_refused():
    with pytest.raises(NonFiniteResult):
        codes(np.array([0.5, np.nan]))


@pytest.mark.parametrize(("tokens", "wanted"), [(1, 1), (256, 1), (257, 2), (512, 2), (513, 3), (8192, 6)])
def test_levels(tokens, wanted):
    assert levels(tokens) == wanted
    assert math.ceil(tokens / 2 ** (wanted - 1)) <= TILE


@pytest.mark.parametrize("cell", [1, 2, 4, 8])
def test_pooling_keeps_the_largest_and_the_mean(cell):
    p = np.random.default_rng(cell).random((13, 22), dtype=np.float32) ** 8
    largest, mean = whole(p, cell)
    for y in range(largest.shape[0]):
        for x in range(largest.shape[1]):
            part = p[y * cell : (y + 1) * cell, x * cell : (x + 1) * cell].astype(np.float64)
            assert largest[y, x] == part.max().astype(np.float32)
            assert mean[y, x] == pytest.approx(part.mean(), rel=1e-6)
    assert largest.shape == (math.ceil(13 / cell), math.ceil(22 / cell))


def test_a_tile_is_its_part_of_the_whole_map_pooled():
    p = np.random.default_rng(1).random((700, 700), dtype=np.float32)
    for z in range(levels(700)):
        every = whole(p, 1 << z)
        side = math.ceil(700 / (TILE << z))
        for y in range(side):
            for x in range(side):
                for found, expected in zip(of_matrix(p, tile_of(z, y, x, 700), 1 << z), every, strict=True):
                    part = expected[y * TILE : (y + 1) * TILE, x * TILE : (x + 1) * TILE]
                    np.testing.assert_allclose(found, part, rtol=1e-6)


def test_a_parent_is_the_pool_of_its_children():
    p = np.random.default_rng(2).random((600, 600), dtype=np.float32)
    fine, coarse = (of_matrix(p, tile_of(z, 0, 0, 600), 1 << z) for z in (0, 1))
    np.testing.assert_allclose(whole(fine[0], 2)[0], coarse[0][:128, :128])
    np.testing.assert_allclose(whole(fine[1], 2)[1], coarse[1][:128, :128], rtol=1e-6)


def test_a_needle_is_seen_from_far_away():
    p = np.full((8192, 8), 1e-7, dtype=np.float32)
    p[5000, 3] = 0.9
    largest, mean = whole(p, 32)
    assert codes(largest).max() == codes(np.array([0.9]))[0]
    assert codes(mean).max() < 200, "a mean hides it, which is why there are both"


def test_pooling_does_not_hide_what_is_no_number():
    p = np.full((4, 4), 0.5, dtype=np.float32)
    p[1, 2] = np.nan
    with pytest.raises(NonFiniteResult):
        whole(p, 2)


def test_kept_maps_are_the_last_zoom_level():
    for tokens in (*range(1, 3000, 7), 8191, 8192, 65_535):
        cells, cell = coarsest_maps(tokens), 1 << (levels(tokens) - 1)
        assert cells <= TILE
        assert math.ceil(tokens / cells) == cell, "as the atlas cuts its cells"


def test_maps_are_made_smaller():
    maps = np.random.default_rng(3).random((2, 128, 128), dtype=np.float32)
    small = reduced(maps, 32, largest=True)
    assert small.shape == (2, 32, 32)
    assert np.array_equal(small, maps.reshape(2, 32, 4, 32, 4).max((2, 4)))
    mean = reduced(maps, 32, largest=False)
    np.testing.assert_allclose(mean, maps.reshape(2, 32, 4, 32, 4).mean((2, 4)), rtol=1e-5)
    assert reduced(maps[:, :7, :7], 32, largest=True).shape == (2, 7, 7)
    assert reduced(maps[:, :33, :33], 32, largest=False).shape == (2, 17, 17)


def test_thumbnails_without_special_tokens_do_not_take_a_tile_for_theirs():
    """A text of one tile has the same tokens in both, at another zoom."""
    asking = Asking(Api([FakeModel(max_tokens=64)]))
    text_id = asking.measured("the river bank was muddy , another text . " * 6)
    tile, _ = asking.arrays(f"texts/{text_id}/tiles/0/1/0/0/0?pool=max&weight=raw&special=hide")
    small, meta = asking.arrays(f"texts/{text_id}/overview?pool=max&weight=raw&special=hide")
    assert meta["cell"] == 2
    side = -(-tile["codes"].shape[0] // 2)
    assert small["codes"].shape[-2:] == (side, side)
    codes = np.pad(tile["codes"], (0, 2 * side - len(tile["codes"])))
    largest = codes.reshape(side, 2, side, 2).max(axis=(1, 3))
    np.testing.assert_array_equal(small["codes"][0, 1], largest)
    asking.api.close()
