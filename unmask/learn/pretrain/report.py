"""What a run says while it goes: its log, TensorBoard, and whoever watches."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from unmask.files import unwritable
from unmask.learn.data import ShardSet
from unmask.learn.pretrain.events import EventLog
from unmask.learn.pretrain.flops import peak_flops, peak_memory
from unmask.learn.pretrain.loop import Loop, Tally
from unmask.learn.pretrain.settings import RunSettings
from unmask.optional import require


class Watcher(Protocol):
    """Who is told what happens, such as the command line."""

    def say(self, sentence: str) -> None:
        """Something worth a line."""

    def step(self, figures: Mapping[str, float]) -> None:
        """A line of the log, with ``step``, ``steps``, ``tokens_per_second``, ``seconds_left`` and more."""


class Silent:
    """Tells nobody."""

    def say(self, sentence: str) -> None:
        """Nothing."""

    def step(self, figures: Mapping[str, float]) -> None:
        """Nothing."""


class Reporter:
    """Turns sums into figures and brings them to everybody; in the first process of a run alone.

    Args:
        loop: of the run, at the step where it begins or goes on.
        out: the run's folder.
        watcher: who is told.
        tensorboard: write TensorBoard's files too.

    Raises:
        MissingExtra: TensorBoard is wanted and not installed.
        OutputError: the disk is full or read-only.
    """

    def __init__(self, loop: Loop, out: Path, watcher: Watcher, *, tensorboard: bool = False) -> None:
        self.loop = loop
        self.watcher = watcher
        self.first = loop.ranks.first
        if not self.first:
            return
        self.board = _board(out / "tensorboard", loop.step) if tensorboard else None
        self.log = EventLog(out / "log.jsonl", loop.step)
        ranks = loop.ranks
        dtype = torch.float32 if loop.settings.precision == "float32" else torch.bfloat16
        self._peak = peak_flops(ranks.device, dtype) * ranks.world

    def step(self, tally: Tally, norm: float) -> None:
        """A line about the steps of a tally; ``norm`` is the gradient's at the last of them."""
        if not self.first:
            return
        loop, seconds = self.loop, tally.elapsed
        figures = {
            "tokens": loop.tokens,
            **tally.means(),
            "gradient_norm": norm,
            "learning_rate": float(loop.optimiser.param_groups[0]["lr"]),
            "tokens_per_second": tally.counts["tokens"] / seconds,
            "peak_share": tally.counts["flops"] / seconds / self._peak,
            "memory_bytes": peak_memory(loop.ranks.device),
            "fill_ratio": loop.fill_ratio,
        }
        self._write("step", figures)
        steps = loop.settings.steps
        left = (steps - loop.step) * seconds / tally.steps
        self.watcher.step({"step": loop.step, "steps": steps, **figures, "seconds_left": left})

    def held_out(self, figures: Mapping[str, float]) -> None:
        """Figures on held-out text after this step."""
        if not self.first:
            return
        self._write("held_out", {"tokens": self.loop.tokens, **figures})
        shown = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        self.watcher.say(f"step {self.loop.step:,}, held out: {shown}")

    def checkpoint(self, place: Path) -> None:
        """A checkpoint is on the disk."""
        self.log.write("checkpoint", self.loop.step, folder=place.name)

    def close(self) -> None:
        """Let go of files."""
        if not self.first:
            return
        self.log.close()
        if self.board is not None:
            self.board.close()

    def _write(self, kind: str, figures: Mapping[str, float]) -> None:
        self.log.write(kind, self.loop.step, **figures)
        if self.board is not None:
            before = "held_out/" if kind == "held_out" else ""
            for name, value in figures.items():
                self.board.add_scalar(before + name, value, self.loop.step)


def _board(folder: Path, step: int) -> Any:
    """TensorBoard's writer; what it has of later steps, which come again, is no longer shown."""
    require("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter

    try:
        return writer(str(folder), purge_step=step + 1)
    except OSError as error:
        raise unwritable(folder, error) from None


def plan(settings: RunSettings, sets: Sequence[ShardSet], loop: Loop, parameters: int) -> list[str]:
    """What is going to be trained, on how much of what, in two sentences."""
    batch, steps = settings.batch, settings.steps
    counts = [batch.micro_batches(step, steps) for step in range(steps)]
    room = sum(counts) * batch.micro_tokens
    sizes = sorted({n * batch.micro_tokens for n in (min(counts), max(counts))})
    tokens = " to ".join(f"{n:,}" for n in sizes)
    return [
        f"{settings.name}: {parameters:,} parameters, {steps:,} steps of {tokens} "
        f"tokens, {room:,} in all, in {settings.precision} on {loop.ranks.device.type}"
        + (f", {loop.ranks.world} processes" if loop.ranks.world > 1 else ""),
        "text: "
        + ", ".join(
            f"{one.name} {one.token_count:,} tokens ({share:.0%} of the batch, {epochs:.2f} epochs)"
            for one, share, epochs in expected_epochs(settings, sets, loop.objective.extra_tokens, room)
        ),
    ]


def expected_epochs(
    settings: RunSettings, sets: Sequence[ShardSet], extra_tokens: int, room: int
) -> list[tuple[ShardSet, float, float]]:
    """Each source, its share of the text, and how often ``room`` tokens of full batches go through it."""
    total = sum(source.weight for source in settings.data.sources)
    shares = [source.weight / total for source in settings.data.sources]
    # A token of text costs a little more than one: special tokens come with every piece.
    cost = sum(
        share * (1 + extra_tokens * one.count / one.token_count)
        for share, one in zip(shares, sets, strict=True)
    )
    return [
        (one, share, room / cost * share / one.token_count) for share, one in zip(shares, sets, strict=True)
    ]
