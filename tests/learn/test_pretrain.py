"""A run from its file to a model: it learns, goes on exactly where it was, and is never half there."""

import importlib
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import unmask
from tests.learn.runs import EVERYTHING, RUN, changed, last_tensors, lines, same_tensors, write_run, write_texts
from tests.support.apart import Parent
from tests.support.command import assert_one_sentence, run_here
from tests.unit.test_bad_input import small_disk, smallest_files
from unmask.errors import InvalidRequest, NonFiniteResult, OutputError, UnmaskError
from unmask.learn.pretrain import Stopped, pretrain, read_run
from unmask.learn.pretrain.checkpoint import steps_of
from unmask.learn.pretrain.loop import Loop, Tally

RUN_MODULE = importlib.import_module("unmask.learn.pretrain.run")


@pytest.fixture(autouse=True)
def _quick_peak(monkeypatch):
    """The machine's peak is not measured."""
    monkeypatch.setattr("unmask.learn.pretrain.report.peak_flops", lambda *_: 1e12)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Texts, tokenizer and finished shards, to be copied."""
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder)
    write_run(folder, steps=1, out="first")
    pretrain(folder / "run.toml")
    shutil.rmtree(folder / "first")
    return folder


@pytest.fixture
def place(texts, tmp_path):
    """A folder with texts, where runs may be made."""
    return Path(shutil.copytree(texts, tmp_path / "place"))


class Heard:
    """A watcher that remembers."""

    def __init__(self):
        self.sentences, self.figures = [], []

    def say(self, sentence):
        self.sentences.append(sentence)

    def step(self, figures):
        self.figures.append(dict(figures))


def stop_after(monkeypatch, steps):
    """The process ends, in an exception of its own, just before the step after so many."""
    one_step = Loop.one_step

    def ending(self, tally):
        if self.step == steps:
            raise Ended
        return one_step(self, tally)

    monkeypatch.setattr(Loop, "one_step", ending)


class Ended(Exception):
    """As good as a kill: nothing in the program catches it."""


def ended(path, monkeypatch, steps):
    with monkeypatch.context() as patch, pytest.raises(Ended):
        stop_after(patch, steps)
        pretrain(path)


# --- it learns -----------------------------------------------------------------------------------------


def test_a_run_learns_and_leaves_a_model_that_loads(place):
    heard = Heard()
    path = write_run(place, steps=60, **EVERYTHING, log={"every": 4}, checkpoints={"every": 40})
    result = pretrain(path, watcher=heard)
    out = place / "run"
    losses = [line["masked/loss"] for line in lines(out, kinds=("step",))]
    assert len(losses) == 15
    assert losses[0] > 3.5  # ln 60 is 4.1
    assert losses[-1] < losses[0] - 0.5  # words are drawn at random: ln 19 is 2.9
    assert result.folder == out / "model"
    assert result.steps == 60
    assert result.tokens == lines(out)[-1]["tokens"]
    assert result.fill_ratio > 0.95
    assert result.held_out == {
        name: value for name, value in lines(out, kinds=("held_out",))[-1].items() if "/" in name
    }
    assert result.held_out["masked/loss"] < losses[0] - 0.5
    # What is shipped is the average, rounded as the weights are.
    state = unmask.load(result.folder, dtype="bfloat16").encoder.state_dict()
    averages = last_tensors(out)
    for name, tensor in state.items():
        assert torch.equal(tensor, averages[f"averages.encoder.{name}"].to(torch.bfloat16)), name
    assert [place for _, place in steps_of(out / "checkpoints")][-1].name == "step-00000060"
    record = json.loads((result.folder / "training.json").read_text())
    assert (record["run"], record["steps"], record["tokens"]) == ("tiny", 60, result.tokens)
    assert heard.sentences[0].startswith("tiny: 20,")
    assert "60 steps of 256 to 512 tokens" in heard.sentences[0]
    assert heard.figures[-1]["step"] == 60
    assert heard.figures[-1]["seconds_left"] == 0
    assert heard.figures[-1]["memory_bytes"] > 1e6
    assert 0 < heard.figures[-1]["peak_share"] < 1


def test_expected_epochs_are_those_that_come(place):
    heard = Heard()
    pretrain(write_run(place, steps=60, evaluation={"every": 0}, checkpoints={"every": 60}), watcher=heard)
    state = json.loads((place / "run/checkpoints/step-00000060/state.json").read_text())
    said = heard.sentences[1]
    for source, name in enumerate(("first", "second")):
        manifest = json.loads(next((place / "data").glob(f"{name}-*/manifest.json")).read_text())
        given = state["stream"]["sources"][source][1] / manifest["counts"]["tokens"]
        expected = float(said.split(f"{name} ")[1].split("batch, ")[1].split(" epochs")[0])
        # The stream counts what it has drawn into its pool of 64 micro-batches.
        assert expected == pytest.approx(given, rel=0.35)
    assert "67% of the batch" in said


def test_evaluation_leaves_no_trace(place, monkeypatch):
    """Torch's generator and every module's mode are as before, and a run without it is the same run."""
    pretrain(write_run(place, **EVERYTHING))
    with_it = last_tensors(place / "run")
    pretrain(write_run(place, **EVERYTHING, evaluation={"every": 0}, out="other", data={"held_out": []}))
    same_tensors(with_it, last_tensors(place / "other"))

    seen = []
    evaluate = Loop.evaluate

    def checked(self, micro_batches):
        self.objective.encoder.embedding.eval()
        torch.manual_seed(5)
        before = torch.get_rng_state(), [part.training for part in self.objective.modules()]
        figures = evaluate(self, micro_batches)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert [part.training for part in self.objective.modules()] == before[1]
        assert evaluate(self, micro_batches) == figures
        seen.append(figures)
        return figures

    monkeypatch.setattr(Loop, "evaluate", checked)
    pretrain(write_run(place, **EVERYTHING, out="third"))
    assert len(seen) == 2


# --- going on ------------------------------------------------------------------------------------------

KINDS = {
    "muon, masters, averages": EVERYTHING,
    "adamw, autocast": {"precision": "autocast", "averaging": {"warm_up": False}},
    "stable adamw, float32": {"optimiser": {"kind": "stable_adamw", "decoupled": True, "weight_decay": 1e-5}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_bit_by_bit(kind, place, monkeypatch):
    """Ended at the checkpoint, between lines of the log, and after steps that are lost."""
    pretrain(write_run(place, **KINDS[kind]))
    path = write_run(place, **KINDS[kind], out="again")
    for steps in (5, 8, 11):
        ended(path, monkeypatch, steps)
    result = pretrain(path)
    assert lines(place / "again") == lines(place / "run")
    same_tensors(last_tensors(place / "again"), last_tensors(place / "run"))
    for name in ("model.safetensors", "config.json", "tokenizer.json", "training.json"):
        assert (result.folder / name).read_bytes() == (place / "run/model" / name).read_bytes()


def test_examples_made_ahead_are_the_same_run(place, monkeypatch):
    """On a GPU a thread makes the next step's examples; checkpoints say where the steps done stand."""
    pretrain(write_run(place))

    def ahead(*arguments, **options):
        return Loop(*arguments, **options | {"ahead": True})

    monkeypatch.setattr(RUN_MODULE, "Loop", ahead)
    path = write_run(place, out="again")
    for steps in (5, 9):
        ended(path, monkeypatch, steps)
    pretrain(path)
    assert lines(place / "again") == lines(place / "run")
    same_tensors(last_tensors(place / "again"), last_tensors(place / "run"))
    states = [
        json.loads((place / out / "checkpoints/step-00000012/state.json").read_text())["stream"]
        for out in ("run", "again")
    ]
    assert states[0] == states[1]


