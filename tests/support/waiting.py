"""Waiting for what another thread or process does; the bound is only for what never happens."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

HANG_SECONDS = 120
"""After so long something counts as hanging; what takes a second is done by then on a hundredth of a core."""


def wait_until(what, pause=0.002):
    """Return the first true value of ``what()``."""
    end = time.monotonic() + HANG_SECONDS
    while not (found := what()):
        assert time.monotonic() < end, f"not reached within {HANG_SECONDS} s"
        time.sleep(pause)
    return found


def run_coroutine(coroutine, seconds=HANG_SECONDS):
    """Run a coroutine in a thread of its own: the test's may have a loop, Playwright's in browser tests."""
    with ThreadPoolExecutor(1) as own:
        return own.submit(asyncio.run, coroutine).result(seconds)
