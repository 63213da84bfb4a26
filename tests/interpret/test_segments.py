"""Attention between the texts of a pair, against whole maps in float64."""

import numpy as np
import pytest

from tests.support import dense
from tests.support.specs import SPECS, random_encoder
from unmask.errors import InvalidRequest
from unmask.interpret import ActivationCache
from unmask.interpret.attention.head_distances import segment_attention
from unmask.text import Encoding

TOKENS = "s a a a s b b s"


def pair(tokens):
    kinds = tokens.split()
    ids = np.arange(3, 3 + len(kinds))
    sequence = np.array([{"s": -1, "a": 0, "b": 1}[kind] for kind in kinds])
    place = np.zeros(len(ids), dtype=np.int64)
    for text in (0, 1):
        place[sequence == text] = 1 + np.arange((sequence == text).sum())
    return Encoding.of_arrays(
        text="a" * 9,
        pair="b" * 9,
        ids=ids,
        token_type_ids=np.zeros(len(ids), dtype=np.int64),
        offsets=np.stack([np.maximum(place - 1, 0), place], axis=1),
        special=sequence < 0,
        sequence_ids=sequence,
        pieces=tuple(kinds),
    )


@pytest.mark.parametrize("name", ["post-norm", "rotary-windows", "linear"])
def test_shares_are_those_of_whole_maps(name):
    encoding = pair(TOKENS)
    cache = ActivationCache.of(random_encoder(SPECS[name]), encoding)
    shares = segment_attention(cache)
    rows = [encoding.sequence_ids == text for text in (0, 1)]
    columns = [*rows, encoding.special]
    for layer, (p, _, _) in enumerate(dense.maps(cache.encoder, encoding)):
        for one, row in enumerate(rows):
            expected = np.stack([p[:, row][:, :, column].sum(-1).mean(-1) for column in columns], axis=-1)
            np.testing.assert_allclose(shares[layer, : len(p), one], expected, atol=1e-5)
    np.testing.assert_allclose(shares[0].sum(-1), 1, atol=1e-6)


def test_a_single_text_is_refused():
    cache = ActivationCache.of(random_encoder(SPECS["post-norm"]), dense.random_text(6))
    with pytest.raises(InvalidRequest, match="single text"):
        segment_attention(cache)
    cache = ActivationCache.of(random_encoder(SPECS["post-norm"]), pair("s a a s s"))
    with pytest.raises(InvalidRequest, match="second text has no token left"):
        segment_attention(cache)
