"""Which outputs to reproduce where two implementations differ."""

from typing import Literal

Compat = Literal["published", "hf"]
"""The outputs of the authors' own code, or those of `transformers`."""
