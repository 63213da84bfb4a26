"""The model card that a run writes about itself: README.md with metadata, protocol, scores and counts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import unmask
from unmask.base.intervals import CONFIDENCE, Interval
from unmask.training.finetune.settings import FinetuneSettings
from unmask.training.finetune.tasks import TASKS
from unmask.training.optim.spec import WARMUP_SHARE

OWN_FORMAT = (
    "This model is in unmask's own format, because its head reads normalized vectors, which no class of "
    "`transformers` does; `transformers` cannot load it. The folder `encoder` holds the encoder without the "
    "head, and `sentence-transformers` loads that."
)


@dataclass(frozen=True)
class CardFacts:
    """What a run knows of itself in the end."""

    settings: FinetuneSettings
    base_model: str
    """The name of the checkpoint that the run started from, without folders of the machine."""
    labels: tuple[str, ...]
    data: Sequence[str]
    """Sentences about the data."""
    steps: int
    best_step: int
    dev: Mapping[str, float]
    """Figures of the exported weights."""
    intervals: Mapping[str, Interval]


def model_card(facts: CardFacts, *, adapter: bool = False) -> str:
    """The text of README.md of a model, or of an adapter."""
    settings = facts.settings
    load = 'model = unmask.load("path/to/this/folder")'
    if adapter:
        load = f'model = unmask.load("{facts.base_model}", adapter="path/to/this/folder")'
    parts = [
        "---",
        *yaml_lines(_metadata(facts)),
        "---",
        "",
        f"# {settings.name}",
        "",
        f"{'An adapter' if adapter else 'A model'} for {settings.task.replace('_', ' ')}, fine-tuned from "
        f"{facts.base_model} with unmask {unmask.__version__}.",
    ]
    if facts.labels:
        parts += ["", f"Labels: {', '.join(facts.labels)}."]
    parts += ["", *_scores(facts), "## Data", "", *(f"- {sentence}" for sentence in _data(facts)), ""]
    parts += ["## Training", "", *(f"- {sentence}" for sentence in _protocol(facts)), ""]
    parts += ["## Use", "", "```python", "import unmask", "", load]
    parts += [TASKS[settings.task].example, "```", ""]
    if settings.few_shot is not None:
        parts += [OWN_FORMAT, ""]
    return "\n".join(parts)


def _metadata(facts: CardFacts) -> dict[str, Any]:
    settings = facts.settings
    library = "transformers" if settings.few_shot is None else "unmask"
    metadata = card_metadata(settings, facts.base_model, TASKS[settings.task].pipeline, library)
    if facts.dev:
        metadata["metrics"] = [name for name in facts.dev if "[" not in name]
        result = {
            "task": {"type": TASKS[settings.task].pipeline},
            "dataset": {"type": "files", "name": file_names(settings.data.dev)},
            "metrics": [
                {"type": name, "name": name, "value": round(value, 6)} for name, value in facts.dev.items()
            ],
        }
        metadata["model-index"] = [{"name": settings.name, "results": [result]}]
    return metadata


def _scores(facts: CardFacts) -> list[str]:
    if not facts.dev:
        return ["The run had no dev data, so there are no scores.", ""]
    settings = facts.settings
    lines = ["## Scores", "", f"On {file_names(settings.data.dev)}:", ""]
    lines += [f"| figure | value | {CONFIDENCE:.0%} interval |", "|---|---|---|"]
    for name, value in facts.dev.items():
        interval = facts.intervals.get(name)
        between = "" if interval is None else f"{interval.low:.4f} to {interval.high:.4f}"
        lines.append(f"| {_cell(name)} | {value:.4f} | {between} |")
    lines += [
        "",
        "Intervals are Wilson's for shares of texts, and from a bootstrap over the texts for all other "
        "figures. They are about the choice of dev texts, not about the seed of the training.",
        "",
    ]
    return lines + choice_of_weights(settings, facts.best_step, "texts")


def _data(facts: CardFacts) -> list[str]:
    data = facts.settings.data
    files = [f"training files: {file_names(data.train)}"]
    return files + ([f"dev files: {file_names(data.dev)}"] if data.dev else []) + list(facts.data)


def _protocol(facts: CardFacts) -> list[str]:
    settings = facts.settings
    optimizer, schedule = settings.optimizer, settings.schedule
    warmup = (
        f"{schedule.warmup_steps} steps"
        if schedule.warmup_steps is not None
        else f"{WARMUP_SHARE if schedule.warmup_share is None else schedule.warmup_share:.0%} of the run"
    )
    planned = f"{settings.epochs:g} epochs" if settings.max_steps is None else f"{settings.max_steps:,} steps"
    lines = [
        f"{planned} planned, {facts.steps:,} steps taken, of {settings.batch_size} "
        + ("texts" if settings.few_shot is None else "pairs of texts"),
        f"{optimizer.kind}, learning rate {optimizer.learning_rate:g}, {schedule.kind} schedule with a "
        f"warm-up of {warmup}, weight decay {optimizer.weight_decay:g}"
        + (" (decoupled)" if optimizer.decoupled else ""),
        f"seed {settings.seed}, precision {settings.precision}",
    ]
    if optimizer.layer_decay is not None:
        lines.append(
            f"layer-wise learning-rate decay {optimizer.layer_decay:g} ({optimizer.layer_decay_kind})"
        )
    if settings.label_smoothing:
        lines.append(f"label smoothing {settings.label_smoothing:g}")
    if settings.class_weights is not None:
        weights = settings.class_weights
        rates = weights if isinstance(weights, str) else ", ".join(f"{weight:g}" for weight in weights)
        lines.append(f"class weights {rates}")
    if settings.r_drop:
        lines.append(f"R-Drop with factor {settings.r_drop:g}")
    if (soft := settings.soft_labels) is not None:
        lines.append(
            f"soft labels of {soft.teacher} with weight {soft.weight:g} and temperature {soft.temperature:g}"
        )
    if settings.sift is not None:
        lines.append(f"SiFT with weight {settings.sift.weight:g}")
    if (few := settings.few_shot) is not None:
        texts_used = "all texts" if few.shots is None else f"{few.shots} texts"
        lines.append(
            f"few-shot: {texts_used} of each label; the encoder learned from pairs of them (SetFit), then a "
            f"logistic regression with C {few.head_c:g} was fitted to its normalized vectors of the texts"
        )
    if settings.frozen:
        lines.append("the encoder was frozen; only the head was trained")
    return lines


def card_metadata(
    settings: FinetuneSettings, base_model: str, pipeline: str, library: str, *tags: str
) -> dict[str, Any]:
    """What the hub reads at the beginning of a card."""
    stated = {"license": settings.license, "language": settings.language}
    return {name: value for name, value in stated.items() if value is not None} | {
        "base_model": base_model,
        "pipeline_tag": pipeline,
        "library_name": library,
        "tags": ["unmask", *tags],
    }


def choice_of_weights(settings: FinetuneSettings, step: int, unit: str) -> list[str]:
    """How the exported weights were chosen; nothing if they are the last."""
    metric = settings.evaluation.metric
    if metric is None:
        return []
    return [
        f"The weights of step {step:,} were chosen by `{metric}` on the same {unit}, so the scores are "
        "slightly optimistic.",
        "",
    ]


def file_names(names: Sequence[str]) -> str:
    """The names of files without their folders."""
    return ", ".join(PurePath(name).name for name in names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def yaml_lines(value: Any, indent: str = "") -> list[str]:
    """Tables, lists and scalars as YAML; strings in double quotes, whose rules JSON shares."""
    lines = []
    for key, entry in value.items():
        if isinstance(entry, Mapping):
            lines += [f"{indent}{key}:", *yaml_lines(entry, indent + "  ")]
        elif isinstance(entry, list):
            lines.append(f"{indent}{key}:")
            for item in entry:
                if isinstance(item, Mapping):
                    first, *rest = yaml_lines(item, indent + "  ")
                    lines += [f"{indent}- {first.strip()}", *rest]
                else:
                    lines.append(f"{indent}- {json.dumps(item, ensure_ascii=False)}")
        else:
            lines.append(f"{indent}{key}: {json.dumps(entry, ensure_ascii=False)}")
    return lines
