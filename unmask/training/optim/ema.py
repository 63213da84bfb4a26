"""An exponential moving average of a module's parameters."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unmask.errors import InvalidRequest
from unmask.training.optim.updates import local_tensors


class Ema:
    """The average of every parameter that requires a gradient, in float32 or wider.

    After t updates with the parameters p_1 to p_t it is ``sum decay^(t - i) p_i / sum decay^(t - i)``, which
    has the bias correction of Adam's moments. Before the first update it equals the parameters.

    Args:
        module: the module; its own parameters are not changed.
        decay: the fraction of the old average that remains at each update, in the long run.
        warm_up: False omits the correction: ``decay^t p_0 + (1 - decay) sum decay^(t - i) p_i``, in which the
            initial parameters weigh as much as 1 / (1 - decay) updates.

    Raises:
        InvalidRequest: the decay is not between 0 and 1, or a parameter is called ``updates``.
    """

    def __init__(self, module: nn.Module, *, decay: float = 0.999, warm_up: bool = True) -> None:
        if not 0 <= decay < 1:
            raise InvalidRequest(f"the average's decay must be at least 0 and below 1, not {decay}")
        self.decay = decay
        self.warm_up = warm_up
        self.updates = 0
        self._parameters = {
            name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad
        }
        if "updates" in self._parameters:
            raise InvalidRequest(
                "a parameter is named updates, which is the name of the average's own counter; rename it"
            )
        self._averages = {name: _wide_copy(parameter) for name, parameter in self._parameters.items()}
        self._swapped = False

    @property
    def averages(self) -> Mapping[str, Tensor]:
        """The averages by parameter name. They change with the next update."""
        return self._averages

    @torch.no_grad()
    def update(self) -> None:
        """Update the average with the current parameters.

        Raises:
            InvalidRequest: the module currently holds the average, see `swap`.
        """
        self._refuse_if_swapped("update")
        self.updates += 1
        # One step of the corrected average over `updates` parameters, weighted by powers of decay.
        warm = 1 - self.decay**self.updates if self.warm_up else 1.0
        weight = (1 - self.decay) / warm
        averages, parameters = (
            local_tensors(self._averages.values()),
            local_tensors(self._parameters.values()),
        )
        now = [parameter.to(mean.dtype) for parameter, mean in zip(parameters, averages, strict=True)]
        torch._foreach_lerp_(averages, now, weight)

    @torch.no_grad()
    def restart(self) -> None:
        """Reset the average to the current parameters.

        Raises:
            InvalidRequest: the module currently holds the average, see `swap`.
        """
        self._refuse_if_swapped("restart")
        self.updates = 0
        for name, mean in self._averages.items():
            mean.copy_(self._parameters[name])

    @contextmanager
    def swap(self) -> Iterator[None]:
        """Within the block, the module holds the average; afterwards its own parameters are restored exactly.

        Raises:
            InvalidRequest: the module already holds the average.
        """
        self._refuse_if_swapped("swap")
        averages = list(self._averages.values())
        parameters: list[Tensor] = list(self._parameters.values())
        originals = [parameter.detach().clone() for parameter in parameters]
        _assign(parameters, averages)
        self._swapped = True
        try:
            yield
        finally:
            _assign(parameters, originals)
            self._swapped = False

    def state_dict(self) -> dict[str, Any]:
        """Averages by parameter name, and the count ``updates``; the tensors are not copied."""
        return {**self._averages, "updates": self.updates}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state; its tensors are copied.

        Raises:
            InvalidRequest: it belongs to other parameters.
        """
        saved = {name: tensor for name, tensor in state_dict.items() if name != "updates"}
        other = sorted(saved.keys() ^ self._averages.keys())
        other += [n for n, mean in self._averages.items() if n in saved and saved[n].shape != mean.shape]
        if other:
            raise InvalidRequest(
                f"the parameters of the average and of the module differ, such as {other[0]}; "
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
