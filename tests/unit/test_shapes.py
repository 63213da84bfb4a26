"""Shapes of an encoder's tensors from its spec alone: those of the module that is built."""

from dataclasses import replace
from itertools import product

import pytest

from tests.support.heads import decoded_spec, spec_with_heads
from tests.support.specs import SPECS
from unmask.errors import UnknownArchitecture
from unmask.families import FAMILIES
from unmask.spec import (
    Alibi,
    Classifier,
    Disentangled,
    LayerNorm,
    MaskedLM,
    Pooler,
    ResidualTransform,
    RMSNorm,
    Transform,
)
from unmask.spec.shapes import parameter_count, tensor_shapes
from unmask.weights.build import on_meta

UNTIED = replace(
    SPECS["alibi-shared"],
    pooler=Pooler(),
    heads=(
        MaskedLM(Transform(11, "gelu", RMSNorm(1e-6), bias=False), tied=False, own_bias=True),
        Classifier("span", 2, "tokens", ResidualTransform(13, "gelu", LayerNorm(1e-6)), bias=False),
        Classifier("sequence", 3, "pooler", input_norm=LayerNorm(1e-6, bias=False)),
    ),
)
"""Heads with everything that those of `spec_with_heads` do not have."""


def with_mixer(spec, **changes):
    first, *others = spec.layers
    return replace(spec, layers=(replace(first, mixer=replace(first.mixer, **changes)), *others))


def every_spec():
    for family in FAMILIES:
        for published in family.published:
            yield published.name, published.spec
            if published.pretraining is not None:
                yield f"{published.name} pretraining", published.pretraining
    for name, spec in SPECS.items():
        yield name, spec
        yield f"{name} with heads", spec_with_heads(name)
    yield "decoder", decoded_spec()
    yield "untied", UNTIED
    yield "no bias of words", replace(UNTIED, heads=(MaskedLM(None, tied=False, bias=False),))
    names = ("query_bias", "key_bias", "value_bias", "out_bias")
    for biases in product((True, False), repeat=4):
        for name in ("post-norm", "windows-globals"):
            yield f"{name} biases {biases}", with_mixer(SPECS[name], **dict(zip(names, biases, strict=True)))
    for keys, queries in product((True, False), repeat=2):
        position = Disentangled(5, content_to_position=keys, position_to_content=queries)
        spec = SPECS["disentangled-own"]
        layers = tuple(replace(layer, mixer=replace(layer.mixer, position=position)) for layer in spec.layers)
        yield f"terms {keys} {queries}", replace(spec, layers=layers)


@pytest.mark.parametrize(("name", "spec"), [pytest.param(*one, id=one[0]) for one in every_spec()])
def test_shapes_are_those_of_the_module(name, spec):
    built = on_meta(spec)
    wanted = [(name, tuple(tensor.shape)) for name, tensor in built.state_dict().items()]
    assert list(tensor_shapes(spec).items()) == wanted
    assert parameter_count(spec) == sum(parameter.numel() for parameter in built.parameters())


@pytest.mark.parametrize(
    ("name", "changes", "part"),
    [
        ("windows-globals", {"position": Alibi()}, "own projections of global tokens"),
        ("disentangled", {"key_bias": False}, "projections shared with content"),
        (
            "windows-globals",
            {"key_value_heads": 1},
            "own projections of global tokens .* key_value_heads 1 of",
        ),
        (
            "disentangled-own",
            {"key_value_heads": 1},
            "disentangled positions .* key_value_heads 1 of 2 heads",
        ),
    ],
)
def test_what_is_not_built_has_no_shapes_either(name, changes, part):
    spec = with_mixer(SPECS[name], **changes)
    for made in (tensor_shapes, on_meta):
        with pytest.raises(UnknownArchitecture, match=part):
            made(spec)


def test_counting_parameters_builds_no_module(tiny_model, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("a module was built")

    monkeypatch.setattr("unmask.weights.build.on_meta", refuse)
    monkeypatch.setattr("unmask.encoder.encoder.Encoder.__init__", refuse)
    assert f"{tiny_model.parameter_count:,} parameters" in repr(tiny_model)
