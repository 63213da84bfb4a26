"""What the arguments of transformers' ``Trainer`` and ``TrainingArguments`` are called here."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_type_hints

from unmask.errors import InvalidRequest

OURS: Mapping[str, str] = {
    "adam_beta1": "the first of optimizer.betas",
    "adam_beta2": "the second of optimizer.betas",
    "adam_epsilon": "optimizer.eps",
    "bf16": 'precision = "autocast"',
    "callbacks": "the argument callback of unmask.finetune",
    "compute_metrics": "the argument metrics of unmask.finetune",
    "dev_file": "data.dev",
    "do_eval": "data.dev, which is evaluated if it is there",
    "do_predict": "--test FILE, or the argument test of unmask.finetune",
    "early_stopping_patience": "evaluation.patience",
    "eval_dataset": "data.dev",
    "eval_steps": "evaluation.every",
    "eval_strategy": "evaluation.every, in steps; without it every epoch is evaluated",
    "evaluation_strategy": "evaluation.every, in steps; without it every epoch is evaluated",
    "fp16": 'precision = "autocast", which computes in bfloat16',
    "gradient_accumulation_steps": "micro_batches, which divides batch_size texts into as many parts",
    "label_smoothing_factor": "label_smoothing",
    "learning_rate": "optimizer.learning_rate",
    "load_best_model_at_end": "evaluation.metric, which names the figure of the best weights",
    "logging_dir": "out, the folder of the run, which has the folder tensorboard with log.tensorboard = true",
    "logging_steps": "log.every",
    "lr": "optimizer.learning_rate",
    "lr_scheduler_type": "schedule.kind",
    "max_grad_norm": "optimizer.clip",
    "max_length": "data.max_tokens",
    "max_seq_length": "data.max_tokens",
    "metric_for_best_model": "evaluation.metric",
    "model_name_or_path": "model.start_from",
    "no_cuda": 'device = "cpu"',
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "optim": "optimizer.kind",
    "output_dir": "out",
    "per_device_eval_batch_size": "nothing, because dev texts are packed into passes of bounded size",
    "per_device_train_batch_size": "batch_size, the texts of a step in all processes",
    "per_gpu_train_batch_size": "batch_size, the texts of a step in all processes",
    "report_to": "log.tensorboard = true, log.wandb or log.mlflow",
    "resume_from_checkpoint": "nothing, because the same run resumes from its newest checkpoint",
    "run_name": "name",
    "save_steps": "checkpoints.every",
    "save_total_limit": "checkpoints.keep",
    "test_file": "--test FILE, or the argument test of unmask.finetune",
    "train_batch_size": "batch_size",
    "train_dataset": "data.train",
    "train_file": "data.train",
    "use_cpu": 'device = "cpu"',
    "validation_file": "data.dev",
    "warmup_ratio": "schedule.warmup_share",
    "warmup_steps": "schedule.warmup_steps",
    "weight_decay": "optimizer.weight_decay",
}
"""Their name -> ours."""

NESTED: Mapping[str, str] = {
    "data.eval": "data.dev",
    "data.test": OURS["test_file"],
    "data.valid": "data.dev",
    "data.validation": "data.dev",
}
"""Keys of our own tables that people expect there."""

FREE = ("model.config", "data.rename_labels")
"""Tables that hold names of the user's."""


def refuse_trainer_names(table: Mapping[str, Any], kind: type) -> None:
    """Refuse keys that only the Trainer has, by our names for them.

    Args:
        table: the keys of a run file.
        kind: the dataclass that they are read into, whose own keys are none of them.

    Raises:
        InvalidRequest: there is such a key, at whatever depth.
    """
    said = "; ".join(f"instead of {key} set {name}" for key, name in _instead(table, kind, ""))
    if said:
        raise InvalidRequest(f"the run file has names of transformers' Trainer: {said}")


def refuse_keywords(given: Mapping[str, object]) -> None:
    """Refuse arguments that `unmask.finetune` does not have, by our names for those of the Trainer.

    Raises:
        InvalidRequest: there is one.
    """
    if not given:
        return
    some = "; ".join(f"instead of {name} set {OURS[name]}" for name in given if name in OURS)
    if some:
        raise InvalidRequest(f"settings are keys of the run file or of a dictionary: {some}")
    raise InvalidRequest(
        f"unmask.finetune has no argument {next(iter(given))!r}; settings are keys of the run file or of a "
        "dictionary, which docs/finetune.md lists"
    )


def option_of_trainer(option: str) -> str | None:
    """A sentence about an option of the command line that is a name of the Trainer's; None for others."""
    name = option.lstrip("-").partition("=")[0].replace("-", "_")
    if name not in OURS:
        return None
    return (
        f"the settings of a run are in its file; instead of {option.partition('=')[0]} set {OURS[name]} there"
    )


def _instead(table: Mapping[str, Any], kind: type | None, before: str) -> Iterator[tuple[str, str]]:
    """Each key of a table, and of those within it, that is a name of the Trainer, with our name."""
    hints = {} if kind is None else get_type_hints(kind)
    for key, value in table.items():
        path = f"{before}{key}"
        name = NESTED.get(path) or (OURS.get(key) if isinstance(key, str) and key not in hints else None)
        if name is not None:
            yield path, name
        elif isinstance(value, Mapping) and path not in FREE:
            inner = kind if path == "sweep" else _dataclass(hints.get(key))
            yield from _instead(value, inner, f"{path}.")


def _dataclass(hint: Any) -> type | None:
    """The table that a type hint allows."""
    for one in (hint, *get_args(hint)):
        if isinstance(one, type) and dataclasses.is_dataclass(one):
            return one
    return None
