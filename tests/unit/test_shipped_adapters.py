"""The adapters that come with the package: small, described, right on plain examples; docs/adapters.md."""

import json
import re
import shlex
import tomllib

import numpy as np
import pytest

import unmask
from tests.support.command import run_here
from tests.support.places import REPOSITORY, default_folder
from unmask.training.finetune.settings import settings_of_table
from unmask.weights.adapters.adapter import SHIPPED_ADAPTERS, find_adapter

PAGE = REPOSITORY / "docs" / "adapters.md"
NAMES = ("answers", "entailment", "entities", "names", "sentiment")


@pytest.fixture(autouse=True)
def default():
    default_folder()


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


def test_their_names():
    assert SHIPPED_ADAPTERS == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_they_are_small_and_described(name):
    folder = find_adapter(name).folder
    limit = 6_000_000 if name == "entities" else 2_000_000
    assert sum(path.stat().st_size for path in folder.iterdir()) < limit
    card = (folder / "README.md").read_text()
    for part in ("license:", "base_model: sentence-transformers/all-MiniLM-L6-v2", "## Data", "## Training",
                 "## Scores", "## Limits", f"recipes/adapters/{name}.toml"):  # fmt: skip
        assert part in card, part
    written = json.loads((folder / "unmask_adapter.json").read_text())
    assert (written["name"], written["base"]) == (name, "sentence-transformers/all-MiniLM-L6-v2")
    run = tomllib.loads((REPOSITORY / "recipes" / "adapters" / f"{name}.toml").read_text())
    settings = settings_of_table(run)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (settings.adapter.r, settings.adapter.lora_alpha)


def test_sentiment():
    model = unmask.load("default", adapter="sentiment")
    texts = ["A wonderful, moving film.", "Dull, far too long and badly acted."]
    assert [one.label for one in model.classify(texts)] == ["positive", "negative"]


def test_entailment():
    model = unmask.load("default", adapter="entailment")
    pairs = ["A man is eating.", "The man is asleep in his bed."]
    found = model.classify(["A man eats soup at a table."] * 2, pairs)
    assert [one.label for one in found] == ["entailment", "contradiction"]


@pytest.mark.parametrize(("name", "temperature"), [("sentiment", 1.57), ("entailment", 1.16)])
def test_probabilities_are_those_of_the_temperature_that_its_card_names(name, temperature):
    model = unmask.load("default", adapter=name)
    texts, pairs = ["A dull film."], None if name == "sentiment" else ["A film."]
    powers = np.exp(np.asarray(model.logits(texts, pairs)[0], np.float64).ravel() / temperature)
    ours = list(model.classify(texts, pairs)[0].scores.values())
    assert ours == pytest.approx(list(powers / powers.sum()), abs=1e-6)
    assert f"logits are divided by {temperature}" in (find_adapter(name).folder / "README.md").read_text()


def test_entities():
    model = unmask.load("default", adapter="entities")
    labels = ["person", "city", "disease", "musical instrument", "month"]
    texts = ["In June, Ada Lovelace played the violin in London.", "He had malaria."]
    first, second = model.tag(texts, labels=labels, threshold=0.3)
    assert {(entity.text, entity.label) for entity in first.entities} >= {
        ("Ada Lovelace", "person"),
        ("violin", "musical instrument"),
        ("London", "city"),
        ("June", "month"),
    }
    assert [(entity.text, entity.label) for entity in second.entities] == [("malaria", "disease")]


def test_the_command_finds_entities_of_labels_without_a_model_named():
    ran = run_here("tag", "Ada Lovelace lived in London.", "--labels", "person,city", "--threshold", "0.3")
    assert ran.code == 0
    assert "person" in ran.out
    assert "London" in ran.out


def test_names():
    model = unmask.load("default", adapter="names")
    text = "Angela Merkel met Barack Obama in Berlin."
    found = {(one.text, one.label) for one in model.tag(text).entities}
    assert found == {("Angela Merkel", "PER"), ("Barack Obama", "PER"), ("Berlin", "LOC")}


def test_answers():
    model = unmask.load("default", adapter="answers")
    context = (
        "The bridge was built in 1894 by the engineer Otto Keller. It crosses the river near the old mill."
    )
    assert model.answer("When was the bridge built?", context).answers[0].text == "1894"
    assert "Otto Keller" in model.answer("Who built the bridge?", context).answers[0].text


def test_the_page():
    names = {}
    for block in blocks("python"):
        exec(compile(block, PAGE.name, "exec"), names)
    (table,) = blocks("toml")
    assert settings_of_table(tomllib.loads(table)).adapter.r == 8
    (commands,) = blocks("")
    for line in commands.splitlines():
        given, _, command = line.rpartition(" | ")
        stdin = shlex.split(given)[1].encode().decode("unicode_escape").encode() if given else b""
        name, *arguments = shlex.split(command)
        assert name == "unmask"
        ran = run_here(*arguments, stdin=stdin)
        assert (ran.code, ran.err) == (0, ""), line
        assert ran.out
    for name in NAMES:
        assert f"| `{name}` |" in PAGE.read_text()


def test_a_command_of_the_default_model_without_a_head_names_the_way_out():
    ran = run_here("classify", "A text.")
    assert ran.code == 1
    assert "use a checkpoint or an adapter with one" in ran.err
