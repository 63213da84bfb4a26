"""An exponential moving average of a module's parameters."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unmask.errors import InvalidRequest
from unmask.learn.optim.dtensor import local_tensors


class Ema:
    """The average of every parameter that requires a gradient, in float32 or wider.

    After t updates with the parameters p_1 to p_t it is ``sum decay^(t - i) p_i / sum decay^(t - i)``: with
    the correction for its beginning that Adam's moments have. Before the first update it is the parameters.

    Args:
        module: whose parameters; they stay its own.
        decay: how much of the old average remains at each update, in the long run.
        warm_up: False leaves the correction out, ``decay^t p_0 + (1 - decay) sum decay^(t - i) p_i``: what
            the parameters were at the beginning counts for as much as an average of 1 / (1 - decay) updates.

    Raises:
        InvalidRequest: the decay is not between 0 and 1, or a parameter is called ``updates``.
    """

    def __init__(self, module: nn.Module, *, decay: float = 0.999, warm_up: bool = True) -> None:
        if not 0 <= decay < 1:
            raise InvalidRequest(f"the average's decay must be at least 0 and below 1, not {decay}")
        self.decay = decay
        self.warm_up = warm_up
        self.updates = 0
        self._parameters = {name: one for name, one in module.named_parameters() if one.requires_grad}
        if "updates" in self._parameters:
            raise InvalidRequest("a parameter is called updates, as the average's own count is; rename it")
        self._averages = {name: _wide_copy(one) for name, one in self._parameters.items()}
        self._swapped = False

    @property
    def averages(self) -> Mapping[str, Tensor]:
        """By name of the parameter. They change with the next update."""
        return self._averages

    @torch.no_grad()
    def update(self) -> None:
        """Update the average with the current parameters.

        Raises:
            InvalidRequest: the module currently holds the average, see `swap`.
        """
        self._refuse_if_swapped("update")
        self.updates += 1
        # One step of the corrected average: it has seen `updates` parameters, weighted by powers of decay.
        seen = 1 - self.decay**self.updates if self.warm_up else 1.0
        weight = (1 - self.decay) / seen
        averages, parameters = (
            local_tensors(self._averages.values()),
            local_tensors(self._parameters.values()),
        )
        now = [one.to(mean.dtype) for one, mean in zip(parameters, averages, strict=True)]
        torch._foreach_lerp_(averages, now, weight)

    @torch.no_grad()
    def restart(self) -> None:
        """Forget all updates: the average is the parameters of now.

        Raises:
            InvalidRequest: the module currently holds the average, see `swap`.
        """
        self._refuse_if_swapped("restart")
        self.updates = 0
        for name, mean in self._averages.items():
            mean.copy_(self._parameters[name])

    @contextmanager
    def swap(self) -> Iterator[None]:
        """Within it, the module holds the average; afterwards its own parameters again, bit by bit.

        Raises:
            InvalidRequest: it holds the average already.
        """
        self._refuse_if_swapped("swap")
        averages = list(self._averages.values())
        parameters: list[Tensor] = list(self._parameters.values())
        own = [one.detach().clone() for one in parameters]
        _assign(parameters, averages)
        self._swapped = True
        try:
            yield
        finally:
            _assign(parameters, own)
            self._swapped = False

    def state_dict(self) -> dict[str, Any]:
        """Averages by the parameters' names, and the count ``updates``; the tensors are not copied."""
        return {**self._averages, "updates": self.updates}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state; its tensors are copied.

        Raises:
            InvalidRequest: it is of other parameters.
        """
        saved = {name: tensor for name, tensor in state_dict.items() if name != "updates"}
        other = sorted(saved.keys() ^ self._averages.keys())
        other += [n for n, mean in self._averages.items() if n in saved and saved[n].shape != mean.shape]
        if other:
            raise InvalidRequest(
                f"the average is of other parameters than the module has, {other[0]} among them; "
                "load the average of the same module"
            )
        self.updates = int(state_dict["updates"])
        for name, mean in self._averages.items():
            mean.copy_(saved[name])

    def _refuse_if_swapped(self, what: str) -> None:
        if self._swapped:
            raise InvalidRequest(f"the module holds its average; leave swap() before the next {what}")


def _wide_copy(parameter: nn.Parameter) -> Tensor:
    return parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32), copy=True)


@torch.no_grad()
def _assign(parameters: list[Tensor], values: list[Tensor]) -> None:
    torch._foreach_copy_(local_tensors(parameters), local_tensors(values))
