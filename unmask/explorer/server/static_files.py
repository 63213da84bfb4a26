"""Where the built page is: ``static/``, made from ``web/`` by its own build and kept in the package."""

from pathlib import Path

STATIC = Path(__file__).parents[1] / "static"
