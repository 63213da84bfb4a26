"""An engine that starts at once; the examples of docs/bulk.md."""

import re

import pytest

from tests.support.places import REPOSITORY
from unmask.bulk import run as bulk_run


def in_this_process(writer, shards, workers):
    """The shards in another order than that of their numbers."""
    return map(writer, reversed(shards))


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setitem(bulk_run.ENGINES, "processes", in_this_process)


def blocks(language):
    """The examples in a language."""
    page = (REPOSITORY / "docs" / "bulk.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
