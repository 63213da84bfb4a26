"""The location of the built page: ``static/``, built from ``web/`` and shipped with the package."""

from pathlib import Path

STATIC = Path(__file__).parents[1] / "static"
