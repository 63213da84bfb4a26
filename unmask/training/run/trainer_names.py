"""What the arguments of transformers' ``Trainer`` and ``TrainingArguments`` are called here."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_type_hints

from unmask.errors import InvalidRequest

COMMON: Mapping[str, str] = {
    "adam_beta1": "the first of optimizer.betas",
    "adam_beta2": "the second of optimizer.betas",
    "adam_epsilon": "optimizer.eps",
    "bf16": 'precision = "autocast"',
    "callbacks": "the argument callback",
    "eval_steps": "evaluation.every",
    "fp16": 'precision = "autocast", which computes in bfloat16',
    "learning_rate": "optimizer.learning_rate",
    "logging_dir": "out, the folder of the run, which has the folder tensorboard with log.tensorboard = true",
    "logging_steps": "log.every",
    "lr": "optimizer.learning_rate",
    "lr_scheduler_type": "schedule.kind",
    "max_grad_norm": "optimizer.clip",
    "model_name_or_path": "model.start_from",
    "no_cuda": 'device = "cpu"',
    "optim": "optimizer.kind",
    "output_dir": "out",
    "report_to": "log.tensorboard = true, log.wandb or log.mlflow",
    "resume_from_checkpoint": "nothing, because the same run resumes from its newest checkpoint",
    "run_name": "name",
    "save_steps": "checkpoints.every",
    "save_total_limit": "checkpoints.keep",
    "use_cpu": 'device = "cpu"',
    "warmup_ratio": "schedule.warmup_share",
    "warmup_steps": "schedule.warmup_steps",
    "weight_decay": "optimizer.weight_decay",
}
"""Their name -> ours, in the run files of pretraining and of fine-tuning."""

PRETRAINING: Mapping[str, str] = {
    **COMMON,
    "eval_strategy": "evaluation.every, in steps",
    "evaluation_strategy": "evaluation.every, in steps",
    "gradient_accumulation_steps": "batch.micro_tokens, which divides batch.tokens into as many parts",
    "max_length": "the key max_tokens of a source",
    "max_seq_length": "the key max_tokens of a source",
    "max_steps": "steps",
    "mlm_probability": "objective.rate",
    "num_train_epochs": "steps; the run says how many epochs of each source they are",
    "per_device_train_batch_size": "batch.tokens, the tokens of a step in all processes",
    "torch_compile": "compile",
    "train_file": "data.sources",
    "validation_file": "data.held_out",
}
"""Those of pretraining."""

FREE = ("model.config", "data.rename_labels")
"""Tables that hold names of the user's."""


def refuse_trainer_names(table: Mapping[str, Any], kind: type, names: Mapping[str, str]) -> None:
    """Refuse keys that only the Trainer has, by our names for them.

    Args:
        table: the keys of a run file.
        kind: the dataclass that they are read into, whose own keys are none of them.
        names: theirs -> ours; a name with a point is a key of a table of ours.

    Raises:
        InvalidRequest: there is such a key, at whatever depth.
    """
    sentence = "; ".join(f"instead of {key} set {name}" for key, name in _instead(table, kind, names))
    if sentence:
        raise InvalidRequest(f"the run file has names of transformers' Trainer: {sentence}")


def refuse_keywords(function: str, keywords: Mapping[str, object], names: Mapping[str, str]) -> None:
    """Refuse arguments that a function does not have, by our names for those of the Trainer.

    Raises:
        InvalidRequest: there is one.
    """
    if not keywords:
        return
    sentences = "; ".join(f"instead of {name} set {names[name]}" for name in keywords if name in names)
    if sentences:
        raise InvalidRequest(f"the settings of a run are keys of its file or of a dictionary: {sentences}")
    raise InvalidRequest(
        f"{function} has no argument {next(iter(keywords))!r}; the settings of a run are keys of its file or "
        "of a dictionary, and its documentation lists them"
    )


def instead_of_option(option: str, names: Mapping[str, str]) -> str:
    """A sentence about an option that a command does not have, with our name for one of the Trainer's."""
    name = option.lstrip("-").replace("-", "_")
    where = "the settings of a run are in its file"
    if name in names:
        return f"{where}: instead of {option} set {names[name]}"
    return f"there is no option {option}; {where}, whose keys the documentation lists"


def _instead(
    table: Mapping[str, Any], kind: type | None, names: Mapping[str, str], before: str = ""
) -> Iterator[tuple[str, str]]:
    """Each key of a table, and of those within it, that is a name of the Trainer, with our name."""
    hints = {} if kind is None else get_type_hints(kind)
    for key, value in table.items():
        path = f"{before}{key}"
        name = names.get(path) or (names.get(key) if isinstance(key, str) and key not in hints else None)
        if name is not None:
            yield path, name
        elif isinstance(value, Mapping) and path not in FREE:
            inner = kind if path == "sweep" else _dataclass(hints.get(key))
            yield from _instead(value, inner, names, f"{path}.")


def _dataclass(hint: Any) -> type | None:
    """The table that a type hint allows."""
    for candidate in (hint, *get_args(hint)):
        if isinstance(candidate, type) and dataclasses.is_dataclass(candidate):
            return candidate
    return None


OURS: Mapping[str, str] = {
    **COMMON,
    "compute_metrics": "the argument metrics of unmask.finetune",
    "data.eval": "data.dev",
    "data.test": "--test FILE, or the argument test of unmask.finetune",
    "data.valid": "data.dev",
    "data.validation": "data.dev",
    "dev_file": "data.dev",
    "do_eval": "data.dev, which is evaluated if it is there",
    "do_predict": "--test FILE, or the argument test of unmask.finetune",
    "early_stopping_patience": "evaluation.patience",
    "eval_dataset": "data.dev",
    "eval_strategy": "evaluation.every, in steps; without it every epoch is evaluated",
    "evaluation_strategy": "evaluation.every, in steps; without it every epoch is evaluated",
    "gradient_accumulation_steps": "micro_batches, which divides batch_size texts into as many parts",
    "label_smoothing_factor": "label_smoothing",
    "load_best_model_at_end": "evaluation.metric, which names the figure of the best weights",
    "max_length": "data.max_tokens",
    "max_seq_length": "data.max_tokens",
    "metric_for_best_model": "evaluation.metric",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "per_device_eval_batch_size": "nothing, because dev texts are packed into passes of bounded size",
    "per_device_train_batch_size": "batch_size, the texts of a step in all processes",
    "per_gpu_train_batch_size": "batch_size, the texts of a step in all processes",
    "test_file": "--test FILE, or the argument test of unmask.finetune",
    "train_batch_size": "batch_size",
    "train_dataset": "data.train",
    "train_file": "data.train",
    "validation_file": "data.dev",
}
"""Their name -> ours; those with a point are keys that people expect in a table of ours."""
