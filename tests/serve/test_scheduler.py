"""The order, the bounds and the failures of packed passes, with texts that are only lengths."""

import threading
import time
from concurrent.futures import CancelledError, wait

import pytest

from unmask.errors import InvalidRequest, NonFiniteResult
from unmask.http.responses import Refused
from unmask.serve.errors import BackendError, Busy
from unmask.serve.scheduler import Limits, Scheduler, Work
from unmask.serve.telemetry import Metrics

LATER = 1e12
SECONDS = 20


class Recorder:
    """Work that waits until it may go on, and remembers its passes; a result is the text itself."""

    def __init__(self, name="w"):
        self.passes, self.gate, self.entered = [], threading.Event(), threading.Event()
        self.gate.set()
        self.fails_on, self.error = (), None
        self.work = Work(name, self)

    def __call__(self, texts):
        self.entered.set()
        assert self.gate.wait(SECONDS)
        self.passes.append(list(texts))
        if any(text in self.fails_on for text in texts):
            raise self.error
        return list(texts)


def texts(*lengths):
    return ["x" * length for length in lengths]


@pytest.fixture
def make():
    made = []

    def one(**limits):
        made.append(Scheduler(Limits(**{"tokens_per_pass": 10, "queued_tokens": 1000} | limits), Metrics()))
        return made[-1]

    yield one
    for scheduler in made:
        scheduler.close()


@pytest.fixture
def held(make):
    """A scheduler whose thread is inside a first pass until ``release``, and the recorder."""

    def one(**limits):
        scheduler, recorder = make(**limits), Recorder()
        recorder.gate.clear()
        scheduler.submit(recorder.work, texts(1), "first", LATER)
        assert recorder.entered.wait(SECONDS)
        return scheduler, recorder

    return one


def results(*submissions):
    wait([one.future for one in submissions], SECONDS)
    return [one.future.result(0) for one in submissions]


def lengths(recorder):
    return [sorted(map(len, one)) for one in recorder.passes]


def test_texts_of_several_requests_share_a_pass(held):
    scheduler, recorder = held()
    given = [texts(3, 2), texts(4), texts(1)]
    sent = [scheduler.submit(recorder.work, one, str(at), LATER) for at, one in enumerate(given)]
    recorder.gate.set()
    assert results(*sent) == given
    assert lengths(recorder) == [[1], [1, 2, 3, 4]]


def test_a_pass_holds_at_most_its_tokens_and_a_longer_text_runs_alone(held):
    scheduler, recorder = held()
    sent = scheduler.submit(recorder.work, texts(6, 25, 5, 5), "a", LATER)
    recorder.gate.set()
    assert results(sent) == [texts(6, 25, 5, 5)]
    assert sorted(map(sum, lengths(recorder))) == [1, 6, 10, 25]


def test_lengths_near_the_first_ones_run_together(held):
    scheduler, recorder = held()
    sent = scheduler.submit(recorder.work, texts(2, 9, 2, 9, 2, 2, 2), "a", LATER)
    recorder.gate.set()
    results(sent)
    assert lengths(recorder)[1:] == [[2, 2, 2, 2, 2], [9], [9]]


def test_near_lengths_that_come_later_are_taken_first(held):
    scheduler, recorder = held()
    sent = scheduler.submit(recorder.work, texts(2, 4, 4, 2, 2, 2, 2), "a", LATER)
    recorder.gate.set()
    results(sent)
    assert lengths(recorder)[1:] == [[2, 2, 2, 2, 2], [4, 4]]


def test_texts_that_are_given_up_during_a_pass_that_fails_do_not_run_again(held):
    scheduler, recorder = held()
    sent = {}

    def run(some):
        recorder.passes.append(list(some))
        if "yy" in some and len(some) > 1:
            sent["gone"].future.cancel()
            raise InvalidRequest("not this one")
        return list(some)

    work = Work("w2", run)
    sent["gone"] = scheduler.submit(work, texts(2), "a", LATER)
    sent["wrong"] = scheduler.submit(work, ["yy"], "b", LATER)
    recorder.gate.set()
    assert results(sent["wrong"]) == [["yy"]]
    assert recorder.passes[1:] == [["xx", "yy"], ["yy"]]


def test_a_client_with_much_to_do_does_not_hold_up_another(held):
    scheduler, recorder = held()
    much = scheduler.submit(recorder.work, texts(*[5] * 40), "much", LATER)
    little = scheduler.submit(recorder.work, texts(5), "little", LATER)
    done = []
    for name, one in (("much", much), ("little", little)):
        one.future.add_done_callback(lambda _, name=name: done.append((name, len(recorder.passes))))
    recorder.gate.set()
    results(much, little)
    assert [name for name, _ in done] == ["little", "much"]
    assert done[0][1] <= 3
    assert len(recorder.passes) == 22


