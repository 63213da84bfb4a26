"""Feed-forward networks whose activation is fused into the first product."""

from torch import Tensor, nn

from unmask.engines.inference.linear import PackedLinear
from unmask.spec.parts import Activation


class FusedNetwork(nn.Module):
    """`PlainNetwork` as ``outer(inner(x))``, with the activation fused into ``inner``."""

    def __init__(self, inner: nn.Module, outer: nn.Module) -> None:
        super().__init__()
        self.inner, self.outer = inner, outer

    def forward(self, x_TD: Tensor) -> Tensor:
        """Shape (T, D) in and out."""
        y_TD: Tensor = self.outer(self.inner(x_TD))
        return y_TD


class FusedGatedNetwork(nn.Module):
    """`GatedNetwork` with the two halves of its first matrix separated, so that no result is sliced."""

    def __init__(self, inner: nn.Linear, activation: Activation, outer: nn.Module) -> None:
        super().__init__()
        weights = inner.weight.chunk(2)
        biases = (None, None) if inner.bias is None else inner.bias.chunk(2)
        self.activated = PackedLinear(weights[0], biases[0], activation)
        self.linear = PackedLinear(weights[1], biases[1])
        self.outer = outer

    def forward(self, x_TD: Tensor) -> Tensor:
        """Shape (T, D) in and out."""
        y_TD: Tensor = self.outer(self.activated(x_TD).mul_(self.linear(x_TD)))
        return y_TD
