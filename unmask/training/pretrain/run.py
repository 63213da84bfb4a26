"""From run settings to a trained checkpoint folder: start or resume a run, and open its text."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unmask.base.files import user_cache
from unmask.base.stores import is_url
from unmask.encoder.encoder import Encoder, compile_blocks
from unmask.encoder.layers.parts import lower_norms
from unmask.errors import InvalidRequest
from unmask.text import Tokenizer
from unmask.training.data.shards import ShardSet
from unmask.training.data.sources import SourceSpec
from unmask.training.data.stored import ShardCache, stored
from unmask.training.data.stream import Chunk, ChunkStream, held_out
from unmask.training.data.writing import prepare
from unmask.training.objectives.build import build_objective
from unmask.training.objectives.interface import Objective
from unmask.training.optim import Ema
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
from unmask.training.run.ranks import Ranks
from unmask.training.run.report import plan
from unmask.training.run.run import Evaluation, locked_folder, read_settings_and_base
from unmask.training.run.settings import DataSettings, LoopSettings, RunSettings, read_run, run_of_table
from unmask.training.run.trainer_names import PRETRAINING, refuse_keywords
from unmask.training.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class RunText:
    """All text of a run."""

    sets: Sequence[ShardSet]
    """Training text, by source."""
    batches: ChunkStream
    held_out: Sequence[Sequence[Chunk]]
    """Micro-batches."""


def read_text(
    settings: RunSettings,
    base: Path,
    tokenizer: Tokenizer,
    ranks: Ranks,
    *,
    extra_tokens: int,
    limit: int | None,
    callback: Callback,
) -> RunText:
    """Tokenize text that is not cached yet, in the first process, and open all of it.

    Args:
        settings: settings of the run.
        base: the folder of the run file.
        tokenizer: the model's tokenizer.
        ranks: the processes of the run.
        extra_tokens: special tokens that the objective adds to a chunk.
        limit: maximum tokens of the encoder; None without a limit.
        callback: receives the progress of tokenization.

    Raises:
        InvalidRequest: a file is missing, or a chunk is longer than the encoder or a micro-batch allows.
    """
    data, micro = settings.data, settings.batch.micro_tokens

    def tell(source: SourceSpec, documents: int, tokens: int) -> None:
        callback.tokenizing(source.name, documents, tokens)

    def opened(sources: Sequence[SourceSpec]) -> list[ShardSet]:
        if is_url(data.cache):
            return stored(sources, tokenizer, data.cache, _local_cache(data, base))
        return prepare(sources, tokenizer, base / data.cache, base, tell)

    sets = ranks.first_alone(lambda: opened(data.sources))
    outside = ranks.first_alone(lambda: opened(data.held_out))
    if is_url(data.cache):
        _check_room(sets, outside, data)
    _check_lengths([*sets, *outside], extra_tokens, limit)
    batches = ChunkStream(
        [(shards, source.weight) for shards, source in zip(sets, data.sources, strict=True)],
        seed=settings.seed,
        micro_tokens=micro,
        extra_tokens=extra_tokens,
        shuffle_files=data.shuffle_files,
    )
    each = max(1, settings.evaluation.tokens // max(1, len(outside)))
    return RunText(
        sets,
        batches,
        [
            chunks
            for shards in outside
            for chunks in held_out(shards, micro_tokens=micro, extra_tokens=extra_tokens, tokens=each)
        ],
    )


def _local_cache(data: DataSettings, base: Path) -> ShardCache:
    """The folder of this machine for files of an object store."""
    folder = user_cache("tokens") if data.local_cache is None else base / data.local_cache
    return ShardCache(folder, data.local_cache_bytes)


def bytes_at_a_time(sets: Sequence[ShardSet], outside: Sequence[ShardSet], shuffle_files: int | None) -> int:
    """The size of a local cache in which no file is replaced that is read again in the same epoch."""
    # Three windows: the one before, of which chunks may wait for a micro-batch that they fit into, the one
    # that is read, and the next, which is downloaded meanwhile.
    files = None if shuffle_files is None else 3 * shuffle_files
    training = sum(sum(shards.largest_files(files)) for shards in sets)
    return max(training, *(sum(shards.largest_files()) for shards in outside), 0)


def _check_room(sets: Sequence[ShardSet], outside: Sequence[ShardSet], data: DataSettings) -> None:
    needed = bytes_at_a_time(sets, outside, data.shuffle_files)
    if needed > data.local_cache_bytes:
        way_out = "set data.shuffle_files" if data.shuffle_files is None else "lower data.shuffle_files"
        raise InvalidRequest(
            f"data.local_cache_bytes is {data.local_cache_bytes:,}, and {needed:,} are read at a time; raise "
            f"it, or {way_out}"
        )


def _check_lengths(sets: Sequence[ShardSet], extra_tokens: int, limit: int | None) -> None:
    """Refuse chunks that are too long for the encoder before training, not when the first one is read."""
    for shards in sets:
        longest = int(shards.lengths.max()) + extra_tokens
        if limit is not None and longest > limit:
            raise InvalidRequest(
                f"source {shards.name} has a chunk of {longest} tokens, {extra_tokens} special ones "
                f"included, and the encoder's config allows at most {limit}; lower max_tokens of the "
                "source, or raise the limit (max_position_embeddings in most families)"
            )


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
        """Also lower the precision of its norms, if the settings say so, and distribute it over processes."""
        super().prepare(objective)
        if self.settings.low_precision_norms and not lower_norms(objective):
            raise InvalidRequest(
                "low_precision_norms is true and the encoder has no LayerNorm (an RMSNorm is always computed "
                "as torch does); leave it out"
            )
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
    def run(x_TD: Tensor, plan: Any, layer: int, hook: Any = None, read_TP: Tensor | None = None) -> Tensor:
        if hook is not None or not torch.is_grad_enabled():
            return forward(x_TD, plan, layer, hook, read_TP)
        state: Tensor = checkpoint(forward, x_TD, plan, layer, None, read_TP, use_reentrant=False)
        return state

    return run
