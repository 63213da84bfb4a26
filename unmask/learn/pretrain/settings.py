"""What a run file says: one TOML file describes a pretraining run whole."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from unmask.errors import InvalidRequest
from unmask.learn.data.sources import SourceSpec
from unmask.learn.optim import OptimiserSpec, ScheduleSpec
from unmask.learn.table import read_table
from unmask.model.layers import Initialisation

Precision = Literal["float32", "autocast", "bfloat16"]

Device = Literal["auto", "cpu", "cuda"]

ExportDtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class ModelSettings:
    """The encoder: fresh weights for a config or a published shape, or a checkpoint to go on from."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of config.json; with ``shape`` or ``start_from``, those that differ. A key replaces the whole
    value that was there."""
    shape: str | None = None
    """A published model whose sizes are taken, such as answerdotai/ModernBERT-base."""
    start_from: str | None = None
    """A checkpoint whose weights and tokenizer the run begins with: a folder beside the run file unless
    absolute. It must stay where it is until the run is done."""
    initialisation: Initialisation = "normal"
    """How fresh weights are drawn; with ``start_from``, those of heads that the checkpoint has not."""
    kernel: str | None = None
    """The attention kernel; None takes the first that can."""

    def __post_init__(self) -> None:
        if self.shape is not None and self.start_from is not None:
            raise InvalidRequest("shape and start_from are both given; leave one of them out")
        if self.shape is None and self.start_from is None and not self.config:
            raise InvalidRequest("nothing says which encoder it is; give config, shape or start_from")


@dataclass(frozen=True)
class TokenizerSettings:
    """A tokenizer to read, or one to train on the run's own sources. With ``model.start_from``, neither."""

    folder: str | None = None
    """Of a checkpoint or of tokenizer files alone, beside the run file unless absolute."""
    train: Literal["wordpiece", "bpe", "unigram"] | None = None
    """What kind is trained; it is kept in the run's folder."""
    vocabulary: int = 8192
    """Pieces of a trained one, special ones included."""
    lowercase: bool = False
    """Whether a trained one reads everything in lower case."""
    sample_bytes: int = 50_000_000
    """Text that it is trained on, taken from the sources by their weights."""

    def __post_init__(self) -> None:
        at_least("vocabulary", self.vocabulary, 1)
        at_least("sample_bytes", self.sample_bytes, 1)


@dataclass(frozen=True)
class DataSettings:
    """Where text comes from."""

    sources: tuple[SourceSpec, ...]
    """Text that is trained on."""
    held_out: tuple[SourceSpec, ...] = ()
    """Text that is evaluated on and never trained on."""
    cache: str = "data"
    """Folder of tokens on disk, beside the run file unless absolute. Runs may share it."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise InvalidRequest("sources is empty; name at least one")


@dataclass(frozen=True)
class BatchSettings:
    """How many tokens a step sees."""

    tokens: int
    """Of a global batch: all micro-batches of all ranks."""
    micro_tokens: int
    """Of one micro-batch; memory grows with it."""
    start_tokens: int | None = None
    """Batch of the first step, where it grows; None begins with ``tokens``."""
    ramp_share: float = 0.0
    """Share of the run's steps over which it grows."""

    def __post_init__(self) -> None:
        if not 1 <= self.micro_tokens <= self.tokens:
            raise InvalidRequest(
                f"micro_tokens is {self.micro_tokens}; it must be from 1 to tokens, which is {self.tokens}"
            )
        if self.start_tokens is not None and not self.micro_tokens <= self.start_tokens <= self.tokens:
            raise InvalidRequest(
                f"start_tokens is {self.start_tokens}; it must lie between micro_tokens and tokens"
            )
        if not 0 <= self.ramp_share <= 1:
            raise InvalidRequest(f"ramp_share is {self.ramp_share}; it must lie between 0 and 1")

    def micro_batches(self, step: int, steps: int) -> int:
        """How many micro-batches make the global batch of this step, counted from 0."""
        tokens = self.tokens
        ramp = self.ramp_share * steps
        if self.start_tokens is not None and step < ramp:
            tokens = int(self.start_tokens + (self.tokens - self.start_tokens) * step / ramp)
        return max(1, round(tokens / self.micro_tokens))


@dataclass(frozen=True)
class EvaluationSettings:
    """Loss on held-out text while training."""

    every: int = 0
    """Steps between evaluations; 0 evaluates at the end alone."""
    tokens: int = 100_000
    """Of held-out text."""
    averaged: bool = True
    """With the averaged weights, where the run keeps any."""

    def __post_init__(self) -> None:
        at_least("every", self.every, 0)
        at_least("tokens", self.tokens, 1)


