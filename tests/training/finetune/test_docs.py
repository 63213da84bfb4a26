"""docs/finetune.md: its list of keys is made from the settings, and its examples run.

python -m tests.training.finetune.test_docs     write the list anew
"""

import re
import tomllib

import pytest

from tests.support.places import REPOSITORY, default_folder
from tests.training.test_pretrain_docs import keys
from unmask.training.finetune import settings
from unmask.training.finetune.settings import DataSettings, FewShotSettings
from unmask.training.objectives.specs import EntitySpec, SiftSpec, SoftLabelsSpec
from unmask.training.optim import OptimizerSpec, ScheduleSpec
from unmask.training.retrieval.settings import RetrievalSettings
from unmask.training.run.settings import CheckpointSettings, FaultSettings, LogSettings

pytestmark = pytest.mark.long

PAGE = REPOSITORY / "docs" / "finetune.md"
BEGIN, END = "<!-- keys: written by tests/training/finetune/test_docs.py -->", "<!-- end of keys -->"
TABLES = {
    "the outermost keys": settings.FinetuneSettings,
    "[adapter]": settings.AdapterSettings,
    "[few_shot]": FewShotSettings,
    "[entities]": EntitySpec,
    "[retrieval]": RetrievalSettings,
    "[model]": settings.ModelSettings,
    "[data]": DataSettings,
    "[optimizer]": OptimizerSpec,
    "[schedule]": ScheduleSpec,
    "[sift]": SiftSpec,
    "[soft_labels]": SoftLabelsSpec,
    "[evaluation]": settings.EvaluationSettings,
    "[faults]": FaultSettings,
    "[checkpoints]": CheckpointSettings,
    "[log]": LogSettings,
}
DEFAULTS = {OptimizerSpec: settings.OPTIMIZER, ScheduleSpec: settings.SCHEDULE}


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_list_of_keys_is_that_of_the_settings():
    written = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert written.strip() == keys(TABLES, DEFAULTS).strip(), (
        "run python -m tests.training.finetune.test_docs"
    )


def test_the_run_file_can_be_read():
    (example,) = blocks("toml")
    read = settings.settings_of_table(tomllib.loads(example))
    assert read.optimizer.betas == (0.9, 0.999)
    assert (read.schedule.kind, read.schedule.warmup_share) == ("linear", 0.1)


def test_a_table_keeps_the_defaults_of_fine_tuning():
    table = {"name": "a", "task": "regression", "model": {"start_from": "x"}, "data": {"train": ["y"]}}
    schedule = settings.settings_of_table({**table, "schedule": {"warmup_steps": 7}}).schedule
    assert (schedule.kind, schedule.warmup_steps, schedule.warmup_share) == ("linear", 7, None)
    optimizer = settings.settings_of_table({**table, "optimizer": {"learning_rate": 1e-4}}).optimizer
    assert (optimizer.learning_rate, optimizer.betas, optimizer.weight_decay) == (1e-4, (0.9, 0.999), 0.0)
    assert settings.settings_of_table(table).optimizer.learning_rate == 2e-5


def test_python(tmp_path, monkeypatch):
    default_folder()
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks("python"):
        exec(compile(block, "finetune.md", "exec"), names)
    assert names["model"].classify("A wonderful film.").label == "good"
    assert names["found"].windows > 1
    assert names["found"].truncated_tokens == 0


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{keys(TABLES, DEFAULTS)}\n{END}{rest.partition(END)[2]}")
