"""docs/duplicates-and-topics.md, run as it stands."""

import json
import re
import shlex

import pytest

from tests.support.command import run_here
from tests.support.places import REPOSITORY

pytestmark = pytest.mark.long

PAGE = (REPOSITORY / "docs" / "duplicates-and-topics.md").read_text(encoding="utf-8")
SUBJECTS = ("The river is deep and fish swim in it, said {}.", "The bank lends money for a month to {}.")
NAMES = ("Ann", "Bob", "Carl", "Dora", "Emil", "Fay", "Gus", "Hal", "Ida", "Jon", "Kim", "Lea", "Max", "Nan")
TEXTS = [f"{subject.format(name)} {n}" for n in range(10) for name in NAMES for subject in SUBJECTS]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def place(tmp_path, monkeypatch, default_model):
    monkeypatch.chdir(tmp_path)
    for name in ("rows.jsonl", "tickets.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    for name in ("news.txt", "arrived.txt"):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in TEXTS))
    (tmp_path / "reviews.csv").write_text("id,review\n" + "".join(f'1,"{text}"\n' for text in TEXTS))
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a.txt").write_text(TEXTS[0])
    return tmp_path


def test_every_command_runs(place):
    assert run_here("index", "old", "-o", "my-index").code == 0
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(lines) == 6
    for line in lines:
        if "topics" in line:
            pytest.importorskip("sklearn")
        program, *arguments = shlex.split(line)
        ran = run_here(*arguments)
        assert (program, ran.code) == ("unmask", 0), (line, ran.err)
    assert TEXTS[0] not in (place / "new.txt").read_text().splitlines()
    assert json.loads((place / "topics.json").read_text())["texts"] == len(TEXTS)


def test_the_python_runs(place):
    first, second = blocks("python")
    values = {"texts": TEXTS}
    exec(first, values)
    assert values["result"].rows == (0, 2), "white space is no length"
    assert values["result"].counts["normalized"] == 1
    pytest.importorskip("sklearn")
    exec("import unmask\n" + second, values)
    assert len(values["found"].labels) == len(TEXTS)