def test_a_checkpoint_of_the_form_before_tallies_were_kept(place, monkeypatch):
    path = write_run(place, checkpoints={"every": 6})
    pretrain(path)
    path = write_run(place, out="again", checkpoints={"every": 6})
    ended(path, monkeypatch, 6)
    state = place / "again/checkpoints/step-00000006/state.json"
    content = json.loads(state.read_text())
    del content["tally"]
    for key in ("steps", "evaluation", "checkpoints", "log", "compile", "card", "device", "export_dtype"):
        del content["settings"][key]
    state.write_text(json.dumps(content))
    vouch_anew(state)
    pretrain(path)
    same_tensors(last_tensors(place / "again"), last_tensors(place / "run"))


def vouch_anew(path):
    """The checkpoint's manifest says that the file is as it should be."""
    import hashlib

    manifest = path.parent / "manifest.json"
    content = json.loads(manifest.read_text())
    content["sha256"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(content))


def test_a_finished_run_is_left_alone_and_its_result_told_again(place):
    path = write_run(place)
    first = pretrain(path)
    stamps = {file: file.stat().st_mtime_ns for file in first.folder.rglob("*")}
    assert pretrain(path) == first
    assert {file: file.stat().st_mtime_ns for file in first.folder.rglob("*")} == stamps


