"""docs/tasks/{classify,choose}.md: all blocks run, and the JSON that pages show is what comes out."""

import json
import re
import shlex
import tomllib

import pytest

from tests.support.command import run_here
from tests.support.places import REPOSITORY
from tests.support.tiny import tiny_bert, write_tokenizer
from tests.tasks.test_named_classes import write_gliclass
from unmask.training.finetune.settings import settings_of_table

PAGES = [REPOSITORY / "docs" / "tasks" / f"{name}.md" for name in ("classify", "choose")]
MODELS = {
    "films": ("BertForSequenceClassification", ["bad", "good"]),
    "nli": ("BertForSequenceClassification", ["contradiction", "neutral", "entailment"]),
    "swag": ("BertForMultipleChoice", None),
}
ROWS = {
    "reviews.jsonl": {"text": "Dull."},
    "copa.jsonl": {"premise": "It rained.", "options": ["It rose.", "It fell."]},
}


def blocks(page, language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The models and files that the pages name."""
    folder = tmp_path_factory.mktemp("docs")
    for name, (kind, labels) in MODELS.items():
        options = {"id2label": dict(enumerate(labels))} if labels else {}
        write_tokenizer(folder / name / "model")
        tiny_bert(kind, max_position_embeddings=200, **options).save_pretrained(folder / name / "model")
    write_gliclass(folder / "classes" / "model")
    (folder / "reviews.txt").write_text("A wonderful film.\nDull.\n")
    for name, row in ROWS.items():
        (folder / name).write_text(json.dumps(row) + "\n")
    return folder


@pytest.fixture(params=PAGES, ids=lambda page: page.stem)
def page(request, place, monkeypatch):
    monkeypatch.chdir(place)
    return request.param


def test_python(page):
    found = blocks(page, "python")
    assert len(found[0].split("\n\n", 1)[1].splitlines()) <= 4, "the page begins with a few lines"
    names = {}
    for block in found:
        exec(compile(block, page.name, "exec"), names)
    assert page.read_text().split("```")[1].startswith("python")


def commands(page):
    """Each command of a page: its arguments, and what is piped into it."""
    for block in blocks(page, ""):
        for line in block.splitlines():
            given, _, command = line.rpartition(" | ")
            stdin = shlex.split(given)[1].encode().decode("unicode_escape").encode() if given else b""
            name, *arguments = shlex.split(command)
            assert name == "unmask", line
            yield arguments, stdin


def test_commands_and_json(page):
    lines = []
    for arguments, stdin in commands(page):
        ran = run_here(*arguments, stdin=stdin)
        assert (ran.code, ran.err) == (0, ""), (arguments, ran)
        assert ran.out.count("\n") >= 1
        if "--json" in arguments:
            lines += [json.loads(line) for line in ran.out.splitlines()]
    shown = [json.loads(block) for block in blocks(page, "json")]
    assert len(shown) == len(lines) > 0
    for one, other in zip(shown, lines, strict=True):
        assert list(one) == list(other)
        kept = {"source", "line", "text", "question", "choices", "windows"} & set(one)
        assert {key: one[key] for key in kept} == {key: other[key] for key in kept}
        assert [type(value) for value in one.values()] == [type(value) for value in other.values()]


def test_run_files_can_be_read(page):
    for block in blocks(page, "toml"):
        settings_of_table(tomllib.loads(block))


def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / link).exists(), link
