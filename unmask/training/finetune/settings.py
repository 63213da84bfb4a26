"""The run file of a fine-tuning run."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import field
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from unmask.base.arguments import at_least
from unmask.errors import InvalidRequest
from unmask.tasks.values import LongTexts, SchemeName
from unmask.text.memory import tables_in_memory
from unmask.training.data.labeled import SamplingStrategy
from unmask.training.finetune.grid import checked_grid
from unmask.training.finetune.tasks import Layout, Task, tasks_with
from unmask.training.objectives.specs import EntitySpec, SiftSpec, SoftLabelsSpec
from unmask.training.optim import OptimizerSpec, ScheduleSpec
from unmask.training.retrieval.settings import RetrievalSettings
from unmask.training.run.settings import (
    MOST_STEPS,
    CheckpointSettings,
    Device,
    ExportDtype,
    FaultSettings,
    LogSettings,
    Precision,
)
from unmask.training.run.trainer_names import OURS, refuse_trainer_names
from unmask.training.table import read_table, read_toml, settings

AnswerOffsets = Literal["exact", "nearest"]
"""What to do with an answer that is not at its offset in the context: refuse it, or take the occurrence that
is nearest to it."""

Format = Literal["tsv", "csv", "jsonl", "parquet", "datasets", "conll", "conllu", "squad"]
"""The layout of labeled data: a table with a row per text, words with labels, or questions with contexts."""


@settings
class DataSettings:
    """Labeled files and the meaning of their columns."""

    train: tuple[str, ...]
    """Paths or globs, relative to the run file."""
    dev: tuple[str, ...] = ()
    """Data to evaluate on, never trained on."""
    format: Format | None = None
    """None: by each file's extension, before .xz or .gz."""
    columns: tuple[str, ...] = ()
    """Names of the columns of a table without a header row."""
    skip_short_lines: bool = False
    """TSV: leave out lines with too few columns and say how many they are, as programs for GLUE do with the
    official file of QQP. Otherwise such a line is an error."""
    answer_offsets: AnswerOffsets = "exact"
    """Answering: refuse a file with an answer that is not at its answer_start, or train on the nearest
    occurrence of each, and say how many they are."""
    text: str = "text"
    """The column of the text, of the words of a text, or of the question of a multiple choice."""
    pair: str | None = None
    """The column of the second text of a pair. Of a multiple choice, the beginning of every choice."""
    both_orders: bool = False
    """Train on every pair in both orders, for tasks in which the order means nothing, such as paraphrases."""
    layout: Layout | None = None
    """Rows of a task of SuperGLUE whose text is made of several values: ``copa`` gives the column ``text``,
    the premise and what is asked; ``wic`` the columns ``text`` and ``pair``, and ``wsc`` the column ``text``,
    with marks around the words in question. None takes columns as they are."""
    choices: tuple[str, ...] = ()
    """Of a multiple choice, needed: the column of the list of choices, or one column for each choice."""
    label: str = "label"
    """The column of the label, the number, the list of labels, the list of a text's word labels, or the
    right choice: its number, counted from 0, or its text. In CoNLL
    files a column number, counted from 0 or, with a minus sign, from the end; in CoNLL-U its name."""
    query: str = "query"
    """Of retrieval, the column of the query."""
    positive: str = "positive"
    """Of retrieval, the column of the document that answers it."""
    negative: str | None = None
    """Of retrieval, the column of a document that does not, or of a list of them; None for the columns
    ``negative`` and ``negatives`` if there are such."""
    scores: str | None = None
    """Of retrieval, the column of a list of a teacher's scores: of the positive document, then of each
    negative. None reads none."""
    labels: tuple[str, ...] = ()
    """The labels in the order of the head. Empty: those of the training data, sorted."""
    rename_labels: Mapping[str, str] = field(default_factory=dict)
    """Names for labels that the data spell otherwise, such as 0 = "negative"."""
    strip_prefix: str = ""
    """What stands before every word of a CoNLL file and is left out, such as the "en:" of WikiANN."""
    scheme: SchemeName | None = None
    """Tagging: rewrite the entities of the data in this scheme, such as IOB2 for data in IOB1. None keeps the
    labels."""
    max_tokens: int | None = None
    """The longest text, special tokens included; None for what the model reads."""
    long_texts: LongTexts = "end"
    """What to do with a longer one: refuse it, drop its end (and report how many tokens are dropped), or
    train on overlapping windows of it. Contexts of questions are read in windows with ``"end"`` too."""
    overlap_tokens: int | None = None
    """Tokens that neighboring windows share; None for 64, or a quarter of a smaller window."""

    def __post_init__(self) -> None:
        if not self.train:
            raise InvalidRequest("train is empty; name at least one file")
        if self.both_orders and (self.pair is None or self.choices):
            raise InvalidRequest("both_orders is true and the data have no pairs; set pair, or leave it out")
        if len(set(self.labels)) != len(self.labels):
            raise InvalidRequest(f"labels names a label twice: {', '.join(self.labels)}")
        at_least("max_tokens", self.max_tokens, 3)
        at_least("overlap_tokens", self.overlap_tokens, 0)


