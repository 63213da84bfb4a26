"""A model with causal attention in the explorer: its maps, and no masked words."""

import numpy as np
import pytest

from tests.explorer.conftest import Asking
from tests.support.explorable import FakeModel
from unmask.explorer import Api


@pytest.fixture(scope="module")
def model():
    return FakeModel("causal", model_type="bert", is_decoder=True, architectures=["BertLMHeadModel"])


@pytest.fixture(scope="module")
def api(model):
    made = Api([model])
    yield Asking(made)
    made.close()


def test_it_shows_maps_and_offers_no_masked_words(api, model):
    (described,) = api.json("session")["models"]
    assert described["maps"]
    assert not described["can_fill"]
    assert set(described["layer_kinds"]) == {"causal attention"}
    text_id = api.measured()
    arrays, _ = api.arrays(f"texts/{text_id}/relevance")
    assert np.isfinite(arrays["values"]).all()
    said = api.problem(f"texts/{text_id}/relevance?target=word&token=2", 409)["sentence"]
    assert "its attention is causal" in said
