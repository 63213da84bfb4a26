"""The run files in ``recipes/tasks``: they read, name the data's own columns and labels, and train."""

import shutil
from dataclasses import replace

import pytest

from tests.support.places import REPOSITORY, default_folder, shared
from tests.support.tiny import tiny_bert
from unmask.training.finetune import run
from unmask.training.finetune.records import read_labeled
from unmask.training.finetune.settings import EvaluationSettings, read_settings

pytestmark = pytest.mark.long

RECIPES = REPOSITORY / "recipes" / "tasks"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small encoder with the tokenizer of the default model."""
    folder = tmp_path_factory.mktemp("small")
    sizes = {"hidden_size": 20, "num_hidden_layers": 1, "vocab_size": 30522, "max_position_embeddings": 512}
    tiny_bert(**sizes).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(default_folder() / name, folder)
    return str(folder)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_a_recipe_trains(path, small, tmp_path, monkeypatch):
    """One step on the first texts of the real data, and figures on some of the dev part.

    One of them begins with the model that all of them name.
    """
    shared("data")
    settings = read_settings(path)
    assert settings.model.start_from == "default"
    metric = settings.evaluation.metric

    def some(names, data, base, skipped=None):
        found = read_labeled(names, data, base, skipped)
        return [record for record, _ in zip(found, range(24), strict=False)]

    monkeypatch.setattr(run, "read_labeled", some)
    model = settings.model if path.stem == "cola" else replace(settings.model, start_from=small)
    quick = replace(
        settings,
        model=model,
        out=str(tmp_path / "run"),
        epochs=1,
        batch_size=24,
        seeds=(),
        few_shot=settings.few_shot and replace(settings.few_shot, shots=2),
        evaluation=EvaluationSettings(metric=metric),
    )
    result = run.finetune(quick, base=path.parent)
    assert result.steps == 1
    assert f"dev/{metric}" in result.dev