FEW_SHOT: Mapping[str, Any] = {"epochs": 1.0, "batch_size": 16}
"""Values that a run file with ``[few_shot]`` need not repeat: those of SetFit 1.2."""


@settings
class FewShotSettings:
    """Classification from a few texts of each label, as in SetFit (Tunstall et al. 2022)."""

    shots: int | None = None
    """Training texts of each label, drawn with ``seed`` from the training data; None takes all."""
    sampling_strategy: SamplingStrategy = "oversampling"
    """How many pairs of one label and of two labels an epoch has: the larger of both numbers, by repeating
    pairs; the smaller, by leaving pairs out; or each pair once."""
    num_iterations: int | None = None
    """Instead of ``sampling_strategy``: the pairs of one label, and those of two labels, are this many for
    each text."""
    max_pairs: int | None = None
    """Half of it is the most different pairs of one label, and of two labels; None for no limit."""
    head_c: float = 1.0
    """The ``C`` of scikit-learn's LogisticRegression, the inverse of the strength of the head's
    regularization."""

    def __post_init__(self) -> None:
        for name, least in (("shots", 2), ("num_iterations", 1), ("max_pairs", 2)):
            at_least(name, getattr(self, name), least)
        if not 0 < self.head_c < float("inf"):
            raise InvalidRequest(f"head_c is {self.head_c:g}; it must be above 0 and finite")
        if self.num_iterations is not None and self.sampling_strategy != "oversampling":
            raise InvalidRequest(
                f"num_iterations is {self.num_iterations} and sampling_strategy is {self.sampling_strategy}; "
                "give one of the two"
            )


OPTIMIZER: Mapping[str, Any] = {
    "learning_rate": 2e-5,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.0,
}
"""Values that a run file's ``[optimizer]`` need not repeat: those of BERT's fine-tuning in transformers."""

SCHEDULE: Mapping[str, Any] = {"kind": "linear", "warmup_share": 0.1}
"""The same for ``[schedule]``; a number of warm-up steps replaces the share."""


@settings
class ModelSettings:
    """The checkpoint to start from."""

    start_from: str
    """A folder (relative to the run file), "default", or a hub id. It must stay in place until the run is
    finished."""
    ignore_tensors: tuple[str, ...] = ()
    """Tensors of its weight files that are left out, by name, such as loss_fct.weight."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of config.json that differ, such as hidden_dropout_prob."""
    head_dropout: float | None = None
    """Dropout before the last layer of the head; None for that of the encoder's layers."""
    kernel: str | None = None
    """The attention kernel; None takes the first that supports the encoder."""

    def __post_init__(self) -> None:
        if self.head_dropout is not None and not 0 <= self.head_dropout < 1:
            raise InvalidRequest(f"head_dropout is {self.head_dropout}; it must be from 0 to below 1")


@settings
class AdapterSettings:
    """An adapter: the encoder stays as it is, and a small file holds what is learned (Hu et al. 2022)."""

    kind: Literal["lora", "head"] = "lora"
    """``"lora"`` trains low-rank updates of linear layers and the head; ``"head"`` the head alone."""
    r: int = 8
    """The rank of the updates."""
    lora_alpha: float = 16.0
    """The updates are multiplied by lora_alpha / r."""
    lora_dropout: float = 0.0
    """Dropout before each update."""
    target_modules: Literal["all-linear", "attention", "feedforward"] = "all-linear"
    """The linear layers of each block that are updated; never the head's."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Dtype of the stored adapter. A 16-bit one halves the file, and rounds what was trained."""

    def __post_init__(self) -> None:
        at_least("r", self.r, 1)
        if not self.lora_alpha > 0:
            raise InvalidRequest(f"lora_alpha is {self.lora_alpha}; it must be above 0")
        if not 0 <= self.lora_dropout < 1:
            raise InvalidRequest(f"lora_dropout is {self.lora_dropout}; it must be from 0 to below 1")


