"""What the arguments of transformers' ``Trainer`` are called in fine-tuning."""

from collections.abc import Mapping

from unmask.training.run.trainer_names import COMMON

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
