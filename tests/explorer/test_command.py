"""``unmask explore`` as it is typed."""

import gc

import pytest

from unmask.cli.look.explore import MODELS, _load, explore
from unmask.cli.options import RunOptions
from unmask.errors import CheckpointError, InvalidRequest


@pytest.fixture
def served(monkeypatch):
    """What the command would serve."""
    calls = []
    monkeypatch.setattr("unmask.explorer.serve", lambda models, **options: calls.append((models, options)))
    return calls


def test_models_are_named_and_not_yet_loaded(served):
    explore("a text", model=["nowhere", "unmask-mini", "nowhere"], memory=0.5, browser=False)
    ((models, options),) = served
    assert [name for name, _ in models] == ["nowhere", "unmask-mini"]
    assert (options["text"], options["held_bytes"], options["open_browser"]) == ("a text", 500_000_000, False)
    assert models[1][1]().name == "unmask-mini"


def test_without_a_model_there_are_two(served):
    explore()
    assert tuple(name for name, _ in served[0][0]) == MODELS


def test_the_page_loads_other_models_unless_it_must_not(served, monkeypatch):
    loaded = []
    monkeypatch.setattr(
        "unmask.models.load.load", lambda name, **how: loaded.append((name, how["dtype"], how["adapter"]))
    )
    explore(run=RunOptions(dtype="bfloat16", adapter="names"))
    loader = served[0][1]["loader"]
    assert loader.dtype == "bfloat16"
    loader.load("another")
    assert loaded == [("another", "bfloat16", None)]
    explore(load=False)
    assert served[1][1]["loader"] is None


def test_what_does_not_fit_together_is_refused(served):
    with pytest.raises(InvalidRequest, match="name one --model"):
        explore(run=RunOptions(revision="main"))
    with pytest.raises(InvalidRequest, match="more than 0"):
        explore(memory=0)
    assert served == []


def test_an_adapter_is_of_the_first_model_alone(served, monkeypatch):
    loaded = []
    monkeypatch.setattr("unmask.models.load.load", lambda name, **how: loaded.append((name, how["adapter"])))
    explore(run=RunOptions(adapter="names", compat="hf"))
    for _, load in served[0][0]:
        load()
    assert loaded == [("default", "names"), ("unmask-mini", None)]


def test_a_model_that_is_not_there_is_said_in_the_terminal_too(capsys):
    with pytest.raises(CheckpointError):
        _load("./nowhere", RunOptions())
    assert "nowhere" in capsys.readouterr().err


def test_no_garbage_is_collected_until_the_first_model_is_there(monkeypatch):
    during = []

    def serve(models, **options):
        during.append(gc.isenabled())
        ((_, load),) = models
        with pytest.raises(CheckpointError):
            load()
        during.append(gc.isenabled())

    monkeypatch.setattr("unmask.explorer.serve", serve)
    explore(model=["./nowhere"])
    assert during == [False, True]
    gc.unfreeze()


@pytest.mark.parametrize("before", [True, False])
def test_garbage_is_collected_after_an_explorer_as_before_it(served, before):
    if not before:
        gc.disable()
    try:
        explore()  # it ends before any model is loaded
        assert gc.isenabled() is before
    finally:
        gc.enable()