def test_a_longer_run_goes_on_and_its_model_takes_the_place(place):
    schedule = {"kind": "constant", "warmup_steps": 2}
    pretrain(write_run(place, steps=18, schedule=schedule, batch={"ramp_share": 0, "start_tokens": None}))
    path = write_run(
        place, out="again", schedule=schedule, batch={"ramp_share": 0, "start_tokens": None}, steps=12
    )
    pretrain(path)
    path.write_text(path.read_text().replace("steps = 12", "steps = 18"))
    result = pretrain(path)
    assert result.steps == 18
    assert json.loads((result.folder / "training.json").read_text())["steps"] == 18
    wanted = (place / "run/model/model.safetensors").read_bytes()
    assert (result.folder / "model.safetensors").read_bytes() == wanted
    path.write_text(path.read_text().replace("steps = 18", "steps = 12"))
    with pytest.raises(InvalidRequest, match="has done 18 steps and steps is 12"):
        pretrain(path)


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
        ({"optimiser": {"learning_rate": 0.01}}, "optimiser.learning_rate was 0.003 and is 0.01"),
        ({"optimiser": {"betas": [0.8, 0.9]}}, "optimiser.betas was [0.9, 0.98] and is [0.8, 0.9]"),
        ({"objective": {"rate": 0.2}}, "objective.rate was None and is 0.2"),
        ({"model": {"config": {"hidden_act": "relu"}}}, "model.config.hidden_act was None and is 'relu'"),
        ({"averaging": {}}, "averaging"),
        ({"batch": {"tokens": 1024}}, "batch.tokens was 512 and is 1024"),
        ({"precision": "autocast"}, "precision was 'float32' and is 'autocast'"),
    ],
)
def test_another_run_file_is_refused_by_the_names_of_the_keys(change, key, place):
    pretrain(write_run(place, steps=1))
    before = sorted((place / "run").rglob("*"))
    with pytest.raises(InvalidRequest) as refused:
        pretrain(write_run(place, **{"steps": 1} | change))
    assert key in str(refused.value)
    assert "name another folder with out" in str(refused.value)
    assert sorted((place / "run").rglob("*")) == before


def test_a_source_of_another_weight_is_refused(place):
    pretrain(write_run(place, steps=1))
    sources = changed(RUN)["data"]["sources"]
    sources[0]["weight"] = 3.0
    with pytest.raises(InvalidRequest, match=r"data\.sources\[0\]\.weight was 2\.0 and is 3\.0"):
        pretrain(write_run(place, steps=1, data={"sources": sources}))


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(number, place, monkeypatch):
    pretrain(write_run(place))
    path = write_run(place, out="again")
    one_step = Loop.one_step

    def signalled(self, tally):
        if self.step == 6:
            os.kill(os.getpid(), number)
        return one_step(self, tally)

    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "one_step", signalled)
        ran = run_here("pretrain", path)
    assert ran.code == 130
    last = ran.err.splitlines()[-1]
    assert last == "unmask: stopped after step 7 of 12; the same command goes on from there"
    assert [step for step, _ in steps_of(place / "again/checkpoints")] == [4, 7]
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    pretrain(path)
    assert lines(place / "again") == lines(place / "run")
    same_tensors(last_tensors(place / "again"), last_tensors(place / "run"))


def test_a_second_interrupt_does_not_wait(place, monkeypatch):
    def twice(self, tally):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
        raise AssertionError("the second was not heard")

    monkeypatch.setattr(Loop, "one_step", twice)
    with pytest.raises(KeyboardInterrupt) as stopped:
        pretrain(write_run(place))
    assert not isinstance(stopped.value, Stopped)


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_number_that_is_not_finite_stops_the_run_and_names_the_newest_checkpoint(what, place, monkeypatch):
    gradients = Loop._gradients

    def broken(self, *arguments):
        sums = gradients(self, *arguments)
        if self.step == 6:
            if what == "loss":
                return sums | {"masked/loss": float("nan")}
            next(self.objective.parameters()).grad.fill_(float("inf"))
        return sums

    monkeypatch.setattr(Loop, "_gradients", broken)
    with pytest.raises(NonFiniteResult, match=rf"{what} of step 7 is not finite; .*step-00000004"):
        pretrain(write_run(place))
    monkeypatch.undo()
    assert pretrain(write_run(place)).steps == 12


