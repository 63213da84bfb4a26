"""The order of turns between clients: each pass has room for one text, and waits to be let in."""

import threading

import pytest

from unmask.serve import scheduler as scheduling
from unmask.serve.metrics import Metrics
from unmask.serve.scheduler import Scheduler, Work
from unmask.serve.settings import Limits

LATER = 1e12
SECONDS = 20
TOKENS = 5


class Turns:
    """A scheduler whose passes wait for `step`, and the clients whose texts have run, in their order."""

    def __init__(self):
        self.order, self.waiting, self.go = [], threading.Semaphore(0), threading.Semaphore(0)
        self.work = Work("w", self)
        self.scheduler = Scheduler(Limits(tokens_per_pass=TOKENS, queued_tokens=10_000), Metrics())

    def __call__(self, texts):
        self.waiting.release()
        assert self.go.acquire(timeout=SECONDS)
        self.order += [text[0] for text in texts]
        return list(texts)

    def send(self, client, count=1):
        return self.scheduler.submit(self.work, [client[0] * TOKENS] * count, client, LATER)

    def step(self, count):
        """Let passes end, and wait until the pass after them has been chosen."""
        for _ in range(count):
            self.go.release()
            assert self.waiting.acquire(timeout=SECONDS)

    def finish(self, *sent):
        self.go.release(1000)
        for submission in sent:
            submission.future.result(SECONDS)


@pytest.fixture
def turns():
    turns = Turns()
    turns.send("first")
    assert turns.waiting.acquire(timeout=SECONDS)  # it runs, and whatever is sent now waits
    yield turns
    turns.go.release(1000)
    turns.scheduler.close()


def test_many_requests_of_a_client_do_not_hold_up_another(turns):
    many = [turns.send("many") for _ in range(50)]
    turns.finish(turns.send("other"), *many)
    assert turns.order.index("o") <= 2


def test_a_newcomer_shares_turns_with_those_who_wait(turns):
    old = turns.send("old", 40)
    turns.step(21)  # "first", 20 texts of "old", and the next one has been chosen
    turns.finish(old, turns.send("new", 20))
    assert sorted(turns.order[22:32]) == ["n"] * 5 + ["o"] * 5


def test_a_client_that_has_had_much_keeps_its_place_when_others_are_forgotten(turns, monkeypatch):
    monkeypatch.setattr(scheduling, "KNOWN_CLIENTS", 3)
    sent = [turns.send("greedy", 10), *(turns.send(f"{name}-client") for name in "abcd")]
    sent += [turns.send("greedy"), turns.send("newcomer")]
    turns.finish(*sent)
    assert turns.order[: turns.order.index("n")].count("g") == 1
