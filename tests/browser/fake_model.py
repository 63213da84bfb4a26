"""The small model that the explorer is tested with."""

from tests.support.explorable import HEADS, LAYERS, NAME, WIDTH, FakeModel

__all__ = ["HEADS", "LAYERS", "NAME", "WIDTH", "FakeModel"]
