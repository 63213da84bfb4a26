"""A disk that is full, as a program sees it."""

import resource
import sys
from contextlib import contextmanager
from unittest import mock


@contextmanager
def smallest_files(size=4096):
    """Files may grow to ``size`` bytes and no further.

    Python would cut the compiled module of a first import there and keep it, and every later import of that
    module would fail, in other processes too; so it keeps none meanwhile.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with mock.patch.object(sys, "dont_write_bytecode", True):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