def test_two_processes_on_one_run(place, monkeypatch):
    path = write_run(place)

    def second(self, tally):
        assert_one_sentence(run_here("pretrain", path), "another process has the run in")
        raise Ended

    monkeypatch.setattr(Loop, "one_step", second)
    with pytest.raises(Ended):
        pretrain(path)


# --- kills ---------------------------------------------------------------------------------------------

DYING = """
import os, signal, sys, time
import unmask.learn.pretrain.checkpoint as checkpoint, unmask.learn.pretrain.report as report
report.peak_flops = lambda *_: 1e12
count, at, pause = 0, AT, PAUSE

def dying(call):
    def run(*arguments, **options):
        global count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(pause)
        return call(*arguments, **options)
    return run

def half(tensors, path, write=checkpoint.save_file):
    write(tensors, path)
    size = os.path.getsize(path)
    os.truncate(path, size // 2)
    dying(lambda: None)()
    write(tensors, path)

checkpoint.save_file = half
for name in ("mkdir", "fsync", "replace", "rename", "unlink", "rmdir", "write"):
    setattr(os, name, dying(getattr(os, name)))
"""
"""The process dies at its AT-th change of the disk; each takes PAUSE seconds, so that a signal meets it there."""


@pytest.fixture(scope="module")
def runs_apart():
    """Runs in processes of their own."""
    parent = Parent("unmask.learn.pretrain")
    yield parent
    parent.stop()


def killed(runs_apart, path, draw):
    """A run killed at a random operation on the disk or at a random time; how it ended."""
    by_operation = draw.random() < 0.7
    at, pause = (draw.randint(1, 90), 0) if by_operation else (0, 0.004)
    before = DYING.replace("AT, PAUSE", f"{at}, {pause}", 1)
    process = runs_apart.start("pretrain", path, before=before, env={"OMP_NUM_THREADS": "1"})
    if not by_operation:
        time.sleep(draw.uniform(0.2, 2.5))
        process.send(signal.SIGKILL)
    return process.wait()


def kill_and_go_on(place, runs_apart, kills, seed):
    """After every kill a whole checkpoint is there if one was before, and in the end all is as if unbroken."""
    few = {"steps": 14, "checkpoints": {"every": 1}, "log": {"every": 2}, "evaluation": {"every": 5}}
    table = changed(EVERYTHING, **few)
    pretrain(write_run(place, **table, out="whole"))
    draw = random.Random(seed)
    finished = died = 0
    while died < kills:
        out = place / f"broken-{finished}"
        path = write_run(place, **table, out=out.name)
        before = [step for step, _ in steps_of(out / "checkpoints")]
        ran = killed(runs_apart, path, draw)
        assert ran.code in (0, -signal.SIGKILL), ran.err
        after = [step for step, _ in steps_of(out / "checkpoints")]
        assert not before or max(after) >= max(before)
        died += ran.code != 0
        finished += ran.code == 0
    for number in range(finished + 1):
        out = place / f"broken-{number}"
        pretrain(write_run(place, **table, out=out.name))
        assert lines(out) == lines(place / "whole")
        same_tensors(last_tensors(out), last_tensors(place / "whole"))
        for name in ("model.safetensors", "training.json"):
            assert (out / "model" / name).read_bytes() == (place / "whole/model" / name).read_bytes()
        left = {path.name for path in out.iterdir()} - {".lock", "log.jsonl", "model", "checkpoints"}
        assert not left
        assert len(list((out / "checkpoints").iterdir())) == 2
    return finished


def test_killed_at_random_moments(place, runs_apart):
    kill_and_go_on(place, runs_apart, kills=6, seed=0)


@pytest.mark.slow
def test_killed_at_fifty_random_moments(place, runs_apart):
    kill_and_go_on(place, runs_apart, kills=50, seed=1)