@dataclass(frozen=True)
class CheckpointSettings:
    """How often everything is written."""

    every: int = 500
    """Steps."""
    minutes: float = 10.0
    """At the latest after this long; 0 counts steps alone."""
    keep: int = 2
    """The newest so many stay."""
    milestones: tuple[int, ...] = ()
    """Steps whose checkpoints are written and stay too."""

    def __post_init__(self) -> None:
        at_least("every", self.every, 1)
        at_least("minutes", self.minutes, 0)
        at_least("keep", self.keep, 1)


@dataclass(frozen=True)
class AveragingSettings:
    """An exponential moving average of the weights, which is what is exported."""

    decay: float = 0.999
    """How much of the old average remains at each step."""
    warm_up: bool = True
    """Forget the fresh weights, as Adam's moments forget their zeros; see `unmask.learn.optim.Ema`."""

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise InvalidRequest(f"decay is {self.decay}; it must be at least 0 and below 1")


@dataclass(frozen=True)
class DistributedSettings:
    """How processes that torchrun started share a run; one process alone takes no notice."""

    kind: Literal["ddp", "fsdp"] = "ddp"
    """Each holds all weights and averages, or a share of them, which needs less memory and more
    communication."""


@dataclass(frozen=True)
class LogSettings:
    """What is said while it runs."""

    every: int = 10
    """Steps between lines of ``log.jsonl``."""
    tensorboard: bool = False
    """Write the same figures for TensorBoard too, into the folder ``tensorboard``."""

    def __post_init__(self) -> None:
        at_least("every", self.every, 1)


@dataclass(frozen=True)
class RunSettings:
    """One run, as its file says it."""

    name: str
    """What the model is called."""
    steps: int
    """Steps of the optimiser in all."""
    model: ModelSettings
    data: DataSettings
    objective: Mapping[str, Any]
    """``kind`` and the keys of that objective; see `unmask.learn.objectives.build`."""
    batch: BatchSettings
    optimiser: OptimiserSpec
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    averaging: AveragingSettings | None = None
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    log: LogSettings = field(default_factory=LogSettings)
    distributed: DistributedSettings = field(default_factory=DistributedSettings)
    precision: Precision = "float32"
    """``autocast``: products in bfloat16, weights in float32; ``bfloat16``: weights too, with float32 masters
    in the optimiser."""
    device: Device = "auto"
    """``auto``: a CUDA device where torch finds one, else the CPU."""
    compile: bool = False
    """Compile what layers do token by token: minutes at the beginning, faster steps."""
    seed: int = 0
    """Decides weights, orders, masks and dropout."""
    out: str = "."
    """Folder of the run, beside the run file unless absolute."""
    card: str | None = None
    """A file beside the run file that is put into the exported model as README.md."""
    export_dtype: ExportDtype | None = None
    """In which the exported model is written; None for that of the weights in training. ``float32`` of a run
    in bfloat16 is its averages or masters, not its rounded weights."""
    export_shard_bytes: int | None = None
    """The exported weights are split into files of at most so many bytes; None for one file."""

    def __post_init__(self) -> None:
        at_least("steps", self.steps, 1)
        at_least("seed", self.seed, 0)
        at_least("export_shard_bytes", self.export_shard_bytes, 1)
        if not isinstance(self.objective.get("kind"), str):
            raise InvalidRequest('objective needs kind, such as kind = "masked"')
        reads = (self.tokenizer.folder is not None) + (self.tokenizer.train is not None)
        if self.model.start_from is not None and reads:
            raise InvalidRequest(
                "with model.start_from the tokenizer is the checkpoint's; leave tokenizer out"
            )
        if self.model.start_from is None and reads != 1:
            raise InvalidRequest('tokenizer needs either folder or train, such as train = "bpe"')
        self.schedule.lengths(self.steps)


def at_least(name: str, value: float | None, least: float) -> None:
    """Refuse a number below ``least`` or not a number at all; None is passed over."""
    if value is not None and not value >= least:
        raise InvalidRequest(f"{name} is {value}; it must be at least {least}")


def read_run(path: Path) -> RunSettings:
    """The run that a TOML file describes.

    Raises:
        InvalidRequest: it cannot be read, is no TOML, or says something that no run has.
    """
    try:
        content = path.read_bytes().decode("utf-8")
        table = tomllib.loads(content)
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} is not TOML: {error}") from None
    try:
        return read_table(RunSettings, table, "")
    except InvalidRequest as error:
        raise InvalidRequest(f"{path.name}: {error}") from None
