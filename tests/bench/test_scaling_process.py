"""Points in processes of their own: memory that runs out, processes that die or are stopped, the command."""

import json
import os
import stat
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.support.command import assert_one_sentence, run_here
from unmask.bench.benchmark_model import benchmark_model
from unmask.bench.scaling import point as apart
from unmask.bench.scaling.point import Request, failure, measure_in_subprocess
from unmask.bench.scaling.report import ScalingPoint, read_report

pytestmark = pytest.mark.long

MIB = 2**20


def nothing():
    """What the parent does meanwhile."""


def request_of(chosen, **changes):
    """A small measurement of that subject."""
    given = Request(
        way="chosen",
        length=64,
        folder=str(chosen.folder),
        max_tokens=chosen.record.max_tokens,
        ids=tuple(range(10, 74)),
        dtype="float32",
        device="cpu",
        threads=1,
        repeats=2,
        seconds=0.0,
        memory_bytes=None,
    )
    return replace(given, **changes)


def soon():
    return time.monotonic() + 100


def test_memory_that_runs_out_ends_one_point_and_nothing_else(tmp_path):
    """`reference` holds every score in float64: 134 MiB and more of them at 2,048 tokens."""
    with benchmark_model(None, "ettin-encoder-17m", layers=1, seed=0) as chosen:
        free = measure_in_subprocess(request_of(chosen, length=2048), soon(), nothing)
        assert free.outcome == "measured"
        assert free.ran == ("tiled",)
        assert len(free.repeats) == 1  # its share of the time ended with the first
        assert 0 < free.peak_bytes < 100 * MIB < free.resting_bytes
        limit = free.resting_bytes + 100 * MIB
        lost = measure_in_subprocess(
            request_of(chosen, length=2048, way="reference", memory_bytes=limit), soon(), nothing
        )
        assert lost.outcome == "did not fit", lost
        assert lost.repeats == ()
        assert lost.resting_bytes == pytest.approx(free.resting_bytes, rel=0.2)


def test_a_model_that_does_not_fit_by_itself(tiny_folder, tmp_path):
    with benchmark_model(str(tiny_folder), None, layers=None, seed=0) as chosen:
        lost = measure_in_subprocess(request_of(chosen, length=8, memory_bytes=MIB), soon(), nothing)
        assert lost.outcome == "did not fit"
        assert "the loaded model alone holds" in lost.note


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (MemoryError(), "did not fit"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "did not fit"),
        (RuntimeError("std::bad_alloc"), "did not fit"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "failed"),
    ],
)
def test_what_an_error_means(error, outcome):
    assert failure(error)["outcome"] == outcome
    assert failure(error)["note"]


def stand_in(monkeypatch, tmp_path, script):
    """A process that does this instead of measuring."""
    path = tmp_path / "child"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(apart.sys, "executable", str(path))


TINY = Request("chosen", 8, "", None, (), "float32", "cpu", 1, 1, 0.0, None)


@pytest.mark.parametrize(
    ("script", "outcome", "note"),
    [
        ("kill -9 $$", "did not fit", "when memory runs out"),
        (
            "echo '{\"resting_bytes\": 5}'; echo 'what():  std::bad_alloc' >&2; kill -6 $$",
            "did not fit",
            "SIGABRT",
        ),
        ("kill -11 $$", "failed", "SIGSEGV"),
        ("echo oh no >&2; exit 3", "failed", "oh no"),
        ("exit 3", "failed", "code 3"),
        ("echo noise; echo '{\"half'", "failed", "no message"),
        ('echo \'{"seconds": 0.5}\'; echo \'{"outcome": "measured", "note": ""}\'', "measured", ""),
    ],
)
def test_how_a_process_ended_is_said(monkeypatch, tmp_path, script, outcome, note):
    stand_in(monkeypatch, tmp_path, script)
    point = measure_in_subprocess(TINY, soon(), nothing)
    assert (point.outcome, point.resting_bytes) == (outcome, 5 if "resting" in script else None)
    assert note in point.note


@pytest.mark.parametrize(("before", "outcome"), [("", "no time"), ("echo '{\"seconds\": 0.5}'", "measured")])
def test_a_process_is_ended_with_the_time_and_what_it_found_counts(monkeypatch, tmp_path, before, outcome):
    begun, left = tmp_path / "begun", tmp_path / "left"
    stand_in(monkeypatch, tmp_path, f"{before}\ntouch {begun}\nsleep 60\ntouch {left}")
    # The time ends as soon as the process has done what it does first, on a machine of any speed.
    monkeypatch.setattr(apart, "time", SimpleNamespace(monotonic=lambda: 10.0 * begun.exists()))
    assert measure_in_subprocess(TINY, 5.0, nothing).outcome == outcome
    assert not left.exists()


def test_who_watches_can_stop_a_point_and_no_process_stays(monkeypatch, tmp_path):
    stand_in(
        monkeypatch,
        tmp_path,
        f"echo $$ > {tmp_path}/pid.part; mv {tmp_path}/pid.part {tmp_path}/pid; sleep 60",
    )

    class Stop(Exception):
        pass

    def tick():
        if (tmp_path / "pid").exists():
            raise Stop

    with pytest.raises(Stop):
        measure_in_subprocess(TINY, soon(), tick)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_the_command_measures_draws_keeps_and_compares(tiny_folder, tmp_path):
    report, picture = tmp_path / "scaling.json", tmp_path / "scaling.svg"
    ways = ("--kernel", "chosen", "--kernel", "disentangled")
    options = ("--model", tiny_folder, *ways, "--threads", 1, "--memory", "8GiB", "--repeats", 1)
    done = run_here("scaling", *options, "--lengths", "3,9,99", "-o", report, "--picture", picture, "--json")
    assert done.code == 0, done.err
    value = json.loads(done.out)
    found = {(one["kernel"], one["length"]): (one["outcome"], one["note"]) for one in value["points"]}
    assert found["chosen", 3] == found["chosen", 9] == ("measured", "")
    assert found["disentangled", 3][0] == "refused"
    assert "disentangled has no NoPosition" in found["disentangled", 3][1]
    assert found["disentangled", 9] == ("refused", "not tried: see 3 tokens")
    assert value["machine"]["threads"] == 1
    assert "99" in " ".join(value["notes"])
    assert "a curve needs 4" in value["curves"][0]["why_not"]
    kept = read_report(report)
    assert isinstance(kept.points[0], ScalingPoint)
    assert "<svg" in picture.read_text()
    assert list(tmp_path.glob("*.points")) == []
    shown = run_here("scaling", "--show", report, "--compare", report)
    assert shown.code == 0, shown.err
    assert "1.00 (" in shown.out
    assert "position table ends at 23" in shown.out
    both = json.loads(run_here("scaling", "--show", report, "--compare", report, "--json").out)
    assert len(both["comparison"]["rows"]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--memory", "lots"), "'lots' is not an amount of memory"),
        (("--lengths", "a"), "give integers separated by commas"),
        (("--kernel", "magic"), "no attention implementation 'magic'"),
        (("--picture", "scaling.png"), "ends in .svg"),
        (("--restart",), "--restart needs --output"),
        (("--show", "none.json"), "cannot read none.json"),
        (("--seconds", "0"), "seconds is 0.0"),
        (("-o", "nowhere/scaling.json"), "nowhere is not a folder"),
        (("-o", "."), "it is a folder; name a file"),
        (("--device", "abacus"), "device is 'abacus'"),
        (("--device", "cuda:99"), "torch finds"),
    ],
)
def test_a_wrong_request_is_one_sentence(arguments, words):
    assert_one_sentence(run_here("scaling", *arguments), words)