# --- damage and full disks -----------------------------------------------------------------------------


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_costs_its_steps_and_no_more(place, monkeypatch):
    pretrain(write_run(place))
    path = write_run(place, out="again")
    ended(path, monkeypatch, 9)
    flip_a_bit(place / "again/checkpoints/step-00000008/tensors.safetensors")
    heard = Heard()
    pretrain(path, watcher=heard)
    assert any("step-00000008" in one and "older checkpoint" in one for one in heard.sentences)
    assert "going on after step 4 of 12" in heard.sentences
    assert lines(place / "again") == lines(place / "run")
    same_tensors(last_tensors(place / "again"), last_tensors(place / "run"))


def test_no_whole_checkpoint_is_one_sentence(place, monkeypatch):
    path = write_run(place)
    ended(path, monkeypatch, 9)
    for _, checkpoint in steps_of(place / "run/checkpoints"):
        flip_a_bit(checkpoint / "tensors.safetensors")
    ran = run_here("pretrain", path)
    assert ran.code == 1
    assert ran.err.splitlines()[-1].startswith("unmask: none of the 2 checkpoints in ")
    assert "Traceback" not in ran.err


def test_a_damaged_shard_is_one_sentence(place):
    flip_a_bit(next((place / "data").glob("second-*/ids-00000.bin")))
    ran = run_here("pretrain", write_run(place))
    assert_one_sentence(ran, "ids-00000.bin is not what was written", "remove", "made again")


def test_a_full_disk_while_a_checkpoint_is_written(place, monkeypatch):
    """The previous checkpoint stays whole, nothing half is left, and the run goes on to the same end."""
    pretrain(write_run(place))
    path = write_run(place, out="again")
    ended(path, monkeypatch, 5)
    with smallest_files():
        ran = run_here("pretrain", path)
    assert ran.code == 1
    assert ran.err.splitlines()[-1].startswith("unmask: cannot write ")
    assert "step-00000008" in ran.err.splitlines()[-1]
    assert "Traceback" not in ran.err
    assert [one.name for one in (place / "again/checkpoints").iterdir()] == ["step-00000004"]
    pretrain(path)
    assert lines(place / "again") == lines(place / "run")
    same_tensors(last_tensors(place / "again"), last_tensors(place / "run"))


def test_a_disk_that_is_really_full(place, tmp_path):
    """Wherever it fills up: shards, log, checkpoint or export; with more room the run goes on."""
    pretrain(write_run(place))
    wanted = last_tensors(place / "run")
    disk = tmp_path / "disk"
    disk.mkdir()
    shutil.rmtree(place / "data")
    found = set()
    # One checkpoint of this run is about 340 kB, and two stay.
    for size in (20_000, 60_000, 150_000, 400_000, 700_000, 900_000, 1_100_000):
        with small_disk(disk, size):
            path = write_run(place, out=str(disk / "run"), data={"cache": str(disk / "data")})
            ran = run_here("pretrain", path)
            if ran.code == 0:
                found.add("done")
                same_tensors(last_tensors(disk / "run"), wanted)
                continue
            sentence = ran.err.splitlines()[-1]
            assert ran.code == 1
            assert sentence.startswith("unmask: cannot write ")
            assert "No space left" in sentence
            assert "Traceback" not in ran.err
            found |= {what for what in ("data", "checkpoints", "model") if f"/{what}" in sentence}
            kept = shutil.copytree(disk, tmp_path / f"kept-{size}")
        path = write_run(place, out=str(kept / "run"), data={"cache": str(kept / "data")})
        pretrain(path)
        same_tensors(last_tensors(kept / "run"), wanted)
    assert {"data", "checkpoints"} <= found


# --- what a run file can say ---------------------------------------------------------------------------


def test_starting_from_the_model_of_a_run(place):
    """Phases: the second begins with the first one's weights and tokenizer, and another rotary base."""
    config = {
        "model_type": "modernbert",
        "architectures": ["ModernBertForMaskedLM"],
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
    }
    first = write_run(place, model={"config": None}) and write_run(
        place, model={"config": config | {"global_rope_theta": 10000.0}}, out="first"
    )
    pretrain(first)
    heard = Heard()
    second = write_run(
        place,
        out="second",
        tokenizer=None,
        model={"config": None, "start_from": "first/model"},
        steps=1,
        optimiser={"learning_rate": 1e-12},
        export_dtype="float32",
    )
    text = second.read_text().replace(
        '"start_from"', '"config" = {"global_rope_theta" = 160000.0}, "start_from"'
    )
    second.write_text(text)
    pretrain(second, watcher=heard)
    one, two = (unmask.load(place / name / "model") for name in ("first", "second"))
    for name, tensor in one.encoder.state_dict().items():
        torch.testing.assert_close(two.encoder.state_dict()[name], tensor, rtol=0, atol=1e-9)
    assert one.spec.layers[0].mixer.position.theta == 10000.0
    assert two.spec.layers[0].mixer.position.theta == 160000.0
    assert not any("fresh" in sentence or "left out" in sentence for sentence in heard.sentences)
    assert (place / "second/model/tokenizer.json").read_bytes() == (
        place / "tokenizer/tokenizer.json"
    ).read_bytes()
    # It goes on without reading the other's weights again.
    (place / "first/model/model.safetensors").write_bytes(b"")
    second.write_text(second.read_text().replace("steps = 1\n", "steps = 2\n"))
    with pytest.raises(UnmaskError):
        pretrain(second)


