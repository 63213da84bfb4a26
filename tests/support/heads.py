"""The small encoders of `specs`, with heads that predict words and classes."""

from dataclasses import replace

import torch

from tests.support import dense
from tests.support.specs import SPECS, global_tokens, random_encoder
from unmask.encoder.encoder import Encoder
from unmask.interpret.activation_cache import ActivationCache
from unmask.spec import Classifier, LayerNorm, LearnedPositions, MaskedLM, Transform


def spec_with_heads(name):
    """One of `SPECS` with a masked head, a classifier of tokens and one of texts."""
    spec = SPECS[name]
    heads = (
        MaskedLM(Transform(spec.embedding.width, "gelu", LayerNorm(1e-6))),
        Classifier("tokens", 4, "tokens"),
        Classifier("sequence", 3, "mean", Transform(11, "tanh")),
    )
    return replace(spec, heads=heads)


def recorded(name, length=23, *, dtype=torch.float64, spec=None):
    """A recording of a random text, with its global tokens where the encoder has a use for such."""
    encoder = random_encoder(spec or spec_with_heads(name), dtype=dtype)
    return ActivationCache.of(
        encoder, dense.random_text(length), global_tokens=lambda _: global_tokens(length)
    )


def decoded_spec(vocabulary=97):
    """An encoder whose words are predicted through an enhanced mask decoder."""
    spec = SPECS["disentangled-own"]
    positions = LearnedPositions(64, added=False)
    embedding = replace(spec.embedding, positions=positions, vocabulary=vocabulary)
    return replace(spec, heads=(MaskedLM(None, enhanced=True),), embedding=embedding)


def with_own_layers(encoder):
    """A copy of an encoder in which no two layers share weights, so that one can be edited alone."""
    copied = Encoder(replace(encoder.spec, sharing=None)).to(encoder.embedding.words.weight.dtype).eval()
    own = {name: tensor for name, tensor in encoder.state_dict().items() if not name.startswith("layers.")}
    for layer in range(len(encoder.spec.layers)):
        for name, tensor in encoder.block(layer).state_dict().items():
            own[f"layers.{layer}.{name}"] = tensor.clone()
    copied.load_state_dict(own)
    return copied
