"""Options that several commands share."""

from typing import Annotated, Literal

from cyclopts import Parameter

from unmask.model.spec.compat import Compat
from unmask.text import Truncation

Dtype = Literal["float32", "bfloat16", "float16", "float64"]

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
RunDtype = Literal["float32", "bfloat16", "int8", "float16", "float64"]
DtypeOption = Annotated[
    RunDtype, Parameter(name="--dtype", help="number format to compute in; int8: its linear layers alone")
]
CompatOption = Annotated[
    Compat,
    Parameter(name="--compat", help="where two differ: the authors' own outputs, or those of transformers"),
]
KernelOption = Annotated[
    str | None, Parameter(name="--kernel", help="an attention kernel (see: unmask kernels)")
]
TruncationOption = Annotated[
    Truncation,
    Parameter(
        name="--truncation",
        help="refuse a text longer than the model reads, or leave out its end",
    ),
]
JsonOption = Annotated[bool, Parameter(name="--json", negative="", help="print the result as JSON")]