def test_starting_from_a_model_with_other_heads_says_what_is_fresh(place, tiny_folder):
    heard = Heard()
    path = write_run(
        place,
        steps=1,
        tokenizer=None,
        model={"config": None, "start_from": str(tiny_folder)},
        data={"sources": [{"name": "first", "files": ["first.txt"], "max_tokens": 15}], "held_out": []},
    )
    path.write_text(
        path.read_text().replace('"start_from"', '"config" = {"architectures" = ["BertForMaskedLM"]}, "start_from"')
    )
    pretrain(path, watcher=heard)
    assert any("has no heads.masked" in one and "fresh weights there" in one for one in heard.sentences)
    path.write_text(path.read_text().replace('"architectures"', '"max_position_embeddings" = 20, "architectures"'))
    shutil.rmtree(place / "run")
    with pytest.raises(InvalidRequest, match=r"embedding\.positions\.weight of shape \[20, 30\].*\[23, 30\]"):
        pretrain(path)


def test_a_published_shape(place):
    """Sizes are the published ones but for what config changes; the vocabulary is the tokenizer's."""
    small = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    path = write_run(place, steps=1, model={"config": None, "shape": "google-bert/bert-base-uncased"})
    path.write_text(
        path.read_text().replace(
            '"shape"', '"config" = {' + ", ".join(f"{k} = {v}" for k, v in small.items()) + '}, "shape"'
        )
    )
    loaded = unmask.load(pretrain(path).folder)
    assert (loaded.spec.width, len(loaded.spec.layers), loaded.spec.max_tokens) == (32, 1, 512)
    assert loaded.spec.embedding.vocabulary == 64


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("averaging", [None, {"decay": 0.9}])
def test_the_dtype_of_the_export(kind, averaging, place):
    """In float32 it is the averages or masters themselves, and what is trained stays as it was."""
    path = write_run(place, **changed(EVERYTHING, averaging=averaging), export_dtype=kind)
    result = pretrain(path)
    tensors = last_tensors(place / "run")
    loaded = unmask.load(result.folder, dtype="float32").encoder
    wide = dict(loaded.named_parameters())
    if averaging is not None:
        wanted = {name: tensors[f"averages.encoder.{name}"] for name in wide}
    else:
        masters = {
            tuple(tensor.shape): [t for n, t in tensors.items() if n.endswith("master") and t.shape == tensor.shape]
            for tensor in wide.values()
        }
        wanted = {
            name: min(masters[tuple(one.shape)], key=lambda t, one=one: float((t - one).abs().max()))
            for name, one in wide.items()
        }
    for name, tensor in wide.items():
        expected = wanted[name].to(getattr(torch, kind)).to(torch.float32)
        assert torch.equal(tensor, expected), name
    from safetensors.torch import load_file

    stored = load_file(result.folder / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {getattr(torch, kind)}


def test_weights_are_back_after_the_export(place, monkeypatch):
    seen = {}
    original = RUN_MODULE.export

    def watched(loop, *arguments):
        before = {name: one.clone() for name, one in loop.objective.state_dict().items()}
        identities = [id(one) for one in loop.objective.parameters()]
        original(loop, *arguments)
        same_tensors(before, loop.objective.state_dict())
        assert [id(one) for one in loop.objective.parameters()] == identities
        seen["yes"] = True

    monkeypatch.setattr(RUN_MODULE, "export", watched)
    for number, kind in enumerate((None, "float32", "bfloat16")):
        pretrain(write_run(place, steps=2, **EVERYTHING, export_dtype=kind, out=f"run-{number}"))
    assert seen


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"stpes": 3}, ["run.toml: it has no key 'stpes'; did you mean steps?"]),
        ({"steps": 0}, ["steps is 0; it must be at least 1"]),
        ({"steps": None}, ["it needs steps"]),
        ({"seed": -1}, ["seed is -1"]),
        ({"optimiser": {"learning_rte": 1}}, ["optimiser has no key 'learning_rte'; did you mean learning_rate"]),
        ({"optimiser": {"learning_rate": "x"}}, ["optimiser.learning_rate is 'x'; it must be a number"]),
        ({"optimiser": {"learning_rate": -1}}, ["optimiser: learning_rate must be above 0"]),
        ({"batch": {"micro_tokens": 1000}}, ["batch: micro_tokens is 1000"]),
        ({"batch": {"micro_tokens": 0}}, ["batch: micro_tokens is 0"]),
        ({"checkpoints": {"every": 0}}, ["checkpoints: every is 0; it must be at least 1"]),
        ({"checkpoints": {"keep": 0}}, ["checkpoints: keep is 0"]),
        ({"log": {"every": 0}}, ["log: every is 0"]),
        ({"evaluation": {"tokens": 0}}, ["evaluation: tokens is 0"]),
        ({"averaging": {"decay": 1}}, ["averaging: decay is 1.0"]),
        ({"schedule": {"warmup_steps": 99}}, ["warm-up and decay take"]),
        ({"objective": {"kind": None}}, ["objective needs kind"]),
        ({"objective": {"kind": "maskd"}}, ["objective.kind is 'maskd'"]),
        ({"objective": {"rat": 0.2}}, ["objective has no key 'rat'; did you mean rate"]),
        ({"data": {"sources": []}}, ["data: sources is empty"]),
        ({"data": {"sources": [{"name": "a", "fils": []}]}}, ["data.sources[0] has no key 'fils'"]),
        ({"data": {"sources": [{"name": "a", "files": ["no.txt"]}]}}, ["no.txt", "no such file"]),
        ({"data": {"sources": [{"name": "a", "files": ["first.txt"]}]}}, ["source a has a piece", "max_tokens"]),
        ({"tokenizer": {"train": "bpe"}}, ["tokenizer needs either folder or train"]),
        ({"tokenizer": {"folder": None}}, ["tokenizer needs either folder or train"]),
        ({"tokenizer": {"folder": "no"}}, ["tokenizer.folder names", "which holds none of"]),
        ({"model": {"shape": "bert-base-uncased", "start_from": "x"}}, ["model: shape and start_from"]),
        ({"model": {"config": None}}, ["model: nothing says which encoder"]),
        ({"model": {"start_from": "x"}}, ["leave tokenizer out"]),
        ({"tokenizer": None, "model": {"start_from": "no/such/model"}}, ["no/such/model is no folder"]),
        ({"model": {"config": {"hidden_sise": 3}}}, ["hidden_sise"]),
        ({"model": {"config": {"architectures": ["BertModel"]}}}, ["no head that predicts masked words"]),
        ({"model": {"initialisation": "other"}}, ["model.initialisation is 'other'"]),
        ({"card": "no.md"}, ["no.md", "card"]),
        ({"device": "tpu"}, ["device is 'tpu'; it can be auto, cpu, cuda"]),
        ({"export_shard_bytes": 0}, ["export_shard_bytes is 0"]),
    ],
)
def test_a_run_file_that_cannot_be(changes, parts, place):
    ran = run_here("pretrain", write_run(place, **changes))
    assert ran.code == 1
    assert "Traceback" not in ran.err
    last = ran.err.splitlines()[-1]
    assert last.startswith("unmask: ")
    for part in parts:
        assert part in last


