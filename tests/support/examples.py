"""How many examples hypothesis draws for a test: fewer in every run than in the long one."""

from hypothesis import settings

THOROUGH = 50
"""Examples of a test that says no number, in `make test-slow`."""
QUICK = 20
"""The same in `make test`."""


def examples(count, **options):
    """Settings of a test that draws ``count`` examples in the long run, and fewer in every run."""
    share = settings.default.max_examples / THOROUGH
    return settings(max_examples=max(3, round(share * count)), **options)
