"""A run from its file to a model: it learns, goes on exactly where it was, and is never half there."""

import importlib
import json
import os
import re
import shutil
import signal
import time

import numpy as np
import pytest
import torch

import unmask
from tests.learn.runs import (
    EVERYTHING,
    RUN,
    Ended,
    Heard,
    changed,
    ended,
    last_tensors,
    lines,
    same_run,
    same_tensors,
    write_run,
    write_texts,
)
from tests.support.command import assert_one_sentence, run_here
from unmask.errors import InvalidRequest, NonFiniteResult, OutputError
from unmask.learn.objectives.masked import MaskedLanguageModel
from unmask.learn.pretrain import Stopped, pretrain, read_run
from unmask.learn.pretrain.checkpoint import steps_of
from unmask.learn.pretrain.flops import peak_flops
from unmask.learn.pretrain.loop import Loop, MetricAccumulator

RUN_MODULE = importlib.import_module("unmask.learn.pretrain.run")


# --- it learns -----------------------------------------------------------------------------------------


def test_a_run_learns_and_leaves_a_model_that_loads(place):
    heard = Heard()
    path = write_run(place, steps=60, **EVERYTHING, log={"every": 4}, checkpoints={"every": 40})
    result = pretrain(path, callback=heard)
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
    state = unmask.load(result.folder, dtype="bfloat16").trainable_encoder().state_dict()
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


def test_expected_epochs_are_those_that_come(place, monkeypatch):
    heard, given = Heard(), [0, 0]
    prepare = MaskedLanguageModel.prepare

    def counting(self, chunks, draw, progress):
        for chunk in chunks:
            given[chunk.document >= 300] += len(chunk.ids)  # the first source has so many documents
        return prepare(self, chunks, draw, progress)

    monkeypatch.setattr(MaskedLanguageModel, "prepare", counting)
    path = write_run(place, steps=80, data={"held_out": []}, checkpoints={"every": 80})
    result = pretrain(path, callback=heard)
    for sentence, name, tokens, share in zip(
        heard.sentences[1:3], ("first", "second"), given, (67, 33), strict=True
    ):
        (manifest,) = (place / "data").glob(f"{name}-*/manifest.json")
        counts = json.loads(manifest.read_text())["counts"]
        lengths = np.load(manifest.parent / "lengths.npy")
        of_it = counts["tokens"]
        assert sentence.startswith(
            f"source {name}: {counts['documents']} documents in {len(lengths)} chunks of "
            f"{np.median(lengths):.0f} tokens (median) to {lengths.max()}, "
        )
        told = re.search(r"([\d,]+) in all; (\d+)% of the batch, ([\d.]+) epochs", sentence)
        assert told is not None
        assert int(told[1].replace(",", "")) == of_it
        assert int(told[2]) == share
        assert float(told[3]) == pytest.approx(tokens / of_it, rel=0.03)
    room = sum(read_run(path).batch.micro_batches(step, 80) for step in range(80)) * 256
    assert f"{room:,} in all" in heard.sentences[0]
    assert result.fill_ratio == pytest.approx(result.tokens / room)


def test_evaluation_leaves_no_trace(place, monkeypatch):
    """Torch's generator and every module's mode are as before, and a run without it is the same run."""
    with_it = last_tensors(place / "everything")
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
    pretrain(write_run(place, **EVERYTHING))
    assert len(seen) == 3


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(number, place, monkeypatch):
    path = write_run(place)
    one_step = Loop.one_step

    def signaled(self, metrics):
        if self.step == 6:
            os.kill(os.getpid(), number)
        return one_step(self, metrics)

    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "one_step", signaled)
        ran = run_here("pretrain", path)
    assert ran.code == 130
    last = ran.err.splitlines()[-1]
    assert last == "unmask: stopped after step 7 of 12; the same command resumes from there"
    assert [step for step, _ in steps_of(place / "run/checkpoints")] == [4, 7]
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


# --- what is told --------------------------------------------------------------------------------------


def test_the_command_tells_its_result(place, monkeypatch):
    path = write_run(place)
    monkeypatch.setattr("unmask.learn.pretrain.flops.peak_flops", peak_flops)
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
    metrics = MetricAccumulator()
    metrics.add({"masked/loss": 3.0, "other/loss": 0.0}, {"masked": 2.0, "other": 0.0, "tokens": 5.0})
    assert metrics.means() == {"masked/loss": 1.5}


def test_tokenizing_is_told_and_a_finished_cache_is_not_made_again(tmp_path, quick_peak):
    write_texts(tmp_path)
    heard = Heard()
    pretrain(write_run(tmp_path, steps=1, evaluation={"every": 0}), callback=heard)
    assert [name for name, *_ in heard.tokenized] == ["first", "second", "held"]
    assert all(documents > 30 and tokens > 300 for _, documents, tokens in heard.tokenized)
    heard.tokenized.clear()
    pretrain(write_run(tmp_path, steps=2, out="other", evaluation={"every": 0}), callback=heard)
    assert not heard.tokenized


def test_a_changed_text_is_refused_by_the_name_of_its_file(tmp_path, quick_peak):
    write_texts(tmp_path)
    pretrain(write_run(tmp_path, steps=1, evaluation={"every": 0}))
    (tmp_path / "second.txt").write_text("The river bank was muddy.\n\n" * 90)
    says = "the text of second.txt of source second has changed"
    with pytest.raises(InvalidRequest, match=says):
        pretrain(write_run(tmp_path, steps=2, evaluation={"every": 0}))
