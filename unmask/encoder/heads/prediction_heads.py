"""The heads of published checkpoints: states in, logits out."""

from typing import assert_never

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.encoder.layers.parts import ACTIVATIONS, build_norm
from unmask.kernels.dropout import Dropout
from unmask.spec import Classifier, EncoderSpec, Head, MaskedLM, ResidualTransform, Transform


class TransformLayer(nn.Module):
    """Dense layer, activation, norm."""

    def __init__(self, spec: Transform, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, spec.width, bias=spec.bias)
        self.activation = ACTIVATIONS[spec.activation]
        self.norm = build_norm(spec.norm, spec.width)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., D) in, (..., width) out."""
        y: Tensor = self.norm(self.activation(self.dense(x)))
        return y


class ResidualTransformLayer(nn.Module):
    """A feed-forward part with its residual and norm."""

    def __init__(self, spec: ResidualTransform, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, spec.width)
        self.activation = ACTIVATIONS[spec.activation]
        self.outer = nn.Linear(spec.width, width)
        self.norm = build_norm(spec.norm, width)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., D) in and out."""
        y: Tensor = self.norm(x + self.outer(self.activation(self.inner(x))))
        return y


class MaskedLMHead(nn.Module):
    """Logits over the vocabulary (Devlin et al. 2019)."""

    def __init__(self, spec: MaskedLM, encoder: EncoderSpec) -> None:
        super().__init__()
        self.spec = spec
        transform, words = spec.transform, encoder.embedding
        self.transform = TransformLayer(transform, encoder.width) if transform else None
        width = transform.width if transform else encoder.width
        self.decoder = None if spec.tied else nn.Linear(width, words.vocabulary, bias=spec.own_bias)
        self.bias = nn.Parameter(torch.zeros(words.vocabulary)) if spec.bias else None

    def forward(self, x_MD: Tensor, words_VE: Tensor) -> Tensor:
        """Shape (M, D) in, (M, V) out; ``words_VE`` is the word embedding, used where weights are tied."""
        return functional.linear(*self.factors(x_MD, words_VE))

    def factors(self, x_MD: Tensor, words_VE: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The factors of the logits: states (M, E), a vector per word (V, E), and a bias (V,) or None."""
        x_ME = x_MD if self.transform is None else self.transform(x_MD)
        if self.decoder is None:
            return x_ME, words_VE, self.bias
        own_bias = self.spec.own_bias
        return x_ME, self.decoder.weight, self.decoder.bias if own_bias else self.bias


class ClassificationHead(nn.Module):
    """Logits over classes for each state."""

    def __init__(self, spec: Classifier, width: int) -> None:
        super().__init__()
        self.spec = spec
        transform = spec.transform
        self.norm = build_norm(spec.input_norm, width)
        self.transform: TransformLayer | ResidualTransformLayer | None = None
        if isinstance(transform, ResidualTransform):
            self.transform = ResidualTransformLayer(transform, width)
        elif transform is not None:
            self.transform = TransformLayer(transform, width)
            width = transform.width
        self.dropout = Dropout(0.0)
        """Before the last layer; its rate is set by whoever trains the head."""
        self.out = nn.Linear(width, spec.classes, bias=spec.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., D) in, (..., C) out."""
        x = self.norm(functional.normalize(x, dim=-1) if self.spec.normalize else x)
        y: Tensor = self.out(self.dropout(x if self.transform is None else self.transform(x)))
        return y


def build_head(spec: Head, encoder: EncoderSpec) -> nn.Module:
    """The module that ``spec`` describes, on an encoder."""
    match spec:
        case MaskedLM():
            return MaskedLMHead(spec, encoder)
        case Classifier():
            return ClassificationHead(spec, encoder.width)
        case _:
            assert_never(spec)
