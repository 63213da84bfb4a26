"""The twin of an encoder in which no token attends to a later one."""

import numpy as np
import pytest
import torch

import unmask
from unmask.errors import InvalidRequest
from unmask.interpret import AttentionView
from unmask.interpret.geometry.reading import causal_twin

TEXT = "the river bank was muddy"


def states(encoder, encoding):
    cache = AttentionView(encoder, encoding).cache
    return [*cache.states[:-1], cache.final_ND]


@pytest.mark.parametrize(
    "name", ["default", "unmask-mini", "variant/alibi", "variant/disentangled", "variant/windows"]
)
def test_no_token_attends_to_a_later_one_and_the_model_stays_as_it_is(name):
    model = unmask.load(name)
    encoding = model.tokenizer.encode(TEXT)
    before = states(model.encoder, encoding)
    twin = causal_twin(model.encoder)
    view = AttentionView(twin, encoding)
    for layer in range(model.layer_count):
        p_NN = view.probabilities(layer, 0)
        assert np.triu(p_NN, 1).max() == 0
        assert p_NN.sum(-1) == pytest.approx(1, abs=1e-5)
    assert all(
        torch.equal(one, other) for one, other in zip(states(model.encoder, encoding), before, strict=True)
    )
    weights = {id(one) for one in model.encoder.parameters()}
    assert {id(one) for one in twin.parameters()} == weights, "shared, not copied"


def test_a_beginning_has_the_states_it_has_alone():
    """What follows cannot matter: the first tokens of a longer text are those of its beginning."""
    model = unmask.load("default")
    twin = causal_twin(model.encoder)
    long, short = (model.tokenizer.encode(text) for text in (TEXT, "the river bank"))
    for one, other in zip(states(twin, long), states(twin, short), strict=True):
        assert torch.allclose(one[:4], other[:4], atol=1e-5)
    assert not torch.allclose(
        states(model.encoder, long)[-1][:4], states(model.encoder, short)[-1][:4], atol=1e-2
    )


def test_linear_attention_is_refused():
    with pytest.raises(InvalidRequest, match="linear attention, global tokens or convolutions"):
        causal_twin(unmask.load("variant/linear").encoder)
