"""docs/migrate: what the pages run prints what they show, and what they name exists."""

import inspect
import re
from contextlib import ExitStack
from pkgutil import resolve_name

import pytest

import unmask
from tests.support.pages import blocks_of, wrong_outputs
from tests.support.places import REPOSITORY, default_folder
from tests.support.tiny import write_checkpoint
from tests.training.finetune.test_docs import TABLES
from tests.unit.test_public_face import every_command, options_of
from tests.unit.test_start_pages import Server
from unmask import serve
from unmask.serve.telemetry import Metrics

pytestmark = pytest.mark.long

PAGES = {page.name: page.read_text(encoding="utf-8") for page in (REPOSITORY / "docs/migrate").glob("*.md")}
IMPORTED = {"late_interaction", "matches"}
"""What right columns call besides methods of a model: functions that a block of the page imports."""


def right_column(content):
    """The code in the last cells of the first table: what a reader writes instead."""
    table = content.partition("| what you wrote | what you write |\n")[2].partition("\n\n")[0]
    return [code for row in table.splitlines()[1:] for code in re.findall("`([^`]+)`", row.split(" | ")[-1])]


@pytest.mark.parametrize("name", PAGES)
def test_it_prints_what_it_shows(name, tmp_path, monkeypatch):
    default_folder()
    monkeypatch.chdir(tmp_path)
    if "my-colbert" in PAGES[name]:
        from tests.parity.test_multi_vectors import theirs_of

        theirs_of(write_checkpoint(tmp_path / "base", sentence=False)).save_pretrained("my-colbert")
    with ExitStack() as stack:
        server = Server(stack)
        monkeypatch.setattr(serve, "serve", server.serve)
        assert not wrong_outputs(PAGES[name], name, server=server)


def test_there_is_a_page_for_each_library():
    assert sorted(PAGES) == [
        "bertviz.md", "gliclass.md", "gliner.md", "pylate.md", "sentence-transformers.md", "setfit.md",
        "text-embeddings-inference.md", "transformers.md",
    ]  # fmt: skip
    for content in PAGES.values():
        assert content.startswith("# From ")
        assert {"## What is different", "## What unmask does not have"} <= {*content.splitlines()}
        assert {block.language for block in blocks_of(content)} <= {"python", "sh"}
        assert right_column(content)


@pytest.mark.parametrize("name", PAGES)
def test_what_it_says_to_write_exists(name):
    for code in right_column(PAGES[name]):
        for called in re.findall(r"(?<![\w.])(?:model\.)?(\w+)\(", code):
            assert called in IMPORTED or hasattr(unmask.Model, called), code
        for dotted in re.findall(r"\bunmask(?:\.\w+)+", code):
            resolve_name(dotted)
    commands = {one.__name__ for one in every_command() if callable(one) and hasattr(one, "__name__")}
    for command in re.findall(r"`unmask ([a-z-]+)", PAGES[name]):
        assert command.replace("-", "_") in commands | {"evaluate"}, command


def test_keys_of_run_files_exist():
    tables = {title.strip("[]"): kind for title, kind in TABLES.items()}
    named = set(re.findall(r"\b(few_shot|optimizer|schedule|data)\.(\w+)", PAGES["setfit.md"]))
    assert len(named) > 5
    for table, key in named:
        assert key in inspect.signature(tables[table]).parameters, f"{table}.{key}"


def test_options_and_metrics_of_the_server_exist():
    page = PAGES["text-embeddings-inference.md"]
    (command,) = (one for one in every_command() if getattr(one, "__name__", "") == "serve")
    given = {option for code in right_column(page) for option in re.findall(r"--([a-z-]+)", code)}
    assert len(given) > 10
    assert {option.replace("-", "_") for option in given} <= {*options_of(command)}
    served = Metrics().text() + "unmask_queue_texts"  # a gauge that the server adds
    assert all(metric in served for metric in re.findall(r"unmask_\w+", page))


def test_arguments_of_the_other_library_exist():
    st = pytest.importorskip("sentence_transformers")
    named = set(re.findall(r"`encode\([^`]*?(\w+)=", PAGES["sentence-transformers.md"]))
    assert len(named) > 4
    assert named <= {*inspect.signature(st.SentenceTransformer.encode).parameters}
    for function in re.findall(r"`util\.(\w+)", PAGES["sentence-transformers.md"]):
        assert hasattr(st.util, function), function


def test_pipelines_of_the_other_library_exist():
    pipelines = pytest.importorskip("transformers.pipelines")
    known = {*pipelines.PIPELINE_REGISTRY.get_supported_tasks()}
    named = set(re.findall(r'pipeline\("([\w-]+)"', PAGES["transformers.md"]))
    assert len(named) == 4
    assert named <= known