@settings
class EvaluationSettings:
    """Evaluation on the dev data, and what follows from it."""

    every: int = 0
    """Steps between evaluations; 0 evaluates after every epoch."""
    metric: str | None = None
    """The figure that chooses the best checkpoint, which is then what is exported; None exports the last."""
    patience: int = 0
    """Evaluations without a better ``metric`` after which the run stops early; 0 never stops early."""
    calibrate: bool = False
    """Classification and multi_label: divide logits by a temperature that is fitted to the dev data in the
    end, so that probabilities are as high as predictions are often right."""

    def __post_init__(self) -> None:
        at_least("every", self.every, 0)
        at_least("patience", self.patience, 0)
        if self.patience and self.metric is None:
            raise InvalidRequest("patience is given and metric is not; name the figure to watch")


@settings
class FinetuneSettings:
    """The settings of one fine-tuning run."""

    name: str
    """Name of the model."""
    task: Task
    model: ModelSettings
    data: DataSettings
    epochs: float = 3.0
    """How often each training text (or each pair of ``[few_shot]``, there 1 by default) is read."""
    max_steps: int | None = None
    """The number of steps, instead of ``epochs``; the schedule is that of so many steps."""
    batch_size: int = 32
    """Texts per step; pairs with ``[few_shot]``, where the default is 16."""
    micro_batches: int = 1
    """Micro-batches per step, to bound memory; they do not change the result beyond rounding."""
    optimizer: OptimizerSpec = field(
        default_factory=lambda: read_table(OptimizerSpec, OPTIMIZER, "optimizer")
    )
    schedule: ScheduleSpec = field(default_factory=lambda: read_table(ScheduleSpec, SCHEDULE, "schedule"))
    class_weights: Literal["balanced"] | tuple[float, ...] | None = None
    """A factor for the loss of each label, in the order of the labels, for classification, tagging and
    multi_label (there of labels that apply). ``"balanced"``, for classification and tagging: the number of
    all labels divided by that of this one and by the number of different labels."""
    label_smoothing: float = 0.0
    """The share of a target's probability that is spread over all labels or choices; for classification,
    tagging and multiple_choice."""
    r_drop: float = 0.0
    """The factor of R-Drop's divergence between two passes with different dropout; 0 for one pass."""
    sift: SiftSpec | None = None
    """Virtual adversarial training on normalized embeddings; None for none."""
    soft_labels: SoftLabelsSpec | None = None
    """Learn what a larger model of the same task predicts, beside the labels; None for labels alone."""
    frozen: bool = False
    """Train the head alone; the encoder stays as it is."""
    adapter: AdapterSettings | None = None
    """Train an adapter of the checkpoint instead of all weights."""
    few_shot: FewShotSettings | None = None
    """Learn from a few texts of each label: train the encoder on pairs of texts, then fit a head."""
    entities: EntitySpec | None = None
    """Of the task tagging: learn entities of labels that are read as texts, so that others can be named when
    the model is called."""
    retrieval: RetrievalSettings | None = None
    """Of the task retrieval: what kind of retriever is trained, and how."""
    faults: FaultSettings = field(default_factory=FaultSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    log: LogSettings = field(default_factory=LogSettings)
    precision: Precision = "float32"
    device: Device = "auto"
    seed: int = 0
    """Determines the head's initial weights, the order of texts, dropout, and the texts and pairs that
    ``[few_shot]`` draws."""
    seeds: tuple[int, ...] = ()
    """Instead of ``seed``: several seeds; each has a run of its own in the folder ``seed-N`` of ``out``. The
    result has every figure of every seed, means and standard deviations."""
    sweep: Mapping[str, Any] = field(default_factory=dict)
    """Lists of values under keys of this file, such as ``"optimizer.learning_rate" = [2e-5, 5e-5]``: every
    combination has a run, in the folder ``trial-N`` of ``out``, and ``evaluation.metric`` says which is
    best."""
    out: str = "."
    """Folder of the run, relative to the run file."""
    card: str | None = None
    """A file, relative to the run file, that is copied into the exported model as README.md. None: a card is
    written there, with the protocol, the data and the scores of the run."""
    license: str | None = None
    """The license of the model for the card that is written, such as "apache-2.0"."""
    language: str | None = None
    """The language of the texts for the card that is written, such as "en"."""
    export_dtype: ExportDtype | None = None
    """Dtype of the exported model; None for that of the weights in training."""
    export_shard_bytes: int | None = None
    """Maximum bytes of each file of exported weights; None for a single file."""

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("micro_batches", 1), ("seed", 0)):
            at_least(name, getattr(self, name), least)
        if (self.task == "multiple_choice") != bool(self.data.choices):
            raise InvalidRequest(
                "data.choices is empty, and multiple_choice needs the column of the list of choices, or one "
                "column for each choice"
                if self.task == "multiple_choice"
                else f"data.choices is for multiple_choice, and the task is {self.task}; leave it out"
            )
        self._check_seeds()
        if not 0 < self.epochs < 1e6:
            raise InvalidRequest(f"epochs is {self.epochs}; it must be above 0")
        at_least("max_steps", self.max_steps, 1)
        if self.max_steps is not None and self.max_steps > MOST_STEPS:
            raise InvalidRequest(f"max_steps is {self.max_steps}; it must be at most {MOST_STEPS:,}")
        self._check_loss()
        if self.frozen and self.adapter is not None:
            raise InvalidRequest(
                'frozen and [adapter] exclude each other; for the head alone take kind = "head"'
            )
        if self.few_shot is not None:
            _check_few_shot(self)
        _check_retrieval(self)
        _check_entities(self)
        if self.data.scheme is not None and self.task != "tagging":
            raise InvalidRequest(f"data.scheme is for tagging and the task is {self.task}; leave it out")
        classifies = self.task in ("classification", "multi_label")
        if self.evaluation.calibrate and not (classifies and self.data.dev):
            raise InvalidRequest(
                "evaluation.calibrate needs data.dev and the task classification or multi_label, and the "
                f"task is {self.task} with {'' if self.data.dev else 'no '}dev data; leave it out"
            )
        if self.evaluation.metric is not None and not self.data.dev:
            raise InvalidRequest("evaluation.metric needs data.dev; name the data to evaluate on")
        if self.sweep:
            object.__setattr__(self, "sweep", checked_grid(self, self.sweep, self.evaluation.metric))

    def _check_loss(self) -> None:
        if self.class_weights == "balanced" and self.task not in ("classification", "tagging"):
            raise InvalidRequest(
                f"class_weights is balanced and task is {self.task}; give numbers, or use a task with one "
                "label for each text or word"
            )
        if not 0 <= self.r_drop < math.inf:
            raise InvalidRequest(f"r_drop is {self.r_drop:g}; it must be at least 0 and finite")
        if not 0 <= self.label_smoothing < 1:
            raise InvalidRequest(f"label_smoothing is {self.label_smoothing}; it must be from 0 to below 1")
        for name in ("label_smoothing", "class_weights"):
            tasks = tasks_with(name)
            if getattr(self, name) and self.task not in tasks:
                raise InvalidRequest(
                    f"{name} is {getattr(self, name)} and the task is {self.task}, whose loss has no use for "
                    f"it; leave it out, or use one of {', '.join(tasks)}"
                )

    def _check_seeds(self) -> None:
        if not self.seeds:
            return
        for seed in self.seeds:
            at_least("seeds", seed, 0)
        if len(set(self.seeds)) < max(2, len(self.seeds)):
            raise InvalidRequest(
                f"seeds is {list(self.seeds)}; give at least two different numbers, or one as seed"
            )
        if self.seed:
            raise InvalidRequest(f"seed is {self.seed} and seeds is {list(self.seeds)}; give one of the two")


