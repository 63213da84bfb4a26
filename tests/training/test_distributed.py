"""Two processes train as one does, take over one another's checkpoints, and end together."""

import json
import math
import shutil
import socket
from pathlib import Path

import pytest
import torch
from torch import distributed

from tests.support.apart import Parent
from tests.support.command import assert_one_sentence
from tests.training import together
from tests.training.runs import lines, write_run, write_texts
from tests.training.test_stored import small_files
from unmask.errors import InvalidRequest
from unmask.training.pretrain import joined, pretrain, read_run
from unmask.training.pretrain.run import Run
from unmask.training.run.callbacks import Callback
from unmask.training.run.distributed import check_batches
from unmask.training.run.export import write_model
from unmask.training.run.ranks import Ranks

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not distributed.is_available(), reason="torch without torch.distributed"),
]

QUICK = "import unmask.training.run.flops as flops; flops.peak_flops = lambda *_: 1e12\n"
"""The machine's peak is not measured."""

STEADY = {
    "model": {"config": {"intermediate_size": 47, "type_vocab_size": 1}},
    "averaging": {"decay": 0.5},
    "batch": {"start_tokens": None},
    "schedule": {"kind": "constant", "warmup_steps": 0},
    "checkpoints": {"every": 100},
    "log": {"every": 1},
    "evaluation": {"every": 0},
}
"""Two micro-batches a step, and no step that depends on how many come. Tables of 47 rows and of one row
are not spread evenly."""


@pytest.fixture(scope="session")
def parent():
    distributed = (f"torch.distributed.{one}" for one in ("fsdp", "checkpoint", "tensor"))
    parent = Parent(", ".join(["tests.training.together", "torch._dynamo", *distributed]))
    yield parent
    parent.stop()


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder)
    write_run(folder, steps=1, out="first")
    pretrain(folder / "run.toml")
    shutil.rmtree(folder / "first")
    return folder


@pytest.fixture
def place(texts, tmp_path):
    return Path(shutil.copytree(texts, tmp_path / "place"))


def run_together(parent, *arguments, before=("", "")):
    """All processes of a command, as torchrun would start them; ``before`` runs first in each."""
    with socket.socket() as held:
        # Bound without listening, so that nobody else is given the port before the first process listens.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        processes = [
            parent.start(
                *arguments,
                env={
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(len(before)),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(held.getsockname()[1]),
                },
                before=QUICK + first,
            )
            for rank, first in enumerate(before)
        ]
        return [process.wait() for process in processes]


def assert_well(ran):
    """All ended well, and all but the first without a word."""
    assert not any(one.code for one in ran), "\n".join(one.err for one in ran)
    assert not any(one.out or one.err for one in ran[1:])
    assert "Gloo" not in ran[0].out


