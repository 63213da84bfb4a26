"""What every family must do, run over the registry: a new family brings no test file of its own."""

import json
from functools import partial
from types import NoneType

import pytest

from unmask.base.json_settings import JsonSettings
from unmask.errors import CheckpointError, CorruptCheckpoint, InvalidRequest, UnknownArchitecture
from unmask.families import FAMILIES, family_of
from unmask.spec.config import WITHOUT_EFFECT
from unmask.spec.config_keys import Fixed, Key
from unmask.spec.tensor_map import Ignore
from unmask.weights.build import on_meta
from unmask.weights.tensor_report import match_tensors, moves

PUBLISHED = [pytest.param(family, one, id=one.name) for family in FAMILIES for one in family.published]


@pytest.mark.parametrize(("family", "published"), PUBLISHED)
def test_config_is_read_back_as_it_was_written(family, published):
    config = json.loads(json.dumps(family.write(published.spec)))
    reader = JsonSettings("config.json", config)
    assert family.read(reader, "published") == published.spec
    assert reader.unread() <= set(WITHOUT_EFFECT)
    assert family_of(config) is family


@pytest.mark.parametrize(("family", "published"), PUBLISHED)
def test_every_tensor_has_one_place_both_ways(family, published):
    shapes = on_meta(published.spec).state_dict()
    layer_name = partial(family.layer_name, published.spec)
    rows = family.tensor_map_of(published.spec)
    table = moves(rows, shapes, layer_name)
    theirs = [name for move in table for name in move.theirs]
    assert len(set(theirs)) == len(theirs)
    made = match_tensors(rows, family.prefixes, shapes, [family.prefix + name for name in theirs], layer_name)
    assert all(fate.ours is not None for fate in made.statuses)
    assert set(made.sources) == set(shapes)
    assert all(row.reason for row in family.tensor_map if isinstance(row, Ignore))


WITH_FIXED = [f for f in FAMILIES if f.published and any(isinstance(key, Fixed) for key in f.keys)]


@pytest.mark.parametrize("family", WITH_FIXED, ids=lambda family: family.name)
def test_a_setting_that_is_not_built_is_refused(family):
    key = next(key for key in family.keys if isinstance(key, Fixed))
    reader = JsonSettings("config.json", {**family.write(family.published[0].spec), key.name: "other"})
    with pytest.raises(UnknownArchitecture, match=rf"{key.name} is 'other'; only .* is built"):
        family.read(reader, "published")


def test_an_unknown_key_is_reported():
    family = FAMILIES[0]
    reader = JsonSettings(
        "config.json", {**family.write(family.published[0].spec), "attention_twist": 3, "use_cache": True}
    )
    family.read(reader, "published")
    assert reader.unread() - set(WITHOUT_EFFECT) == {"attention_twist"}


@pytest.mark.parametrize(
    "make",
    [
        lambda s: s.SlidingWindow(-1),
        lambda s: s.SlidingWindow(1, dilation=0),
        lambda s: s.Rotary(0.0),
        lambda s: s.LayerNorm(0.0),
        lambda s: s.LearnedPositions(2, offset=2),
        lambda s: s.SoftmaxAttention(0, 8),
        lambda s: s.SoftmaxAttention(2, 8, dropout=1.0),
        lambda s: s.SoftmaxAttention(6, 8, key_value_heads=4),
        lambda s: s.SoftmaxAttention(6, 8, key_value_heads=0),
        lambda s: s.SoftmaxAttention(2, 8, key_value_heads=4),
        lambda s: s.LinearAttention(2, 8, "favor+"),
        lambda s: s.LinearAttention(2, 8, "elu+1", random_features=4),
        lambda s: s.LinearAttention(2, 8, "elu+1", eps=-1e-6),
        lambda s: s.PlainFeedForward(0, "gelu"),
        lambda s: s.Convolution(2, s.LayerNorm(1e-7)),
        lambda s: s.Disentangled(0),
        lambda s: s.Disentangled(9, buckets=1),
        lambda s: s.Disentangled(9, buckets=16),
        lambda s: s.Disentangled(9, table_dropout=1.0),
        lambda s: s.EncoderSpec(width=8, embedding=s.Embedding(5, 8, segments=2), layers=()),
        lambda s: s.EncoderSpec(
            width=8, embedding=s.Embedding(5, 8), layers=(), final_norm=s.LayerNorm(1e-5)
        ),
        lambda s: s.EncoderSpec(width=8, embedding=s.Embedding(5, 8), layers=(), pooler=s.Pooler()),
        lambda s: s.EncoderSpec(width=8, embedding=s.Embedding(5, 8), layers=(), sharing=()),
        lambda s: s.EncoderSpec(width=8, embedding=s.Embedding(5, 4), layers=(layer(s),)),
        lambda s: s.EncoderSpec(width=8, embedding=s.Embedding(5, 8), layers=(layer(s),) * 2, sharing=(0, 2)),
        lambda s: s.EncoderSpec(width=8, embedding=s.Embedding(5, 8), layers=(layer(s),) * 2, sharing=(0,)),
        lambda s: s.EncoderSpec(
            width=8, embedding=s.Embedding(5, 8), layers=(layer(s), layer(s, heads=4)), sharing=(0, 0)
        ),
    ],
)
def test_a_spec_outside_its_range_is_refused(make):
    from unmask import spec

    with pytest.raises(InvalidRequest):
        make(spec)


