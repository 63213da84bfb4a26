"""Names of transformers' Trainer in a run file."""

import dataclasses

import pytest

from unmask.errors import InvalidRequest
from unmask.training.finetune.settings import FinetuneSettings, settings_of_table
from unmask.training.finetune.trainer_names import OURS

TABLE = {"name": "m", "task": "classification", "model": {"start_from": "m"}, "data": {"train": ["t.tsv"]}}


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"learning_rate": 1e-4}, "instead of learning_rate set optimizer.learning_rate$"),
        ({"gradient_accumulation_steps": 2}, "set micro_batches"),
        ({"schedule": {"warmup_ratio": 0.1}}, "instead of warmup_ratio set schedule.warmup_share"),
        ({"max_steps": 3, "num_train_epochs": 2}, "set epochs, .*; instead of num_train_epochs set epochs$"),
    ],
)
def test_they_are_answered_with_ours(keys, says):
    with pytest.raises(InvalidRequest, match=says):
        settings_of_table({**TABLE, **keys})


def test_none_of_them_is_a_name_of_ours_there():
    assert not OURS.keys() & {field.name for field in dataclasses.fields(FinetuneSettings)}
