"""Runs the README's commands and examples."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.pages import broken_links

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    return [
        line
        for block in blocks("sh")
        for line in block.splitlines()
        if line.strip() and not line.startswith("#")
    ]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the README in it."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "README.md").write_text(README, encoding="utf-8")
    return folder


@pytest.mark.parametrize("command", commands())
def test_shell_command(command, place, apart):
    """Each line as a shell runs it: a command that may be fed by printf and may write to a file."""
    words = shlex.split(command)
    fed = words.index("|") if "|" in words else -1
    stdin = subprocess.run(words[:fed], stdout=subprocess.PIPE, check=True).stdout if fed > 0 else b""
    program, *arguments = words[fed + 1 :]
    assert program == "unmask"
    output = None
    if ">" in arguments:
        *arguments, _, output = arguments
        output = str(place / output)
    done = apart.run(*arguments, stdin=stdin, stdout=output, before=f"import os; os.chdir({str(place)!r})")
    assert done.code == 0, done.err
    assert done.out if output is None else Path(output).stat().st_size


def test_python(tmp_path, monkeypatch):
    """Its blocks, one after another, as a reader runs them."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    assert names["vectors"].shape == (2, 384)
    assert names["scores"].shape == (1, 2)
    assert [state.shape[1] for state in names["states"]] == [384]
    assert (tmp_path / "my-copy" / "model.safetensors").exists()


def test_it_has_commands_to_test():
    assert len(commands()) >= 6
    assert len(blocks("python")) >= 2


def test_make_targets_exist():
    named = set(re.findall(r"make (\w[\w-]*)", README)) - {"makes"}
    known = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"explore", "bench"} <= named <= known


def test_links_lead_somewhere():
    assert broken_links(ROOT / "README.md") == []
