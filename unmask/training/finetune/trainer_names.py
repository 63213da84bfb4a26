"""What the arguments of transformers' ``TrainingArguments`` are called in a run file."""

from collections.abc import Mapping
from typing import Any

from unmask.errors import InvalidRequest

OURS: Mapping[str, str] = {
    "adam_beta1": "the first of optimizer.betas",
    "adam_beta2": "the second of optimizer.betas",
    "adam_epsilon": "optimizer.eps",
    "bf16": 'precision = "autocast"',
    "early_stopping_patience": "evaluation.patience",
    "eval_steps": "evaluation.every",
    "fp16": 'precision = "autocast", which computes in bfloat16',
    "gradient_accumulation_steps": "micro_batches, which divides batch_size texts into as many parts",
    "label_smoothing_factor": "label_smoothing",
    "learning_rate": "optimizer.learning_rate",
    "load_best_model_at_end": "evaluation.metric, which names the figure of the best weights",
    "logging_steps": "log.every",
    "lr_scheduler_type": "schedule.kind",
    "max_grad_norm": "optimizer.clip",
    "max_seq_length": "data.max_tokens",
    "max_steps": "epochs, which may be a fraction: steps * batch_size / texts",
    "metric_for_best_model": "evaluation.metric",
    "model_name_or_path": "model.start_from",
    "num_train_epochs": "epochs",
    "output_dir": "out",
    "per_device_train_batch_size": "batch_size, the texts of a step in all processes",
    "report_to": "log.tensorboard = true",
    "save_steps": "checkpoints.every",
    "save_total_limit": "checkpoints.keep",
    "train_batch_size": "batch_size",
    "warmup_ratio": "schedule.warmup_share",
    "warmup_steps": "schedule.warmup_steps",
    "weight_decay": "optimizer.weight_decay",
}
"""Their name -> ours."""


def refuse_trainer_names(table: Mapping[str, Any]) -> None:
    """Refuse a key that only the Trainer has, by our name for it.

    Args:
        table: the keys of a run file, of which the outermost and those of ``[schedule]`` are checked.

    Raises:
        InvalidRequest: there is such a key.
    """
    schedule = table.get("schedule")
    wrong = [key for key in table if key in OURS]
    if isinstance(schedule, Mapping) and "warmup_ratio" in schedule:
        wrong.append("warmup_ratio")
    if wrong:
        said = "; ".join(f"instead of {key} set {OURS[key]}" for key in wrong)
        raise InvalidRequest(f"the run file has names of transformers' Trainer: {said}")
