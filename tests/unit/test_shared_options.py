"""Options that commands share do what they say, and what is said is one bounded line."""

import inspect
from importlib import import_module
from typing import get_args

import pytest
import torch
from cyclopts import App

from tests.support.command import assert_one_sentence, run_here
from unmask.cli.commands import PANELS
from unmask.cli.main import LONGEST, one_line

COMMANDS = {
    "look": ("look", "the river bank"),
    "fill": ("fill", "the [MASK] bank"),
    "embed": ("embed",),
    "similarity": ("similarity", "the river", "a bank"),
    "geometry": ("geometry", "the river bank was muddy", "--no-random"),
    "senses": ("senses", "bank"),
    "report": ("report", "the river bank", "-o", "report.html"),
    "evaluate": ("evaluate", "blimp", "--data", "nowhere"),
}


@pytest.fixture
def loads(monkeypatch):
    """How models would be loaded; nothing goes on after that."""
    import_module("unmask.search.settings")  # what is first imported meanwhile would keep the stand-in
    calls = []

    class Reached(BaseException):
        pass

    def load(name, **options):
        calls.append((name, options))
        raise Reached

    monkeypatch.setattr("unmask.models.load.load", load)
    monkeypatch.setattr("unmask.evaluate.probes.blimp.read_blimp", lambda *_: [])

    def run(*arguments):
        with pytest.raises(Reached):
            run_here(*arguments, stdin=b"the river\n")
        return calls.pop()

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_how_a_model_is_loaded_and_run(command, loads, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {
        "dtype": "bfloat16",
        "compat": "hf",
        "device": "cuda:1",
        "kernel": "reference",
        "backend": "torch",
        "adapter": "some/adapter",
        "revision": "r",
        "special_tokens": "text",
        "ignore_tensors": ("loss.weight",),
        "layers": 2,
    }
    *plain, _, _ = options.items()
    given = [part for name, value in plain for part in (f"--{name.replace('_', '-')}", value)]
    given += ["--ignore-tensor", "loss.weight", "--first-layers", "2"]
    if command == "report":
        monkeypatch.setattr("unmask.explorer.api.Api", lambda loaders, **_: loaders[0][1]())
    name, found = loads(*COMMANDS[command], "-m", "some/model", *given, "--threads", "3")
    assert (name, found) == ("some/model", options)
    assert torch.get_num_threads() == 3


def test_a_model_without_a_name_and_threads_below_one():
    assert_one_sentence(run_here("look", "the", "-m", ""), "--model is empty")
    assert_one_sentence(run_here("embed", "--threads", "0", stdin=b"the\n"), "--threads is 0")


# --- sentences -----------------------------------------------------------------------------------------


def test_a_file_name_with_line_ends_is_one_line(tmp_path):
    ran = run_here("embed", tmp_path / "no\nfile\x1b[31m")
    assert_one_sentence(ran, "no\\nfile\\x1b[31m")


def test_a_long_value_is_shortened():
    name = "a" * 100_000
    ran = run_here("look", "the", "-m", f"./{name}")
    assert_one_sentence(ran, "aaa... (", "too long")
    assert len(ran.err) < LONGEST + 100
    misused = run_here("embed", "--dtype", name)
    assert misused.code == 2
    assert misused.err.count("\n") == 1
    assert len(misused.err) < LONGEST + 100


def test_a_way_out_is_named_as_it_is_typed_here():
    said = "it is blank; leave it out (blank='skip', or --blank skip)"
    assert one_line(said) == "it is blank; leave it out (--blank skip)"
    assert one_line("name another key (field=, or --field)") == "name another key (--field)"
    assert one_line("an (example, or --two) and f(x=1)") == "an (example, or --two) and f(x=1)"


def test_how_many_is_called_alike_in_every_command():
    """``--top 3`` and ``-k 3``, whether they are hits, guesses, keys or examples."""
    counted = {}
    for command in (command for commands in PANELS.values() for command in commands):
        loaded = command.load()
        for name, parameter in (
            {} if isinstance(loaded, App) else inspect.signature(loaded).parameters
        ).items():
            if name in ("top", "k"):
                counted[command.name] = set(get_args(parameter.annotation)[1].name)
    assert {"search", "fill", "answer", "look"} <= set(counted)
    assert all({"--top", "-k"} <= names for names in counted.values()), counted
