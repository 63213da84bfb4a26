"""``unmask pretrain``: start or resume the run of a run file."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from unmask.cli.options import JsonOption
from unmask.cli.output import console, plain, print_json, safe

if TYPE_CHECKING:
    from unmask.training.run.callbacks import Callback

Settings = TypeVar("Settings")
"""The settings in a run file."""


def pretrain(
    run: Annotated[Path, Parameter(help="the TOML file that describes the run; see docs/pretrain.md")],
    *,
    json: JsonOption = False,
) -> None:
    """Pretrain an encoder from a run file, or resume a stopped run.

    For several processes, use torchrun: torchrun --nproc-per-node=2 -m unmask pretrain run.toml
    """
    from unmask.training.pretrain import read_run
    from unmask.training.run.callbacks import ProgressPrinter

    teller = ProgressPrinter()
    settings = settings_or_path(run, read_run, teller)
    from unmask.training.pretrain import joined, train

    try:
        with joined() as ranks:
            result = train(settings, base=run.parent, ranks=ranks, callback=teller)
    finally:
        teller.close()
    if not ranks.first:
        return
    if json:
        print_json({**plain(result), "folder": str(result.folder)})
        return
    console().print(
        f"{safe(str(result.folder))}: {result.steps:,} steps, {result.tokens:,} tokens, "
        f"micro-batches {result.fill_ratio:.2%} full"
    )
    for name, value in result.held_out.items():
        console().print(f"held out {name}: {value:.4f}")


def settings_or_path(run: Path, read: Callable[[Path], Settings], teller: "Callback") -> Settings | Path:
    """The settings in a run file, so that a mistake in it is reported before torch is imported.

    Processes of torchrun join first, so that only one of them reports it; they get the path.
    """
    return run if "WORLD_SIZE" in os.environ else read(run)
