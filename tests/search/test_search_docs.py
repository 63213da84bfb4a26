"""docs/search.md, run as it stands."""

import contextlib
import io
import re
import shlex

import pytest

from tests.support.command import run_here
from tests.support.places import REPOSITORY

PAGE = (REPOSITORY / "docs" / "search.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def place(tmp_path, monkeypatch, default_model):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "bridge.md").write_text(
        "# Roads\n\nThe town, who repairs the bridge in May, repairs roads.\n"
    )
    (tmp_path / "documents" / "fish.txt").write_text("Fish swim in the river.")
    (tmp_path / "documents" / "works.csv").write_text(
        "id,text,year\nw1,Repairs of the bridge,2021\nw2,A loan,2019\n"
    )
    return tmp_path


def test_every_command_runs(place):
    outputs = {}
    for line in "".join(blocks("sh")).splitlines():
        program, *arguments = shlex.split(line)
        ran = run_here(*arguments)
        assert (program, ran.code) == ("unmask", 0), (line, ran.err)
        outputs[line] = ran.out
    found = next(out for line, out in outputs.items() if "who repairs" in line)
    assert {"1.", "bridge.md,", "w1,", "characters"} <= set(found.split())
    filtered = next(out for line, out in outputs.items() if "--filter" in line)
    assert "w1" in filtered
    assert "bridge.md" not in filtered
    why = next(out for line, out in outputs.items() if "--why" in line)
    assert "repair +" in why
    assert run_here("index", "--verify", "-o", "my-index").code == 0


def test_the_python_runs(place):
    (example,) = blocks("python")
    printed = io.StringIO()
    names = {}
    with contextlib.redirect_stdout(printed):
        exec(example, names)
    assert printed.getvalue().startswith("1 None 0 31 0.0")
    assert "1" not in names["index"]
    assert "bridge.md" in names["index"]
