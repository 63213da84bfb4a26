"""``unmask inspect``: the contents of a checkpoint, and how each of its tensors is used."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from unmask.cli.options import CompatOption, IgnoreOption, JsonOption, RevisionOption
from unmask.cli.output import console, print_json, safe, table
from unmask.cli.weights.inspect_architecture import (
    AgainstOption,
    PictureOption,
    check_options,
    show_architecture,
)

if TYPE_CHECKING:
    from unmask.weights.read.inspect import Inspection

NAMED = 3
"""Number of tensors that a summary names."""


def inspect(
    checkpoint: Annotated[str, Parameter(help="a checkpoint folder, a hub id, or default")],
    *,
    revision: RevisionOption = None,
    compat: CompatOption = "published",
    tensors: Annotated[
        bool, Parameter(negative="", help="list every tensor with its shape, dtype and use")
    ] = False,
    verify: Annotated[
        bool,
        Parameter(negative="", help="compare the SHA-256 of every file with the stored checksums"),
    ] = False,
    against: AgainstOption = None,
    picture: PictureOption = None,
    ignore_tensor: IgnoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show a checkpoint's architecture, parameter count, tokenizer, and the use of its tensors."""
    from unmask.weights import find, read_checkpoint
    from unmask.weights.read.inspect import inspect as inspect_checkpoint

    check_options(picture, against, tensors=tensors)
    if against is not None or picture is not None:
        shown = show_architecture(
            checkpoint,
            against,
            picture,
            revision=revision,
            compat=compat,
            verify=verify,
            ignore_tensors=ignore_tensor or (),
            json=json,
        )
        if shown:
            return
    inspection = inspect_checkpoint(
        read_checkpoint(
            find(checkpoint, revision), compat, verify=verify or None, ignore_tensors=ignore_tensor or ()
        )
    )
    if json:
        print_json(inspection)
        return
    screen = console(width=100)
    _show(inspection, screen)
    if tensors:
        _show_tensors(inspection, console())
    else:
        screen.print("\nUse --tensors to list every tensor and --json for every field of the architecture")


def _show(inspection: "Inspection", screen: Console) -> None:
    from unmask.spec.describe import describe_spec

    for title, rows in (
        (None, _facts(inspection)),
        ("\n[bold]architecture[/bold]", describe_spec(inspection.spec)),
        ("\n[bold]tensors[/bold]", _tensors(inspection)),
    ):
        shown = table(None, "", "")
        shown.show_header = False
        shown.columns[0].no_wrap = False
        shown.columns[0].max_width = 28
        for name, value in rows:
            shown.add_row(safe(name), safe(value))
        if title:
            screen.print(title)
        screen.print(shown)


def _facts(inspection: "Inspection") -> Iterator[tuple[str, str]]:
    from unmask.spec import PooledVector
    from unmask.spec.describe import describe_output

    limit, trained, head = inspection.max_tokens, inspection.trained_tokens, inspection.head
    yield "name", inspection.name
    yield "folder", inspection.folder
    yield "revision", inspection.revision or "none, a local folder"
    yield "family", inspection.family
    yield "parameters", f"{inspection.parameter_count:,}"
    yield "maximum length", "unlimited" if limit is None else f"{limit:,} tokens, special tokens included"
    if trained is not None:
        yield "trained on", f"at most {trained:,} tokens; longer texts are read with a warning"
    yield "tokenizer", inspection.tokenizer or "none; reads token ids only"
    head_missing = f"none: {inspection.head_missing}"
    name = "sentence embedding" if head is None or isinstance(head, PooledVector) else "output"
    yield name, head_missing if head is None else describe_output(head)
    if inspection.approximated:
        yield "approximated", "; ".join(inspection.approximated)
    if inspection.compat_differs:
        yield "with --compat hf", inspection.compat_differs
    yield "checksums", _checksums(inspection)
    if inspection.unread_config:
        yield "unrecognized config keys", ", ".join(inspection.unread_config)


def _checksums(inspection: "Inspection") -> str:
    verified = inspection.verified
    if verified is None:
        return "none stored"
    return f"{'SHA-256' if verified.hashed else 'sizes'} of {verified.files} files verified"


def _tensors(inspection: "Inspection") -> Iterator[tuple[str, str]]:
    """How many tensors are used, with their dtypes, and why the others are not."""
    used = Counter(tensor.dtype for tensor in inspection.tensors if tensor.ours is not None)
    dtypes = ", ".join(f"{count} in {dtype}" for dtype, count in used.most_common())
    yield "used", f"{used.total()} of {len(inspection.tensors)} ({dtypes}); none missing"
    if inspection.odd_dtypes:
        usual = used.most_common(1)[0][0]
        yield "unusual dtype", f"{_some(inspection.odd_dtypes)}; the others are {usual}, so check the file"
    ignored: dict[str, list[str]] = {}
    for tensor in inspection.tensors:
        if tensor.ours is None:
            ignored.setdefault(str(tensor.reason), []).append(tensor.name)
    for reason, names in ignored.items():
        yield f"{len(names)} ignored", f"{reason} ({_some(tuple(names))})"


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _show_tensors(inspection: "Inspection", screen: Console) -> None:
    shown = table("", "tensor", "shape", "dtype", "use")
    for tensor in inspection.tensors:
        use = tensor.ours or f"ignored: {tensor.reason}"
        shown.add_row(safe(tensor.name), " x ".join(map(str, tensor.shape)), tensor.dtype, safe(use))
    screen.print(shown)
