"""Errors travel between processes as they are."""

import pickle

import pytest

from unmask.errors import InvalidRequest, TextTooLong
from unmask.serve.errors import BadField, Busy

ERRORS = [
    InvalidRequest("a value"),
    TextTooLong("too long", original_tokens=9, max_tokens=4),
    BadField("input", "is missing", 404, "absent"),
    Busy(429, "overloaded", "try again", 3.2),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_after_pickling(error):
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), found.__dict__) == (type(error), str(error), error.__dict__)
