"""Figures of the user's own: a function of predictions and labels, checked before a run trains."""

import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unmask.errors import InvalidRequest, quoted
from unmask.training.finetune.tasks import Task

Metrics = Callable[[Sequence[Any], Sequence[Any]], Mapping[str, float] | float]
"""Figures by name, or one number, which has the function's name, of predictions and of gold labels. Both are
lists with an entry for each text: the name of its label; a tuple of names of several labels; a number; the
labels of its words; the text of an answer, and the tuple of accepted ones; or the number of a choice."""


class OwnMetrics:
    """A function of the user that gives figures beside those of the task.

    Args:
        function: see `Metrics`.

    Raises:
        InvalidRequest: it is no function of two arguments.
    """

    def __init__(self, function: Metrics) -> None:
        takes = callable(function)
        if takes:
            try:
                inspect.signature(function).bind([], [])
            except TypeError:
                takes = False
            except ValueError:  # a function in C without a signature
                pass
        if not takes:
            raise InvalidRequest(
                f"metrics is {quoted(function)}; give a function of predictions and labels that returns "
                "figures by name, such as lambda predictions, labels: {'kappa': ...}"
            )
        self.function = function

    def names(self, task: Task, labels: Sequence[Any], taken: Sequence[str]) -> tuple[str, ...]:
        """The figures that the function gives where every prediction is right.

        Args:
            task: what is predicted.
            labels: gold labels.
            taken: the figures that the task has.

        Raises:
            InvalidRequest: a figure has a name of the task's, or is no number.
        """
        right = [one[0] if one else "" for one in labels] if task == "answering" else list(labels)
        found = tuple(self.figures(right, labels))
        if shared := [name for name in found if name in taken]:
            raise InvalidRequest(
                f"metrics gives {shared[0]!r}, which the task has already; give it another name"
            )
        return found

    def figures(self, predictions: Sequence[Any], labels: Sequence[Any]) -> dict[str, float]:
        """The figures of predictions.

        Raises:
            InvalidRequest: the function returns neither a number nor numbers by name.
        """
        found: Any = self.function(list(predictions), list(labels))
        if _is_number(found):
            found = {getattr(self.function, "__name__", "metric"): found}
        numbered = isinstance(found, Mapping) and all(
            isinstance(name, str) and _is_number(value) for name, value in found.items()
        )
        if not numbered:
            raise InvalidRequest(
                f"metrics returned {quoted(found)}; it must return a number, or numbers by name"
            )
        return {name: float(value) for name, value in found.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) or (getattr(value, "shape", None) == () and hasattr(value, "item"))
