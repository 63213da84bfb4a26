"""Analyses that stay half way until a test releases them, on any machine."""

import threading
from contextlib import contextmanager
from importlib import import_module

STATISTICS = import_module("unmask.interpret.attention.attention_statistics")
"""`unmask.interpret` has a function of that name."""


@contextmanager
def held_measuring(monkeypatch, first_layer=1):
    """Layers from ``first_layer`` are not measured before the event that this gives is set.

    A layer that is held goes on calling its ``tick``, so that it can be stopped and gives way to other work.
    """
    released = threading.Event()
    measure_layer = STATISTICS.measure_layer

    def held_back(cache, layer, *, tick, **options):
        while layer >= first_layer and not released.wait(0.001):
            tick(0)
        return measure_layer(cache, layer, tick=tick, **options)

    with monkeypatch.context() as patch:
        patch.setattr(STATISTICS, "measure_layer", held_back)
        try:
            yield released
        finally:
            released.set()