HEADS_OWN = (
    *(
        "frozen",
        "[adapter]",
        "class_weights",
        "label_smoothing",
        "r_drop",
        "[sift]",
        "[soft_labels]",
        "model.head_dropout",
    ),
)
"""Settings of a head that is trained together with its encoder."""

PAIRS_OWN = ("labels", "both_orders", "pair", "skip_short_lines", "answer_offsets")
"""Settings of labeled data that queries with documents lack."""


def _refuse(settings: FinetuneSettings, names: Iterable[str], why: str) -> None:
    """Refuse those of the named settings that are given."""
    for name in names:
        value = attrgetter(name.strip("[]"))(settings)
        if value and value != "exact":  # the default of data.answer_offsets
            raise InvalidRequest(f"{name} {why}")


def _check_few_shot(settings: FinetuneSettings) -> None:
    """Refuse what few-shot learning cannot use.

    Raises:
        InvalidRequest: the task is another, or a setting would have no effect.
    """
    if settings.task != "classification":
        raise InvalidRequest(
            f"[few_shot] is for classification with one label of each text, and the task is {settings.task}; "
            "leave it out"
        )
    _refuse(
        settings,
        HEADS_OWN,
        "and [few_shot] exclude each other, because pairs train the whole encoder with their own loss and "
        "the head is fitted afterwards; leave one of the two out",
    )


