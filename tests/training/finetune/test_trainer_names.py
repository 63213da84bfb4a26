"""Names of transformers' Trainer in a run file."""

import dataclasses
import re
import typing

import pytest

import unmask
from tests.support.command import assert_one_sentence, run_here
from unmask.errors import InvalidRequest
from unmask.training.finetune.settings import FinetuneSettings, settings_of_table
from unmask.training.run.settings import RunSettings, run_of_table
from unmask.training.run.trainer_names import OURS, PRETRAINING

TABLE = {"name": "m", "task": "classification", "model": {"start_from": "m"}, "data": {"train": ["t.tsv"]}}


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"learning_rate": 1e-4}, "instead of learning_rate set optimizer.learning_rate$"),
        ({"gradient_accumulation_steps": 2}, "set micro_batches"),
        ({"schedule": {"warmup_ratio": 0.1}}, "instead of schedule.warmup_ratio set schedule.warmup_share"),
        ({"lr": 3, "num_train_epochs": 2}, "set optimizer.*; instead of num_train_epochs set epochs$"),
        ({"optimizer": {"lr": 1e-4}}, "instead of optimizer.lr set optimizer.learning_rate$"),
        ({"data": {"train": ["t"], "test": "x.tsv"}}, "instead of data.test set --test FILE"),
        ({"evaluation": {"eval_steps": 5}}, "instead of evaluation.eval_steps set evaluation.every"),
        ({"training_args": {"warmup_ratio": 0.1}}, "instead of training_args.warmup_ratio set schedule.warm"),
        ({"sweep": {"learning_rate": [1e-4]}}, "instead of sweep.learning_rate set optimizer.learning_rate"),
    ],
)
def test_they_are_answered_with_ours(keys, says):
    with pytest.raises(InvalidRequest, match=says):
        settings_of_table({**TABLE, **keys})


def test_none_of_them_is_a_name_of_ours_there():
    assert not OURS.keys() & {field.name for field in dataclasses.fields(FinetuneSettings)}
    assert not PRETRAINING.keys() & {field.name for field in dataclasses.fields(RunSettings)}


@pytest.mark.parametrize("names", [OURS, PRETRAINING])
def test_every_key_that_is_named_exists(names):
    kind = FinetuneSettings if names is OURS else RunSettings
    for said in names.values():
        for path in re.findall(r"[a-z_]+\.[a-z_]+", said):
            table, key = path.split(".")
            if table not in ("unmask", "objective"):
                assert key in typing.get_type_hints(_table(kind, table)), said


def _table(kind, name):
    hint = typing.get_type_hints(kind)[name]
    return next(one for one in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(one))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"max_steps": 3}, "instead of max_steps set steps$"),
        ({"optimizer": {"lr": 3}}, "instead of optimizer.lr set optimizer.learning_rate"),
        ({"objective": {"kind": "masked", "mlm_probability": 0.2}}, "set objective.rate"),
    ],
)
def test_pretraining_answers_them_too(keys, says):
    with pytest.raises(InvalidRequest, match=says):
        run_of_table(keys)


def test_names_of_ours_that_the_trainer_has_too_are_read():
    given = {
        "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.1},
        "schedule": {"warmup_steps": 3},
        "model": {"start_from": "m", "config": {"max_length": 20}},
        "evaluation": {"metric": "accuracy"},
        "data": {"train": ["t"], "dev": ["d"]},
        "sweep": {"optimizer": {"learning_rate": [1e-4]}},
    }
    assert settings_of_table({**TABLE, **given}).optimizer.weight_decay == 0.1


def test_arguments_and_options_are_answered_too(tmp_path):
    with pytest.raises(InvalidRequest, match="instead of num_train_epochs set epochs"):
        unmask.finetune(TABLE, num_train_epochs=3)
    with pytest.raises(InvalidRequest, match="has no argument 'nothing'"):
        unmask.finetune(TABLE, nothing=3)
    for option in ("--warmup-ratio=0.1", "--warmup_ratio"):
        ran = run_here("finetune", tmp_path / "run.toml", option, *(() if "=" in option else ("0.1",)))
        assert_one_sentence(ran, f"instead of {option.split('=')[0]} set schedule.warmup_share", code=2)
    assert_one_sentence(run_here("finetune", "run.toml", "--epochs", "3"), "are in its file", code=2)
    with pytest.raises(InvalidRequest, match="instead of max_steps set steps"):
        unmask.train({}, max_steps=3)
    ran = run_here("pretrain", "run.toml", "--mlm-probability", "0.2")
    assert_one_sentence(ran, "instead of --mlm-probability set objective.rate", code=2)
