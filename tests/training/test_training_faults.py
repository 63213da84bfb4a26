"""What goes wrong in training: numbers, memory, disks, kills. Each is survived or ends in a sentence."""

import contextlib
import json

import pytest
import torch

from tests.support.command import run_here
from tests.training.runs import Ended, Heard, ended, last_tensors, lines, same_run, same_tensors, write_run
from tests.unit.test_bad_input import small_disk
from unmask.errors import InvalidRequest, NonFiniteResult, OutputError
from unmask.training import train
from unmask.training.run.checkpoint import steps_of
from unmask.training.run.flops import Peak
from unmask.training.run.log import Board
from unmask.training.run.loop import Loop

pytestmark = pytest.mark.long

# --- numbers -------------------------------------------------------------------------------------------


@pytest.fixture
def broken_steps(monkeypatch):
    """Makes the loss of some steps, counted from 1, what a number says; the gradient with it."""
    gradients = Loop._gradients

    def install(factors):
        def broken(self, *arguments):
            sums = gradients(self, *arguments)
            factor = factors.get(self.step + 1, 1.0)
            if factor != 1.0:
                sums = {name: factor * value for name, value in sums.items()}
                if factor != factor:  # noqa: PLR0124 - not a number
                    next(self.objective.parameters()).grad.fill_(factor)
            return sums

        monkeypatch.setattr(Loop, "_gradients", broken)

    return install


NAN = float("nan")


def test_a_step_that_is_not_finite_is_skipped_where_the_run_allows_it(place, broken_steps, monkeypatch):
    broken_steps({2: NAN, 7: NAN})
    allowed = {"faults": {"skip_non_finite": 2}, "log": {"every": 1}}
    heard = Heard()
    train(write_run(place, **allowed, out="whole"), callback=heard)
    assert any(
        one.startswith("step 7 is skipped") and "(2 of 2 that faults.skip_non_finite" in one
        for one in heard.sentences
    )
    events = {one["step"]: one for one in lines(place / "whole", kinds=("step",))}
    assert list(events) == list(range(1, 13))
    assert "masked/loss" not in events[7]
    assert "gradient_norm" not in events[7]
    assert events[8]["skipped_steps"] == 2
    assert [one["step"] for one in lines(place / "whole", kinds=("skipped",))] == [2, 7]
    assert all(torch.isfinite(one).all() for one in last_tensors(place / "whole").values())
    path = write_run(place, **allowed)
    for steps in (3, 9):
        ended(path, monkeypatch, steps)
    train(path)
    same_run(place / "run", place / "whole")


def test_a_skipped_step_moves_nothing(place, broken_steps):
    kept = {"averaging": {"decay": 0.9}}
    train(write_run(place, **kept, steps=4, checkpoints={"every": 4}))
    broken_steps({5: NAN})
    before = last_tensors(place / "run")
    train(write_run(place, **kept, steps=5, faults={"skip_non_finite": 1}))
    same_tensors(last_tensors(place / "run"), before)


def test_one_step_too_many_ends_the_run_and_a_larger_budget_resumes_it(place, broken_steps):
    broken_steps({6: NAN, 7: NAN})
    one = {"faults": {"skip_non_finite": 1}}
    with pytest.raises(NonFiniteResult, match=r"of step 7 is not finite; .*step-00000004.*skip_non_finite"):
        train(write_run(place, **one))
    assert train(write_run(place, faults={"skip_non_finite": 2})).steps == 12
    with pytest.raises(InvalidRequest, match="skip_non_finite is -1; it must be at least 0"):
        train(write_run(place, faults={"skip_non_finite": -1}))


def test_checkpoints_of_a_diverged_run_do_not_push_the_last_good_one_out(place, broken_steps):
    broken_steps({step: 1e6 for step in range(6, 13)} | {12: NAN})
    with pytest.raises(NonFiniteResult, match=r"the newest good one is .*step-00000004"):
        train(write_run(place, checkpoints={"every": 2}))
    assert [step for step, _ in steps_of(place / "run/checkpoints")] == [4, 8, 10]


def test_a_run_that_recovers_keeps_no_more_than_it_should(place, broken_steps):
    broken_steps({4: 50.0})
    train(write_run(place, steps=24, checkpoints={"every": 3}))
    kept = [path for _, path in steps_of(place / "run/checkpoints")]
    assert [json.loads((path / "manifest.json").read_text())["diverged"] for path in kept] == [False, False]


