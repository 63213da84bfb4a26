"""From run settings to a trained checkpoint folder: start or resume a run."""

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import bfloat16

from unmask.base.files import unwritable
from unmask.encoder.compiled import compile_blocks
from unmask.encoder.encoder import Encoder
from unmask.encoder.trained_linear import train_with_onednn
from unmask.errors import OutputError
from unmask.text import Tokenizer
from unmask.training.objectives.build import build_objective
from unmask.training.objectives.interface import Objective
from unmask.training.optim import Ema, build_optimizer
from unmask.training.pretrain.branch import start_with_moments
from unmask.training.pretrain.export import check_encoders, check_place, export, read_card, write_model
from unmask.training.pretrain.run_text import RunText, read_text
from unmask.training.pretrain.start import (
    choose_device,
    longest,
    run_encoder,
    run_inputs,
    run_objective,
    run_tokenizer,
)
from unmask.training.run.callbacks import Callback
from unmask.training.run.checkpoint import Snapshot
from unmask.training.run.distributed import check_batches, is_sharded, shard
from unmask.training.run.listeners import listener
from unmask.training.run.loop import Loop
from unmask.training.run.ranks import Ranks
from unmask.training.run.recompute import recompute_layers
from unmask.training.run.report import plan
from unmask.training.run.settings import RunSettings, read_run, run_of_table
from unmask.training.run.sharded import newest_for_all
from unmask.training.run.state import refuse_changes
from unmask.training.run.trainer import Trainer
from unmask.training.run.trainer_names import PRETRAINING, refuse_keywords
from unmask.training.vocabulary import Vocabulary


@dataclass(frozen=True)
class Result:
    """A finished run."""

    name: str
    folder: Path
    """The trained model as a checkpoint folder."""
    steps: int
    tokens: int
    """Training tokens, special tokens included."""
    fill_ratio: float
    """Tokens divided by the capacity of all micro-batches."""
    held_out: Mapping[str, float]
    """Figures on held-out text after the last step."""


def train(
    settings: RunSettings | Path | str | Mapping[str, Any],
    *,
    base: Path | str | None = None,
    ranks: Ranks | None = None,
    callback: Callback | Callable[[Mapping[str, Any]], object] | None = None,
    **others: Any,
) -> Result:
    """Start or resume a run.

    Args:
        settings: the path of a TOML file, see docs/pretrain.md; the same keys as a dictionary; or a
            `RunSettings`.
        base: the folder that relative paths in the settings start at; None for the folder of the file, or the
        current one if there is no file.
        ranks: the processes that share the run, see `joined`; None is this process alone. Their device is set
        by the settings.
        callback: receives what the run tells, in the first process: a function of one mapping, or an object
            with some methods of `unmask.Callback`, see docs/finetune.md. None prints it to standard error.
        others: refused; a name of transformers' Trainer with ours.

    Raises:
        InvalidRequest: the settings are invalid, or differ from those of the run being resumed; or the
            callback cannot be called.
        OutputError: another process is running this run, or the disk is full or read-only.
        CorruptCheckpoint: no checkpoint of the run is intact.
        NonFiniteResult: the loss or a gradient is not finite.
        Stopped: SIGINT or SIGTERM was received; a checkpoint of the last complete step is written.
    """
    refuse_keywords("unmask.train", others, PRETRAINING)
    if isinstance(settings, Path | str):
        base = Path(settings).parent if base is None else base
        settings = read_run(Path(settings))
    elif isinstance(settings, Mapping):
        settings = run_of_table(settings)
    base = Path() if base is None else Path(base)
    ranks = ranks or Ranks()
    ranks = replace(ranks, device=choose_device(settings.device, ranks.local))
    check_batches(settings, ranks)
    out = base / settings.out
    with listener(callback, first=ranks.first) as told, exclusive_lock(out) if ranks.first else nullcontext():
        result = Run(settings, base, out, ranks, told).train()
        told.end(result)
        return result


def pretrain(path: Path, *, ranks: Ranks | None = None, callback: Callback | None = None) -> Result:
    """`train` for the path of a run file."""
    return train(path, ranks=ranks, callback=callback)


