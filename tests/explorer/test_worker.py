"""Whose turn it is: questions first, nobody starved, and work that stops when it is told to."""

import threading
import time
from itertools import pairwise

import pytest

from tests.support.waiting import HANG_SECONDS
from unmask.errors import InvalidRequest
from unmask.explorer.sessions.background import Analyses
from unmask.http.responses import Refused
from unmask.http.worker import LANES, Job, Worker


@pytest.fixture
def worker():
    worker = Worker()
    yield worker
    worker.close()


def blocks(count, log=None, name="", seconds=0.005):
    """Work of so many blocks."""

    def work(watch):
        for done in range(count):
            time.sleep(seconds)
            if log is not None:
                log.append(name)
            watch("measuring", done + 1, count)

    return Job(work)


def test_a_question_is_answered_between_two_blocks(worker, monkeypatch):
    monkeypatch.setattr("unmask.http.worker.PATIENCE", HANG_SECONDS)
    begun, asked, announce = threading.Event(), threading.Event(), worker.turns.announce

    def announced():
        announce()
        asked.set()

    def work(watch):
        for done in range(1, 201):
            if done == 2:
                begun.set()
                assert asked.wait(HANG_SECONDS)
            watch("measuring", done, 200)

    monkeypatch.setattr(worker.turns, "announce", announced)
    job = Job(work)
    worker.start(job)
    assert begun.wait(HANG_SECONDS)

    def question():
        job.stop()
        return job.phase, job.done

    assert worker.ask(question) == ("running", 2), "asked within the second block, answered right after it"
    assert job.ended.wait(HANG_SECONDS)
    assert (job.phase, job.problem) == ("stopped", None)
    assert job.done == 2


def test_two_pieces_of_work_take_turns(worker):
    log = []
    jobs = [blocks(40, log, name) for name in ("one", "two")]
    for job in jobs:
        worker.start(job)
    assert all(job.ended.wait(HANG_SECONDS) for job in jobs)
    assert [job.phase for job in jobs] == ["done", "done"]
    both = log[log.index("two") : len(log) - log[::-1].index("one")]
    changes = sum(first != second for first, second in pairwise(both))
    assert changes >= 0.8 * (len(both) - 1), "they alternate while both run"


def test_questions_without_end_do_not_starve_work(worker, monkeypatch):
    monkeypatch.setattr("unmask.http.worker.PATIENCE", 0.05)
    job, ended = blocks(4), threading.Event()

    def hover():
        while not ended.is_set():
            worker.ask(lambda: time.sleep(0.01))

    hands = [threading.Thread(target=hover) for _ in range(3)]
    for hand in hands:
        hand.start()
    worker.start(job)
    done = job.ended.wait(HANG_SECONDS)
    ended.set()
    for hand in hands:
        hand.join()
    assert done


def test_never_two_at_once(worker):
    inside, most = 0, 0

    def busy():
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.001)
        inside -= 1

    def work(watch):
        for done in range(20):
            busy()
            watch("measuring", done, 20)

    jobs = [Job(work) for _ in range(3)]
    for job in jobs:
        worker.start(job)
    for _ in range(20):
        worker.ask(busy)
    assert all(job.ended.wait(HANG_SECONDS) for job in jobs)
    assert most == 1


def test_progress_and_what_remains(worker):
    recorded = []

    def work(watch):
        for done in range(1, 6):
            time.sleep(0.01)
            watch("reading", done, 5)
            recorded.append(job.eta_seconds)

    job = Job(work)
    assert job.eta_seconds is None
    worker.start(job)
    assert job.ended.wait(HANG_SECONDS)
    assert (job.what, job.done, job.total, job.phase) == ("reading", 5, 5, "done")
    assert recorded[0] > recorded[-1] == 0
    assert job.seconds >= 0.05
    assert job.eta_seconds is None


def test_errors_are_kept_as_sentences(worker, capfd):
    def refuse(watch):
        raise InvalidRequest("no such thing")

    def fault(watch):
        return 1 // 0

    def exhausted(watch):
        raise RuntimeError(
            "[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes"
        )

    kinds = []
    for work in (refuse, fault, exhausted):
        job = Job(work)
        worker.start(job)
        assert job.ended.wait(HANG_SECONDS)
        assert job.phase == "failed"
        kinds.append(job.problem.kind)
    assert kinds == ["InvalidRequest", "InternalError", "OutOfMemory"]
    assert "ZeroDivisionError" in capfd.readouterr().err
    with pytest.raises(InvalidRequest):
        worker.ask(lambda: refuse(None))
    assert worker.ask(lambda: 7) == 7, "an error leaves the turn free"


def test_an_analysis_is_made_once_for_all_who_ask(worker):
    analyses, made = Analyses(worker), []

    def work(watch):
        time.sleep(0.05)
        made.append(1)
        return len(made)

    found = []
    hands = [threading.Thread(target=lambda: found.append(analyses.once("key", work))) for _ in range(4)]
    for hand in hands:
        hand.start()
    for hand in hands:
        hand.join()
    assert found == [1, 1, 1, 1]
    assert analyses.once("other", work) == 2


def test_an_analysis_that_was_stopped_can_be_asked_for_again(worker):
    analyses, begun = Analyses(worker), threading.Event()

    def endless(watch):
        while True:
            begun.set()
            time.sleep(0.001)
            watch("measuring", 0, 1)

    def stop():
        begun.wait()
        analyses.stop()

    hand = threading.Thread(target=stop)
    hand.start()
    with pytest.raises(Refused, match="stopped"):
        analyses.once("key", endless)
    hand.join()
    assert analyses.once("key", lambda watch: 3) == 3


def test_closing_stops_everything():
    worker = Worker()
    jobs = [blocks(10_000) for _ in range(3)]
    for job in jobs:
        worker.start(job)
    worker.close(HANG_SECONDS)
    assert all(job.ended.is_set() for job in jobs)
    assert all(job.done < 10_000 for job in jobs)


def test_closing_lets_go_of_all_who_wait():
    worker = Worker()
    busy = [blocks(10_000) for _ in range(LANES)]
    for job in busy:
        worker.start(job)
    analyses, ended = Analyses(worker), []

    def wait(ask):
        try:
            ask()
        except Refused:
            ended.append(1)

    hands = [
        threading.Thread(target=wait, args=(lambda: analyses.once("key", lambda watch: 1),)),
        threading.Thread(target=wait, args=(lambda: [worker.ask(lambda: 1) for _ in range(10**6)],)),
    ]
    for hand in hands:
        hand.start()
    time.sleep(0.05)
    worker.close(HANG_SECONDS)
    for hand in hands:
        hand.join(HANG_SECONDS)
    assert ended == [1, 1]
    with pytest.raises(Refused, match="shutting down"):
        worker.ask(lambda: 1)
    with pytest.raises(Refused):
        analyses.once("another", lambda watch: 1)
