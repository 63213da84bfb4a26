"""What a run file says: one TOML file describes a pretraining run whole."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from unmask.deprecation import renamed_keys
from unmask.errors import InvalidRequest
from unmask.learn.data.sources import SourceSpec
from unmask.learn.optim import OptimizerSpec, ScheduleSpec
from unmask.learn.pretrain.loop_settings import (
    AveragingSettings,
    BatchSettings,
    FaultSettings,
    LoopSettings,
    Precision,
    at_least,
)
from unmask.learn.table import read_table
from unmask.model.layers import Initialization

Device = Literal["auto", "cpu", "cuda"]

ExportDtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class ModelSettings:
    """The encoder: fresh weights for a config or a published architecture, or a checkpoint to go on from."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of config.json; with ``architecture`` or ``start_from``, those that differ. A key replaces the whole
    value that was there."""
    architecture: str | None = None
    """A published model whose sizes are taken, such as answerdotai/ModernBERT-base."""
    start_from: str | None = None
    """A checkpoint whose weights and tokenizer the run begins with: a folder beside the run file unless
    absolute, "default", or a hub id. It must stay where it is until the run is done. A checkpoint of a run,
    ``.../checkpoints/step-N``, is one too."""
    moments: bool = False
    """With ``start_from`` such a checkpoint of a run: begin with its optimizer's moments, its averages and
    whatever else it trains, not with its encoder alone. Learning rate, schedule and text may differ."""
    progress: bool = False
    """With ``moments``: continue its count of steps and its position in the text too, as a branch of that run
    does. ``steps`` then counts its steps too, and the text must be the same."""
    initialization: Initialization = "normal"
    """How fresh weights are drawn; with ``start_from``, those of heads that the checkpoint has not."""
    kernel: str | None = None
    """The attention kernel; None takes the first that can."""

    def __post_init__(self) -> None:
        if self.architecture is not None and self.start_from is not None:
            raise InvalidRequest("architecture and start_from are both given; leave one of them out")
        if self.moments and self.start_from is None:
            raise InvalidRequest("moments is true and start_from is not given; name a checkpoint of a run")
        if self.progress and not self.moments:
            raise InvalidRequest("progress is true and moments is not; set both, or leave progress out")
        if self.architecture is None and self.start_from is None and not self.config:
            raise InvalidRequest("nothing says which encoder it is; give config, architecture or start_from")


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
class EvaluationSettings:
    """Loss on held-out text while training."""

    every: int = 0
    """Steps between evaluations; 0 evaluates at the end and, with ``at_start``, at the beginning."""
    at_start: bool = True
    """Evaluate before the first step too: what fresh weights, or those that a run starts from, amount to."""
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
    """The newest so many stay, and the newest whose loss has not diverged: whose running average over about
    ten steps was at most twice the lowest that it had been."""
    milestones: tuple[int, ...] = ()
    """Steps whose checkpoints are written and stay too."""

    def __post_init__(self) -> None:
        at_least("every", self.every, 1)
        at_least("minutes", self.minutes, 0)
        at_least("keep", self.keep, 1)


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


MOST_STEPS = 10**12
"""More than any run can do; beyond it sums of steps would lose their exactness."""


@dataclass(frozen=True)
class RunSettings:
    """One run, as its file says it."""

    name: str
    """What the model is called."""
    steps: int
    """Steps of the optimizer in all."""
    model: ModelSettings
    data: DataSettings
    objective: Mapping[str, Any]
    """``kind`` and the keys of that objective; see `unmask.learn.objectives.build`."""
    batch: BatchSettings
    optimizer: OptimizerSpec
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    averaging: AveragingSettings | None = None
    faults: FaultSettings = field(default_factory=FaultSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    log: LogSettings = field(default_factory=LogSettings)
    distributed: DistributedSettings = field(default_factory=DistributedSettings)
    precision: Precision = "float32"
    """``autocast``: products in bfloat16, weights in float32; ``bfloat16``: weights too, with float32 masters
    in the optimizer."""
    device: Device = "auto"
    """``auto``: a CUDA device where torch finds one, else the CPU."""
    gradient_checkpointing: bool = False
    """Compute each layer's activations again in the backward pass instead of keeping them: far less memory
    for about a third more time, and the same gradients. ``model.config`` may say it too."""
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
        object.__setattr__(self, "objective", _with_present_names(self.objective))
        at_least("steps", self.steps, 1)
        if self.steps > MOST_STEPS:
            raise InvalidRequest(f"steps is {self.steps}; it can be at most {MOST_STEPS:,}")
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

    @property
    def recomputes(self) -> bool:
        """Whether layers are computed again in the backward pass."""
        return self.gradient_checkpointing or bool(self.model.config.get("gradient_checkpointing"))

    @property
    def loop(self) -> LoopSettings:
        """The part of it that the training loop needs."""
        return LoopSettings(
            self.steps,
            self.batch,
            self.optimizer,
            self.schedule,
            self.precision,
            self.seed,
            self.evaluation.averaged,
            self.faults,
        )


def _with_present_names(objective: Mapping[str, Any]) -> dict[str, Any]:
    """An objective's table with old names replaced; keys of masking are in it or in a table of it."""
    found = dict(objective)
    if isinstance(found.get("masking"), Mapping):
        found["masking"] = renamed_keys("MaskingSpec", found["masking"])
    return renamed_keys("MaskingSpec", found) if found.get("kind") == "masked" else found


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
        return run_of_table(table)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path.name}: {error}") from None


def run_of_table(table: Mapping[str, Any]) -> RunSettings:
    """The run that the keys of a run file describe.

    Raises:
        InvalidRequest: they say something that no run has.
    """
    return read_table(RunSettings, table, "")