class Run:
    """A run with its parts, at its newest intact checkpoint.

    Text is tokenized last, because that takes longest: everything else is checked before.

    Args:
        settings: settings of the run.
        base: the folder that paths in the settings are relative to.
        out: the run's folder.
        ranks: the processes of the run.
        callback: receives progress.
    """

    def __init__(
        self, settings: RunSettings, base: Path, out: Path, ranks: Ranks, callback: Callback
    ) -> None:
        self.settings = settings
        self.base, self.out = base, out
        self.ranks = ranks
        self.callback = callback
        found = self._found()
        begun = found is not None
        tokenizer = ranks.first_alone(lambda: run_tokenizer(settings, base, out, callback.say, begun=begun))
        self.checkpoint, encoder = run_encoder(settings, base, tokenizer, callback.say, weights=found is None)
        parameters = sum(one.numel() for one in encoder.parameters())
        objective = self._objective(encoder, tokenizer)
        optimizer = build_optimizer(objective, settings.optimizer)
        average = settings.averaging
        averages = Ema(objective, decay=average.decay, warm_up=average.warm_up) if average else None
        text = read_text(
            settings,
            base,
            tokenizer,
            ranks,
            extra_tokens=objective.extra_tokens,
            limit=longest(self.checkpoint.spec),
            callback=callback,
        )
        # Examples are prepared ahead if the device computes in parallel with the host.
        ahead = ranks.device.type != "cpu"
        self.loop = Loop(
            settings.loop,
            objective,
            text.batches,
            optimizer=optimizer,
            averages=averages,
            ranks=ranks,
            ahead=ahead,
        )
        self.loop.inputs = run_inputs(settings, base)
        self.trainer = self._trainer(text)
        for sentence in plan(settings, text.sets, self.loop, parameters):
            callback.say(sentence)
        if found is not None:
            self.trainer.restore(found)
        elif settings.model.moments:
            start_with_moments(settings.model, base, self.loop, callback.say)
        self._set_up_steps()

    def train(self) -> Result:
        """Take all remaining steps, then export."""
        loop, settings = self.loop, self.settings
        figures = self.trainer.train()
        if self.ranks.first or is_sharded(loop.objective):
            export(loop, settings, self.checkpoint, self.out / "model", base=self.base, held_out=figures)
        return Result(settings.name, self.out / "model", loop.step, loop.tokens, loop.fill_ratio, figures)

    def _found(self) -> Snapshot | None:
        """The newest intact checkpoint of the run; impossible requests are refused before it is read."""
        settings = self.settings
        check_place(self.out / "model", settings.name)
        if settings.card is not None:
            read_card(settings.card, self.base)
        found = newest_for_all(self.out / "checkpoints", self.ranks, self.callback.say)
        if found is not None:
            refuse_changes(settings, found.state["settings"], self.out)
        return found

    def _objective(self, encoder: Encoder, tokenizer: Tokenizer) -> Objective[Any, Any]:
        """The objective in training mode, on its device, in its dtype, and distributed over processes."""
        settings = self.settings
        table = run_objective(settings, self.base)
        objective: Objective[Any, Any] = build_objective(
            table, encoder, Vocabulary.of(tokenizer), self.checkpoint.family
        )
        check_encoders(objective, self.checkpoint)
        if settings.precision == "bfloat16":
            objective.to(bfloat16)
        objective.to(self.ranks.device).train()
        shard(objective, settings, self.ranks)
        return objective

    def _trainer(self, text: RunText) -> Trainer:
        settings = self.settings
        return Trainer(
            self.loop,
            partial(self.loop.evaluate, text.held_out) if text.held_out else None,
            settings=settings,
            evaluation=settings.evaluation,
            checkpoints=settings.checkpoints,
            log=settings.log,
            out=self.out,
            # Not a method of the run: a reference cycle would keep text files open.
            write=partial(write_model, self.loop, self.checkpoint),
            callback=self.callback,
        )

    def _set_up_steps(self) -> None:
        """Set up what changes how steps are computed but not their results, after weights are loaded."""
        if self.settings.recomputes:
            recompute_layers(self.loop.objective)
        if self.ranks.device.type == "cpu":
            train_with_onednn(self.loop.objective)
        if self.settings.compile:
            for part in self.loop.objective.modules():
                if isinstance(part, Encoder):
                    compile_blocks(part)


@contextmanager
def exclusive_lock(out: Path) -> Iterator[None]:
    """Lock the run's folder for this process."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise unwritable(out, error) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(f"another process is using the run in {out}; wait for it, or stop it") from None
        yield
    finally:
        os.close(handle)
