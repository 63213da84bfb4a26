"""What every family must do, run over the registry: a new family brings no test file of its own."""

import json

import pytest
import torch

from unmask.errors import InvalidRequest, UnknownArchitecture
from unmask.model.encoder import Encoder
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
    assert family_of(config["model_type"]) is family


@pytest.mark.parametrize(("family", "published"), PUBLISHED)
def test_every_tensor_has_one_place_both_ways(family, published):
    shapes = on_meta(published.spec).state_dict()
    table = moves(family.rows, shapes)
    theirs = [name for move in table for name in move.theirs]
    assert len(set(theirs)) == len(theirs)
    made = claim(family.rows, family.prefix, shapes, [family.prefix + name for name in theirs])
    assert all(fate.ours is not None for fate in made.fates)
    assert set(made.sources) == set(shapes)
    assert all(row.reason for row in family.rows if isinstance(row, Ignore))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
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


def test_a_spec_that_is_not_built_is_refused_by_name():
    from dataclasses import replace

    from unmask.model.spec import Convolution, LinearAttention

    spec = FAMILIES[0].published[0].spec
    with pytest.raises(UnknownArchitecture, match="Convolution"), torch.device("meta"):
        Encoder(replace(spec, convolution=Convolution(3)))
    linear = replace(spec.layers[0], mixer=LinearAttention(12, 64, "elu+1"))
    with pytest.raises(UnknownArchitecture, match="LinearAttention"), torch.device("meta"):
        Encoder(replace(spec, layers=(linear,)))


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
        lambda s: s.PlainFeedForward(0, "gelu"),
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
