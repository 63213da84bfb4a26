"""Fixtures that several test files share."""

import gc
import os
import random
import shutil
import signal
import sys

import numpy as np
import pytest
from hypothesis import settings

from tests.support.apart import Parent
from tests.support.examples import QUICK, THOROUGH
from tests.support.places import default_folder
from tests.support.tiny import write_checkpoint
from unmask.base.system import HANGUP
from unmask.engines.native.threads import set_thread_count, thread_count

# Programs that tests start keep their compiled modules, as they do for users; without them each start takes
# twice as long.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Another process may take the machine for a second, so how long one example takes says nothing.
settings.register_profile("quick", deadline=None, max_examples=QUICK)
settings.register_profile("thorough", deadline=None, max_examples=THOROUGH)
settings.load_profile("quick")


def pytest_configure(config):
    """Receive interrupts, also where a shell started the suite in the background and so ignores them.

    Children inherit an ignored signal but not a handler, so this is enough for theirs too. The same holds for
    the signal of a closed terminal, which ``nohup`` ignores.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if HANGUP is not None and signal.getsignal(HANGUP) is signal.SIG_IGN:
        signal.signal(HANGUP, signal.SIG_DFL)


def pytest_collection_finish():
    """Spare garbage collections the libraries that were imported, which are millions of objects.

    A run of fine-tuning collects at its end, and a forked process copies what a collection touches.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def imported_by_a_file():
    """The same for what the tests of a file imported."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _as_many_threads_as_before():
    """A test that sets the number of threads sets it for itself: for torch, and for numpy's products."""
    before = thread_count()
    yield
    if thread_count() != before:
        set_thread_count(before)


@pytest.fixture(autouse=True)
def _the_same_random_numbers():
    """Whatever ran before: a bound that some draws exceed fails always, or never."""
    random.seed(0)
    np.random.seed(0)  # what libraries draw from
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _without_waiting_for_the_disk():
    """No test cuts the power, and a run of fine-tuning waits for the disk over twenty times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A tiny checkpoint with a sentence embedding, to be read only."""
    pytest.importorskip("transformers", reason="the reference implementation is not installed")
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture
def tiny_copy(tiny_folder, tmp_path):
    """A copy of it, to be damaged."""
    return shutil.copytree(tiny_folder, tmp_path / "checkpoint")


@pytest.fixture(scope="session")
def tiny_model(tiny_folder):
    """The tiny checkpoint, loaded."""
    import unmask

    return unmask.load(tiny_folder)


@pytest.fixture(scope="session")
def default_model():
    """The model called "default"."""
    import unmask

    default_folder()
    return unmask.load("default")


@pytest.fixture(scope="session")
def apart():
    """Runs commands in processes of their own."""
    parent = Parent()
    yield parent
    parent.stop()
