"""The run file: one TOML file describes a pretraining run. Its loop is that of every training run."""

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from unmask.base.arguments import at_least
from unmask.errors import InvalidRequest
from unmask.spec.encoder import Initialization
from unmask.training.data.sources import SourceSpec
from unmask.training.optim import OptimizerSpec, ScheduleSpec
from unmask.training.run.trainer_names import PRETRAINING, refuse_trainer_names
from unmask.training.table import read_table, read_toml, settings

Precision = Literal["float32", "autocast", "bfloat16"]


class StepBatch(Protocol):
    """How a step is divided into micro-batches."""

    def micro_batches(self, step: int, steps: int) -> int:
        """Micro-batches in the global batch of this step, counted from 0."""

    @property
    def micro_size(self) -> str:
        """The size of a micro-batch, as errors name it."""

    @property
    def smaller(self) -> str:
        """How to make micro-batches smaller, as errors say it."""


@settings
class BatchSettings:
    """How many tokens a step processes."""

    tokens: int
    """Per global batch: all micro-batches of all ranks."""
    micro_tokens: int
    """Per micro-batch; memory grows with it."""
    start_tokens: int | None = None
    """Batch size of the first step, if it ramps up; None starts with ``tokens``."""
    ramp_share: float = 0.0
    """Share of the run's steps over which it ramps up."""

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

    @property
    def micro_size(self) -> str:
        """See `StepBatch`."""
        return f"{self.micro_tokens:,} tokens"

    @property
    def smaller(self) -> str:
        """See `StepBatch`."""
        return f"lower batch.micro_tokens, which is {self.micro_tokens}"

    def micro_batches(self, step: int, steps: int) -> int:
        """Micro-batches in the global batch of this step, counted from 0."""
        tokens = self.tokens
        ramp = self.ramp_share * steps
        if self.start_tokens is not None and step < ramp:
            tokens = int(self.start_tokens + (self.tokens - self.start_tokens) * step / ramp)
        return max(1, round(tokens / self.micro_tokens))

    def phases(self, steps: int) -> list[tuple[int, int]]:
        """Micro-batches per step and the number of consecutive steps, in the order of the run.

        The batch never shrinks, so changes are found by bisection, which is fast for runs of any length.
        """
        phases: list[tuple[int, int]] = []
        step = 0
        while step < steps:
            count = self.micro_batches(step, steps)
            after = bisect.bisect_right(
                range(steps), count, lo=step, key=lambda later: self.micro_batches(later, steps)
            )
            phases.append((count, after - step))
            step = after
        return phases


@settings
class TextBatchSettings:
    """A fixed number of texts per step, as in fine-tuning."""

    texts: int
    count: int = 1
    """Micro-batches per step."""

    @property
    def micro_size(self) -> str:
        """See `StepBatch`."""
        return f"{-(-self.texts // self.count)} texts"

    @property
    def smaller(self) -> str:
        """See `StepBatch`."""
        return f"raise micro_batches, which is {self.count}, or lower data.max_tokens"

    def micro_batches(self, step: int, steps: int) -> int:
        """The same in every step."""
        return self.count


@settings
class AveragingSettings:
    """An exponential moving average of the weights, which is what is exported."""

    decay: float = 0.999
    """How much of the old average remains at each step."""
    warm_up: bool = True
    """Correct for the initial weights, as Adam corrects its moments for their zeros; see
    `unmask.training.optim.Ema`."""

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise InvalidRequest(f"decay is {self.decay}; it must be at least 0 and below 1")


@settings
class FaultSettings:
    """What to do about failed steps."""

    skip_non_finite: int = 0
    """Steps of the run that may be skipped because their loss or gradient is not finite: weights, moments and
    averages stay as they are, and the next step has the next text. One more such step ends the run."""

    def __post_init__(self) -> None:
        at_least("skip_non_finite", self.skip_non_finite, 0)


@dataclass(frozen=True)
class LoopSettings:
    """Everything that determines what a step computes, except the model and the items."""

    steps: int
    """Total optimizer steps."""
    batch: StepBatch
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    """Only its ``clip`` is used; the optimizer itself is created before the loop."""
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    precision: Precision = "float32"
    seed: int = 0
    """Determines masks and dropout."""
    averaged_evaluation: bool = True
    """Evaluate with the averaged weights, if the run keeps them."""
    faults: FaultSettings = field(default_factory=FaultSettings)


Device = Literal["auto", "cpu", "cuda"]

ExportDtype = Literal["float32", "bfloat16"]


