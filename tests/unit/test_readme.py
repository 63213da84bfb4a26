"""Runs the README's commands and examples."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from unmask.learn.pretrain.settings import RunSettings
from unmask.learn.table import read_table

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
    """A folder with the README in it and a program called unmask on the path."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "README.md").write_text(README, encoding="utf-8")
    program = folder / "bin" / "unmask"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m unmask "$@"\n')
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize("command", commands())
def test_shell_command(command, place):
    environment = os.environ | {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout or list(place.glob("*.jsonl"))


def test_python(tmp_path, monkeypatch):
    """Its blocks, one after another, as a reader runs them."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    assert names["vectors"].shape == (2, 384)
    assert names["scores"].shape == (1, 2)
    assert [state.shape[1] for state in names["states"]] == [384, 384]
    mini = names["mini"]
    assert names["logits"].shape == (len(mini.tokenize(names["texts"][0])), mini.spec.embedding.vocabulary)
    assert mini.encoder is names["encoder"]
    assert (tmp_path / "my-copy" / "model.safetensors").exists()


def test_the_run_file_can_be_read():
    (example,) = blocks("toml")
    assert read_table(RunSettings, tomllib.loads(example), "").name == "small"


def test_it_has_commands_to_test():
    assert len(commands()) >= 7
    assert len(blocks("python")) >= 3


def test_make_targets_exist():
    named = set(re.findall(r"make (\w[\w-]*)", README)) - {"makes"}
    known = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"explore", "test", "check", "bench"} <= named <= known


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
