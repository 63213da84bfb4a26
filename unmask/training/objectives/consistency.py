"""Consistency of predictions: R-Drop over two dropout masks, SiFT over perturbed embeddings.

Axes: P targets: texts, or labeled tokens; C classes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.training.objectives.specs import SiftSpec

NORM_EPS = 1e-7
"""Epsilon of the norm that embeddings have before they are perturbed."""

Divergence = Callable[[Tensor, Tensor], Tensor]
"""The divergence of the second prediction from the first, summed over targets, from the logits of both."""


def class_divergence(one_PC: Tensor, other_PC: Tensor) -> Tensor:
    """``KL(one || other)`` of classes, summed over targets."""
    return _divergence(one_PC.log_softmax(-1), other_PC.log_softmax(-1))


def label_divergence(one_PC: Tensor, other_PC: Tensor) -> Tensor:
    """``KL(one || other)`` of labels that apply or not, as a mean over the labels of each target."""
    pair = [torch.stack((functional.logsigmoid(x), functional.logsigmoid(-x))) for x in (one_PC, other_PC)]
    return _divergence(*pair) / one_PC.shape[-1]


def number_divergence(one_PC: Tensor, other_PC: Tensor) -> Tensor:
    """Squared difference of numbers, as a mean over the numbers of each target."""
    return (one_PC - other_PC).square().mean(-1).sum()


def grouped_divergence(one_RC: Tensor, other_RC: Tensor, group_of_R: Tensor, groups: int) -> Tensor:
    """``KL(one || other)`` of which row of each group is right, as a mean over columns.

    Groups are texts whose rows are tokens, with columns for where an answer starts and ends; or questions
    whose rows are choices.
    """
    logs = [logits - log_sums(logits, group_of_R, groups)[0][group_of_R] for logits in (one_RC, other_RC)]
    return _divergence(*logs) / one_RC.shape[1]


def _divergence(first: Tensor, other: Tensor) -> Tensor:
    """``KL(one || other)`` of logarithms of probabilities."""
    return (first.exp() * (first - other)).sum()


def log_sums(logits_RC: Tensor, group_of_R: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """The logarithm of the sum of exponentials over the rows of each group, and the largest logit of each."""
    index = group_of_R[:, None].expand_as(logits_RC)
    shape = (groups, logits_RC.shape[1])
    largest = logits_RC.new_full(shape, -torch.inf).scatter_reduce(0, index, logits_RC.detach(), "amax")
    exponentials = (logits_RC - largest[group_of_R]).exp()
    return logits_RC.new_zeros(shape).index_add(0, group_of_R, exponentials).log() + largest, largest


def r_drop_divergence(first: Tensor, other: Tensor, divergence: Divergence) -> Tensor:
    """The mean of both directions of the divergence of two predictions (Liang et al. 2021)."""
    return (divergence(first, other) + divergence(other, first)) / 2


def has_dropout(encoder: Encoder) -> bool:
    """Whether two passes of an encoder in training differ."""
    mixers = [layer.mixer for layer in encoder.spec.layers]
    return any(isinstance(part, nn.Dropout) and part.p > 0 for part in encoder.modules()) or any(
        getattr(mixer, "dropout", 0.0) > 0 for mixer in mixers
    )


class Sift:
    """The divergence that an adversarial perturbation of embeddings causes (He et al. 2021, section 5).

    The sum of a token's embeddings is normalized without weights, perturbed, and then takes the place of the
    input of the embedding's own norm. The perturbation begins as noise and takes one step along the gradient
    of the divergence. The perturbed pass does not train the embeddings, as in DeBERTa's code.

    Args:
        encoder: with a norm in its embedding.
        spec: see `SiftSpec`.

    Raises:
        InvalidRequest: the embedding has no norm.
    """

    def __init__(self, encoder: Encoder, spec: SiftSpec) -> None:
        self.norm = encoder.embedding.norm
        self.spec = spec
        if not isinstance(self.norm, nn.LayerNorm | nn.RMSNorm):
            raise InvalidRequest(
                "sift perturbs normalized embeddings, and this encoder has no norm there, or one without "
                "statistics; leave sift out, or "
                "start from another checkpoint"
            )

    def divergence(self, clean: Tensor, predict: Callable[[], Tensor], divergence: Divergence) -> Tensor:
        """The divergence in both directions between clean and perturbed logits.

        Each direction takes the probabilities that it weights with as constants.

        Args:
            clean: logits of the batch as it is.
            predict: computes logits of the same batch.
            divergence: of two predictions.
        """
        perturbation = _Perturbation(self.spec)
        with self.norm.register_forward_pre_hook(perturbation):
            first = divergence(clean.detach(), predict())
            perturbation.ascend(first)
            perturbed = predict()
        return divergence(clean.detach(), perturbed) + divergence(perturbed.detach(), clean)


class _Perturbation:
    """A hook that normalizes and perturbs the input of a norm; the same perturbation at every call."""

    def __init__(self, spec: SiftSpec) -> None:
        self.spec = spec
        self.delta: Tensor | None = None

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        x = inputs[0].detach()
        width, size = x.shape[-1:], self.spec.initial_perturbation
        layer = isinstance(module, nn.LayerNorm)
        norm = functional.layer_norm if layer else functional.rms_norm
        normal = norm(x, width, eps=NORM_EPS)
        if self.delta is None:
            dtype = torch.promote_types(x.dtype, torch.float32)
            noise = torch.randn_like(x, dtype=dtype) * size
            self.delta = noise.clamp(-2 * size, 2 * size).requires_grad_()
        return ((normal.to(self.delta.dtype) + self.delta).to(x.dtype),)

    def ascend(self, divergence: Tensor) -> None:
        """Take one step along the gradient of a divergence; none where it is not finite."""
        assert self.delta is not None
        (gradient,) = torch.autograd.grad(divergence, self.delta)
        step = self.spec.learning_rate * gradient / (1e-6 + gradient.abs().amax(-1, keepdim=True))
        step = step if bool(torch.isfinite(gradient).all()) else torch.zeros_like(step)
        self.delta = self.delta.detach() + step
