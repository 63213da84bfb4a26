"""Result files: one folder per run, which holds ``result.json``."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from unmask.base.files import whole_file
from unmask.training.table import read_table

RESULTS = Path(__file__).parent / "results"
UNTRAINED = "-random"
"""Ends the name of a variant with random weights."""


@dataclass(frozen=True)
class Result:
    """The figures of one trained encoder."""

    experiment: str
    variant: str
    seed: int
    tokens: int
    """Training tokens; 0 for random weights."""
    cpu_seconds: float
    """Of training, on one thread."""
    figures: Mapping[str, float]


def path_of(folder: Path, experiment: str, variant: str, seed: int) -> Path:
    """The file of a run."""
    return folder / experiment / f"{variant}-{seed}" / "result.json"


def read_result(path: Path) -> Result | None:
    """The result of a finished run; None if there is none."""
    return read_table(Result, json.loads(path.read_text()), str(path)) if path.is_file() else None


def write_result(result: Result, path: Path) -> None:
    """Write a result; the file appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        partial.write_text(json.dumps(asdict(result), indent=1) + "\n")


def read_all(folder: Path, experiment: str) -> dict[str, dict[int, Result]]:
    """All results of an experiment by variant and seed."""
    found: dict[str, dict[int, Result]] = {}
    for path in sorted((folder / experiment).glob("*/result.json")):
        result = read_result(path)
        assert result is not None
        found.setdefault(result.variant, {})[result.seed] = result
    return found