def test_requests_of_one_client_keep_their_order(held):
    scheduler, recorder = held()
    sent = [scheduler.submit(recorder.work, texts(6), "a", LATER) for _ in range(5)]
    done = []
    for at, one in enumerate(sent):
        one.future.add_done_callback(lambda _, at=at: done.append(at))
    recorder.gate.set()
    results(*sent)
    assert done == [0, 1, 2, 3, 4]


def test_different_work_never_shares_a_pass(held):
    scheduler, recorder = held()
    other = Recorder("other")
    sent = [
        scheduler.submit(one.work, texts(length), str(at), LATER)
        for at, (one, length) in enumerate(((recorder, 2), (other, 3), (recorder, 4), (other, 5)))
    ]
    recorder.gate.set()
    assert results(*sent) == [texts(2), texts(3), texts(4), texts(5)]
    assert lengths(recorder) == [[1], [2, 4]]
    assert lengths(other) == [[3, 5]]


def test_a_request_is_admitted_whole_or_not_at_all(held):
    scheduler, recorder = held(queued_tokens=20)
    with pytest.raises(Refused, match="the request has 21 tokens") as refused:
        scheduler.submit(recorder.work, texts(10, 11), "a", LATER)
    assert refused.value.status == 413
    first = scheduler.submit(recorder.work, texts(8, 8), "a", LATER)
    with pytest.raises(Busy, match="16 tokens wait, the request has 5") as full:
        scheduler.submit(recorder.work, texts(5), "b", LATER)
    assert (full.value.status, full.value.retry_after) == (429, 1)
    second = scheduler.submit(recorder.work, texts(4), "b", LATER)
    assert scheduler.queued_tokens == 20
    recorder.gate.set()
    results(first, second)
    assert scheduler.queued_tokens == 0
    results(scheduler.submit(recorder.work, texts(20), "a", LATER))


def test_what_is_as_large_as_a_refused_request_is_refused_unread(held):
    """Until a pass begins; smaller requests are looked at."""
    scheduler, recorder = held(queued_tokens=20)
    scheduler.check_room(10**9)
    scheduler.submit(recorder.work, texts(9, 9), "a", LATER, size=100)
    for size in (90, 60, 80):
        with pytest.raises(Busy, match="18 tokens wait, the request has 5, and at most 20"):
            scheduler.submit(recorder.work, texts(5), "a", LATER, size=size)
    with pytest.raises(
        Busy, match="18 tokens wait, a request of no more bytes has just been refused"
    ) as found:
        scheduler.check_room(60)
    assert (found.value.status, found.value.retry_after) == (429, 1)
    scheduler.check_room(59)
    last = scheduler.submit(recorder.work, texts(2), "a", LATER, size=59)
    recorder.gate.set()
    results(last)
    scheduler.queued_tokens = 19  # as many as then wait again, for other texts
    scheduler.check_room(10**9)
    scheduler.queued_tokens = 0


def test_no_texts_are_no_wait(make):
    assert results(make().submit(Recorder().work, [], "a", LATER)) == [[]]


def test_a_text_that_fails_does_so_alone(held):
    scheduler, recorder = held()
    recorder.fails_on, recorder.error = texts(3), NonFiniteResult("not finite")
    sent = [scheduler.submit(recorder.work, texts(length), str(length), LATER) for length in (1, 2, 3, 4)]
    recorder.gate.set()
    wait([one.future for one in sent], SECONDS)
    assert [type(one.future.exception()) for one in sent] == [type(None)] * 2 + [NonFiniteResult, type(None)]
    assert results(scheduler.submit(recorder.work, texts(2), "a", LATER)) == [texts(2)]


@pytest.mark.parametrize(
    ("error", "counted"),
    [(InvalidRequest("wrong"), 0), (NonFiniteResult("not finite"), 1), (MemoryError(), 1)],
)
def test_mistakes_of_clients_are_no_failed_passes(make, error, counted):
    scheduler, recorder = make(), Recorder()
    recorder.fails_on, recorder.error = texts(3), error
    sent = scheduler.submit(recorder.work, texts(3), "a", LATER)
    assert sent.future.exception(SECONDS) is error
    assert scheduler._metrics.failed_passes.value() == counted


def test_earlier_requests_of_a_client_count(held):
    """Of two clients that send one text at a time, the one that has sent fifty waits behind the other."""
    scheduler, recorder = held()
    much = [scheduler.submit(recorder.work, texts(10), "much", LATER) for _ in range(50)]
    little = scheduler.submit(recorder.work, texts(9), "little", LATER)
    recorder.gate.set()
    results(*much, little)
    assert lengths(recorder).index([9]) <= 2


