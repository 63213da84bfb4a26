"""Fixtures that tests of indexes share."""

import pytest

from unmask.engines.native.threads import set_thread_count


@pytest.fixture
def one_thread():
    """The last bits of some computations of torch depend on the number of threads."""
    set_thread_count(1)
