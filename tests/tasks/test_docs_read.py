"""docs/tasks/{tag,answer,prune,extract}.md: Python and commands run, JSON has the keys that are printed."""

import json
import re
import shlex

import pytest

from tests.support.command import run_here
from tests.support.extraction import write_gliner2
from tests.support.grounding import write_grounder
from tests.support.places import REPOSITORY
from tests.support.pruning import write_open

PAGES = REPOSITORY / "docs" / "tasks"
TEXT = "Ada Lovelace met Charles Babbage in London."


def blocks(page, language):
    content = (PAGES / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", content, re.MULTILINE | re.DOTALL)


@pytest.fixture
def place(models, tmp_path, monkeypatch):
    """A folder with what the pages name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-tagger").symlink_to(models / "tokens")
    (tmp_path / "my-reader").symlink_to(models / "span")
    write_grounder(tmp_path / "my-checker")
    write_open(tmp_path / "my-pruner")
    write_gliner2(tmp_path / "my-extractor")
    (tmp_path / "schema.json").write_text('{"relations": ["works for"]}')
    (tmp_path / "asked.jsonl").write_text(json.dumps({"text": TEXT, "query": "Who met Babbage?"}) + "\n")
    (tmp_path / "documents.txt").write_text(f"{TEXT}\n")
    row = {"answer": "Ada met Charles.", "context": [TEXT, "It rained."], "question": "Whom did Ada meet?"}
    (tmp_path / "to-check.jsonl").write_text(json.dumps(row) + "\n")
    for name in ("reviews.txt", "articles.txt", "report.txt", "letters.txt"):
        (tmp_path / name).write_text(f"{TEXT}\n")
    (tmp_path / "articles.jsonl").write_text(json.dumps({"body": TEXT}) + "\n")
    (tmp_path / "test.conll").write_text("Ada NNP\nmet VBD\n\nLondon NNP\n")
    asked = [{"id": "q1", "question": "Who met Babbage?"}]
    content = {"data": [{"paragraphs": [{"context": TEXT, "qas": asked}]}]}
    (tmp_path / "dev.json").write_text(json.dumps(content))
    (tmp_path / "asked.tsv").write_text(f"question\tcontext\nWho?\t{TEXT}\n")
    return tmp_path


@pytest.mark.parametrize("page", ["tag.md", "answer.md"])
def test_python(place, page):
    first, *_ = blocks(page, "python")
    assert len([line for line in first.splitlines() if line]) <= 5
    names = {}
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), names)
    if page == "tag.md":
        assert len(names["found"].words) == 6
    else:
        assert len(names["several"]) == 2
        assert len(names["several"][1].answers) == 2
        assert names["check"].supported == (not names["check"].spans)


@pytest.mark.parametrize("page", ["tag.md", "answer.md"])
def test_commands(place, page):
    block, *checking = blocks(page, "sh")
    outputs = {}
    for line in block.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "unmask"
        outputs[line] = ran = run_here(*arguments)
        assert (ran.code, ran.err) == (0, ""), line
    assert len(outputs) == 5
    (documented,) = map(json.loads, blocks(page, "json"))
    printed = next(json.loads(ran.out) for line, ran in outputs.items() if line.endswith("--json"))
    assert list(documented) == list(printed)
    inner = "entities" if page == "tag.md" else "answers"
    assert all(set(one) == set(documented[inner][0]) for one in printed[inner])
    if page == "tag.md":
        rows = (place / "predicted.conll").read_text().splitlines()
        assert [row.rpartition(" ")[0] for row in rows] == ["Ada NNP", "met VBD", "", "London NNP", ""]
        assert json.loads((place / "entities.jsonl").read_text())["text"] == TEXT
    else:
        assert json.loads((place / "predictions.json").read_text())["q1"] in TEXT
        assert len(json.loads((place / "nbest.json").read_text())["q1"]) > 1
        for line in checking[0].splitlines():
            assert run_here(*shlex.split(line)[1:]).code == 0, line
        assert "supported" in (place / "checked.jsonl").read_text()


def test_pruning(place, capsys):
    names = {}
    for block in blocks("prune.md", "python"):
        exec(compile(block, "prune.md", "exec"), names)
    assert capsys.readouterr().out
    (block,) = blocks("prune.md", "sh")
    for line in block.splitlines():
        assert (ran := run_here(*shlex.split(line)[1:])).code == 0, (line, ran.err)
    assert json.loads((place / "pruned.jsonl").read_text())["query"] == "Who met Babbage?"


def test_extraction(place, capsys):
    for block in blocks("extract.md", "python"):
        exec(compile(block, "extract.md", "exec"), {})
    assert capsys.readouterr().out
    (block,) = blocks("extract.md", "sh")
    for line in block.splitlines():
        assert (ran := run_here(*shlex.split(line)[1:])).code == 0, (line, ran.err)
    row = json.loads((place / "extracted.jsonl").read_text().splitlines()[0])
    assert {"text", "entities", "relations", "records", "classes", "windows", "truncated_tokens"} < set(row)
