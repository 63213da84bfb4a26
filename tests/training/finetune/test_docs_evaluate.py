"""docs/evaluate.md: the commands of protocols and of models with a head run on tiny data."""

import json
import random
import re
import shlex

import pytest

from tests.search.test_evaluation import write_collection
from tests.support.command import run_here
from tests.support.places import REPOSITORY
from tests.training.finetune.test_finetune import place
from tests.training.finetune.test_protocols import place as glue
from tests.training.finetune.test_task_scores import models
from unmask.evaluate.probes import classifiers
from unmask.evaluate.protocols.protocols import protocol_names

pytestmark = pytest.mark.long

__all__ = ["glue", "models", "place"]

WORDS = ("The", "river", "bank", "was", "muddy", "text")

PAGE = (REPOSITORY / "docs" / "evaluate.md").read_text(encoding="utf-8")


def write_labeled(folder):
    """A release of Universal Dependencies and a file of labels, in which the word decides the label."""
    treebank = folder / "treebank"
    treebank.mkdir()
    draw = random.Random(0)
    sentences = [draw.choices(WORDS, k=draw.randint(3, 7)) for _ in range(60)]
    for part in ("train", "dev", "test"):
        trees = [
            "\n".join(
                f"{place}\t{word}\t_\tNOUN\t_\t_\t{place - 1}\t{'dep' if word == 'bank' else 'nsubj'}\t_\t_"
                for place, word in enumerate(words, 1)
            )
            for words in sentences
        ]
        (treebank / f"en-ud-{part}.conllu").write_text("\n\n".join(trees) + "\n\n")
    rows = [{"words": words, "labels": ["AB"[word == "bank"] for word in words]} for words in sentences]
    (folder / "senses.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return treebank


@pytest.fixture
def hasty(monkeypatch):
    """Probes with few steps: what they learn is not looked at here."""
    monkeypatch.setattr(classifiers, "ROUNDS", 1)
    monkeypatch.setattr(classifiers, "STEPS_OF_ROUND", 2)


@pytest.mark.usefixtures("hasty")
def test_commands(place, glue, models, tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    links = {"my-reader": models["squad"], "my-tagger": models["ner"], "my-classifier": models["classify"]}
    links |= {"my-model": place / "tiny", "glue": glue / "data", "test.conll": place / "dev.conll"}
    links |= {"my-embedder": tiny_folder, "scifact": write_collection(tmp_path / "collection")}
    links |= {"ud_ewt": write_labeled(tmp_path)}
    (tmp_path / "book.txt").write_text(" ".join(random.Random(0).choices(WORDS, k=2400)))
    links |= {
        name: place / name for name in ("train.json", "dev.json", "train.conll", "dev.conll", "dev.tsv")
    }
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    lines = [
        line for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S) for line in block.splitlines()
    ]
    assert len(lines) == 10
    for line in lines:
        program, *arguments = shlex.split(line, comments=True)
        assert program == "unmask"
        ran = run_here(*arguments)
        assert ran.code == 0, (line, ran.err)
        assert ran.out
    assert (tmp_path / "out" / "report.md").is_file()


def test_every_protocol_of_glue_is_listed():
    for name in protocol_names("glue"):
        assert f"`{name.partition('/')[2]}`" in PAGE