@pytest.mark.parametrize("content", [b"steps = ", b"\xff", b"a = 1" + b"0" * 5000, b"a = " + b"[" * 5000])
def test_a_file_that_is_no_toml(content, tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    assert_one_sentence(run_here("pretrain", path), "run.toml is not TOML")


def test_no_file_at_all(tmp_path):
    assert_one_sentence(run_here("pretrain", tmp_path / "run.toml"), "cannot read", "No such file")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there(place):
    assert_one_sentence(run_here("pretrain", write_run(place, device="cuda")), "no CUDA device", "cpu or auto")


def test_paths_begin_at_the_run_file(place, monkeypatch):
    monkeypatch.chdir(place.parent)
    assert pretrain(Path("place") / write_run(place).name).folder == Path("place/run/model")
    (place.parent / "old").mkdir()
    path = write_run(place, tokenizer=None, model={"config": None, "start_from": "old"}, out="b")
    with pytest.raises(UnmaskError, match="a path in a run file begins at the file's folder"):
        pretrain(path)


def test_a_date_in_a_condition_of_a_source(place, monkeypatch):
    """TOML has dates and JSON, in which a checkpoint keeps settings, has not."""
    (place / "dated.jsonl").write_text('{"text": "the river", "day": "x"}\n' * 3)
    path = write_run(
        place,
        steps=2,
        data={"sources": [{"name": "a", "files": ["dated.jsonl"]}], "held_out": []},
    )
    text = path.read_text()
    path.write_text(text.replace('"name" = "a"', '"name" = "a", where = {day = ["x", 2020-01-01]}'))
    ended(path, monkeypatch, 1)
    assert pretrain(path).steps == 2


def test_a_tokenizer_trained_by_the_run_is_kept(place, monkeypatch):
    path = write_run(
        place, tokenizer={"folder": None, "train": "bpe", "vocabulary": 300, "sample_bytes": 4000}
    )
    ended(path, monkeypatch, 5)
    kept = {file.name: file.read_bytes() for file in (place / "run/tokenizer").iterdir()}
    result = pretrain(path)
    assert {name: (result.folder / name).read_bytes() for name in kept} == kept
    assert unmask.load(result.folder).spec.embedding.vocabulary == 320  # 300, rounded up


# --- what is told --------------------------------------------------------------------------------------


def test_the_command_tells_its_result(place):
    path = write_run(place)
    ran = run_here("pretrain", path, "--json")
    told = json.loads(ran.out)
    assert told["folder"] == str(place / "run/model")
    assert (told["name"], told["steps"]) == ("tiny", 12)
    assert told["held_out"].keys() == {"masked/loss", "masked/accuracy"}
    assert "step 12 of 12: masked/loss" in ran.err
    assert "% of peak" in ran.err
    human = run_here("pretrain", path).out
    assert human.startswith(f"{place}/run/model: 12 steps, {told['tokens']:,} tokens, micro-batches 9")
    assert f"held out masked/loss: {told['held_out']['masked/loss']:.4f}" in human


def test_tensorboard_hears_the_same_figures(place, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = write_run(place, log={"tensorboard": True})
    ended(path, monkeypatch, 7)
    pretrain(path)
    board = EventAccumulator(str(place / "run/tensorboard"))
    board.Reload()
    for kind, before in (("step", ""), ("held_out", "held_out/")):
        wanted = [(one["step"], one["masked/loss"]) for one in lines(place / "run", kinds=(kind,))]
        found = [(one.step, one.value) for one in board.Scalars(f"{before}masked/loss")]
        assert [step for step, _ in found] == [step for step, _ in wanted]
        np.testing.assert_allclose([v for _, v in found], [v for _, v in wanted], rtol=1e-6)


def test_tensorboard_that_is_not_installed(place, monkeypatch):
    monkeypatch.setattr("unmask.optional.find_spec", lambda name: None)
    ran = run_here("pretrain", write_run(place, log={"tensorboard": True}))
    assert ran.code == 1
    assert "pip install tensorboard" in ran.err.splitlines()[-1]


def test_a_tally_that_counted_nothing_for_a_term_leaves_it_out():
    tally = Tally()
    tally.add({"masked/loss": 3.0, "other/loss": 0.0}, {"masked": 2.0, "other": 0.0, "tokens": 5.0})
    assert tally.means() == {"masked/loss": 1.5}


def test_every_default_of_a_run_file_is_a_run(place):
    """The smallest file there is."""
    table = {key: RUN[key] for key in ("name", "model", "tokenizer", "objective", "steps")}
    table["data"] = {"sources": [RUN["data"]["sources"][0]]}
    table["batch"] = {"tokens": 300, "micro_tokens": 300}
    table["optimiser"] = {}
    from tests.learn.runs import to_toml

    (place / "small.toml").write_text(to_toml(table | {"steps": 1}))
    assert read_run(place / "small.toml").out == "."
    assert pretrain(place / "small.toml").folder == place / "model"