def close(one, other, where=""):
    """Equal but for the order of sums in float64."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key, value in one.items():
            close(value, other[key], f"{where}/{key}")
    elif one is None or other is None:
        assert one is other, where
    else:
        pair = torch.as_tensor(one), torch.as_tensor(other)
        torch.testing.assert_close(*pair, rtol=1e-12, atol=1e-12, msg=lambda why: f"{where}: {why}")


# --- steps -------------------------------------------------------------------------------------------

JOBS = [("recomputed", "fsdp", "adamw"), ("replaced", "ddp", "stable_adamw")]
MORE_JOBS = [
    ("masked", "ddp", "adamw"),
    ("shared layers", "fsdp", "stable_adamw"),
    ("replaced", "fsdp", "muon"),
]


@pytest.mark.parametrize(
    "jobs", [JOBS, pytest.param(MORE_JOBS, marks=pytest.mark.slow)], ids=["each kind", "more"]
)
def test_two_processes_step_as_one(parent, tmp_path, jobs):
    path = tmp_path / "results.pt"
    compute = (
        f"from tests.training import together\ntogether.compute({str(path)!r}, {jobs})\nraise SystemExit"
    )
    assert_well(run_together(parent, before=(compute, compute)))
    for job, two in zip(jobs, torch.load(path), strict=True):
        one = together.alone(job)
        assert any(gradient is None for gradient in one["gradients"].values()), "nothing is left without one"
        close(one, two, "/".join(job))


# --- runs --------------------------------------------------------------------------------------------


def test_a_run_goes_from_one_process_to_two_and_back(parent, place):
    def steps(count, kind, world, out="run"):
        path = write_run(place, **STEADY, steps=count, out=out, distributed={"kind": kind})
        if world == 1:
            pretrain(path)
        else:
            assert_well(run_together(parent, "pretrain", path))

    steps(7, "ddp", 1, "alone")
    steps(1, "ddp", 1)
    steps(3, "ddp", 2)
    steps(4, "fsdp", 2)
    steps(5, "fsdp", 2)
    newest = place / "run" / "checkpoints" / "step-00000005"
    assert len(list((newest / "shards").iterdir())) == 2
    same_model(place, newest)
    steps(7, "fsdp", 1)
    whole, parts = lines(place / "alone"), lines(place / "run")
    assert [event["step"] for event in parts if event["event"] == "step"] == list(range(1, 8))
    final = [event for event in parts if event["event"] == "held_out"][-1]
    steps_of_both = zip(
        [event for event in whole if event["event"] == "step"] + whole[-1:],
        [event for event in parts if event["event"] == "step"] + [final],
        strict=True,
    )
    for one, other in steps_of_both:
        assert one.keys() == other.keys()
        for key, value in one.items():
            same = value == other[key] or math.isclose(value, other[key], rel_tol=2e-5)
            assert same, (one["step"], key, value, other[key])


@pytest.mark.slow
def test_a_run_from_a_store_is_resumed_by_one_two_and_four_processes(parent, place):
    """With sharded weights, layers computed again and micro-batches accumulated, and without its texts."""
    shutil.rmtree(place / "data")  # of one file each
    with small_files(2000):
        settings = {
            **STEADY,
            "batch": {"tokens": 1024, "micro_tokens": 256, "start_tokens": None},
            "data": {"shuffle_files": 1},
            "distributed": {"kind": "fsdp"},
        }
        pretrain(write_run(place, **settings, steps=6, out="alone"))
    stored = place / "stored"
    (place / "data").rename(stored)
    for text in place.glob("*.txt"):
        text.unlink()
    url = {"cache": stored.as_uri(), "local_cache": "copies", "local_cache_bytes": 25_000, "shuffle_files": 1}
    for steps, world in ((2, 1), (4, 2), (6, 4)):
        changes = {**settings, "data": url, "gradient_checkpointing": True, "steps": steps}
        assert_well(run_together(parent, "pretrain", write_run(place, **changes), before=[""] * world))
    alone, run = (state(place / out / "checkpoints") for out in ("alone", "run"))
    assert alone["stream"] == run["stream"]
    assert run["stream"]["settings"]["shuffle_files"] == 1
    for name, tensor in load(place / "alone" / "model").items():
        torch.testing.assert_close(load(place / "run" / "model")[name], tensor, rtol=0, atol=5e-6, msg=name)
    assert sum(path.stat().st_size for path in (place / "copies").iterdir()) <= 25_000


def state(checkpoints):
    return json.loads((checkpoints / "step-00000006" / "state.json").read_text())


def same_model(place, checkpoint):
    """What one process loads is what was saved, bit by bit; the run with its parts."""
    loaded = Run(read_run(place / "run.toml"), place, place / "run", Ranks(), Callback())
    write_model(loaded.loop, loaded.checkpoint, place / "loaded")
    weights = "model.safetensors"
    assert (place / "loaded" / weights).read_bytes() == (checkpoint / "model" / weights).read_bytes()
    return loaded


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_export_what_one_does(parent, place, kind):
    """Averages, masters of weights in bfloat16, and a dtype of the model's own."""
    everything = {
        **STEADY,
        "steps": 2,
        "precision": "bfloat16",
        "optimizer": {"kind": "muon"},
        "export_dtype": "float32",
        "distributed": {"kind": kind},
    }
    pretrain(write_run(place, **everything, out="alone"))
    assert_well(run_together(parent, "pretrain", write_run(place, **everything)))
    one, two = (load(place / out / "model") for out in ("alone", "run"))
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert tensor.dtype == torch.float32
        # Gradients of two processes are rounded to 16 bits twice.
        torch.testing.assert_close(two[name], tensor, rtol=0, atol=1e-3, msg=name)
    loop = same_model(place, place / "run" / "checkpoints" / "step-00000002").loop
    masters = {one: kept["master"] for one, kept in loop.optimizer.state.items()}
    assert len(masters) > 20
    for one, master in masters.items():
        assert torch.equal(master.to(one.dtype), one)


