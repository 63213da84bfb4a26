"""The best weights of a run by one figure, and when to stop early."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from unmask.errors import InvalidRequest
from unmask.training.run.events import read_events

LOWER_IS_BETTER = ("loss", "mean_squared_error")


def check_metric(metric: str | None, figures: Sequence[str]) -> None:
    """Refuse a metric that is none of the figures of a task.

    Raises:
        InvalidRequest: it is none of them.
    """
    if metric is not None and metric not in figures:
        raise InvalidRequest(f"evaluation.metric is {metric!r}; of this task it can be {', '.join(figures)}")


class BestModel:
    """Follows a figure over a run's evaluations. Its state is the run's log, so a resumed run has the same.
    A figure that is not a number is never the best.

    Args:
        metric: the figure, such as "accuracy"; None follows nothing.
        patience: evaluations without a better figure before the run is finished; 0 for no limit.
        folder: where the best weights are kept.
        write: writes the present weights into a folder.
    """

    def __init__(
        self, metric: str | None, patience: int, folder: Path, write: Callable[[Path], None]
    ) -> None:
        self.metric = metric
        self.patience = patience
        self.folder = folder
        self.write = write
        self.best: float | None = None
        self.step = 0
        """The step of the best figure."""
        self._without = 0

    @property
    def stop(self) -> bool:
        """Whether no figure of the last evaluations was better."""
        return bool(self.patience) and self._without >= self.patience

    def restore(self, log: Path, step: int) -> None:
        """Take the evaluations up to a step from the run's log."""
        for event in read_events(log):
            if event.get("event") == "held_out" and 0 < event.get("step", 0) <= step and self.metric:
                self._better(float(event[f"dev/{self.metric}"]), int(event["step"]))

    def evaluated(self, figures: Mapping[str, float], step: int) -> None:
        """Take an evaluation's figures, and keep the weights if they are the best so far.

        Raises:
            InvalidRequest: there is no such figure.
        """
        if self.metric is None:
            return
        check_metric(self.metric, tuple(figures))
        if self._better(figures[self.metric], step):
            self.write(self.folder)

    def _better(self, value: float, step: int) -> bool:
        sign = -1 if self.metric in LOWER_IS_BETTER else 1
        better = not math.isnan(value) and (self.best is None or sign * value > sign * self.best)
        if better:
            self.best, self.step, self._without = value, step, 0
        else:
            self._without += 1
        return better
