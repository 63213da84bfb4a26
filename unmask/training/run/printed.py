"""Progress of a run on standard error, as the command line and Python show it."""

import sys
import time
from collections.abc import Mapping
from typing import Any

from unmask.training.run.callbacks import Callback

SECONDS_BETWEEN_LINES = 10.0


class ProgressPrinter(Callback):
    """Prints progress to standard error: one updating line on a terminal, plain lines otherwise."""

    def __init__(self) -> None:
        # A program without a terminal, such as a service, may have no standard error.
        self._live = sys.stderr is not None and sys.stderr.isatty()
        self._last = -SECONDS_BETWEEN_LINES
        self._open = False

    def say(self, sentence: str) -> None:
        """Print a separate line."""
        self._print(sentence, end="\n")

    def tokenizing(self, source: str, documents: int, tokens: int) -> None:
        """Tokenization progress of a source, at most as often as `step`."""
        if self._wait():
            return
        counted = f"{documents:,} document" + ("" if documents == 1 else "s")
        self._print(f"tokenizing {source}: {counted}, {tokens:,} tokens", end="" if self._live else "\n")

    def step(self, figures: Mapping[str, float]) -> None:
        """Progress of the run; at most every ten seconds if not on a terminal."""
        if self._wait(last=figures["step"] == figures["steps"]):
            return
        terms = ", ".join(f"{name} {value:.3f}" for name, value in figures.items() if "/" in name)
        line = (
            f"step {figures['step']:,.0f} of {figures['steps']:,.0f}: {terms}, "
            f"{figures['tokens_per_second']:,.0f} tokens/s, {figures['peak_share']:.0%} of peak, "
            f"{figures['memory_bytes'] / 2**30:.1f} GiB, {_duration(figures['seconds_left'])} left"
        )
        self._print(line, end="" if self._live else "\n")

    def end(self, result: Any) -> None:
        """End the updating line."""
        self.close()

    def close(self) -> None:
        """End the updating line."""
        if self._open:
            print(file=sys.stderr, flush=True)
            self._open = False

    def _wait(self, *, last: bool = False) -> bool:
        """Whether it is too soon for another progress line."""
        now = time.monotonic()
        if not self._live and now - self._last < SECONDS_BETWEEN_LINES and not last:
            return True
        self._last = now
        return False

    def _print(self, line: str, end: str) -> None:
        if sys.stderr is None:
            return
        print(f"\r\x1b[K{line}" if self._live else line, end=end, file=sys.stderr, flush=True)
        self._open = end == ""


def _duration(seconds: float) -> str:
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    return f"{hours} h {minutes % 60:02d} min" if hours else f"{minutes} min {int(seconds % 60):02d} s"
