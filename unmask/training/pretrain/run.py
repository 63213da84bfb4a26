"""From run settings to a trained checkpoint folder: start or resume a run."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unmask.encoder.compiled import compile_blocks
from unmask.encoder.encoder import Encoder
from unmask.training.data.stream import ChunkStream
from unmask.training.objectives.build import build_objective
from unmask.training.objectives.interface import Objective
from unmask.training.optim import Ema
from unmask.training.pretrain.run_text import read_text
from unmask.training.pretrain.start import (
    longest,
    run_encoder,
    run_inputs,
    run_objective,
    run_tokenizer,
    start_with_moments,
)
from unmask.training.run import run
from unmask.training.run.callbacks import Callback, listener
from unmask.training.run.distributed import check_batches, shard
from unmask.training.run.loop_settings import LoopSettings
from unmask.training.run.ranks import Ranks
from unmask.training.run.report import plan
from unmask.training.run.run import Evaluation, locked_folder, read_settings_and_base
from unmask.training.run.settings import RunSettings, read_run, run_of_table
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
    settings, base = read_settings_and_base(settings, base, read_run, run_of_table)
    ranks = (ranks or Ranks()).on(settings.device)
    check_batches(settings, ranks)
    out = base / settings.out
    with listener(callback, first=ranks.first) as listening, locked_folder(out, ranks):
        result = Run(settings, base, out, ranks, listening).train()
        listening.end(result)
        return result


def pretrain(path: Path, *, ranks: Ranks | None = None, callback: Callback | None = None) -> Result:
    """`train` for the path of a run file."""
    return train(path, ranks=ranks, callback=callback)


class Run(run.Run[RunSettings, Result]):
    """A pretraining run, see `unmask.training.run.run.Run`.

    Text is tokenized last, because that takes longest: everything else is checked before.
    """

    def build(self, *, resumed: bool) -> Objective[Any, Any]:
        """The tokenizer, trained if the run has none, the encoder, and the objective."""
        settings, base, say = self.settings, self.base, self.callback.say
        self.tokenizer = self.ranks.first_alone(
            lambda: run_tokenizer(settings, base, self.out, say, begun=resumed)
        )
        self.checkpoint, encoder = run_encoder(settings, base, self.tokenizer, say, weights=not resumed)
        self.parameters = sum(parameter.numel() for parameter in encoder.parameters())
        table, vocabulary = run_objective(settings, base), Vocabulary.of(self.tokenizer)
        return build_objective(table, encoder, vocabulary, self.checkpoint.family)

    def prepare(self, objective: Objective[Any, Any]) -> None:
        """Also distribute it over processes."""
        super().prepare(objective)
        shard(objective, self.settings, self.ranks)

    def averages(self, objective: Objective[Any, Any]) -> Ema | None:
        """Those of the settings."""
        average = self.settings.averaging
        return Ema(objective, decay=average.decay, warm_up=average.warm_up) if average else None

    def batches(self, objective: Objective[Any, Any]) -> ChunkStream:
        """Those of the run's text."""
        self.text = read_text(
            self.settings,
            self.base,
            self.tokenizer,
            self.ranks,
            extra_tokens=objective.extra_tokens,
            limit=longest(self.checkpoint.spec),
            callback=self.callback,
        )
        return self.text.batches

    def loop_settings(self) -> LoopSettings:
        """Those of the run file."""
        return self.settings.loop

    def evaluation(self) -> Evaluation:
        """The objective's figures on held-out text."""
        outside = self.text.held_out
        return Evaluation(partial(self.loop.evaluate, outside) if outside else None, self.settings.evaluation)

    def inputs(self) -> Mapping[str, str]:
        """The checkpoints that the run starts from and learns from."""
        return run_inputs(self.settings, self.base)

    def plan(self) -> Iterable[str]:
        """Model, text, batches and work."""
        return plan(self.settings, self.text.sets, self.loop, self.parameters)

    def begin(self) -> None:
        """Start with the moments of another run's checkpoint, if the settings say so."""
        if self.settings.model.moments:
            start_with_moments(self.settings.model, self.base, self.loop, self.callback.say)

    def optimize_steps(self) -> None:
        """Also recompute activations and compile blocks, if the settings say so."""
        if self.settings.recomputes:
            recompute_layers(self.loop.objective)
        super().optimize_steps()
        if self.settings.compile:
            for part in self.loop.objective.modules():
                if isinstance(part, Encoder):
                    compile_blocks(part)

    def finish(self, figures: Mapping[str, float]) -> Result:
        """Export the last weights, or their averages."""
        loop, folder = self.loop, self.export(figures)
        return Result(self.settings.name, folder, loop.step, loop.tokens, loop.fill_ratio, figures)


def recompute_layers(module: nn.Module) -> None:
    """Make the layers of a module's encoders store only their inputs (Chen et al. 2016).

    Activation memory shrinks to one input per layer, at the cost of a second forward pass of each layer.
    Gradients are bitwise the same: the second pass repeats the dropout of the first. A layer with a hook, as
    in distillation, stores everything, because the hook keeps its inner tensors anyway.

    Args:
        module: changed in place; names and weights are unchanged.
    """
    for encoder in module.modules():
        if isinstance(encoder, Encoder):
            for block in encoder.layers:
                # An instance attribute hides the class's method; no module is added, so no name changes.
                block.__dict__["forward"] = _recomputed(block.forward)


def _recomputed(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(x_TD: Tensor, plan: Any, layer: int, hook: Any = None) -> Tensor:
        if hook is not None or not torch.is_grad_enabled():
            return forward(x_TD, plan, layer, hook)
        state: Tensor = checkpoint(forward, x_TD, plan, layer, None, use_reentrant=False)
        return state

    return run