def layer(s, heads=2):
    return s.Layer(
        mixer=s.SoftmaxAttention(heads, 4), feedforward=s.PlainFeedForward(9, "gelu"), norm=s.LayerNorm(1e-5)
    )


HUGE = (2**31, 2**63, 10**30)
NONSENSE = [
    ("modernbert", "norm_eps", float("inf")),
    ("modernbert", "norm_eps", 1e308),
    ("modernbert", "norm_eps", float("nan")),
    ("modernbert", "max_position_embeddings", 0),
    ("modernbert", "max_position_embeddings", -1),
    ("modernbert", "local_attention", 0),
    ("modernbert", "global_rope_theta", float("inf")),
    ("modernbert", "norm_eps", 10**400),
    ("bert", "max_position_embeddings", 0),
    ("bert", "initializer_range", float("inf")),
    ("bert", "num_hidden_layers", 10**9),
    ("roberta", "max_position_embeddings", 2),
    ("nomic_bert", "n_embd", 0),
    *(("bert", key, size) for key in ("hidden_size", "intermediate_size", "vocab_size") for size in HUGE),
    *(("modernbert", key, size) for key in ("hidden_size", "intermediate_size") for size in HUGE),
]


@pytest.mark.parametrize(("model_type", "key", "value"), NONSENSE)
def test_a_number_that_cannot_be_meant_is_refused_by_its_key(model_type, key, value):
    config = {"model_type": model_type, key: value}
    with pytest.raises(CorruptCheckpoint, match=rf"\b{key} is ") as caught:
        family_of(config).read(JsonSettings("config.json", config), "published")
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "a" * 100_000},
        {"is_decoder": "a" * 100_000},
        {"hidden_size": "a" * 100_000},
        {"model_type": "a" * 100_000},
    ],
)
def test_a_long_value_is_not_repeated_whole(changes):
    config = {"model_type": "bert", **changes}
    with pytest.raises(CheckpointError, match=r"100,002 characters") as caught:
        family_of(config).read(JsonSettings("config.json", config), "published")
    assert len(str(caught.value)) < 800


def test_every_model_type_is_named_once():
    with pytest.raises(UnknownArchitecture) as caught:
        family_of({"model_type": "gpt2"})
    named = str(caught.value).partition("built are: ")[2].split(", ")
    assert len(named) == len(set(named))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_key_that_is_read_is_written(family):
    """With another value than its default, one key after another."""
    others = {bool: (True, False), int: (16, 3, 24), float: (0.25, 0.5), NoneType: (6,), str: ()}
    published = family.write(family.published[0].spec) if family.distinguishing_keys else {}
    base = {
        "model_type": family.model_types[0],
        **{key: published[key] for key in family.distinguishing_keys},
    }
    for key in family.keys:
        if not isinstance(key, Key):
            continue
        for value in key.values or others[type(key.default)]:
            config = {**base, key.name: value}
            if key.name in ("hidden_size", "dim"):
                config[key.name] = 960
            try:
                spec = family.read(JsonSettings("config.json", config), "published")
            except CheckpointError:
                continue
            written = family.write(spec)
            assert key.name in written
            assert family.read(JsonSettings("config.json", {**base, **written}), "published") == spec
            if key.values is None:
                assert written[key.name] == config[key.name]
