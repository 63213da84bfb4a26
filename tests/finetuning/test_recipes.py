"""The run files in ``recipes/tasks``: they read, name the data's own columns and labels, and train."""

from dataclasses import replace

import pytest

from tests.support.places import REPOSITORY, default_folder, shared
from unmask.finetuning import run
from unmask.finetuning.records import read_labeled
from unmask.finetuning.settings import EvaluationSettings, read_settings

RECIPES = REPOSITORY / "recipes" / "tasks"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_a_recipe_trains(path, tmp_path, monkeypatch):
    """One step on the first texts of the real data, and figures on some of the dev part."""
    shared("data")
    default_folder()
    settings = read_settings(path)
    metric = settings.evaluation.metric

    def some(names, data, base):
        found = read_labeled(names, data, base)
        return [record for record, _ in zip(found, range(24), strict=False)]

    monkeypatch.setattr(run, "read_labeled", some)
    small = replace(
        settings,
        out=str(tmp_path / "run"),
        epochs=1,
        batch_size=24,
        seeds=(),
        few_shot=settings.few_shot and replace(settings.few_shot, shots=2),
        evaluation=EvaluationSettings(metric=metric),
    )
    result = run.finetune(small, base=path.parent)
    assert result.steps == 1
    assert f"dev/{metric}" in result.dev
