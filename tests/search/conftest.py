"""Fixtures that tests of indexes share."""

import pytest

import unmask
from unmask.engines.native.threads import set_thread_count


@pytest.fixture
def one_thread():
    """The last bits of some computations of torch depend on the number of threads."""
    set_thread_count(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint that reads the words of these tests."""
    from tests.search.test_index import write_reader

    return write_reader(tmp_path_factory.mktemp("reader") / "tiny")


@pytest.fixture(scope="module")
def model(folder):
    """The same, loaded."""
    return unmask.load(folder)
