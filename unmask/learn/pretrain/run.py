"""From a run file to a trained checkpoint folder: everything put together, started or gone on with."""

import fcntl
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import bfloat16

from unmask.errors import InvalidRequest, NonFiniteResult, OutputError
from unmask.files import unwritable
from unmask.learn.data import ShardSet, Stream, held_out, prepare
from unmask.learn.objectives.build import build_objective
from unmask.learn.objectives.interface import Objective
from unmask.learn.optim import Ema, Optimiser, build_optimiser
from unmask.learn.pretrain.checkpoint import Snapshot, prune, save_snapshot, steps_of
from unmask.learn.pretrain.distributed import check_batches, is_sharded, spread
from unmask.learn.pretrain.events import read_events
from unmask.learn.pretrain.export import check_encoders, check_place, export, read_card, write_model
from unmask.learn.pretrain.loop import Loop, Tally
from unmask.learn.pretrain.ranks import Ranks
from unmask.learn.pretrain.report import Reporter, Silent, Watcher, plan
from unmask.learn.pretrain.settings import RunSettings, read_run
from unmask.learn.pretrain.sharded import newest_for_all, placed, save_sharded
from unmask.learn.pretrain.start import choose_device, run_encoder, run_objective, run_tokenizer
from unmask.learn.pretrain.state import put_back, refuse_changes, take
from unmask.learn.pretrain.stopping import Stopped, heard
from unmask.learn.vocabulary import Vocabulary
from unmask.model.compiled import compile_blocks
from unmask.model.encoder import Encoder
from unmask.model.trained_linear import train_with_onednn


@dataclass(frozen=True)
class Result:
    """A finished run."""

    name: str
    folder: Path
    """The trained model as a checkpoint folder."""
    steps: int
    tokens: int
    """Trained on, special tokens included."""
    fill_ratio: float
    """Tokens by the room of all micro-batches."""
    held_out: Mapping[str, float]
    """Figures on held-out text after the last step."""


def pretrain(path: Path, *, ranks: Ranks | None = None, watcher: Watcher | None = None) -> Result:
    """Start the run of a file, go on with it, or refuse.

    Args:
        path: of the TOML file; see docs/pretrain.md.
        ranks: the processes that share the run, see `joined`; None is this one alone. Their device is that
            of the file.
        watcher: hears what happens, in the first process.

    Raises:
        InvalidRequest: the file says something that no run has, or another than the run that was begun.
        OutputError: another process has the run, or the disk is full or read-only.
        CorruptCheckpoint: no checkpoint of the run is whole.
        NonFiniteResult: the loss or a gradient is not finite.
        Stopped: SIGINT or SIGTERM came; a checkpoint of the last whole step is written.
    """
    settings = read_run(path)
    ranks = ranks or Ranks()
    ranks = replace(ranks, device=choose_device(settings.device, ranks.local))
    check_batches(settings, ranks)
    watcher = watcher if watcher and ranks.first else Silent()
    out = path.parent / settings.out
    with _alone(out) if ranks.first else nullcontext():
        return Run(settings, path.parent, out, ranks, watcher).train()


