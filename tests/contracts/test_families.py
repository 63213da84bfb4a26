"""What every family must do, run over the registry: a new family brings no test file of its own."""

import json
from functools import partial

import pytest

from unmask.errors import InvalidRequest, UnknownArchitecture
from unmask.model.families import FAMILIES, family_of
from unmask.model.spec.config import WITHOUT_EFFECT
from unmask.model.spec.rows import Ignore
from unmask.model.weights.build import on_meta
from unmask.model.weights.claims import claim, moves
from unmask.settings import Settings

PUBLISHED = [pytest.param(family, one, id=one.name) for family in FAMILIES for one in family.published]


@pytest.mark.parametrize(("family", "published"), PUBLISHED)
def test_config_is_read_back_as_it_was_written(family, published):
    config = json.loads(json.dumps(family.write(published.spec)))
    reader = Settings("config.json", config)
    assert family.read(reader, "published") == published.spec
    assert reader.unread() <= set(WITHOUT_EFFECT)
    assert family_of(config) is family


@pytest.mark.parametrize(("family", "published"), PUBLISHED)
def test_every_tensor_has_one_place_both_ways(family, published):
    shapes = on_meta(published.spec).state_dict()
    layer_name = partial(family.layer_name, published.spec)
    table = moves(family.rows, shapes, layer_name)
    theirs = [name for move in table for name in move.theirs]
    assert len(set(theirs)) == len(theirs)
    made = claim(family.rows, family.prefixes, shapes, [family.prefix + name for name in theirs], layer_name)
    assert all(fate.ours is not None for fate in made.fates)
    assert set(made.sources) == set(shapes)
    assert all(row.reason for row in family.rows if isinstance(row, Ignore))


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.published], ids=lambda family: family.name)
def test_a_setting_that_is_not_built_is_refused(family):
    reader = Settings("config.json", {**family.write(family.published[0].spec), "is_decoder": True})
    with pytest.raises(UnknownArchitecture, match="is_decoder is True; only False is built"):
        family.read(reader, "published")


def test_an_unknown_key_is_reported():
    family = FAMILIES[0]
    reader = Settings(
        "config.json", {**family.write(family.published[0].spec), "attention_twist": 3, "use_cache": True}
    )
    family.read(reader, "published")
    assert reader.unread() - set(WITHOUT_EFFECT) == {"attention_twist"}


@pytest.mark.parametrize(
    "make",
    [
        lambda s: s.Window(-1),
        lambda s: s.Window(1, dilation=0),
        lambda s: s.Rotary(0.0),
        lambda s: s.LayerNorm(0.0),
        lambda s: s.LearnedPositions(2, offset=2),
        lambda s: s.SoftmaxAttention(0, 8),
        lambda s: s.SoftmaxAttention(2, 8, dropout=1.0),
        lambda s: s.LinearAttention(2, 8, "favor+"),
        lambda s: s.LinearAttention(2, 8, "elu+1", random_features=4),
        lambda s: s.LinearAttention(2, 8, "elu+1", eps=-1e-6),
        lambda s: s.PlainFeedForward(0, "gelu"),
        lambda s: s.Convolution(2, s.LayerNorm(1e-7)),
        lambda s: s.Disentangled(0),
        lambda s: s.Disentangled(9, buckets=1),
        lambda s: s.Disentangled(9, buckets=16),
        lambda s: s.Disentangled(9, table_dropout=1.0),
        lambda s: s.EncoderSpec(width=8, embedding=s.Embedding(5, 8), layers=()),
        lambda s: s.EncoderSpec(width=8, embedding=s.Embedding(5, 4), layers=(layer(s),)),
        lambda s: s.EncoderSpec(width=8, embedding=s.Embedding(5, 8), layers=(layer(s),) * 2, sharing=(0, 2)),
        lambda s: s.EncoderSpec(width=8, embedding=s.Embedding(5, 8), layers=(layer(s),) * 2, sharing=(0,)),
        lambda s: s.EncoderSpec(
            width=8, embedding=s.Embedding(5, 8), layers=(layer(s), layer(s, heads=4)), sharing=(0, 0)
        ),
    ],
)
def test_a_spec_outside_its_range_is_refused(make):
    from unmask.model import spec

    with pytest.raises(InvalidRequest):
        make(spec)


def layer(s, heads=2):
    return s.Layer(
        mixer=s.SoftmaxAttention(heads, 4), feedforward=s.PlainFeedForward(9, "gelu"), norm=s.LayerNorm(1e-5)
    )
