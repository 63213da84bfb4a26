"""``unmask convert``: a safe copy of a checkpoint in safetensors."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from unmask.cli.options import JsonOption
from unmask.cli.output import print_json


def convert(
    folder: Annotated[Path, Parameter(help="a checkpoint folder with pickled weights")],
    out: Annotated[Path, Parameter(help="the folder to write, which must not exist yet")],
    *,
    json: JsonOption = False,
) -> None:
    """Copy a checkpoint whose weights are pickled, as safetensors, without running code in the pickle."""
    from unmask.model.weights.convert import convert_pickled

    convert_pickled(folder, out)
    if json:
        print_json({"folder": str(out)})
    else:
        print(f"{out} is ready; look at it with: unmask inspect {out}")
