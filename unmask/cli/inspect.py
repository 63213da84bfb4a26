"""``unmask inspect``: what a checkpoint is, and what became of every tensor in it."""

from collections.abc import Iterator
from dataclasses import fields
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.pretty import pretty_repr
from rich.text import Text

from unmask.cli.options import CompatOption, JsonOption, RevisionOption
from unmask.cli.output import console, print_json, table

if TYPE_CHECKING:
    from unmask.model.spec import EncoderSpec
    from unmask.model.weights.inspect import Inspection


def inspect(
    checkpoint: Annotated[str, Parameter(help="a checkpoint folder, a hub id, or default")],
    *,
    revision: RevisionOption = None,
    compat: CompatOption = "published",
    verify: Annotated[
        bool,
        Parameter(negative="", help="compare the SHA-256 of every file with those written when it was saved"),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show a checkpoint's spec, parameter count, tokenizer, and the fate of every tensor."""
    from unmask.model.weights import find, read_checkpoint
    from unmask.model.weights.inspect import inspect as inspect_checkpoint

    inspection = inspect_checkpoint(
        read_checkpoint(find(checkpoint, revision), compat, verify=verify or None)
    )
    if json:
        print_json(inspection)
    else:
        _show(inspection)


def _show(inspection: "Inspection") -> None:
    screen = console()
    about = table(None, "", "")
    about.show_header = False
    limit, trained = inspection.max_tokens, inspection.trained_tokens
    facts = {
        "name": inspection.name,
        "folder": inspection.folder,
        "revision": inspection.revision or "none, a local folder",
        "family": inspection.family,
        "parameters": f"{inspection.parameter_count:,}",
        "longest text": "no limit" if limit is None else f"{limit:,} tokens, special tokens included",
        "trained on": ""
        if trained is None
        else f"at most {trained:,} tokens; longer texts are read and it is said",
        "approximated": "; ".join(inspection.approximated) or "nothing",
        "compat hf": inspection.compat_differs or "changes nothing",
        "tokenizer": inspection.tokenizer or "none, so it reads token ids and no text",
        "embedding": inspection.head_missing or str(inspection.head),
        "checksums": _checksums(inspection),
        "config keys not understood": ", ".join(inspection.unread_config) or "none",
    }
    for name, value in ((name, value) for name, value in facts.items() if value):
        about.add_row(name, value)
    screen.print(about)
    screen.print("\n[bold]spec[/bold]")
    parts = table(None, "", "")
    parts.show_header = False
    for name, part in _parts(inspection.spec):
        parts.add_row(name, Text(pretty_repr(part, max_width=90)))
    screen.print(parts)
    claimed = sum(tensor.ours is not None for tensor in inspection.tensors)
    ignored = len(inspection.tensors) - claimed
    title = f"\n{len(inspection.tensors)} tensors: {claimed} claimed, {ignored} ignored, 0 missing"
    shown = table(title, "tensor", "shape", "dtype", "fate")
    for tensor in inspection.tensors:
        fate = tensor.ours or f"ignored: {tensor.reason}"
        shown.add_row(tensor.name, " x ".join(map(str, tensor.shape)), tensor.dtype, fate)
    screen.print(shown)


def _checksums(inspection: "Inspection") -> str:
    verified = inspection.verified
    if verified is None:
        return "none stored"
    what = "SHA-256" if verified.hashed else "sizes"
    return f"{what} of {verified.files} files verified"


def _parts(spec: "EncoderSpec") -> Iterator[tuple[str, object]]:
    """The fields of a spec; layers that are equal and adjoining are shown once."""
    for field in fields(spec):
        if field.name != "layers":
            yield field.name, getattr(spec, field.name)
    first = 0
    for layer, run in groupby(spec.layers):
        last = first + len(list(run)) - 1
        yield f"layers {first} to {last}" if last > first else f"layer {first}", layer
        first = last + 1
