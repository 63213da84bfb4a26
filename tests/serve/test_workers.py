"""Worker processes: the same results, and every request is answered whatever ends a worker."""

import os
import pickle
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from tests.support.waiting import wait_until
from unmask.errors import NonFiniteResult
from unmask.serve import workers as module
from unmask.serve.errors import Busy
from unmask.serve.scheduler import Limits, Scheduler, Work
from unmask.serve.telemetry import Metrics
from unmask.serve.workers import WorkerDied, Workers

pytestmark = pytest.mark.long

LATER = 1e12
SECONDS = 30


class Doing:
    """What passes do in a worker: texts that say what happens."""

    def __init__(self, place):
        self.place = place

    def warm(self):
        with open(self.place / "warm", "a") as file:
            file.write("w")

    def run(self, texts):
        for text in texts:
            if text.startswith("die"):
                os.kill(os.getpid(), signal.SIGKILL)
            if text.startswith("once") and not (self.place / text).exists():
                (self.place / text).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if text.startswith("hang"):
                time.sleep(1000)
            if text.startswith("nan"):
                raise NonFiniteResult("not finite")
        return [(text, os.getpid()) for text in texts]


@pytest.fixture
def place(tmp_path):
    return tmp_path


@pytest.fixture
def make(place):
    made = []

    def one(count=1, seconds=SECONDS):
        doing, limits, metrics = Doing(place), Limits(tokens_per_pass=40), Metrics()
        workers = Workers(count, {"doing": doing}, warm=doing.warm, seconds=seconds)
        scheduler = Scheduler(limits, metrics, workers=workers)
        made.append((scheduler, workers))
        return scheduler, workers, Work("w", doing.run), metrics

    yield one
    for scheduler, workers in made:
        scheduler.close()
        workers.close()


def answer(scheduler, work, *texts):
    return [text for text, _ in scheduler.submit(work, texts, "a", LATER).future.result(SECONDS)]


def test_passes_run_in_a_warm_process(make, place):
    scheduler, workers, work, _ = make()
    assert (place / "warm").read_text() == "w"
    ((text, pid),) = scheduler.submit(work, ["x"], "a", LATER).future.result(SECONDS)
    assert (text, pid) == ("x", workers.all[0].pid)
    assert pid != os.getpid()


def test_two_workers_share_a_queue(make):
    scheduler, workers, work, _ = make(2)
    sent = [scheduler.submit(work, ["x" * 40], str(at), LATER) for at in range(60)]
    wait([one.future for one in sent], SECONDS)
    pids = {one.future.result(0)[0][1] for one in sent}
    assert pids <= {one.pid for one in workers.all}
    assert len({one.pid for one in workers.all}) == 2
    assert scheduler.queued_tokens == 0


def test_texts_of_a_worker_that_ended_run_again(make, place):
    scheduler, workers, work, metrics = make()
    before = workers.all[0].pid
    assert answer(scheduler, work, "a", "once", "b") == ["a", "once", "b"]
    assert workers.all[0].pid != before
    assert metrics.restarts.value() == 1
    assert (place / "warm").read_text() == "ww"
    assert answer(scheduler, work, "once1") == ["once1"]


def test_a_text_that_ends_every_worker_fails_alone(make):
    scheduler, _, work, _ = make()
    scheduler.submit(work, ["x" * 40], "first", LATER)
    sent = [scheduler.submit(work, [text], text, LATER) for text in ("a", "die", "b", "nan", "c")]
    wait([one.future for one in sent], SECONDS)
    errors = [one.future.exception(0) for one in sent]
    assert [type(one) for one in errors] == [type(None), Busy, type(None), NonFiniteResult, type(None)]
    assert errors[1].status == 503
    assert answer(scheduler, work, "later") == ["later"]


def test_a_worker_that_is_killed_while_idle_is_replaced(make):
    scheduler, workers, work, _ = make()
    os.kill(workers.all[0].pid, signal.SIGKILL)
    assert answer(scheduler, work, "x") == ["x"]


def test_a_worker_that_is_killed_while_idle_is_replaced_before_anybody_asks(make):
    _, workers, _, metrics = make()
    before = workers.all[0].pid
    os.kill(before, signal.SIGKILL)
    until = time.monotonic() + SECONDS
    while workers.all[0].pid in {before, None}:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert exists(workers.all[0].pid)
    assert "unmask_worker_restarts_total 1" in metrics.text()


