"""docs/index-and-search.md, run as it stands."""

import contextlib
import io
import json
import re
import shlex

import numpy as np
import pytest

from tests.support.command import run_here
from tests.support.places import REPOSITORY
from unmask.base.optional import require
from unmask.errors import MissingExtra

pytestmark = pytest.mark.long

PAGE = (REPOSITORY / "docs" / "index-and-search.md").read_text(encoding="utf-8")


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


def missing_extra(arguments):
    """Why a format of ``index-export`` cannot be written here; None if it can."""
    for extra in {"parquet", "qdrant", "lance"} & {*arguments}:
        try:
            require(extra)
        except MissingExtra as error:
            return str(error)
    return None


def test_every_command_runs(place):
    outputs = {}
    for line in "".join(blocks("sh")).splitlines():
        program, *arguments = shlex.split(line)
        ran = run_here(*arguments)
        if missing := missing_extra(arguments):
            assert (ran.code, ran.err) == (1, f"unmask: {missing}\n")
            continue
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
    assert sorted(one.name for one in (place / "pgvector").iterdir()) == ["load.sql", "passages.copy"]
    assert sorted(one.name for one in (place / "opensearch").iterdir()) == [
        "bulk-00001.ndjson",
        "mapping.json",
    ]


def test_the_python_runs(place):
    example = blocks("python")[0]
    printed = io.StringIO()
    names = {}
    with contextlib.redirect_stdout(printed):
        exec(example, names)
    assert printed.getvalue().startswith("1 None 0 31 0.0")
    assert "1" not in names["index"]
    assert "bridge.md" in names["index"]


def test_the_python_that_asks_qdrant_runs(place):
    pytest.importorskip("qdrant_client", reason="it writes and searches the collection")
    assert run_here("index", "documents", "-o", "my-index").code == 0
    assert run_here("index-export", "my-index", "-o", "qdrant", "--format", "qdrant").code == 0
    (example,) = (block for block in blocks("python") if "qdrant_client" in block)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(example, {})
    # A text can have several lines.
    found = re.findall(r"^(\d\.\d+) (\S+) ", printed.getvalue(), re.MULTILINE)
    ran = run_here("search", "my-index", "repairs of the bridge", "-k", "3", "--mode", "dense", "--json")
    hits = json.loads(ran.out)["hits"]
    assert [document for _, document in found] == [hit["document"] for hit in hits]
    assert hits[0]["document"] == "w1"
    np.testing.assert_allclose(
        [float(score) for score, _ in found], [hit["score"] for hit in hits], atol=1e-6
    )
