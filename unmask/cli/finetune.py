"""``unmask finetune``: train a head on labeled data, and the encoder with it."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from unmask.cli.options import JsonOption
from unmask.cli.output import console, plain, print_json, safe
from unmask.cli.pretrain import ProgressPrinter


def finetune(
    run: Annotated[Path, Parameter(help="a TOML file, see docs/finetune.md")],
    *,
    json: JsonOption = False,
) -> None:
    """Fine-tune an encoder on labeled data, as a TOML file describes; resumes where the run was stopped.

    Paths in the file are relative to it. torchrun starts several processes: torchrun -m unmask finetune FILE.
    """
    from unmask.finetuning.settings import read_settings

    settings = read_settings(run)
    from unmask.finetuning.run import finetune as train
    from unmask.learn.pretrain import joined

    teller = ProgressPrinter()
    try:
        with joined() as ranks:
            result = train(settings, base=run.parent, ranks=ranks, callback=teller)
    finally:
        teller.close()
    if not ranks.first:
        return
    if json:
        print_json(
            {**plain(result), "folder": str(result.folder), "adapter": result.adapter and str(result.adapter)}
        )
        return
    console().print(
        f"{safe(str(result.folder))}: {result.steps:,} steps, weights of step {result.best_step:,}"
    )
    if result.adapter is not None:
        console().print(f"{safe(str(result.adapter))}: the adapter")
    for name, value in result.dev.items():
        console().print(f"{safe(name)}: {value:.4f}")
