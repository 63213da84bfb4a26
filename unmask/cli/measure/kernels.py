"""``unmask kernels``: the attention kernels, where they run, and which one a request would use."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from unmask.cli.options import Dtype, JsonOption
from unmask.cli.output import console, plain, print_json, safe, table

if TYPE_CHECKING:
    from unmask.kernels import AttentionRequest, Capability
    from unmask.spec import EncoderSpec

Patterns = Literal["full", "causal", "sliding-window", "dilated", "sliding-window-global", "block-sparse"]
Positions = Literal["none", "rotary", "alibi", "disentangled", "relative-bias"]
INFERENCE_DTYPES = ("float32", "bfloat16", "float16", "float64", "int8")
"""Number formats of whole models, as `unmask.load` takes them."""
FEATURE_NAMES = {
    "gradients": "gradients",
    "dropout": "dropout",
    "log_sum_exp": "log-sum-exp",
    "dilation": "dilation",
}
"""Optional features of a kernel, by field of `Capability`."""


def kernels(
    *,
    model: Annotated[str | None, Parameter(name=["--model", "-m"], help="what runs this model")] = None,
    device: Annotated[str | None, Parameter(help="for this device, such as cpu or cuda")] = None,
    dtype: Annotated[Dtype | None, Parameter(help="for inputs of this dtype")] = None,
    pattern: Annotated[Patterns | None, Parameter(help="for this attention pattern")] = None,
    position: Annotated[Positions | None, Parameter(help="for this kind of positions")] = None,
    longest: Annotated[int | None, Parameter(help="for texts of up to N tokens")] = None,
    head_width: Annotated[int | None, Parameter(help="for heads of this width")] = None,
    gradients: Annotated[bool, Parameter(negative="", help="for training")] = False,
    dropout: Annotated[bool, Parameter(negative="", help="with dropout on the attention weights")] = False,
    log_sum_exp: Annotated[bool, Parameter(negative="", help="with the log-sum-exp of the scores")] = False,
    json: JsonOption = False,
) -> None:
    """List the attention kernels, fastest first: what each supports, and where it runs here.

    Below them: which code runs whole models on its CPU; with --model, for that model alone. With another
    option than --json, show which kernel would run and why the others would not. Defaults: CPU, float32, full
    attention without position terms, 512 tokens, heads of width 64.
    """
    from unmask.errors import KernelError
    from unmask.kernels import AttentionRequest

    if model is not None:
        _show_model(model, json)
        return
    options = (device, dtype, pattern, position, longest, head_width)
    if all(option is None for option in options) and not (gradients or dropout or log_sum_exp):
        _list_all(json)
        return
    for name, number in (("--longest", longest), ("--head-width", head_width)):
        if number is not None and number < 1:
            raise KernelError(f"{name} is {number}; it must be at least 1")
    request = AttentionRequest(
        device=device or "cpu",
        dtype=dtype or "float32",
        pattern=_pattern(pattern or "full"),
        position=_position(position or "none"),
        head_width=64 if head_width is None else head_width,
        longest=512 if longest is None else longest,
        gradients=gradients,
        dropout=dropout,
        log_sum_exp=log_sum_exp,
    )
    _show_choice(request, json)


def _show_choice(request: "AttentionRequest", json: bool) -> None:
    from unmask.kernels import KERNELS, choose

    chosen = choose(request).capability.name  # if no kernel can, the error lists every refusal
    verdicts = {
        kernel.capability.name: kernel.capability.refusal(request)
        or _place(kernel.capability, request, chosen)
        for kernel in KERNELS
    }
    if json:
        print_json({"request": request, "chosen": chosen, "verdicts": verdicts})
        return
    grid = table(None, "kernel", "for this request")
    for name, verdict in verdicts.items():
        grid.add_row(name, verdict)
    screen = console()
    screen.print(grid)
    import torch

    if request.device == "cuda" and not torch.cuda.is_available():
        screen.print(
            "This machine has no GPU; this is what a machine with one and the same packages would use."
        )


def _place(record: "Capability", request: "AttentionRequest", chosen: str) -> str:
    """The verdict on a kernel that can serve the request."""
    if record.name == chosen:
        return "runs"
    if not record.is_preferred(request):
        return f"supported; preferred {_lengths(record)}"
    return "supported; another kernel is preferred"


def _pattern(name: Patterns) -> Any:
    from unmask import spec

    window = spec.SlidingWindow(64)
    return {
        "full": spec.FullAttention(),
        "causal": spec.CausalAttention(),
        "sliding-window": window,
        "dilated": spec.SlidingWindow(64, dilation=2),
        "sliding-window-global": spec.SlidingWindowGlobal(window),
        "block-sparse": spec.BlockSparse(64),
    }[name]


def _position(name: Positions) -> Any:
    from unmask import spec

    # Rotary positions are applied to queries and keys before the kernel.
    alibi, distances = spec.Alibi(), spec.Disentangled(512, buckets=256)
    none = spec.NoPosition()
    return {
        "none": none,
        "rotary": none,
        "alibi": alibi,
        "disentangled": distances,
        "relative-bias": spec.RelativePositionBias(),
    }[name]


def _list_all(json: bool) -> None:
    import torch

    from unmask.kernels import KERNELS

    devices = {"cpu"} | ({"cuda"} if torch.cuda.is_available() else set())
    records = [kernel.capability for kernel in KERNELS]
    if json:
        print_json(
            {
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "devices_here": sorted(devices),
                "kernels": [_record(record, devices) for record in records],
                "inference": _inference(),
            }
        )
        return
    screen = console(width=100)
    for record in records:
        screen.print(f"[bold]{record.name}[/bold]")
        grid = table(None, "", "")
        grid.show_header = False
        for name, value in _facts(record, devices):
            grid.add_row(f"  {name}", value)
        screen.print(grid)
        screen.print()
    _show_inference("inference on this CPU", _inference())
    screen.print()
    screen.print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"devices here: {', '.join(sorted(devices))}. The first kernel that supports what a model needs, at "
        "its preferred lengths, is used; --kernel names another. Try: "
        "unmask kernels --device cuda --dtype bfloat16",
        soft_wrap=False,
    )


def _inference(spec: "EncoderSpec | None" = None) -> dict[str, dict[str, str | None]]:
    """Which code runs the layers of a model, or of most models, in each dtype, and why."""
    from unmask.engines.backend import running
    from unmask.engines.native.library import Library, connected
    from unmask.errors import InvalidRequest

    if spec is not None and not spec.layers:
        return {"float32": {"backend": "numpy, the mean of rows of a table", "reason": None}}
    library = connected()
    reasons: dict[str, dict[str, str | None]] = {}
    for dtype in INFERENCE_DTYPES:
        try:
            chosen = running(spec, dtype)
        except InvalidRequest as refusal:
            reasons[dtype] = {"backend": "nothing", "reason": str(refusal)}
            continue
        if chosen.backend == "native" and isinstance(library, Library):
            native_title = f"native ({library.instructions})"
        else:
            native_title = "torch, packed for oneDNN" if chosen.packed else "torch, module by module"
        reasons[dtype] = {"backend": native_title, "reason": chosen.reason}
        if chosen.except_for is not None:
            reasons[dtype]["in_torch"] = chosen.except_for
    return reasons


def _show_inference(title: str, engines: dict[str, dict[str, str | None]]) -> None:
    screen = console(width=100)
    screen.print(f"[bold]{title}[/bold]", highlight=False)
    grid = table(None, "", "")
    grid.show_header = False
    for dtype, engine in engines.items():
        why = f": {engine['reason']}" if engine["reason"] else ""
        but = f"; {engine['in_torch']} in torch" if engine.get("in_torch") else ""
        grid.add_row(f"  {dtype}", f"{engine['backend']}{why}{but}")
    screen.print(grid)


def _show_model(model: str, json: bool) -> None:
    from unmask.weights import find, read_checkpoint

    checkpoint = read_checkpoint(find(model))
    engines = _inference(checkpoint.spec)
    if json:
        print_json({"model": checkpoint.source.name, "inference": engines})
        return
    _show_inference(f"inference of {safe(checkpoint.source.name)} on this CPU", engines)


def _facts(record: "Capability", devices: set[str]) -> Iterator[tuple[str, str]]:
    """The properties of a kernel, one line each."""
    yield "computes", record.computes
    yield "runs here on", ", ".join(_usable(record, devices)) or f"nothing: {_why_not(record, devices)}"
    yield "dtypes", ", ".join(sorted(record.dtypes))
    yield "attention", ", ".join(sorted(kind.__name__ for kind in record.patterns))
    yield "score terms", ", ".join(sorted(kind.__name__ for kind in record.positions))
    has = [FEATURE_NAMES[feature] for feature in FEATURE_NAMES if getattr(record, feature)]
    yield "supports", ", ".join(has) or "none of gradients, dropout, log-sum-exp, dilation"
    yield "preferred lengths", _lengths(record)
    yield "head widths", _widths(record)


def _usable(record: "Capability", devices: set[str]) -> list[str]:
    return [] if record.unavailable() else sorted(record.devices & devices)


def _why_not(record: "Capability", devices: set[str]) -> str | None:
    """Why it does not run on this machine; None if it does."""
    if _usable(record, devices):
        return None
    return record.unavailable() or f"no {' or '.join(sorted(record.devices))} here"


def _lengths(record: "Capability") -> str:
    """The preferred lengths, by longest text."""
    lengths: dict[str, list[str]] = {}
    for where, (first, last) in record.preferred_lengths_by.items():
        lengths.setdefault(_range(first, last), []).append(where)
    otherwise = "".join(f"; {words} with {', '.join(who)}" for words, who in lengths.items())
    return _range(*record.preferred_lengths) + otherwise


def _range(first: int, last: int | None) -> str:
    if last is not None and last < first:
        return "at no length"
    if last is None:
        return "at any length" if first == 1 else f"from {first} tokens"
    return f"up to {last} tokens" if first == 1 else f"from {first} to {last} tokens"


def _widths(record: "Capability") -> str:
    """Head widths, abbreviated if they are all multiples of the first up to the last."""
    if record.head_widths is None:
        return "any"
    widths = sorted(record.head_widths)
    step = widths[0]
    if len(widths) > 3 and widths == list(range(step, widths[-1] + 1, step)):
        return f"multiples of {step} to {widths[-1]}"
    return ", ".join(map(str, widths))


def _record(record: "Capability", devices: set[str]) -> dict[str, object]:
    kinds = {name: sorted(k.__name__ for k in getattr(record, name)) for name in ("patterns", "positions")}
    widths = None if record.head_widths is None else sorted(record.head_widths)
    return {
        **plain(record),
        **kinds,
        "head_widths": widths,
        "devices_here": _usable(record, devices),
        "why_not_here": _why_not(record, devices),
    }
