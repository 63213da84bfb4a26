"""Options that several commands share. A dataclass here groups several options."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from cyclopts import Parameter, Token, convert

from unmask.base.arguments import comma_separated
from unmask.base.files import check_can_write, whole_file
from unmask.cli.output import plain, print_json
from unmask.errors import InvalidRequest
from unmask.spec import PoolingMode
from unmask.spec.config_keys import Compat
from unmask.text import Blank, Truncation
from unmask.text.rows import Format
from unmask.text.special import SpecialTokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from unmask.models.elmo import ElmoModel
    from unmask.models.load import Model

Result = TypeVar("Result")

Dtype = Literal["float32", "bfloat16", "float16", "float64"]
RunDtype = Literal["float32", "bfloat16", "int8", "float16", "float64"]

ModelOption = Annotated[
    str,
    Parameter(
        name=["--model", "-m"],
        help="a checkpoint folder, a hub id such as owner/model, unmask-mini, or default",
    ),
]
TextArgument = Annotated[str | None, Parameter(help="the text; default: standard input, as one text")]
RevisionOption = Annotated[
    str | None, Parameter(name="--revision", help="a branch, tag or commit of the hub")
]
CompatOption = Annotated[
    Compat,
    Parameter(
        name="--compat", help="where they differ: the outputs of the authors' code, or of transformers"
    ),
]
IgnoreOption = Annotated[
    list[str] | None,
    Parameter(
        name="--ignore-tensor",
        negative="",
        help="leave out this tensor of the weight files, such as loss_fct.weight; repeat it for more",
    ),
]
DeviceOption = Annotated[str, Parameter(name="--device", help="torch device, such as cuda")]
ThreadsOption = Annotated[
    int | None, Parameter(name="--threads", help="CPU threads of torch; default: torch's choice")
]
TruncationOption = Annotated[
    Truncation,
    Parameter(
        name="--truncation",
        help="reject a text longer than the model's maximum, or truncate its end",
    ),
]
BlankOption = Annotated[Blank, Parameter(name="--blank", help="reject blank lines, or skip them")]
FieldOption = Annotated[
    str | None,
    Parameter(
        name="--field",
        help="the column (or JSON key) of the text; default: text. Lines are then read as JSON",
    ),
]
FormatOption = Annotated[
    Format | None,
    Parameter(name="--format", help="format of the input; default: by the ending of its name, else lines"),
]
PoolingOption = Annotated[
    PoolingMode | None, Parameter(name="--pooling", help="pooling, instead of the checkpoint's")
]
OutputOption = Annotated[
    Path | None, Parameter(name=["--output", "-o"], help="write the result as JSON to this file")
]
AdapterOption = Annotated[
    str | None,
    Parameter(
        name="--adapter",
        help="an adapter of the model: a folder, or sentiment, entailment, names, entities, answers",
    ),
]
JsonOption = Annotated[bool, Parameter(name="--json", negative="", help="print the result as JSON")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How a model is loaded and run, whatever its adapter."""

    revision: RevisionOption = None
    dtype: Annotated[
        RunDtype,
        Parameter(name="--dtype", help="dtype to compute in; int8 applies to the linear layers only"),
    ] = "float32"
    compat: CompatOption = "published"
    device: DeviceOption = "cpu"
    kernel: Annotated[
        str | None, Parameter(name="--kernel", help="an attention kernel (see: unmask kernels)")
    ] = None
    backend: Annotated[
        Literal["native", "torch"] | None,
        Parameter(
            name="--backend",
            help="what runs the layers on a CPU; by default native where it can (see: unmask kernels)",
        ),
    ] = None
    threads: ThreadsOption = None
    special_tokens: Annotated[
        SpecialTokens | None,
        Parameter(
            name="--special-tokens",
            help="what typed special tokens such as [SEP] become: their ids (parse), or text; serve, redact "
            "and new indexes take text by default, other commands parse",
        ),
    ] = None
    ignore_tensor: IgnoreOption = None
    layers: Annotated[
        int | None, Parameter(name="--first-layers", help="load only so many of the first layers")
    ] = None

    def of_another_model(self) -> Self:
        """The same without what belongs to one model: its revision, tensors to leave out, and depth."""
        return replace(self, revision=None, ignore_tensor=None, layers=None)

    def load_with(self, model: str, adapter: str | None) -> "Model":
        """Load the model and set the number of torch threads.

        Args:
            model: its name.
            adapter: its adapter.

        Raises:
            InvalidRequest: no model is named, or the number of threads is not positive.
            CheckpointError: the checkpoint cannot be found, read or trusted.
        """
        from unmask.models.load import load

        options = self.options_with(model, adapter)
        set_threads(self.threads)
        loaded: Model = load(model, **options)
        return loaded

    def options_with(self, model: str, adapter: str | None) -> dict[str, Any]:
        """The arguments of `unmask.load` besides the model.

        Raises:
            InvalidRequest: no model is named.
        """
        if not model.strip():
            raise InvalidRequest("--model is empty; name a checkpoint folder, a hub id, or default")
        return {
            "dtype": self.dtype,
            "revision": self.revision,
            "compat": self.compat,
            "device": self.device,
            "kernel": self.kernel,
            "adapter": adapter,
            "backend": self.backend,
            "special_tokens": self.special_tokens or "parse",
            "ignore_tensors": tuple(self.ignore_tensor or ()),
            "layers": self.layers,
        }


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RunOptions(ModelOptions):
    """How a model with at most one adapter is loaded and run."""

    adapter: AdapterOption = None

    def of_another_model(self) -> Self:
        """The same without what belongs to one model."""
        return replace(super().of_another_model(), adapter=None)

    def load(self, model: str, default_adapter: str | None = None) -> "Model":
        """Load the model with its adapter; see `load_with`.

        ``default_adapter``: the adapter to load with "default" if none is named.
        """
        return self.load_with(model, self._adapter(model, default_adapter))

    def load_options(self, model: str, default_adapter: str | None = None) -> dict[str, Any]:
        """The arguments of `unmask.load` besides the model; see `load`."""
        return self.options_with(model, self._adapter(model, default_adapter))

    def _adapter(self, model: str, default_adapter: str | None) -> str | None:
        return self.adapter or (default_adapter if model == "default" else None)

    def load_states(self, model: str) -> "Model | ElmoModel":
        """Load an encoder as `load` does, or an ELMo, which has states and no attention.

        Raises:
            InvalidRequest: see `load`, or an option that an ELMo lacks.
            CheckpointError: see `load`.
        """
        from unmask.models.load import HoldsElmo, load

        try:
            return self.load(model)
        except HoldsElmo:
            options = (self.kernel, self.adapter, self.backend, self.special_tokens, self.layers)
            unusual = self.compat != "published" or self.dtype == "int8"
            if unusual or any(option is not None for option in options):
                raise InvalidRequest(
                    f"{model} is an ELMo, which has no --kernel, --compat, --adapter, --backend, "
                    "--special-tokens, --first-layers or --dtype int8; leave them out"
                ) from None
        return load(model, family="elmo", dtype=self.dtype, device=self.device, revision=self.revision)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where a result goes."""

    output: OutputOption = None
    json: JsonOption = False

    def check(self) -> None:
        """Fail early if the output cannot be written.

        Raises:
            OutputError: the file cannot be written.
        """
        if self.output is not None:
            check_can_write(self.output)

    def write(self, result: object) -> None:
        """Write the result as JSON to the output file, if one is named; the file appears complete."""
        if self.output is not None:
            from json import dumps

            with whole_file(self.output) as partial:
                partial.write_text(
                    dumps(plain(result), indent=2, allow_nan=False) + "\n", encoding="utf-8", newline="\n"
                )

    def finish(self, result: Result, show: "Callable[[Result], None]") -> None:
        """Write the result if a file is named, and print it as JSON if requested, else by ``show``."""
        self.write(result)
        if not self.printed(result):
            show(result)

    def printed(self, result: object) -> bool:
        """Print the result as JSON if requested; return whether it was."""
        if self.json:
            print_json(result)
        return self.json


MODEL_OPTIONS = ModelOptions()
RUN = RunOptions()
OUTPUT = OutputOptions()


def set_threads(threads: int | None) -> None:
    """Set the number of CPU threads; None leaves torch's choice.

    Raises:
        InvalidRequest: ``threads`` is below 1.
    """
    if threads is None:
        return
    if threads < 1:
        raise InvalidRequest(f"--threads is {threads}; it must be at least 1")
    from unmask.engines.native.threads import set_thread_count

    set_thread_count(threads)


def how_many(help: str) -> Parameter:
    """An option that says how many are shown, under the same names in every command."""
    return Parameter(name=["--top", "-k"], help=help)


def listed(help: str, name: str | None = None, *, spaces: bool = True) -> Parameter:
    """An option of a list, whose values do not hold commas.

    Args:
        help: what the values are.
        name: the option; None for that of the argument.
        spaces: False for commands whose other arguments may follow the option without a name.
    """
    ways = "spaces or commas" if spaces else "commas"
    return Parameter(
        name=name,
        negative="",
        consume_multiple=1 if spaces else False,
        converter=_converted,
        help=f"{help}; several are separated by {ways}",
    )


def _converted(kind: Any, tokens: Sequence[Token]) -> Any:
    return convert(
        kind, [token.evolve(value=part) for token in tokens for part in comma_separated(token.value)]
    )
