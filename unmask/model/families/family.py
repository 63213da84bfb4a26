"""What a family is: a page of values that says how its checkpoints are read and written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from unmask.model.spec import EncoderSpec
from unmask.model.spec.rows import Row
from unmask.settings import Settings


@dataclass(frozen=True)
class Published:
    """A checkpoint that its authors published."""

    name: str
    """Its id on the hub."""
    spec: EncoderSpec
    licence: str
    paper: str
    """Where it is described, as authors and year."""


@dataclass(frozen=True)
class Family:
    """One line of encoders that share a config and a layout of tensors."""

    name: str
    model_types: tuple[str, ...]
    """Values of ``model_type`` in config.json."""
    paper: str
    read: Callable[[Settings], EncoderSpec]
    """config.json to a spec."""
    write: Callable[[EncoderSpec], Mapping[str, Any]]
    """A spec to the keys of config.json that decide outputs, ``architectures`` and ``model_type``."""
    adapt: Callable[[EncoderSpec, frozenset[str]], EncoderSpec]
    """Leave out optional parts whose tensors (canonical names) a checkpoint does not have."""
    prefix: str
    """What stands before tensor names in checkpoints saved with a task head."""
    rows: tuple[Row, ...]
    published: tuple[Published, ...]
