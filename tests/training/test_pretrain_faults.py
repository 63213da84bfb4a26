"""Kills, damage and full disks: nothing is lost but the steps since the last whole checkpoint."""

import random
import shutil
import signal
import time

import pytest

from tests.support.apart import Parent
from tests.support.command import assert_one_sentence, run_here
from tests.training.runs import (
    EVERYTHING,
    Heard,
    changed,
    ended,
    last_tensors,
    lines,
    same_run,
    same_tensors,
    write_run,
)
from tests.unit.test_bad_input import small_disk, smallest_files
from unmask.training.pretrain import pretrain
from unmask.training.run.checkpoint import steps_of

pytestmark = pytest.mark.long

# --- kills ---------------------------------------------------------------------------------------------

DYING = """
import os, signal, sys, time
import unmask.training.run.checkpoint as checkpoint, unmask.training.run.flops as flops
flops.peak_flops = lambda *_: 1e12
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
"""The process dies at its AT-th change of the disk. Each takes PAUSE seconds, so a signal finds it there."""


@pytest.fixture(scope="module")
def runs_apart():
    """Runs in processes of their own."""
    parent = Parent("unmask.training.pretrain, torch._dynamo")
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


def kill_and_go_on(place, runs_apart, kills, seed, steps):
    """No kill costs a checkpoint that was there, and in the end all is as if unbroken."""
    few = {"steps": steps, "checkpoints": {"every": 1}, "log": {"every": 2}, "evaluation": {"every": 5}}
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
    kill_and_go_on(place, runs_apart, kills=2, seed=0, steps=6)


def test_a_kill_after_the_model_is_in_place_leaves_nothing(place):
    path = write_run(place)
    pretrain(path)
    (place / "run/.model.new/old").mkdir(parents=True)  # as a kill before its removal leaves it
    pretrain(path)
    assert not (place / "run/.model.new").exists()


@pytest.mark.slow
def test_killed_at_fifty_random_moments(place, runs_apart):
    kill_and_go_on(place, runs_apart, kills=50, seed=1, steps=14)


# --- damage and full disks -----------------------------------------------------------------------------


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_costs_its_steps_and_no_more(place, monkeypatch):
    path = write_run(place)
    ended(path, monkeypatch, 9)
    flip_a_bit(place / "run/checkpoints/step-00000008/tensors.safetensors")
    heard = Heard()
    pretrain(path, callback=heard)
    same_run(place / "run", place / "plain")
    assert any("step-00000008" in one and "older checkpoint" in one for one in heard.sentences)
    assert "resuming after step 4 of 12" in heard.sentences


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
    assert_one_sentence(ran, "ids-00000.bin is not what was written", "remove", "created again")


def test_a_full_disk_while_a_checkpoint_is_written(place, monkeypatch):
    """The previous checkpoint stays whole, nothing half is left, and the run goes on to the same end."""
    path = write_run(place)
    ended(path, monkeypatch, 5)
    with smallest_files():
        ran = run_here("pretrain", path)
    assert ran.code == 1
    assert ran.err.splitlines()[-1].startswith("unmask: cannot write ")
    assert "step-00000008" in ran.err.splitlines()[-1]
    assert "Traceback" not in ran.err
    assert [one.name for one in (place / "run/checkpoints").iterdir()] == ["step-00000004"]
    pretrain(path)
    same_run(place / "run", place / "plain")


def test_a_disk_that_is_really_full(place, tmp_path):
    """Wherever it fills up: shards, log, checkpoint or export; with more room the run goes on."""
    wanted = last_tensors(place / "plain")
    disk = tmp_path / "disk"
    disk.mkdir()
    shutil.rmtree(place / "data")
    found = set()
    # One checkpoint of this run is about 260 kB, and two stay.
    for size in (20_000, 450_000, 900_000):
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
        if "checkpoints" in sentence:
            pretrain(write_run(place, out=str(kept / "run"), data={"cache": str(kept / "data")}))
            same_tensors(last_tensors(kept / "run"), wanted)
    assert {"data", "checkpoints"} <= found
