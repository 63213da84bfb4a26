"""``python -m benchmarks.peers``: outputs are checked first, processes end, refusals are one sentence."""

import contextlib
import itertools
import json
import signal
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import PEERS, Source
from benchmarks.peers import compare as peers_protocol
from benchmarks.peers.__main__ import app
from benchmarks.peers.engine import PACKAGES
from benchmarks.peers.in_subprocess import Start, start_in_subprocess
from benchmarks.peers.spinning import spinning
from benchmarks.peers.trainer import unavailable
from benchmarks.peers.workloads import Workload, mixed_lengths, of_lengths
from tests.bench.test_bench import check_picture
from tests.support.command import assert_one_sentence, run_here
from tests.support.places import REPOSITORY
from unmask.bench.benchmark_model import invented_lines
from unmask.bench.memory import MIB
from unmask.engines.native.library import library_reason
from unmask.errors import InvalidRequest, MissingExtra
from unmask.spec import PooledVector

pytestmark = pytest.mark.long


def compare(*arguments):
    """What a comparison left behind."""
    return run_here(*arguments, program=app)


def ran(*arguments):
    """The report of a comparison as JSON; nothing went wrong."""
    done = compare(*arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_mixed_lengths():
    lengths = mixed_lengths(1000, 256, seed=0)
    assert lengths.max() == 256
    assert abs(np.median(lengths) - 28) <= 2
    assert (mixed_lengths(1000, 256, seed=0) == lengths).all()


def test_texts_have_about_the_lengths_asked_for(tiny_model):
    wanted = [5, 19, 8, 12]
    made = of_lengths(tiny_model.tokenizer, wanted, ["the river bank", "was muddy xyz"], "here")
    assert made.tokens == tuple(len(tiny_model.tokenizer.encode(text)) for text in made.texts)
    for found, length in zip(made.tokens, wanted, strict=True):
        assert length - 2 <= found <= length
    with pytest.raises(InvalidRequest, match="holds no word"):
        of_lengths(tiny_model.tokenizer, wanted, [], "nothing")
    assert all(line.strip() for line in invented_lines(tiny_model.tokenizer, 0, count=3))


def test_peers(tiny_folder, tmp_path):
    pytest.importorskip("sentence_transformers")
    picture = tmp_path / "peers.png"
    found = ran(
        "-m", tiny_folder, "--dtype", "float32", "--count", "6", "--lengths", "9", "--rounds", "2",
        "--work", "mixed", "--work", "online", "--work", "query", "--work", "document", "--no-memory",
        "--starts", "0", "--peer", "transformers sdpa", "--peer", "sentence-transformers",
        "--picture", picture,
    )  # fmt: skip
    names = [work["name"] for work in found["workloads"]]
    assert names == ["mixed", "online", "query", "document 9"]
    assert [work["baseline"] for work in found["workloads"]] == [
        *["sentence-transformers"] * 3, "transformers sdpa",
    ]  # fmt: skip
    for row in found["timed"]:
        assert row["agreement"]["largest_difference"] < 1e-5
        assert row["rounds"] == 2
        if (
            row["engine"] in ("sentence-transformers", "transformers sdpa")
            and row["workload"] == "document 9"
        ):
            assert row["times_as_fast"]["median"] == 1
    left = [(one["name"], one["work"]) for one in found["left_out"]]
    assert left == [("sentence-transformers", "document 9")]
    check_picture(picture)


def test_what_computes_something_else_is_not_timed(tiny_folder, monkeypatch):
    from benchmarks.peers.ours import OurEngine

    pytest.importorskip("sentence_transformers")
    right = OurEngine.embed
    monkeypatch.setattr(OurEngine, "embed", lambda self, texts: right(self, texts)[::-1].copy())
    found = ran(
        "-m", tiny_folder, "--dtype", "float32", "--count", "9", "--work", "mixed",
        "--rounds", "1", "--no-memory", "--starts", "0", "--peer", "sentence-transformers",
    )  # fmt: skip
    assert [row["engine"] for row in found["timed"]] == ["sentence-transformers"]
    assert "its outputs differ" in found["left_out"][0]["reason"]


@pytest.mark.slow
def test_int8_of_others(tiny_folder, monkeypatch):
    monkeypatch.setenv("UNMASK_BACKEND", "torch")
    for module in ("transformers", "onnxruntime", "nncf"):
        pytest.importorskip(module)
    found = ran(
        "-m", tiny_folder, "--dtype", "int8", "--count", "3", "--rounds", "1", "--work", "query",
        "--no-memory", "--starts", "0", "--against", "transformers sdpa", "--peer", "onnxruntime int8",
        "--peer", "openvino int8",
    )  # fmt: skip
    assert found["left_out"] == []
    agreed = {row["engine"]: row["agreement"] for row in found["timed"]}
    assert list(agreed) == ["unmask int8", "transformers sdpa", "onnxruntime int8", "openvino int8"]
    for name in ("onnxruntime int8", "openvino int8"):
        # 8 bits, but not 32: quantization that did nothing would be as close as float32.
        assert 0.95 < agreed[name]["cosine_min"] <= agreed[name]["cosine_mean"] < 0.999999


def test_starts_and_load(tiny_folder, monkeypatch):
    monkeypatch.setenv("UNMASK_BACKEND", "torch")
    pytest.importorskip("transformers")
    monkeypatch.setattr(
        peers_protocol,
        "start_in_subprocess",
        lambda *given: Start(wall_seconds=2, processor_seconds=1, peak_bytes=3 * 2**20),
    )
    inside = []

    @contextmanager
    def beside(count):
        inside.append(count)
        yield

    monkeypatch.setattr(peers_protocol, "spinning", beside)
    found = ran(
        "-m", tiny_folder, "--dtype", "float32", "--count", "3", "--rounds", "2", "--work", "query",
        "--no-memory", "--starts", "2", "--load", "4", "--peer", "transformers sdpa",
    )  # fmt: skip
    assert inside == [0, 4, 0, 4]
    engines = ("unmask float32", "transformers sdpa")
    assert [(row["load"], row["engine"]) for row in found["timed"]] == list(
        itertools.product((0, 4), engines)
    )
    assert [(row["load"], row["engine"]) for row in found["started"]] == list(
        itertools.product((0, 4), engines)
    )
    assert all(row["processor_seconds"]["lowest"] > 0 for row in found["timed"])
    one = found["started"][0]
    assert (one["starts"], one["wall_seconds"]["median"], one["processor_seconds"]["median"]) == (2, 2, 1)
    assert (one["peak_mib"], one["workload"]) == (3, "query")


def test_a_start_is_measured_in_a_process_of_its_own(tiny_folder, tmp_path):
    head = PooledVector(("mean",), normalize=True)
    source = Source(tiny_folder, head, 19, tmp_path, "cpu")
    work = Workload("query", "", "texts", (("the bank", "a river"),), (), 4)
    assert work.first.texts == (("the bank",),)
    start = start_in_subprocess("unmask float32", source, work.first, 1)
    assert start is not None
    assert start.processor_seconds > 0
    assert start.wall_seconds > 0
    if sys.platform == "linux":
        assert start.peak_bytes > 30 * MIB
    if sys.platform == "linux" and library_reason("float32") is None:
        with_torch = start_in_subprocess("unmask torch float32", source, work.first, 1)
        assert start.peak_bytes < with_torch.peak_bytes - 50 * MIB  # the native engine imports no torch
    assert start_in_subprocess("unmask float32", replace(source, folder=tmp_path), work, 1) is None


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_spinning_processes_end_with_the_block(error, monkeypatch):
    started = []
    popen = subprocess.Popen

    def start(*given, **options):
        started.append(popen(*given, **options))
        return started[-1]

    monkeypatch.setattr("benchmarks.peers.spinning.subprocess.Popen", start)
    with contextlib.suppress(ValueError, KeyboardInterrupt), spinning(2):
        assert [one.poll() for one in started] == [None, None]
        if error is not None:
            raise error
    assert len(started) == 2
    assert [one.returncode for one in started] == [-signal.SIGKILL] * 2


def test_a_spinning_process_ends_without_its_parent():
    """Its parent is killed, and so cannot end it; the end of its output says that it is gone."""
    program = (
        "import os, signal, subprocess, sys; from benchmarks.peers.spinning import PROGRAM\n"
        "subprocess.Popen([sys.executable, '-I', '-S', '-c', PROGRAM, str(os.getpid())])\n"
        "signal.pause()"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout.readline() == b"spinning\n"
    parent.kill()
    assert parent.communicate(timeout=60) == (b"", None)


@pytest.mark.parametrize(("reason", "names"), [(None, ["unmask", "unmask torch"]), ("absent", ["unmask"])])
def test_every_backend_of_ours_is_a_row(reason, names, monkeypatch):
    from benchmarks.peers import by_name, ours

    calls = []
    monkeypatch.setattr("unmask.models.load.load", lambda folder, **options: calls.append(options))
    monkeypatch.setitem(ours.__globals__, "library_reason", lambda dtype: reason)
    assert [peer.name for peer in ours("int8")] == [f"{name} int8" for name in names]
    source = Source(Path(), PooledVector(("mean",), normalize=True), None, Path(), "cpu")
    for name in names:
        by_name(f"{name} float32").load(source)
    torch_alone = {"dtype": "float32", "device": "cpu", "backend": "torch"}
    assert calls == [{"dtype": "float32", "device": "cpu"}, torch_alone][: len(names)]


def test_no_peers(monkeypatch):
    monkeypatch.setattr("benchmarks.peers.engine.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install .*transformers"):
        peers_protocol._present((), None)


def test_missing_libraries_are_answered_with_the_extra(monkeypatch):
    here = {"transformers": True}
    monkeypatch.setattr("benchmarks.peers.engine.find_spec", here.get)
    hints = {peer.name: peer.unavailable() for peer in PEERS}
    assert hints["onnxruntime int8"] == "not installed: onnx and onnxruntime (pip install '.[peers]')"
    assert hints["transformers eager"] is None
    assert unavailable() == "not installed: accelerate (pip install '.[peers]')"
    for hint in filter(None, hints.values()):
        assert hint.endswith("(pip install '.[peers]')")
    here.clear()
    with pytest.raises(MissingExtra, match=r"is installed: pip install '\.\[peers\]', or one of its"):
        peers_protocol._present((), None)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--lengths", "12,many"), ("--lengths is '12,many'",)),
        (("--load", "-1"), ("load is -1", "at least 0")),
        (("--starts", "-1"), ("starts is -1", "at least 0")),
        (("--peer", "abacus"), ("no peer 'abacus'", "onnxruntime")),
        (("training", "-m", "default", "--tokenizer", "x"), ("--tokenizer is for an --architecture",)),
        (("scaling", "--peer", "abacus"), ("no attention implementation 'abacus'", "transformers eager")),
    ],
)
def test_errors_are_one_sentence(arguments, parts, default_model):
    assert_one_sentence(compare(*arguments), *parts)


def test_scaling_of_another_library(tiny_folder, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    report = tmp_path / "scaling.json"
    options = ("--model", tiny_folder, "--threads", 1, "--repeats", 1, "--lengths", "3,9", "-o", report)
    found = ran("scaling", *options, "--peer", "transformers eager", "--kernel", "disentangled")
    points = {(point["kernel"], point["length"]): point for point in found["points"]}
    assert points["transformers eager", 9]["outcome"] == "measured"
    assert points["transformers eager", 9]["ran"] == []
    assert points["transformers eager", 9]["repeats"]
    assert points["disentangled", 3]["outcome"] == "refused"
    assert run_here("scaling", "--show", report).code == 0
    monkeypatch.setattr("benchmarks.peers.engine.find_spec", lambda module: None)
    absent = ran("scaling", *options[:-2], "--peer", "transformers eager")
    assert [(point["outcome"], point["note"]) for point in absent["points"][1::2]] == [
        ("refused", "not installed: transformers (pip install '.[peers]')"),
        ("refused", "not tried: see 3 tokens"),
    ]


def test_the_extra_holds_the_packages():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    named = {requirement.split(">")[0] for requirement in project["optional-dependencies"]["peers"]}
    assert named == {"unmask[torch]", *PACKAGES.values()}
