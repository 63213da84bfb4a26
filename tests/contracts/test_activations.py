"""Every activation of `transformers` by name: ours is the same function, or it is refused by name."""

import pytest
import torch
from transformers.activations import ACT2CLS, ACT2FN

from unmask.encoder.layers.parts import ACTIVATIONS
from unmask.errors import UnknownArchitecture
from unmask.families import FAMILIES
from unmask.families.common import ACTIVATIONS as NAMES

(BERT,) = (family for family in FAMILIES if family.name == "bert")


@pytest.mark.parametrize("name", [name for name in ACT2CLS if name != "xielu"])
def test_an_activation_is_exact_or_refused_by_name(name):
    config = {"pad_token_id": 0, "hidden_act": name}
    if name not in NAMES:
        with pytest.raises(UnknownArchitecture, match=f"hidden_act is '{name}'") as refusal:
            BERT.from_config(**config)
        assert all(f"'{supported}'" in str(refusal.value) for supported in NAMES)
        return
    spec = BERT.from_config(**config)
    x = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    ours = ACTIVATIONS[spec.layers[0].feedforward.activation](x)
    torch.testing.assert_close(ours, ACT2FN[name](x), rtol=0, atol=1e-10)


def test_names_of_one_function_are_read_alike_and_the_first_is_written():
    for name in ("gelu_python", "gelu_accurate", "gelu_fast", "gelu_python_tanh"):
        spec = BERT.from_config(pad_token_id=0, hidden_act=name)
        first = {"gelu": "gelu", "gelu_tanh": "gelu_new"}[NAMES[name]]
        assert BERT.write(spec)["hidden_act"] == first
