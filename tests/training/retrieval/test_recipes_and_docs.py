"""Recipes of retrievers can be read, and docs/train-retrievers.md does what it says."""

import json
import re
import tomllib
from typing import get_args

import pytest

from tests.support.places import REPOSITORY, default_folder, shared
from unmask.training.finetune.run import finetune
from unmask.training.finetune.settings import read_settings, settings_of_table
from unmask.training.objectives.specs import RegularizerSpec
from unmask.training.retrieval.settings import LOSSES, Kind
from unmask.training.run.log import read_events

PAGE = REPOSITORY / "docs" / "train-retrievers.md"
RECIPES = sorted((REPOSITORY / "recipes" / "retrieval").glob("*.toml"))


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_every_recipe_is_there():
    assert [path.stem for path in RECIPES] == [
        "colbert-kd", "colbert-modernbert", "cosqa", "dpr-modernbert", "dpr-nq", "leaf", "reranker-ettin",
        "splade", "student", "vectors",
    ]  # fmt: skip


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_can_be_read(path):
    settings = read_settings(path)
    assert (settings.name, settings.task) == (path.stem, "retrieval")
    assert path.read_text().startswith("# ")
    assert settings.evaluation.metric in ("ndcg@10", "mrr@10")


def test_published_values():
    found = {path.stem: read_settings(path) for path in RECIPES}
    rates = {name: one.optimizer.learning_rate for name, one in found.items()}
    assert rates["dpr-nq"] == 2e-5
    assert rates["dpr-modernbert"] == 8e-5
    assert rates["colbert-modernbert"] == 1e-4
    assert rates["reranker-ettin"] == 2.4e-4
    dpr = found["dpr-nq"]
    assert (dpr.epochs, dpr.batch_size, dpr.schedule.warmup_steps, dpr.optimizer.clip) == (40, 128, 1237, 2.0)
    assert dpr.schedule.warmup_share is None
    assert found["dpr-modernbert"].retrieval.ranking.scale == 20
    splade = found["splade"]
    assert (splade.batch_size, splade.data.max_tokens, splade.schedule.warmup_share) == (16, 256, 0.1)
    assert rates["splade"] == 2e-5
    assert splade.retrieval.regularizer == RegularizerSpec(5e-5, 1e-3, 1 / 3)
    assert found["colbert-kd"].retrieval.ranking.temperature == 0.25


def test_the_table_of_kinds_is_that_of_the_settings():
    rows = re.findall(r"^\| `(?!kind)(\w+)` \|[^|]*\|([^|]*)\|$", PAGE.read_text(), re.MULTILINE)
    assert {name: tuple(re.findall(r"`(\w+)`", losses)) for name, losses in rows} == LOSSES
    assert [name for name, _ in rows] == list(get_args(Kind))


@pytest.mark.long
def test_the_example_runs_on_the_default_model(tmp_path, monkeypatch):
    default_folder()
    rows = [json.loads(line) for line in blocks("json")[0].splitlines()]
    more = [
        {"query": f"what is number {n}", "positive": f"Number {n} is the number after {n - 1}."}
        for n in range(14)
    ]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows + more))
    example, sparse = blocks("toml")
    start = example[: example.index("[retrieval]")]
    assert settings_of_table(tomllib.loads(start + sparse)).retrieval.static_queries
    assert settings_of_table(tomllib.loads(example)).retrieval.kind == "dense"
    (tmp_path / "run.toml").write_text(example)
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks("python"):
        exec(compile(block, "train-retrievers.md", "exec"), names)
    assert names["vectors"].shape == (1, 384)
    assert names["result"].dev["dev/ndcg@10"] > 0.5


@pytest.mark.slow
def test_twenty_steps_on_real_questions(tmp_path):
    """The example's settings on SciFact's training queries, with its test queries among 400 documents."""
    default_folder()
    folder, (example, _) = shared("data/scifact"), blocks("toml")
    run = tomllib.loads(example)
    run["data"] |= {
        name: [str(folder / f"qrels/{file}.tsv.xz")] for name, file in (("train", "train"), ("dev", "test"))
    }
    run["retrieval"] |= {"dev_documents": 400}
    pairs = 919
    run |= {"epochs": 20 / -(-pairs // run["batch_size"]), "out": str(tmp_path), "log": {"every": 1}}
    result = finetune(run, base=tmp_path)
    events = list(read_events(tmp_path / "log.jsonl"))
    before = next(one for one in events if one["event"] == "held_out")["dev/ndcg@10"]
    losses = [one["retrieval/loss"] for one in events if one["event"] == "step"]
    assert result.steps == len(losses) == 20
    assert max(losses) < 1.5, "far below ln 16 of chance"
    assert 0.7 < before < 0.95
    assert result.dev["dev/ndcg@10"] > before - 0.01
