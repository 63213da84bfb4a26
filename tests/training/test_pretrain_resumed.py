"""A run goes on exactly where it was, under the same settings only, and stops when it is asked to."""

import importlib
import json
import os
import shutil
import signal
import time

import pytest
from safetensors.torch import load_file, save_file

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.training.runs import (
    EVERYTHING,
    RUN,
    Ended,
    changed,
    ended,
    same_run,
    write_run,
)
from unmask.errors import InvalidRequest, NonFiniteResult, OutputError
from unmask.training.pretrain import Stopped, pretrain
from unmask.training.pretrain.start import run_tokenizer
from unmask.training.run.checkpoint import steps_of
from unmask.training.run.loop import Loop
from unmask.training.run.settings import read_run

RUN_MODULE = importlib.import_module("unmask.training.run.run")


# --- going on ------------------------------------------------------------------------------------------

KINDS = {
    "everything": EVERYTHING,
    "adamw, autocast": {"precision": "autocast", "averaging": {"warm_up": False}},
    "stable adamw, float32": {"optimizer": {"kind": "stable_adamw", "decoupled": True, "weight_decay": 1e-5}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_bit_by_bit(kind, place, monkeypatch):
    """Ended at the checkpoint, between lines of the log, and after steps that are lost."""
    if kind != "everything":
        pretrain(write_run(place, **KINDS[kind], out=kind))
    path = write_run(place, **KINDS[kind])
    for steps in (5, 8, 11):
        ended(path, monkeypatch, steps)
    result = pretrain(path)
    same_run(place / "run", place / kind)
    for name in ("model.safetensors", "config.json", "tokenizer.json", "training.json"):
        assert (result.folder / name).read_bytes() == (place / kind / "model" / name).read_bytes()


def test_examples_made_ahead_are_the_same_run(place, monkeypatch):
    """On a GPU a thread makes the next step's examples; checkpoints say where the steps done stand."""

    def ahead(*arguments, **options):
        return Loop(*arguments, **options | {"ahead": True})

    monkeypatch.setattr(RUN_MODULE, "Loop", ahead)
    path = write_run(place)
    for steps in (5, 9):
        ended(path, monkeypatch, steps)
    pretrain(path)
    same_run(place / "run", place / "plain")
    states = [
        json.loads((place / out / "checkpoints/step-00000012/state.json").read_text())["stream"]
        for out in ("run", "plain")
    ]
    assert states[0] == states[1]


def test_a_checkpoint_of_the_form_before_tallies_were_kept(place, monkeypatch):
    path = write_run(place, checkpoints={"every": 6})
    ended(path, monkeypatch, 6)
    state = place / "run/checkpoints/step-00000006/state.json"
    content = json.loads(state.read_text())
    del content["tally"]
    for key in ("steps", "evaluation", "checkpoints", "log", "compile", "card", "device", "export_dtype"):
        del content["settings"][key]
    state.write_text(json.dumps(content))
    vouch_anew(state)
    pretrain(path)
    same_run(place / "run", place / "plain")


def vouch_anew(path):
    """The checkpoint's manifest says that the file is as it should be."""
    import hashlib

    manifest = path.parent / "manifest.json"
    content = json.loads(manifest.read_text())
    content["sha256"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(content))


def test_a_finished_run_is_left_alone_and_its_result_told_again(place):
    path = write_run(place, out="plain")
    first = pretrain(path)
    stamps = {file: file.stat().st_mtime_ns for file in first.folder.rglob("*")}
    assert pretrain(path) == first
    assert {file: file.stat().st_mtime_ns for file in first.folder.rglob("*")} == stamps


def test_a_run_knows_the_checkpoint_that_it_began_with(place, monkeypatch):
    """Of as many bytes under the same name: weights that were trained again."""
    first = shutil.copytree(pretrain(write_run(place, out="plain")).folder, place / "first")
    begun = write_run(place, model={"start_from": "first"}, tokenizer={"folder": None}, out="begun")
    ended(begun, monkeypatch, 5)
    path = first / "model.safetensors"
    save_file({name: one + 0.01 for name, one in load_file(path).items()}, path, {"format": "pt"})
    (first / "unmask_checksums.json").unlink(missing_ok=True)
    with pytest.raises(InvalidRequest, match=r"model\.start_from names have changed since the run began"):
        pretrain(begun)


def test_a_tokenizer_of_other_text_is_trained_again_before_the_first_checkpoint(place):
    settings = read_run(write_run(place, tokenizer={"train": "bpe", "vocabulary": 300, "folder": None}))
    said = []

    def made(begun=False):
        return run_tokenizer(settings, place, place / "new", said.append, begun=begun).files

    before = made()
    assert (made(), len(said)) == (before, 1), "it is trained once"
    path = place / "first.txt"
    path.write_text(path.read_text().replace("a", "zq"))
    assert (made(begun=True), len(said)) == (before, 1), "a checkpoint is of this tokenizer"
    assert made() != before
    assert len(said) == 2


def test_a_longer_run_goes_on_and_its_model_takes_the_place(place):
    same = {
        "schedule": {"kind": "constant", "warmup_steps": 2},
        "batch": {"ramp_share": 0, "start_tokens": None},
    }
    pretrain(write_run(place, steps=6, out="whole", **same))
    pretrain(write_run(place, steps=4, **same))
    result = pretrain(write_run(place, steps=6, **same))
    assert result.steps == 6
    assert json.loads((result.folder / "training.json").read_text())["steps"] == 6
    wanted = (place / "whole/model/model.safetensors").read_bytes()
    assert (result.folder / "model.safetensors").read_bytes() == wanted
    with pytest.raises(InvalidRequest, match="has done 6 steps and steps is 4"):
        pretrain(write_run(place, steps=4, **same))


def test_a_folder_of_somebody_else_is_not_replaced(place):
    (place / "run/model").mkdir(parents=True)
    (place / "run/model/thesis.txt").write_text("years of work")
    with pytest.raises(OutputError, match=r"run/model.*holds something else"):
        pretrain(write_run(place))
    assert (place / "run/model/thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"seed": 4}, "seed was 3 and is 4"),
        ({"optimizer": {"learning_rate": 0.01}}, "optimizer.learning_rate was 0.003 and is 0.01"),
        ({"optimizer": {"betas": [0.8, 0.9]}}, "optimizer.betas was [0.9, 0.98] and is [0.8, 0.9]"),
        ({"objective": {"rate": 0.2}}, "objective.rate was None and is 0.2"),
        ({"model": {"config": {"hidden_act": "relu"}}}, "model.config.hidden_act was None and is 'relu'"),
        ({"averaging": {}}, "averaging"),
        ({"schedule": {"warmup_steps": 1}}, "schedule.warmup_steps was"),
        ({"tokenizer": {"lowercase": True}}, "tokenizer.lowercase was False and is True"),
        ({"batch": {"tokens": 1024}}, "batch.tokens was 512 and is 1024"),
        ({"precision": "autocast"}, "precision was 'float32' and is 'autocast'"),
    ],
)
def test_another_run_file_is_refused_by_the_names_of_the_keys(change, key, place):
    before = sorted((place / "plain").rglob("*"))
    with pytest.raises(InvalidRequest) as refused:
        pretrain(write_run(place, out="plain", **change))
    assert key in str(refused.value)
    assert "name another folder with out" in str(refused.value)
    assert sorted((place / "plain").rglob("*")) == before


def test_a_source_of_another_weight_is_refused(place):
    sources = changed(RUN)["data"]["sources"]
    sources[0]["weight"] = 3.0
    with pytest.raises(InvalidRequest, match=r"data\.sources\[0\]\.weight was 2\.0 and is 3\.0"):
        pretrain(write_run(place, out="plain", data={"sources": sources}))


def test_what_is_free_may_be_changed(place, monkeypatch):
    path = write_run(place)
    ended(path, monkeypatch, 5)
    shutil.move(place / "data", place / "elsewhere")
    (place / "card.md").write_text("# tiny")
    result = pretrain(
        write_run(
            place,
            steps=13,
            device="cpu",
            card="card.md",
            export_dtype="bfloat16",
            export_shard_bytes=4000,
            evaluation={"every": 2, "tokens": 100},
            checkpoints={"every": 3, "keep": 1, "milestones": [5]},
            log={"every": 1},
            data={"cache": "elsewhere"},
        )
    )
    assert result.steps == 13
    assert (result.folder / "README.md").read_text() == "# tiny"
    assert len(list(result.folder.glob("model-*.safetensors"))) > 3
    assert unmask.load(result.folder).max_tokens == 64


# --- stopping ------------------------------------------------------------------------------------------


def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(place, monkeypatch):
    path = write_run(place)
    one_step = Loop.one_step
    signals = {6: signal.SIGINT, 9: signal.SIGTERM}

    def signaled(self, metrics):
        if self.step in signals:
            os.kill(os.getpid(), signals[self.step])
        return one_step(self, metrics)

    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    for after, kept in ((7, [4, 7]), (10, [8, 10])):
        with monkeypatch.context() as patch:
            patch.setattr(Loop, "one_step", signaled)
            ran = run_here("pretrain", path)
        assert ran.code == 130
        last = ran.err.splitlines()[-1]
        assert last == f"unmask: stopped after step {after} of 12; the same command resumes from there"
        assert [step for step, _ in steps_of(place / "run/checkpoints")] == kept
        assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    pretrain(path)
    same_run(place / "run", place / "plain")


def test_a_second_interrupt_does_not_wait(place, monkeypatch):
    def twice(self, metrics):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
        raise AssertionError("the second was not heard")

    monkeypatch.setattr(Loop, "one_step", twice)
    with pytest.raises(KeyboardInterrupt) as stopped:
        pretrain(write_run(place))
    assert not isinstance(stopped.value, Stopped)


def test_a_number_that_is_not_finite_stops_the_run_and_names_the_newest_checkpoint(place, monkeypatch):
    gradients = Loop._gradients
    kinds = ["a figure", "loss", "gradient"]
    what = ""

    def broken(self, *arguments):
        sums = gradients(self, *arguments)
        if self.step == 6:
            if what in ("a figure", "loss"):
                return sums | {"loss" if what == "loss" else "masked/loss": float("nan")}
            next(self.objective.parameters()).grad.fill_(float("inf"))
        return sums

    monkeypatch.setattr(Loop, "_gradients", broken)
    for what in kinds:
        name = "masked/loss" if what == "a figure" else f"the {what}"
        with pytest.raises(NonFiniteResult, match=rf"^{name} of step 7 is not finite; .*step-00000004"):
            pretrain(write_run(place))
    monkeypatch.undo()
    pretrain(write_run(place))
    same_run(place / "run", place / "plain")


def test_two_processes_on_one_run(place, monkeypatch):
    path = write_run(place)

    def second(self, metrics):
        assert_one_sentence(run_here("pretrain", path), "another process is using the run in")
        raise Ended

    monkeypatch.setattr(Loop, "one_step", second)
    with pytest.raises(Ended):
        pretrain(path)