def _check_retrieval(settings: FinetuneSettings) -> None:
    """Refuse what the training of a retriever cannot use.

    Raises:
        InvalidRequest: the task is another, or a setting would have no effect.
    """
    if settings.task != "retrieval":
        if settings.retrieval is not None:
            raise InvalidRequest(
                f"[retrieval] is for the task retrieval, and the task is {settings.task}; leave it out, or "
                'set task = "retrieval"'
            )
        return
    if settings.retrieval is None:
        object.__setattr__(settings, "retrieval", RetrievalSettings())
    _refuse(
        settings,
        (*HEADS_OWN, "[few_shot]", "evaluation.calibrate", *(f"data.{name}" for name in PAIRS_OWN)),
        "has no meaning for the task retrieval, which learns from queries and documents; leave it out",
    )
    if settings.data.scores is None and settings.retrieval is not None and settings.retrieval.needs_scores:
        raise InvalidRequest(
            f"retrieval.loss is {settings.retrieval.loss}, which learns from a teacher's scores; set "
            "data.scores to their column"
        )
    if settings.data.long_texts == "window":
        raise InvalidRequest(
            "data.long_texts is window, and a document has one vector in training; set it to end or error"
        )


def _check_entities(settings: FinetuneSettings) -> None:
    """Raise `InvalidRequest` for what the training of a head for labels as texts cannot use."""
    if settings.entities is None:
        return
    if settings.task != "tagging":
        raise InvalidRequest(
            f"[entities] is for the task tagging, and the task is {settings.task}; leave it out"
        )
    of_other_heads = [name for name in HEADS_OWN if name not in ("frozen", "[adapter]", "model.head_dropout")]
    why = "has no meaning with [entities], whose head reads labels as texts; leave it out"
    _refuse(settings, (*of_other_heads, "data.pair", "data.overlap_tokens"), why)
    if settings.data.long_texts != "end":
        raise InvalidRequest(
            f"data.long_texts is {settings.data.long_texts}, and [entities] reads the words "
            "that fit; set it to end"
        )


def read_settings(path: Path) -> FinetuneSettings:
    """Read the settings in a TOML file.

    Raises:
        InvalidRequest: it cannot be read, is not TOML, or has invalid settings.
    """
    return read_toml(path, settings_of_table)


def settings_of_table(table: Mapping[str, Any]) -> FinetuneSettings:
    """Read the settings from the keys of a run file. Missing optimizer keys are those of fine-tuning, and
    with ``[few_shot]`` missing epochs and batches are those of SetFit.

    Raises:
        InvalidRequest: the settings are invalid.
    """
    refuse_trainer_names(table, FinetuneSettings, OURS)
    if isinstance(data := table.get("data"), Mapping):
        in_memory = {
            name: tables_in_memory(data[name], f"data.{name}") for name in ("train", "dev") if name in data
        }
        table = {**table, "data": {**data, **in_memory}}
    optimizer, schedule = table.get("optimizer", {}), table.get("schedule", {})
    if isinstance(optimizer, Mapping):
        table = {**table, "optimizer": {**OPTIMIZER, **optimizer}}
    if isinstance(schedule, Mapping):
        keys = {**SCHEDULE, **schedule}
        if "warmup_steps" in schedule:
            keys.pop("warmup_share")
        table = {**table, "schedule": keys}
    if "few_shot" in table:
        table = {**FEW_SHOT, **table}
    return read_table(FinetuneSettings, table, "")