def test_a_pass_that_hangs_is_ended(make):
    scheduler, _, work, _ = make(seconds=0.3)
    sent = scheduler.submit(work, ["hang"], "a", LATER)
    assert sent.future.exception(SECONDS).status == 503
    assert answer(scheduler, work, "x") == ["x"]


def test_the_process_of_a_pass_that_hangs_is_gone(make):
    scheduler, workers, work, _ = make(seconds=1)
    assert answer(scheduler, work, "x") == ["x"]
    pid = workers.all[0].pid
    scheduler.submit(work, ["hang"], "a", LATER).future.exception(SECONDS)
    wait_until(lambda: not exists(pid))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_whole_group_leaves_workers_to_the_server(make, number):
    scheduler, workers, work, _ = make()
    pid = workers.all[0].pid
    os.kill(pid, number)
    assert answer(scheduler, work, "x") == ["x"]
    assert workers.all[0].pid == pid


def test_two_threads_that_fork_get_each_its_own_process(make, monkeypatch):
    """The second asks while the first waits for its answer; with the lock it has to wait itself."""
    _, workers, work, _ = make()
    exactly, first, second = module._exactly, threading.Event(), threading.Event()

    def slow(where, count):
        if where is not workers._control:
            return exactly(where, count)
        if not first.is_set():
            first.set()
            second.wait(0.5)
            return exactly(where, count)
        number = exactly(where, count)
        second.set()
        return number

    monkeypatch.setattr(module, "_exactly", slow)
    with ThreadPoolExecutor(2) as pool:
        forked = [pool.submit(workers.forked)]
        assert first.wait(SECONDS)
        forked.append(pool.submit(workers.forked))
        for own, pid in (one.result(SECONDS) for one in forked):
            with own:
                assert process_behind(own, workers, work) == pid


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_worker(make):
    _, workers, work, _ = make()
    workers._control.settimeout(0)

    def fork_until_an_answer_is_late():
        while True:
            workers.forked()[0].close()

    with pytest.raises(WorkerDied):
        fork_until_an_answer_is_late()
    workers._control.settimeout(SECONDS)
    own, pid = workers.forked()
    with own:
        assert process_behind(own, workers, work) == pid


@pytest.mark.parametrize(("why", "killed"), [(TimeoutError(), True), (EOFError(), False), (OSError(), False)])
def test_only_a_process_that_hangs_is_killed_by_its_number(monkeypatch, why, killed):
    """That of one that has ended may have been given to another process."""
    signals = []
    monkeypatch.setattr(os, "kill", lambda *sent: signals.append(sent))
    module._kill_if_hanging(7, why)
    assert bool(signals) == killed


def process_behind(own, workers, work):
    """The number of the process that answers on a worker's socket."""
    own.settimeout(SECONDS)
    module._received(own)
    module._send(own, workers.packed(work.run, ["x"]))
    error, ((_, real),) = pickle.loads(module._received(own))
    assert error is None
    return real


def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_without_a_parent_of_workers_nothing_waits(make):
    """It has been killed: what needs a new worker is refused, and the server is not ready."""
    scheduler, workers, work, _ = make()
    workers._control.close()
    sent = scheduler.submit(work, ["die"], "a", LATER)
    assert sent.future.exception(SECONDS).status == 503
    assert not scheduler.ready()


def test_a_worker_that_cannot_warm_is_an_error(place):
    def fails():
        os._exit(3)

    with pytest.raises(WorkerDied):
        Workers(1, {}, warm=fails, seconds=1)


def test_all_processes_end_with_the_server(make):
    _, workers, _, _ = make(2)
    pids = [one.pid for one in workers.all]
    workers.close()
    deadline = time.monotonic() + SECONDS
    while any(map(exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(exists, pids))


def test_requests_are_logged_without_texts(tmp_path):
    import json

    from starlette.testclient import TestClient

    import unmask
    from tests.support.tiny import write_checkpoint
    from unmask.serve import make_app

    write_checkpoint(tmp_path)
    lines = []
    app = make_app({"v": unmask.load(tmp_path)}, log=lines.append)
    with TestClient(app, base_url="http://localhost") as client:
        client.post("/embed", json={"inputs": "muddy"}, headers={"x-request-id": "mine"})
        client.post("/embed", json={"inputs": []})
    app.state.service.close()
    first, second = map(json.loads, lines)
    assert (first["request_id"], first["route"], first["status"]) == ("mine", "/embed", 200)
    assert first["compute_tokens"] > 0
    assert second["status"] == 400
    assert "muddy" not in "".join(lines)
