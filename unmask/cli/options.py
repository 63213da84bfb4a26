"""Options that several commands share. A dataclass here stands for all its options at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from unmask.cli.output import plain, print_json
from unmask.errors import InvalidRequest
from unmask.files import check_can_write, whole_file
from unmask.model.spec.compat import Compat
from unmask.text import Truncation

if TYPE_CHECKING:
    from unmask.loaded import Model

Dtype = Literal["float32", "bfloat16", "float16", "float64"]
RunDtype = Literal["float32", "bfloat16", "int8", "float16", "float64"]

ModelOption = Annotated[
    str,
    Parameter(
        name=["--model", "-m"],
        help="a checkpoint folder, a hub id such as owner/model, unmask-mini, or default",
    ),
]
RevisionOption = Annotated[
    str | None, Parameter(name="--revision", help="a branch, tag or commit of the hub")
]
CompatOption = Annotated[
    Compat,
    Parameter(name="--compat", help="where two differ: the authors' own outputs, or those of transformers"),
]
DeviceOption = Annotated[str, Parameter(name="--device", help="as torch names it, such as cuda")]
ThreadsOption = Annotated[
    int | None, Parameter(name="--threads", help="of torch on the CPU; none leaves its own choice")
]
TruncationOption = Annotated[
    Truncation,
    Parameter(
        name="--truncation",
        help="refuse a text longer than the model reads, or leave out its end",
    ),
]
OutputOption = Annotated[
    Path | None, Parameter(name=["--output", "-o"], help="write the result as JSON to this file")
]
JsonOption = Annotated[bool, Parameter(name="--json", negative="", help="print the result as JSON")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a model is loaded and run."""

    revision: RevisionOption = None
    dtype: Annotated[
        RunDtype,
        Parameter(name="--dtype", help="number format to compute in; int8: its linear layers alone"),
    ] = "float32"
    compat: CompatOption = "published"
    device: DeviceOption = "cpu"
    kernel: Annotated[
        str | None, Parameter(name="--kernel", help="an attention kernel (see: unmask kernels)")
    ] = None
    threads: ThreadsOption = None

    def load(self, model: str) -> "Model":
        """The model, with torch on as many threads as asked for.

        Raises:
            InvalidRequest: no model is named, or the number of threads is not positive.
            CheckpointError: it cannot be found, read or trusted.
        """
        from unmask.loaded import load

        if not model.strip():
            raise InvalidRequest("--model is empty; name a checkpoint folder, a hub id, or default")
        set_threads(self.threads)
        return load(
            model,
            dtype=self.dtype,
            revision=self.revision,
            compat=self.compat,
            device=self.device,
            kernel=self.kernel,
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where a result goes."""

    output: OutputOption = None
    json: JsonOption = False

    def check(self) -> None:
        """Refuse at once what could not be written at the end.

        Raises:
            OutputError: the file cannot be written.
        """
        if self.output is not None:
            check_can_write(self.output)

    def write(self, result: object) -> None:
        """The result as JSON to the file, which appears whole, where one is named."""
        if self.output is not None:
            from json import dumps

            with whole_file(self.output) as partial:
                partial.write_text(dumps(plain(result), indent=2, allow_nan=False) + "\n", encoding="utf-8")

    def printed(self, result: object) -> bool:
        """Print the result as JSON where that is asked for; whether it was."""
        if self.json:
            print_json(result)
        return self.json


RUN = RunOptions()
OUTPUT = OutputOptions()


def set_threads(threads: int | None) -> None:
    """Have torch use this many threads; None leaves its own choice.

    Raises:
        InvalidRequest: ``threads`` is below 1.
    """
    if threads is None:
        return
    if threads < 1:
        raise InvalidRequest(f"--threads is {threads}; it must be at least 1")
    import torch

    torch.set_num_threads(threads)
