"""A running explorer and a headless Chromium that can reach nothing else."""

import socket
import sys
import threading
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from fake_model import FakeModel

from tests.support.chromium import chromium

TOKEN = "a-token-for-tests"
PATIENCE = 60_000
"""Milliseconds to wait for what a test expects; a busy machine has taken over 15 seconds."""

SETTLED = """() => !document.querySelector('[data-testid=progress], [aria-busy=true]')
    && document.querySelector('[data-testid=page]').dataset.busy === 'false'
    && ![...document.querySelectorAll('[role=status]')].some(one => /…$/.test(one.textContent.trim()))
    && window.timers.size === 0
    && document.getAnimations().every(one => one.playState !== 'running'
      || one.effect.getComputedTiming().endTime === Infinity)"""
"""A drawer that still slides in is drawn half transparent."""
TIMERS = """
(() => {
    const [set, clear] = [window.setTimeout, window.clearTimeout];
    window.timers = new Set();
    window.setTimeout = (run, delay = 0, ...given) => {
        const timer = set((...all) => {
            window.timers.delete(timer);
            run(...all);
        }, delay, ...given);
        if (delay < 1000) window.timers.add(timer);
        return timer;
    };
    window.clearTimeout = (timer) => {
        window.timers.delete(timer);
        clear(timer);
    };
})()
"""
"""Keeps what the page will do soon: write its address, ask for a row where the pointer rests."""
DRAWN = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def settle(page, view=None):
    """Wait until the view is there and waits for nothing."""
    if view:
        page.wait_for_selector(f'[data-testid="page"][data-view="{view}"]')
    page.evaluate(DRAWN)  # a change asks for what it needs before the page is drawn again
    page.wait_for_function(SETTLED)


CORPUS = ("the river bank was muddy.", "a river, a bank!", "the text was another text.", "a 🙂 river")


@dataclass
class Running:
    """An explorer that answers at ``url`` until ``stop`` is called."""

    origin: str
    stop: object

    @property
    def url(self):
        return f"{self.origin}/?token={TOKEN}"


@contextmanager
def running(model, *, port=0, token=TOKEN, **options):
    """Serve a model's explorer from a thread, with a corpus of a few texts."""
    uvicorn = pytest.importorskip("uvicorn", reason="the explorer extra is not installed")
    from unmask.interpret.corpus.texts import Corpus

    options.setdefault("corpus", Corpus.of_strings(CORPUS, "a few texts"))
    from unmask.explorer import make_app
    from unmask.http.server import configured

    listening = socket.create_server(("127.0.0.1", port))
    port = listening.getsockname()[1]
    app = make_app(model, token, port=port, **options)
    server = uvicorn.Server(configured(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()

    def stop():
        server.should_exit = True
        thread.join(timeout=10)
        listening.close()

    try:
        yield Running(f"http://127.0.0.1:{port}", stop)
    finally:
        stop()


@pytest.fixture(scope="session")
def default_model():
    import unmask
    from unmask.errors import UnmaskError

    try:
        return unmask.load("default")
    except UnmaskError as error:
        pytest.skip(f"the default model is not here: {error}")


@pytest.fixture(scope="session")
def explorer(default_model):
    with running(default_model) as server:
        yield server


@pytest.fixture(scope="session")
def fake():
    return FakeModel()


@pytest.fixture(scope="session")
def fake_explorer(fake):
    """The small model's explorer; tests share it, so texts may be measured already."""
    with running(fake) as server:
        yield server


@pytest.fixture(scope="session")
def browser():
    with chromium() as found:
        yield found


@dataclass
class Watch:
    """What a page did that it should not have done."""

    foreign: list = field(default_factory=list)
    errors: list = field(default_factory=list)

    def asked(self, request):
        """Keep the address of a request that would leave this machine; the browser resolves no other name."""
        if request.url.startswith(("http", "ws")) and not request.url.startswith("http://127.0.0.1:"):
            self.foreign.append(request.url)

    def said(self, message):
        """Keep an error or a warning of the console, with the address it is about."""
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.text} ({message.location['url']})")


OPEN = []
"""The pages of the test that runs, and what they did that they should not have."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Report of a failed test what its pages show and where the threads of the servers are."""
    report = yield
    if report.when == "call" and report.failed:
        for page, watch in OPEN:
            try:
                shown = page.inner_text("body", timeout=2000)
            except Exception as error:
                shown = f"nothing to read: {error}"
            report.sections.append((page.url, "\n".join([*watch.errors, shown])))
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        stacks = [
            f"{names.get(ident)}\n{''.join(traceback.format_stack(frame))}"
            for ident, frame in sys._current_frames().items()
            if ident != threading.get_ident()
        ]
        report.sections.append(("threads", "\n".join(stacks)))
    return report


@contextmanager
def opened(browser, expected_errors=(), **options):
    """A new page; at the end it must have stayed on this machine and logged no error."""
    watch = Watch()
    context = browser.new_context(viewport={"width": 1440, "height": 900}, **options)

    # No request is held up to be judged: one may be lost on its way through another process.
    context.on("request", watch.asked)
    context.add_init_script(TIMERS)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.on("console", watch.said)
    page.on("pageerror", lambda error: watch.errors.append(str(error)))
    OPEN.append((page, watch))
    yield page
    OPEN.remove((page, watch))
    context.close()
    assert watch.foreign == []
    # The tests themselves read pixels back, about which the browser warns.
    expected = [*expected_errors, "getImageData"]
    unexpected = [error for error in watch.errors if not any(part in error for part in expected)]
    assert unexpected == []


@pytest.fixture
def page(browser):
    with opened(browser, color_scheme="light") as page:
        yield page
