"""``unmask pretrain``: start or resume the run of a run file."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import Parameter

from unmask.cli.options import JsonOption
from unmask.cli.output import console, plain, print_json, safe

SECONDS_BETWEEN_LINES = 10.0

Settings = TypeVar("Settings")
"""The settings in a run file."""


class ProgressPrinter:
    """Prints progress to standard error: one updating line on a terminal, plain lines otherwise."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
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
        print(f"\r\x1b[K{line}" if self._live else line, end=end, file=sys.stderr, flush=True)
        self._open = end == ""


def pretrain(
    run: Annotated[Path, Parameter(help="the TOML file that describes the run; see docs/pretrain.md")],
    *,
    json: JsonOption = False,
) -> None:
    """Pretrain an encoder from a run file, or resume a stopped run.

    For several processes, use torchrun: torchrun --nproc-per-node=2 -m unmask pretrain run.toml
    """
    from unmask.training.pretrain import read_run

    teller = ProgressPrinter()
    settings = settings_or_path(run, read_run, teller)
    from unmask.training.pretrain import joined, train

    try:
        with joined() as ranks:
            result = train(settings, base=run.parent, ranks=ranks, callback=teller)
    finally:
        teller.close()
    if not ranks.first:
        return
    if json:
        print_json({**plain(result), "folder": str(result.folder)})
        return
    console().print(
        f"{safe(str(result.folder))}: {result.steps:,} steps, {result.tokens:,} tokens, "
        f"micro-batches {result.fill_ratio:.2%} full"
    )
    for name, value in result.held_out.items():
        console().print(f"held out {name}: {value:.4f}")


def settings_or_path(run: Path, read: Callable[[Path], Settings], teller: ProgressPrinter) -> Settings | Path:
    """The settings in a run file, so that a mistake in it is reported before torch is imported.

    Processes of torchrun join first, so that only one of them reports it; they get the path.
    """
    return run if "WORLD_SIZE" in os.environ else read(run)


def _duration(seconds: float) -> str:
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    return f"{hours} h {minutes % 60:02d} min" if hours else f"{minutes} min {int(seconds % 60):02d} s"