class Run:
    """A run with its parts, at the newest checkpoint that is whole.

    Text is tokenised last, since that takes longest: what the run file says is tried out before.

    Args:
        settings: of the run.
        base: the folder of the run file, where its paths begin.
        out: the run's folder.
        ranks: the processes of the run.
        watcher: hears what happens.
    """

    def __init__(self, settings: RunSettings, base: Path, out: Path, ranks: Ranks, watcher: Watcher) -> None:
        self.settings = settings
        self.base, self.out = base, out
        self.ranks = ranks
        self.watcher = watcher
        self.checkpoints = out / "checkpoints"
        check_place(out / "model", settings.name)
        if settings.card is not None:
            read_card(settings.card, base)
        found = newest_for_all(self.checkpoints, ranks, watcher.say)
        if found is not None:
            refuse_changes(settings, found.state["settings"], out)
        tokenizer = ranks.first_alone(lambda: run_tokenizer(settings, base, out, watcher.say))
        self.checkpoint, encoder = run_encoder(settings, base, tokenizer, watcher.say, weights=found is None)
        objective: Objective[Any] = build_objective(
            run_objective(settings, base), encoder, Vocabulary.of(tokenizer)
        )
        check_encoders(objective, self.checkpoint)
        if settings.precision == "bfloat16":
            objective.to(bfloat16)
        objective.to(ranks.device).train()
        spread(objective, settings, ranks)
        optimiser: Optimiser = build_optimiser(objective, settings.optimiser)
        average = settings.averaging
        averages = Ema(objective, decay=average.decay, warm_up=average.warm_up) if average else None
        data, cache, micro = settings.data, base / settings.data.cache, settings.batch.micro_tokens
        sets = ranks.first_alone(lambda: prepare(data.sources, tokenizer, cache, base))
        outside = ranks.first_alone(lambda: prepare(data.held_out, tokenizer, cache, base))
        _check_lengths([*sets, *outside], objective.extra_tokens, self.checkpoint.spec.max_tokens)
        stream = Stream(
            [(one, source.weight) for one, source in zip(sets, data.sources, strict=True)],
            seed=settings.seed,
            micro_tokens=micro,
            extra_tokens=objective.extra_tokens,
        )
        ahead = ranks.device.type != "cpu"
        self.loop = Loop(
            settings,
            objective,
            stream,
            optimiser=optimiser,
            averages=averages,
            ranks=ranks,
            ahead=ahead,
        )
        self.held_out = [
            one
            for each in outside
            for one in held_out(
                each,
                micro_tokens=micro,
                extra_tokens=objective.extra_tokens,
                tokens=max(1, settings.evaluation.tokens // len(outside)),
            )
        ]
        for sentence in plan(settings, sets, self.loop, sum(one.numel() for one in encoder.parameters())):
            watcher.say(sentence)
        self.tally = self._go_on(found)
        if self.ranks.device.type == "cpu":
            train_with_onednn(objective)
        if settings.compile:
            for part in objective.modules():
                if isinstance(part, Encoder):
                    compile_blocks(part)

    def _go_on(self, found: Snapshot | None) -> Tally:
        if found is None:
            return Tally()
        tally = put_back(placed(found, self.loop), self.loop)
        self.watcher.say(f"going on after step {found.step:,} of {self.settings.steps:,}")
        return tally

    def train(self) -> Result:
        """All steps that are left, then the export."""
        loop, settings = self.loop, self.settings
        if loop.step > settings.steps:
            raise InvalidRequest(
                f"the run has done {loop.step} steps and steps is {settings.steps}; give at least as many"
            )
        with closing(loop), closing(Reporter(loop, self.out, self.watcher)) as reporter:
            self._steps(reporter)
        figures = self._last_figures()
        if self.ranks.first or is_sharded(loop.objective):
            export(loop, self.checkpoint, self.out / "model", self.base, figures)
        return Result(settings.name, self.out / "model", loop.step, loop.tokens, loop.fill_ratio, figures)

    def _steps(self, reporter: Reporter) -> None:
        loop, settings = self.loop, self.settings
        last = time.monotonic()
        with heard() as wish:
            while loop.step < settings.steps:
                try:
                    norm = loop.one_step(self.tally)
                except NonFiniteResult as error:
                    raise NonFiniteResult(f"{error}; {self._way_out()}") from None
                done = loop.step == settings.steps
                if loop.step % settings.log.every == 0 or done:
                    reporter.step(self.tally, norm)
                    self.tally = Tally()
                with self.tally.paused():
                    every = settings.evaluation.every
                    if self.held_out and (done or (every and loop.step % every == 0)):
                        reporter.held_out(loop.evaluate(self.held_out))
                    # One process's wish or clock is all processes' wish and clock.
                    due = self._due(time.monotonic() - last)
                    asked = self.ranks.sums({"stop": float(wish.uttered), "due": float(due)})
                    stop = bool(asked["stop"])
                    if done or stop or asked["due"]:
                        self._save(reporter)
                        last = time.monotonic()
                if stop and not done:
                    raise Stopped(
                        f"stopped after step {loop.step:,} of {settings.steps:,}; the same command goes on "
                        "from there"
                    )

    def _due(self, seconds: float) -> bool:
        """Whether a checkpoint is to be written after this step."""
        wanted, step = self.settings.checkpoints, self.loop.step
        late = wanted.minutes > 0 and seconds > 60 * wanted.minutes
        return late or step % wanted.every == 0 or step in wanted.milestones

    def _save(self, reporter: Reporter) -> None:
        def also(folder: Path) -> None:
            write_model(self.loop, self.checkpoint, folder / "model")

        first, sharded = self.ranks.first, is_sharded(self.loop.objective)
        if not (first or sharded):
            return
        if first:
            # What the log says up to here is on the disk before the checkpoint that will be gone on from.
            reporter.log.sync()
        snapshot = take(self.loop, self.tally, self.settings)
        if sharded:
            place = save_sharded(snapshot, self.checkpoints, self.ranks, also)
        else:
            place = save_snapshot(snapshot, self.checkpoints, also=also)
        if not first:
            return
        wanted = self.settings.checkpoints
        prune(self.checkpoints, self.loop.step, wanted.keep, wanted.milestones)
        reporter.checkpoint(place)

    def _last_figures(self) -> Mapping[str, float]:
        """On held-out text after the last step, as the log has them."""
        found: dict[str, float] = {}
        for event in read_events(self.out / "log.jsonl"):
            if event.get("event") == "held_out" and event.get("step") == self.loop.step:
                found = {name: value for name, value in event.items() if "/" in name}
        return found

    def _way_out(self) -> str:
        finished = steps_of(self.checkpoints)
        newest_one = (
            f"the newest checkpoint is {finished[-1][1]}" if finished else "there is no checkpoint yet"
        )
        return (
            f"{newest_one}; begin anew in another folder with a lower learning rate, a longer warm-up or "
            "optimiser.clip"
        )


def _check_lengths(sets: Sequence[ShardSet], extra_tokens: int, limit: int | None) -> None:
    """Refuse pieces that the encoder cannot read before the first step, not at the first long one."""
    for one in sets:
        longest = int(one.lengths.max()) + extra_tokens
        if limit is not None and longest > limit:
            raise InvalidRequest(
                f"source {one.name} has a piece of {longest} tokens, {extra_tokens} special ones included, "
                f"and the encoder reads at most {limit}; lower max_tokens of the source"
            )


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold the run's folder for this process."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise unwritable(out, error) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(f"another process has the run in {out}; wait for it, or stop it") from None
        yield
    finally:
        os.close(handle)