def test_a_newcomer_takes_its_turn_from_now_on(held):
    """It is not served before all who have waited, as it would be if its turns began at the beginning."""
    scheduler, recorder = held()
    new = []

    def third(passed):
        if len(recorder.passes) == 3:  # the turns of two texts that waited are over
            new.append(scheduler.submit(recorder.work, texts(9, 9, 9), "new", LATER))
        return recorder(passed)

    waits = scheduler.submit(Work("w", third), texts(*[10] * 6), "waits", LATER)
    recorder.gate.set()
    results(waits)
    results(*new)
    assert lengths(recorder) == [[1], [10], [10], [10], [9], [9], [10], [9], [10], [10]]


def test_a_client_that_is_ahead_is_not_forgotten_for_others(held, monkeypatch):
    monkeypatch.setattr("unmask.serve.scheduler.KNOWN_CLIENTS", 2)
    scheduler, recorder = held()
    sent = [scheduler.submit(recorder.work, texts(*[10] * 5), "much", LATER)]
    sent += [scheduler.submit(recorder.work, texts(9), f"other {at}", LATER) for at in range(3)]
    sent.append(scheduler.submit(recorder.work, texts(8), "much", LATER))
    recorder.gate.set()
    results(*sent)
    assert lengths(recorder)[-1] == [8]


def test_an_unexpected_error_is_printed_and_told_without_details(make, capsys):
    scheduler, recorder = make(), Recorder()
    recorder.fails_on, recorder.error = texts(3), ValueError("a secret")
    sent = scheduler.submit(recorder.work, texts(3), "a", LATER)
    assert isinstance(sent.future.exception(SECONDS), BackendError)
    assert "secret" not in str(sent.future.exception())
    assert "ValueError: a secret" in capsys.readouterr().err


def test_the_thread_survives_its_end(held, capsys):
    """Whatever ends a pass, its requests are answered and the next ones run."""
    scheduler, recorder = held()
    recorder.fails_on, recorder.error = texts(3), SystemExit()
    ends = scheduler.submit(recorder.work, texts(3, 4), "a", LATER)
    later = scheduler.submit(recorder.work, texts(9), "b", LATER)
    recorder.gate.set()
    assert isinstance(ends.future.exception(SECONDS), Busy)
    assert results(later) == [texts(9)]
    assert scheduler.alive()
    assert scheduler._metrics.restarts.value() == 1
    assert "SystemExit" in capsys.readouterr().err


def test_what_is_given_up_is_not_computed(held):
    scheduler, recorder = held()
    gone = scheduler.submit(recorder.work, texts(2, 3), "a", LATER)
    late = scheduler.submit(recorder.work, texts(4), "b", time.monotonic())
    kept = scheduler.submit(recorder.work, texts(5), "c", LATER)
    assert gone.future.cancel()
    recorder.gate.set()
    assert results(kept) == [texts(5)]
    assert late.future.exception(SECONDS).status == 504
    assert lengths(recorder) == [[1], [5]]
    assert scheduler.queued_tokens == 0
    with pytest.raises(CancelledError):
        gone.future.result()


def test_stopping_answers_everything(held):
    scheduler, recorder = held()
    waits = scheduler.submit(recorder.work, texts(2), "a", LATER)
    scheduler.fail_all(Busy(503, "stopping", "stopping", 1))
    assert waits.future.exception(SECONDS).status == 503
    assert not scheduler.alive()
    with pytest.raises(Busy, match="the server is stopping"):
        scheduler.submit(recorder.work, texts(2), "a", LATER)
    recorder.gate.set()


def test_every_request_of_many_threads_gets_its_own_results(make):
    scheduler, recorder = make(tokens_per_pass=40, queued_tokens=1 << 20), Recorder()
    found = []

    def send(client):
        for at in range(30):
            own = [f"{client}-{at}-{index}" for index in range(at % 7 + 1)]
            found.append(
                scheduler.submit(recorder.work, own, str(client % 3), LATER).future.result(SECONDS) == own
            )

    threads = [threading.Thread(target=send, args=(client,)) for client in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert found == [True] * 240
    assert scheduler.queued_tokens == 0
    assert max(sum(map(len, one)) for one in recorder.passes) <= 40


@pytest.mark.parametrize(
    ("name", "value"), [("texts", 0), ("queued_tokens", 1.5), ("seconds", 0), ("drain_seconds", "x")]
)
def test_limits_are_checked(name, value):
    with pytest.raises(InvalidRequest, match=f"{name} is "):
        Limits(**{name: value})
