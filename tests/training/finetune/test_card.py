"""The card that a run writes about itself, and the intervals in it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import yaml

from tests.training.finetune.test_finetune import place, table
from tests.training.finetune.test_methods import METHODS
from unmask.engines.torch_engine import TorchEngine
from unmask.errors import InvalidRequest
from unmask.training.finetune.card import CardFacts, model_card
from unmask.training.finetune.evaluate import evaluate, intervals, predicted
from unmask.training.finetune.metrics import class_figures
from unmask.training.finetune.run import FinetuneRun, finetune
from unmask.training.finetune.settings import settings_of_table
from unmask.training.run.callbacks import Callback
from unmask.training.run.ranks import Ranks

pytestmark = pytest.mark.long

__all__ = ["place"]

TASKS = {
    "classification": {},
    "regression": {"data": {"train": ["train.tsv"], "dev": ["dev.tsv"], "label": "length"}},
    "tagging": {"data": {"train": ["train.conll"], "dev": ["dev.conll"]}},
    "answering": {"data": {"train": ["train.json"], "dev": ["dev.json"]}},
}


def read(folder):
    """The metadata of a card, and its text."""
    _, metadata, text = (folder / "README.md").read_text("utf-8").split("---\n", 2)
    return yaml.safe_load(metadata), text


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_a_card_with_its_scores(place, tmp_path, task):
    given = table(tmp_path / "run", epochs=1, task=task, **{"evaluation": {}, **TASKS[task]}, **METHODS)
    result = finetune({**given, "license": "apache-2.0", "language": "en"}, base=place)
    metadata, text = read(result.folder)
    assert (metadata["license"], metadata["language"], metadata["base_model"]) == ("apache-2.0", "en", "tiny")
    ((index,),) = (metadata["model-index"],)
    (found,) = index["results"]
    assert index["name"] == "tiny-task"
    assert found["task"]["type"] == metadata["pipeline_tag"]
    assert found["dataset"]["name"] == given["data"]["dev"][0]
    values = {f"dev/{one['name']}": one["value"] for one in found["metrics"]}
    assert values == pytest.approx(dict(result.dev), abs=1e-6)
    for name, value in result.dev.items():
        (line,) = [one for one in text.splitlines() if one.startswith(f"| {name.removeprefix('dev/')} |")]
        shown, between = line.split("|")[2:4]
        low, high = map(float, between.split(" to "))
        assert float(shown) == pytest.approx(value, abs=1e-4)
        assert low - 1e-4 <= value <= high + 1e-4
    for part in ("train: 60 texts", "R-Drop with factor 0.5", "SiFT with weight 2", "decay 0.8 (electra)"):
        assert part in text, part
    assert str(place) not in text, "no folders of the machine"
    assert "slightly optimistic" not in text


def test_a_card_says_how_weights_were_chosen_and_what_is_missing(place, tmp_path):
    result = finetune(table(tmp_path / "run", epochs=1), base=place)
    metadata, text = read(result.folder)
    assert "license" not in metadata
    assert "language" not in metadata
    assert f"The weights of step {result.best_step} were chosen by `accuracy` on the same texts" in text
    assert "Labels: dry, wet." in text
    again = {"model": {"start_from": str(result.folder)}, "data": {"train": ["train.tsv"]}, "evaluation": {}}
    result = finetune(table(tmp_path / "next", epochs=1, **again), base=place)
    metadata, text = read(result.folder)
    assert metadata["base_model"] == "run", "not its folder, model"
    assert "model-index" not in metadata
    assert "so there are no scores" in text


def test_a_named_card_is_copied_and_looked_for_first(place, tmp_path):
    (tmp_path / "card.md").write_text("my own\n")
    result = finetune(table(tmp_path / "run", epochs=1, card=str(tmp_path / "card.md")), base=place)
    assert (result.folder / "README.md").read_text() == "my own\n"
    with pytest.raises(InvalidRequest, match=r"no\.md.*, which card names"):
        finetune(table(tmp_path / "other", epochs=1, card="no.md"), base=place)
    assert not (tmp_path / "other" / "log.jsonl").exists(), "before training"


def test_names_that_yaml_would_misread(tmp_path):
    settings = settings_of_table(table(tmp_path, name='a: "b" # é'))
    settings = replace(settings, license="no", language="no")
    facts = CardFacts(settings, "1.0", ("yes", "no"), [], 3, 2, {"f1[a: b]": 0.5}, {})
    metadata = yaml.safe_load(model_card(facts).split("---\n")[1])
    assert metadata["model-index"][0]["name"] == 'a: "b" # é'
    assert (metadata["license"], metadata["language"], metadata["base_model"]) == ("no", "no", "1.0")
    assert metadata["model-index"][0]["results"][0]["metrics"][0]["name"] == "f1[a: b]"


@pytest.mark.parametrize("task", TASKS)
def test_figures_of_a_selection_are_those_of_its_texts(place, tmp_path, task):
    settings = settings_of_table(table(tmp_path / "run", task=task, **{"evaluation": {}, **TASKS[task]}))
    run = FinetuneRun(settings, place, tmp_path / "run", Ranks(), Callback())
    engine = TorchEngine(run.objective.eval().encoder)
    scores = predicted(engine, run.preparation, run.dev).scores
    for chosen in (range(30), [4, 2, 9, 11, 17], [3, 3, 3, 8, 1]):
        expected = evaluate(engine, run.preparation, [run.dev[number] for number in chosen])
        assert scores(np.array(chosen)) == pytest.approx(expected, abs=1e-5)


def test_intervals_are_wilsons_and_a_bootstraps():
    draw = np.random.default_rng(1)
    gold = draw.integers(0, 2, 200)
    found = np.where(draw.random(200) < 0.8, gold, 1 - gold)

    def scores(some):
        return class_figures(gold[some], found[some], ("a", "b"))

    made = intervals(scores, 200, "classification")
    p, n, z = (gold == found).mean(), 200, 1.959963984540054
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert (made["accuracy"].low, made["accuracy"].high) == pytest.approx((middle - half, middle + half))
    as_tags = intervals(scores, 200, "tagging")["accuracy"]  # words of a text are not independent
    assert as_tags != made["accuracy"]
    normal = 1.96 * math.sqrt(p * (1 - p) / n)
    assert (as_tags.low, as_tags.high) == pytest.approx((p - normal, p + normal), abs=0.012)
    assert made == intervals(scores, 200, "classification"), "drawn with a seed"
    assert made.keys() == scores(np.arange(200)).keys()
