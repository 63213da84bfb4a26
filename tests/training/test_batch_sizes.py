"""How many micro-batches the steps of a run have, counted without going through them."""

from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.runs import RUN, changed
from unmask.errors import InvalidRequest
from unmask.training.run.settings import BatchSettings, RunSettings
from unmask.training.table import read_table


@given(
    micro=st.integers(1, 50),
    start=st.integers(0, 400),
    more=st.integers(0, 400),
    ramp=st.floats(0, 1),
    steps=st.integers(1, 60),
)
def test_phases_are_those_of_every_step(micro, start, more, ramp, steps):
    batch = BatchSettings(micro + start + more, micro, micro + start, ramp)
    phases = batch.phases(steps)
    every = list(chain.from_iterable(repeat(count, many) for count, many in phases))
    assert every == [batch.micro_batches(step, steps) for step in range(steps)]
    counts = [count for count, _ in phases]
    assert counts == sorted(set(counts))


def test_a_run_of_any_length_is_counted_at_once():
    phases = BatchSettings(4096, 1024, 1024, 0.5).phases(10**12)
    assert [count for count, _ in phases] == [1, 2, 3, 4]
    assert sum(many for _, many in phases) == 10**12


def test_more_steps_than_can_be_counted_are_refused():
    with pytest.raises(InvalidRequest, match=r"steps is 9999.*; it must be at most 1,000,000,000,000"):
        read_table(RunSettings, changed(RUN, steps=10**23 - 1), "")