@settings
class ModelSettings:
    """The encoder: new weights for a config or a published architecture, or a checkpoint to start from."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of config.json; with ``architecture`` or ``start_from``, only those that differ. A key replaces
    the whole previous value."""
    architecture: str | None = None
    """A published model whose architecture is used, such as answerdotai/ModernBERT-base."""
    start_from: str | None = None
    """A checkpoint whose weights and tokenizer the run starts with: a folder (relative to the run file),
    "default", or a hub id. It must stay in place until the run is finished. It may also be a checkpoint of
    a run, ``.../checkpoints/step-N``."""
    ignore_tensors: tuple[str, ...] = ()
    """Tensors of its weight files that are left out, by name, such as loss_fct.weight."""
    moments: bool = False
    """With a checkpoint of a run as ``start_from``: also load its optimizer moments, averages and all other
    trained weights, not only the encoder. Learning rate, schedule and text may differ."""
    progress: bool = False
    """With ``moments``: also continue its step count and its position in the text, as a branch of that run.
    ``steps`` then includes its steps, and the text must be the same."""
    repeat_positions: bool = False
    """With ``start_from``: repeat its position vectors until they fill the longer table of this run, and
    begin new projections of global tokens as copies of those of other tokens, as Longformer began from
    RoBERTa (Beltagy et al. 2020)."""
    initialization: Initialization = "normal"
    """Initialization of new weights; with ``start_from``, of heads that the checkpoint lacks."""
    kernel: str | None = None
    """The attention kernel; None takes the first that supports the encoder."""

    def __post_init__(self) -> None:
        if self.architecture is not None and self.start_from is not None:
            raise InvalidRequest("architecture and start_from are both given; leave one of them out")
        if self.ignore_tensors and self.start_from is None:
            raise InvalidRequest(
                "ignore_tensors is given and start_from is not; name the checkpoint, or leave it out"
            )
        if self.repeat_positions and self.start_from is None:
            raise InvalidRequest(
                "repeat_positions is true and start_from is not given; name the checkpoint, or leave it out"
            )
        if self.moments and self.start_from is None:
            raise InvalidRequest("moments is true and start_from is not given; name a checkpoint of a run")
        if self.progress and not self.moments:
            raise InvalidRequest("progress is true and moments is not; set both, or leave progress out")
        if self.architecture is None and self.start_from is None and not self.config:
            raise InvalidRequest("the encoder is not specified; give config, architecture or start_from")


@settings
class TokenizerSettings:
    """A tokenizer to load, or one to train on the run's own sources. Not allowed with
    ``model.start_from``."""

    folder: str | None = None
    """Folder of a checkpoint or of tokenizer files, relative to the run file."""
    train: Literal["wordpiece", "bpe", "unigram"] | None = None
    """Kind of tokenizer to train; it is stored in the run's folder."""
    vocabulary: int = 8192
    """Vocabulary size of a trained tokenizer, special tokens included."""
    lowercase: bool = False
    """Whether a trained tokenizer lowercases text."""
    sample_bytes: int = 50_000_000
    """Amount of training text for the tokenizer, sampled from the sources by their weights."""

    def __post_init__(self) -> None:
        at_least("vocabulary", self.vocabulary, 1)
        at_least("sample_bytes", self.sample_bytes, 1)


@settings
class DataSettings:
    """Sources of text."""

    sources: tuple[SourceSpec, ...]
    """Training text."""
    held_out: tuple[SourceSpec, ...] = ()
    """Evaluation text, never trained on."""
    cache: str = "data"
    """Folder of tokenized text, relative to the run file. Runs may share it. Or the URL of a copy of such a
    folder in an object store, such as ``s3://bucket/tokens``; the texts are then not read."""
    local_cache: str | None = None
    """With a URL as ``cache``: folder of this machine for the files in use, relative to the run file.
    Processes and runs may share it. None: below ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    local_cache_bytes: int = 50_000_000_000
    """Maximum size of that folder."""
    shuffle_files: int | None = None
    """Shuffle the files of tokens (of about 256 MB), and chunks within so many of them at a time; None
    shuffles all chunks of a source. Needed if they come from an object store and exceed
    ``local_cache_bytes``."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise InvalidRequest("sources is empty; name at least one")
        at_least("local_cache_bytes", self.local_cache_bytes, 1)
        at_least("shuffle_files", self.shuffle_files, 1)


@settings
class EvaluationSettings:
    """Evaluation on held-out text during training."""

    every: int = 0
    """Steps between evaluations; 0 evaluates at the end and, with ``at_start``, at the beginning."""
    at_start: bool = True
    """Also evaluate the initial weights before the first step."""
    tokens: int = 100_000
    """Tokens of held-out text."""
    averaged: bool = True
    """Use the averaged weights, if the run keeps them."""

    def __post_init__(self) -> None:
        at_least("every", self.every, 0)
        at_least("tokens", self.tokens, 1)


