"""A headless Chromium that talks to nothing but the pages of tests."""

import shutil
from contextlib import contextmanager

import pytest

COMMAND = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None
)
"""The first is the same engine without windows: a page takes a third of the processor time."""
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]


@contextmanager
def chromium():
    """The browser, as Playwright's object; the test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if COMMAND is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=COMMAND, args=ARGUMENTS)
        yield found
        found.close()
