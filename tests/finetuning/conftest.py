"""Every file of this folder trains."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _quick_peak():
    """The machine's peak is not measured, which takes every run 0.3 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unmask.training.run.flops.peak_flops", lambda *_: 1e12)
        yield