@settings
class CheckpointSettings:
    """When checkpoints are written, and which are kept."""

    every: int = 500
    """Steps."""
    minutes: float = 10.0
    """Longest time between checkpoints; 0 sets no limit, so that only steps count."""
    keep: int = 2
    """How many of the newest are kept. The newest whose loss has not diverged is also kept: one whose running
    average over about ten steps was at most twice its lowest value."""
    milestones: tuple[int, ...] = ()
    """Steps whose checkpoints are also written and kept."""

    def __post_init__(self) -> None:
        at_least("every", self.every, 1)
        at_least("minutes", self.minutes, 0)
        at_least("keep", self.keep, 1)


@settings
class DistributedSettings:
    """How processes started by torchrun share a run; ignored by a single process."""

    kind: Literal["ddp", "fsdp"] = "ddp"
    """Each process holds all weights and averages (``ddp``), or a shard of them (``fsdp``), which needs less
    memory and more communication."""


@settings
class LogSettings:
    """Logging during the run."""

    every: int = 10
    """Steps between lines of ``log.jsonl``."""
    tensorboard: bool = False
    """Write the same figures for TensorBoard too, into the folder ``tensorboard``."""
    wandb: str | None = None
    """Send the same figures to this project of Weights & Biases too; None sends nothing."""
    mlflow: str | None = None
    """Send the same figures to this experiment of MLflow too, at the tracking URI of its own settings."""

    def __post_init__(self) -> None:
        at_least("every", self.every, 1)


MOST_STEPS = 10**12
"""More than any run can take; above it sums of steps would not be exact."""


@settings
class RunSettings:
    """The settings of one run."""

    name: str
    """Name of the model."""
    steps: int
    """Total optimizer steps."""
    model: ModelSettings
    data: DataSettings
    objective: Mapping[str, Any]
    """``kind`` and the keys of the objective; see `unmask.training.objectives.build`."""
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
    """``autocast``: matrix products in bfloat16, weights in float32; ``bfloat16``: also weights in bfloat16,
    with float32 masters in the optimizer."""
    low_precision_norms: bool = False
    """With ``autocast``: also compute LayerNorms in bfloat16, as MosaicBERT did; otherwise they are computed
    in float32. Made for GPUs; on a CPU it saves nothing to speak of."""
    device: Device = "auto"
    """``auto``: a CUDA device if torch finds one, else the CPU."""
    gradient_checkpointing: bool = False
    """Recompute each layer's activations in the backward pass instead of storing them: far less memory for
    about a third more time, and the same gradients. Can also be set in ``model.config``."""
    compile: bool = False
    """Compile the token-wise parts of layers: minutes at the start, then faster steps."""
    seed: int = 0
    """Determines weights, orders, masks and dropout."""
    out: str = "."
    """Folder of the run, relative to the run file."""
    card: str | None = None
    """A file, relative to the run file, that is copied into the exported model as README.md."""
    export_dtype: ExportDtype | None = None
    """Dtype of the exported model; None for that of the weights in training. For a bfloat16 run, ``float32``
    exports the averages or masters, not the rounded weights."""
    export_shard_bytes: int | None = None
    """Maximum bytes of each file of exported weights; None for a single file."""

    def __post_init__(self) -> None:
        at_least("steps", self.steps, 1)
        if self.steps > MOST_STEPS:
            raise InvalidRequest(f"steps is {self.steps}; it must be at most {MOST_STEPS:,}")
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
        if self.low_precision_norms and self.precision != "autocast":
            raise InvalidRequest(
                f'low_precision_norms is true and precision is "{self.precision}"; set precision to '
                '"autocast", or leave it out'
            )
        self.schedule.lengths(self.steps)

    @property
    def recomputes(self) -> bool:
        """Whether activations are recomputed in the backward pass."""
        return self.gradient_checkpointing or bool(self.model.config.get("gradient_checkpointing"))

    @property
    def loop(self) -> LoopSettings:
        """The settings of the training loop."""
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


def read_run(path: Path) -> RunSettings:
    """Read the run settings in a TOML file.

    Raises:
        InvalidRequest: it cannot be read, is not TOML, or has invalid settings.
    """
    return read_toml(path, run_of_table)


def run_of_table(table: Mapping[str, Any]) -> RunSettings:
    """Read run settings from the keys of a run file.

    Raises:
        InvalidRequest: the settings are invalid.
    """
    refuse_trainer_names(table, RunSettings, PRETRAINING)
    return read_table(RunSettings, table, "")
