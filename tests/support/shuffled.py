"""The tests in random order: files are shuffled, and the tests inside each file.

``pytest -p tests.support.shuffled --shuffle-seed 7``; with xdist, ``--dist loadfile --no-loadscope-reorder``
too, or files with many tests come first. The same seed is the same order in every worker.
"""

import random

import pytest


def pytest_addoption(parser):
    parser.addoption("--shuffle-seed", type=int, default=0, help="the order of files and tests")


def pytest_report_header(config):
    return f"shuffled with seed {config.getoption('--shuffle-seed')}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Before pytest groups tests by the parameters of their fixtures, so that none is set up twice for it."""
    generator = random.Random(config.getoption("--shuffle-seed"))
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    order = list(files.values())
    generator.shuffle(order)
    for tests in order:
        generator.shuffle(tests)
    items[:] = [item for tests in order for item in tests]