# --- memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["one_step", "evaluate"])
@pytest.mark.parametrize("kind", ["cpu", "cuda", "other"])
def test_no_memory_is_a_sentence_with_the_setting_to_lower(kind, part, place, monkeypatch):
    def greedy(*_):
        if kind == "cuda":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if kind == "other":
            raise RuntimeError("shapes differ")
        return torch.empty(1 << 60, dtype=torch.uint8)

    monkeypatch.setattr(Loop, part, greedy)
    path = write_run(place)
    if kind == "other":
        with pytest.raises(RuntimeError, match="shapes differ"):
            train(path)
        return
    ran = run_here("pretrain", path)
    assert ran.code == 1
    assert "Traceback" not in ran.err
    last = ran.err.splitlines()[-1]
    assert last.startswith("unmask: the machine has no memory left for a micro-batch of 256 tokens; ")
    assert "lower batch.micro_tokens, which is 256" in last


# --- disks ---------------------------------------------------------------------------------------------


def fill(disk):
    """Leave no byte."""
    with contextlib.suppress(OSError), (disk / "fill").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))


def test_a_full_disk_under_tensorboard_names_its_file(place, tmp_path, monkeypatch, capfd):
    pytest.importorskip("tensorboard")
    disk = tmp_path / "disk"
    disk.mkdir()
    path = write_run(
        place,
        steps=60,
        out=str(disk / "run"),
        log={"tensorboard": True, "every": 1},
        checkpoints={"every": 99},
    )
    with small_disk(disk, 3_000_000):
        one_step = Loop.one_step

        def filling(self, metrics):
            if self.step == 2:
                monkeypatch.setattr(
                    "unmask.training.run.log.EventLog.write", lambda *_, **__: None
                )  # its pages have room left
                fill(disk)
            return one_step(self, metrics)

        with monkeypatch.context() as patch:
            patch.setattr(Loop, "one_step", filling)
            ran = run_here("pretrain", path)
    last = ran.err.splitlines()[-1]
    assert ran.code == 1
    assert last.startswith(f"unmask: cannot write {disk}/run/tensorboard/events.out.tfevents.")
    assert last.endswith("No space left on device")
    assert "Traceback" not in ran.err + capfd.readouterr().err


def test_a_full_disk_when_tensorboard_starts(tmp_path):
    pytest.importorskip("tensorboard")
    with small_disk(tmp_path, 40_000):
        fill(tmp_path)
        with pytest.raises(OutputError, match=r"cannot write .*tensorboard.*No space left"):
            Board(tmp_path / "tensorboard", 0)


# --- kills ---------------------------------------------------------------------------------------------


def test_a_kill_between_a_checkpoint_and_its_line_leaves_no_gap_in_the_log(place, monkeypatch):
    path = write_run(place)
    for steps in (6, 9):  # the line of step 4 is there when the run resumes after it, and stays one line
        ended(path, monkeypatch, steps)
    log = place / "run/log.jsonl"
    there = log.read_text().splitlines()
    kept = [line for line in there if json.loads(line).get("folder") != "step-00000008"]
    assert len(kept) == len(there) - 1
    log.write_text("\n".join(kept) + "\n")
    train(path)
    kinds = ("step", "held_out", "checkpoint")
    assert lines(place / "run", kinds=kinds) == lines(place / "plain", kinds=kinds)


def test_a_kill_after_the_last_checkpoint_leaves_none_too_many(place, monkeypatch):
    def killed(*_, **__):
        raise Ended

    path = write_run(place, steps=3, checkpoints={"every": 1, "keep": 1})
    with monkeypatch.context() as patch:
        patch.setattr("unmask.training.run.trainer.prune", lambda *_: None)
        patch.setattr("unmask.training.run.run.export", killed)
        with pytest.raises(Ended):
            train(path)
    assert [step for step, _ in steps_of(place / "run/checkpoints")] == [1, 2, 3]
    assert train(path).steps == 3
    assert [step for step, _ in steps_of(place / "run/checkpoints")] == [3]


# --- the machine's peak --------------------------------------------------------------------------------


def test_no_share_of_the_peak_is_above_one(monkeypatch):
    measured = iter([10.0, 15.0, 12.0])
    monkeypatch.setattr("unmask.training.run.flops.peak_flops", lambda *_: next(measured))
    peak = Peak(torch.device("cpu"), torch.float32, world=2)
    assert peak.share(10.0) == 0.5
    assert peak.share(24.0) == 0.8  # measured again: the first was too small
    assert peak.share(40.0) == 1.0  # more than any measurement
    assert peak.share(20.0) == 0.5
