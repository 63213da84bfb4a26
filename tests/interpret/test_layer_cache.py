"""Many rectangles of one layer, fast: the same numbers as the exact ones, whatever the encoder."""

import numpy as np
import pytest

from tests.support import dense
from tests.support.specs import SPECS, random_encoder
from unmask.interpret import AttentionView
from unmask.kernels import Tile

LENGTH = 40
TILES = (Tile(0, LENGTH, 0, LENGTH), Tile(7, 19, 3, 30), Tile(LENGTH - 1, LENGTH, 0, 1))


@pytest.mark.parametrize("name", SPECS)
def test_a_rectangle_is_the_exact_one(name):
    view = AttentionView(random_encoder(SPECS[name]), dense.random_text(LENGTH), global_tokens="first")
    layers = range(min(2, view.layer_count))
    statistics = [None, view.statistics()]
    for measured in statistics:
        for layer in (*layers, 0):
            known = None if measured is None else measured.layers[layer]
            for tile in TILES:
                rows, columns = (
                    slice(tile.first_row, tile.end_row),
                    slice(tile.first_column, tile.end_column),
                )
                for weight in ("raw", "norm"):
                    found = view.layer_cache.rectangle((layer, 1), tile, known, weighted=weight == "norm")
                    expected = view.probabilities(layer, 1, rows, columns, weight=weight)
                    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-6)