def load(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


# --- the end -----------------------------------------------------------------------------------------


def only_one_speaks(ran, *parts, speaker=None, code=1):
    speaks = [rank for rank, one in enumerate(ran) if "unmask: " in one.err]
    assert len(speaks) == 1, [one.err for one in ran]
    assert speaker in (None, speaks[0])
    shown = ran[speaks[0]]
    last = type(shown)(shown.code, shown.out, shown.err[shown.err.index("unmask: ") :])
    assert_one_sentence(last, *parts, code=code)
    other = ran[1 - speaks[0]]
    assert other.code == code
    assert "Traceback" not in other.err


def at_step(step, what):
    """Python that does something in the process just before it makes the examples of a step."""
    return (
        "from unmask.training.run.loop import Loop\n"
        "make = Loop._make\n"
        "def making(self, step, first):\n"
        f"    if step == {step}:\n"
        f"        {what}\n"
        "    return make(self, step, first)\n"
        "Loop._make = making\n"
    )


def test_a_wrong_run_file_is_one_sentence(parent, place):
    path = write_run(place, stepz=3)
    only_one_speaks(run_together(parent, "pretrain", path), "stepz")


def test_an_error_of_one_process_ends_both(parent, place):
    path = write_run(place, **STEADY)
    fault = at_step(1, "from unmask.errors import InvalidRequest; raise InvalidRequest('too long')")
    only_one_speaks(run_together(parent, "pretrain", path, before=("", fault)), "too long", speaker=1)


def test_a_killed_process_ends_the_other(parent, place):
    path = write_run(place, **STEADY, distributed={"kind": "fsdp"})
    ran = run_together(
        parent, "pretrain", path, before=("", at_step(1, "import os; os.kill(os.getpid(), 9)"))
    )
    assert ran[1].code == -9
    assert ran[0].code == 1
    assert "Traceback" not in ran[0].err
    assert "another process of the run ended without a message" in ran[0].err.splitlines()[-1]


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_after_the_same_step(parent, place):
    path = write_run(place, **STEADY, distributed={"kind": "fsdp"})
    ran = run_together(
        parent, "pretrain", path, before=("", at_step(2, "import os; os.kill(os.getpid(), 15)"))
    )
    only_one_speaks(ran, "stopped after step 3", speaker=0, code=130)
    assert [one.name for one in (place / "run" / "checkpoints").iterdir()] == ["step-00000003"]


@pytest.mark.slow
def test_a_full_disk_of_one_process_keeps_the_older_checkpoint(parent, place):
    path = write_run(place, **{**STEADY, "checkpoints": {"every": 1}}, distributed={"kind": "fsdp"})
    full = at_step(
        1,
        "import resource, sys; sys.dont_write_bytecode = True; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))",
    )
    ran = run_together(parent, "pretrain", path, before=("", full))
    only_one_speaks(ran, "cannot write", "File too large")
    finished = [one.parent.name for one in (place / "run" / "checkpoints").glob("*/manifest.json")]
    assert finished == ["step-00000001"]


# --- what is refused ---------------------------------------------------------------------------------


def batches(place, **changes):
    return read_run(write_run(place, **changes))


def test_batches_that_cannot_be_shared_are_refused(tmp_path):
    three = {"batch": {"tokens": 768, "micro_tokens": 256, "start_tokens": None}}
    check_batches(batches(tmp_path, **three), Ranks(0, 2))
    check_batches(batches(tmp_path, **three, distributed={"kind": "fsdp"}), Ranks(0, 3))
    with pytest.raises(InvalidRequest, match="3 micro-batches, which 2 processes cannot share evenly"):
        check_batches(batches(tmp_path, **three, distributed={"kind": "fsdp"}), Ranks(0, 2))
    with pytest.raises(InvalidRequest, match="has 3 micro-batches and the run 4 processes"):
        check_batches(batches(tmp_path, **three), Ranks(0, 4))
    with pytest.raises(InvalidRequest, match="has 1 micro-batches and the run 2 processes"):
        check_batches(batches(tmp_path), Ranks(0, 2))  # the ramp begins with one


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"RANK": None}, "RANK is missing"),
        ({"RANK": "first"}, "start the processes with torchrun"),
        ({"RANK": "2"}, "it must be from 0 to 1"),
    ],
)
def test_an_environment_that_torchrun_does_not_make_is_refused(monkeypatch, changes, sentence):
    told = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in {**told, **changes}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest, match=sentence), joined():
        pass


def test_one_process_of_torchrun_is_alone(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    with joined() as ranks:
        assert (ranks.rank, ranks.world) == (0, 1)
        assert not distributed.is_initialized()
