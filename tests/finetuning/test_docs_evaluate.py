"""docs/evaluate.md: the commands of protocols and of models with a head run on tiny data."""

import re
import shlex

from tests.finetuning.test_finetune import place
from tests.finetuning.test_protocols import place as glue
from tests.finetuning.test_task_scores import models
from tests.search.test_evaluation import write_collection
from tests.support.command import run_here
from tests.support.places import REPOSITORY
from unmask.finetuning.protocols import protocol_names

__all__ = ["glue", "models", "place"]

PAGE = (REPOSITORY / "docs" / "evaluate.md").read_text(encoding="utf-8")


def test_commands(place, glue, models, tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    links = {"my-reader": models["squad"], "my-tagger": models["ner"], "my-classifier": models["classify"]}
    links |= {"my-model": place / "tiny", "glue": glue / "data", "test.conll": place / "dev.conll"}
    links |= {"my-embedder": tiny_folder, "scifact": write_collection(tmp_path / "collection")}
    links |= {
        name: place / name for name in ("train.json", "dev.json", "train.conll", "dev.conll", "dev.tsv")
    }
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    lines = [
        line for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S) for line in block.splitlines()
    ]
    assert len(lines) == 7
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "unmask"
        ran = run_here(*arguments)
        assert ran.code == 0, (line, ran.err)
        assert ran.out
    assert (tmp_path / "out" / "report.md").is_file()


def test_every_protocol_of_glue_is_listed():
    for name in protocol_names("glue"):
        assert f"`{name.partition('/')[2]}`" in PAGE
