"""Progress reporting of a run: its log, TensorBoard, trackers, and callbacks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.base.progress import counted
from unmask.training.data.shards import ShardSet
from unmask.training.run.callbacks import Callback
from unmask.training.run.flops import Peak, peak_memory
from unmask.training.run.log import Board, EventLog, Trackers, read_events
from unmask.training.run.loop import Loop, MetricAccumulator
from unmask.training.run.settings import LogSettings, RunSettings


class Reporter:
    """Turns sums into figures and sends them to all outputs; only in the first process of a run.

    Args:
        loop: the run's loop, at the step where it starts or resumes.
        out: the run's folder.
        callback: receives progress.
        settings: the settings of the run, for trackers.
        log: where figures go too.
        resumed: whether the loop continues from a checkpoint of this run.

    Raises:
        MissingExtra: TensorBoard or a tracker is requested and not installed.
        OutputError: the disk is full or read-only, or a tracker cannot start.
    """

    def __init__(
        self,
        loop: Loop,
        out: Path,
        callback: Callback,
        *,
        settings: Any,
        log: LogSettings,
        resumed: bool = False,
    ) -> None:
        self.loop = loop
        self.callback = callback
        self.first = loop.ranks.first
        if not self.first:
            return
        # Figures after this step are written again, and so is an evaluation before the first step.
        last = loop.step if resumed else loop.step - 1
        self.log = EventLog(out / "log.jsonl", last)
        self.board = Board(out / "tensorboard", last) if log.tensorboard else None
        self.trackers = Trackers(log, settings, out, resumed=resumed, say=callback.say)
        self.complete = False
        """Whether the run has taken all its steps, set by who takes them."""
        ranks = loop.ranks
        dtype = torch.float32 if loop.settings.precision == "float32" else torch.bfloat16
        self._peak = Peak(ranks.device, dtype, ranks.world)

    def step(self, metrics: MetricAccumulator, norm: float) -> None:
        """Report the steps since the last line.

        Args:
            metrics: sums since the last line.
            norm: gradient norm of the last step; not finite if that was skipped.
        """
        if not self.first:
            return
        loop, seconds = self.loop, metrics.elapsed
        memory = peak_memory(loop.ranks.device)
        figures = {
            "tokens": loop.tokens,
            **metrics.means(),
            **({"gradient_norm": norm} if np.isfinite(norm) else {}),
            **({"skipped_steps": loop.skipped} if loop.skipped else {}),
            "learning_rate": float(loop.optimizer.param_groups[0]["lr"]),
            "tokens_per_second": metrics.counts["tokens"] / seconds,
            "peak_share": self._peak.share(metrics.counts["flops"] / seconds),
            **({} if memory is None else {"memory_bytes": memory}),
            "fill_ratio": loop.fill_ratio,
        }
        self._write("step", figures)
        steps = loop.settings.steps
        remaining = (steps - loop.step) * seconds / metrics.steps
        self.callback.step({"step": loop.step, "steps": steps, **figures, "seconds_left": remaining})

    def held_out(self, figures: Mapping[str, float]) -> None:
        """Report figures on held-out text after this step."""
        if not self.first:
            return
        self._write("held_out", {"tokens": self.loop.tokens, **figures})
        line = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        self.callback.say(f"step {self.loop.step:,}, held out: {line}")
        self.callback.evaluation({"step": self.loop.step, **figures})

    def skipped(self) -> None:
        """Report that the last step was skipped because its loss or gradient is not finite."""
        if not self.first:
            return
        loop = self.loop
        allowed = loop.settings.faults.skip_non_finite
        self.log.write("skipped", loop.step, skipped_steps=loop.skipped)
        self.callback.say(
            f"step {loop.step:,} is skipped: its loss or gradient is not finite "
            f"({loop.skipped} of {allowed} that faults.skip_non_finite allows)"
        )

    def checkpoint(self, place: Path) -> None:
        """Report a checkpoint on disk."""
        self.log.write("checkpoint", self.loop.step, folder=place.name)

    def resumed_from(self, place: Path) -> None:
        """Report the checkpoint that the run resumes from; a kill may have prevented its log line."""
        event = {"event": "checkpoint", "step": self.loop.step, "folder": place.name}
        if self.first and event not in read_events(self.log.path):
            self.checkpoint(place)

    def close(self) -> None:
        """Close all files."""
        if not self.first:
            return
        self.log.close()
        if self.board is not None:
            self.board.close()
        self.trackers.close(complete=self.complete)

    def _write(self, kind: str, figures: Mapping[str, float]) -> None:
        self.log.write(kind, self.loop.step, **figures)
        before = "held_out/" if kind == "held_out" else ""
        prefixed = {before + name: value for name, value in figures.items()}
        if self.board is not None:
            self.board.write(prefixed, self.loop.step)
        self.trackers.write(prefixed, self.loop.step)


def plan(settings: RunSettings, sets: Sequence[ShardSet], loop: Loop, parameters: int) -> list[str]:
    """Sentences about what will be trained and about each source."""
    batch, steps = settings.batch, settings.steps
    phases = batch.phases(steps)
    room = sum(count * many for count, many in phases) * batch.micro_tokens
    counts = [count for count, _ in phases]
    sizes = sorted({n * batch.micro_tokens for n in (min(counts), max(counts))})
    tokens = " to ".join(f"{n:,}" for n in sizes)
    return [
        f"{settings.name}: {parameters:,} parameters, {steps:,} steps of {tokens} "
        f"tokens, {room:,} in all, in {settings.precision} on {loop.ranks.device.type}"
        + (f", {loop.ranks.world} processes" if loop.ranks.world > 1 else ""),
        *(
            f"source {shards.name}: {_contents(shards)}; {share:.0%} of the batch, {epochs:.2f} epochs"
            for shards, share, epochs in expected_epochs(settings, sets, loop.objective.extra_tokens, room)
        ),
    ]


def _contents(shards: ShardSet) -> str:
    """The amount of text in a source, and the lengths of its chunks."""
    sentence = (
        f"{counted(shards.document_count, 'document')} in {counted(shards.count, 'chunk')} of "
        f"{np.median(shards.lengths):,.0f} tokens (median) to {shards.lengths.max():,}, "
        f"{shards.token_count:,} in all"
    )
    if shards.null_texts:
        sentence += f"; {counted(shards.null_texts, 'record')} without text skipped"
    return sentence


def expected_epochs(
    settings: RunSettings, sets: Sequence[ShardSet], extra_tokens: int, room: int
) -> list[tuple[ShardSet, float, float]]:
    """For each source, its share of the text and its epochs in ``room`` tokens of full batches."""
    total = sum(source.weight for source in settings.data.sources)
    shares = [source.weight / total for source in settings.data.sources]
    # A token of text costs slightly more than one, because every chunk has special tokens.
    cost = sum(
        share * (1 + extra_tokens * shards.count / shards.token_count)
        for share, shards in zip(shares, sets, strict=True)
    )
    return [
        (shards, share, room / cost * share / shards.token_count)
        for share, shards in zip(shares, sets, strict=True)
    ]
