"""Whose outputs are meant where two differ."""

from typing import Literal

Compat = Literal["published", "hf"]
"""The outputs of the authors' own code, or those of `transformers`."""
