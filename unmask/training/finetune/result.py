"""What a fine-tuning run has found, as values and as the file ``result.json``."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.base.files import whole_file
from unmask.training.finetune.grid import FREE
from unmask.training.finetune.settings import FinetuneSettings
from unmask.training.run.state import refuse_changes

RESULT = "result.json"
"""The file in a run's folder."""


@dataclass(frozen=True)
class FinetuneResult:
    """A finished run."""

    name: str
    folder: Path
    """The fine-tuned model as a checkpoint folder."""
    steps: int
    """Steps taken; fewer than planned if the run stopped early."""
    best_step: int
    """The step whose weights are exported."""
    dev: Mapping[str, float]
    """Figures of the exported weights on the dev data."""
    adapter: Path | None = None
    """The adapter, if the run trained one; ``folder`` holds the model with that merged into it."""
    encoder: Path | None = None
    """Of few-shot learning, the encoder without its head as a folder that `sentence-transformers` reads."""


def write_result(result: FinetuneResult, settings: FinetuneSettings, out: Path) -> None:
    """Write the result of a finished run into its folder, with the settings that it belongs to.

    Raises:
        OutputError: the disk is full or read-only.
    """
    write_json(
        out / RESULT,
        {
            "name": result.name,
            "model": result.folder.name,
            "adapter": None if result.adapter is None else result.adapter.name,
            "encoder": None if result.encoder is None else result.encoder.relative_to(out).as_posix(),
            "steps": result.steps,
            "best_step": result.best_step,
            "dev": dict(result.dev),
            "settings": dataclasses.asdict(settings),
        },
    )


def read_result(settings: FinetuneSettings, out: Path) -> FinetuneResult | None:
    """The result of a run that is finished and whose model is still there; None for any other run.

    Raises:
        InvalidRequest: the run was made with other settings.
    """
    try:
        table = json.loads((out / RESULT).read_bytes())
        adapter = None if table["adapter"] is None else out / table["adapter"]
        encoder = None if table.get("encoder") is None else out / table["encoder"]
        found = FinetuneResult(
            table["name"],
            out / table["model"],
            table["steps"],
            table["best_step"],
            table["dev"],
            adapter,
            encoder,
        )
        stored = table["settings"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not (found.folder / "config.json").is_file():
        return None
    refuse_changes(settings, stored, out, FREE)
    return found


def write_json(path: Path, table: Mapping[str, Any]) -> None:
    """Write a file of JSON whole.

    Raises:
        OutputError: the disk is full or read-only.
    """
    with whole_file(path) as partial:
        partial.write_text(json.dumps(table, indent=1, ensure_ascii=False, default=str) + "\n", "utf-8")
