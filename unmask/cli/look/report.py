"""``unmask report``: the explorer's page for one text, as a standalone file."""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from unmask.base.arguments import comma_separated
from unmask.base.files import check_can_write
from unmask.cli.options import RUN, JsonOption, RunOptions, TextArgument, TruncationOption
from unmask.cli.output import print_json, progress
from unmask.cli.streams import read_text
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from unmask.explorer.api import Api
    from unmask.explorer.export.views import ViewSelection

MOST_MODELS = 2
HELD_BYTES = 1 << 40
"""Memory limit: a single report may use all memory."""
PAUSE = 0.05


@dataclass(frozen=True)
class Report:
    """Summary of the written report."""

    path: Path
    bytes: int
    models: tuple[str, ...]
    tokens: tuple[int, ...]
    """Tokens of the text, one entry per model."""
    answers: int
    views: tuple[str, ...]
    seconds: float


def report(
    text: TextArgument = None,
    pair: Annotated[str | None, Parameter(help="a second text, for models that read pairs")] = None,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="the file to write, .html")],
    model: Annotated[
        list[str] | None,
        Parameter(
            name=["--model", "-m"],
            negative="",
            help="a checkpoint folder, a hub id such as owner/model, unmask-mini, or default; give a second "
            "one to compare (default: default)",
        ),
    ] = None,
    run: RunOptions = RUN,
    views: Annotated[
        str | None,
        Parameter(
            help="views to include, separated by commas: tokens, heads, map, flow, sinks, paths, words, "
            "compare, geometry, roofline, tour; the first is shown (default: map, and all but the last two)"
        ),
    ] = None,
    layer: Annotated[int, Parameter(name=["--layer", "-l"], help="the layer to show, from 0")] = 0,
    head: Annotated[int, Parameter(name=["--head", "-H"], help="the head to show, from 0")] = 0,
    token: Annotated[int | None, Parameter(help="the token to select, from 0")] = None,
    truncation: TruncationOption = "error",
    live: Annotated[
        bool,
        Parameter(negative="", help="put the first model into the file, which then reads other texts"),
    ] = False,
    live_weights: Annotated[
        Literal["int8", "float32"],
        Parameter(help="how --live stores weights: int8, or float32 in four times the space"),
    ] = "int8",
    json: JsonOption = False,
) -> None:
    """Write one HTML file with everything the explorer shows for a text, to share, keep or print.

    It opens in any browser without a server or network access and stays interactive: it contains every head
    for a short text, and the head given by --layer and --head for a long one. With --live it also contains
    the model, and computes the attention of any short text that its reader types.
    """
    text = read_text(text)
    from unmask.explorer.api import Api
    from unmask.explorer.export.live_model import live_model

    if live_weights != "int8" and not live:
        raise InvalidRequest(f"--live-weights is {live_weights}, and the file gets no model; add --live")
    names = list(dict.fromkeys(model or ["default"]))
    _check(names, run.revision, output)
    look = _look(views, layer, head, token)
    began = time.monotonic()
    loaders = [(name, partial(run.load, name)) for name in names]
    too_long = "cut" if truncation == "end" else "error"
    api = Api(loaders, held_bytes=HELD_BYTES)
    try:
        model_text = live_model(api.model(0), live_weights) if live else None
        reads = [
            api.ask("texts", {"text": text, "pair": pair, "model": at, "too_long": too_long})
            for at in range(len(names))
        ]
        size, answers = write_page(api, reads, look, output, cut=truncation == "end", live=model_text)
    finally:
        api.close()
    result = Report(
        path=output,
        bytes=size,
        models=tuple(session["model"] for session in reads),
        tokens=tuple(session["kept_tokens"] for session in reads),
        answers=answers,
        views=look.views,
        seconds=round(time.monotonic() - began, 3),
    )
    if json:
        print_json({**vars(result), "path": str(output)})
    else:
        print(f"{output}: {size / 1e6:.1f} MB, {answers:,} answers; open it in a browser")


def _check(names: list[str], revision: str | None, output: Path) -> None:
    if len(names) > MOST_MODELS:
        raise InvalidRequest(f"{len(names)} models were named; a report shows one model or compares two")
    if revision is not None and len(names) != 1:
        raise InvalidRequest(f"--revision {revision} was given for two models; name one --model with it")
    if output.suffix.lower() not in (".html", ".htm"):
        raise InvalidRequest(f"--output is {str(output)!r}; a report is a web page, so name a file .html")
    check_can_write(output)


def _look(views: str | None, layer: int, head: int, token: int | None) -> "ViewSelection":
    from unmask.explorer.export.views import ViewSelection
    from unmask.explorer.page import OF_A_TEXT

    if views is None:
        # Opens on the map.
        chosen = ("map", *(view for view in OF_A_TEXT if view != "map"))
    else:
        chosen = tuple(dict.fromkeys(comma_separated(views)))
    return ViewSelection(chosen, layer, head, token)


def write_page(
    api: "Api",
    reads: list[dict[str, Any]],
    look: "ViewSelection",
    output: Path,
    *,
    cut: bool,
    title: str | None = None,
    live: str | None = None,
) -> tuple[int, int]:
    """Measure a text, collect what its views ask for and write the page; return its bytes and its answers.

    ``reads`` are the text as the API described it, by one model or two. Without a ``title``, the page has the
    first words of the text. ``live`` is a model for further texts, see `live_model`.
    """
    from unmask.base.files import whole_file
    from unmask.explorer.export.standalone_html import saved_page
    from unmask.explorer.export.views import address, view_paths

    for session in reads:
        measure(api, session["id"], session["model"])
    get = partial(api.answer, "GET")
    hash_ = address(look, reads, cut=cut)
    paths = view_paths(get, [session["id"] for session in reads], look)
    with progress("answers", len(paths)) as done:
        title = f"{title or first_words(reads[0]['text'])} | unmask"
        views = [view for view in look.views if view != "compare" or len(reads) > 1]
        page = saved_page(get, paths, hash_, title, views=views, live=live, progress=done)
    with whole_file(output) as partial_file:
        partial_file.write_bytes(page)
    return len(page), len(paths)


def measure(api: "Api", text_id: str, name: str) -> None:
    """Wait until all layers of a text are measured."""
    with progress(f"measuring with {name}", 1) as done:
        while True:
            ended = api.finish(text_id, PAUSE)
            state = api.ask(f"texts/{text_id}/state")
            if state["total"]:
                done(state["done"], state["total"])
            if ended:
                break
    if state["phase"] != "done":
        problem = state["problem"]
        raise InvalidRequest(problem["sentence"] if problem else f"the analysis by {name} was stopped")


def first_words(text: str, most: int = 72) -> str:
    """The beginning of a text as a title of at most ``most`` characters and an ellipsis, in whole words."""
    words = " ".join(text.split())
    if len(words) <= most:
        return words
    whole = words[: most + 1].rpartition(" ")[0] or words[:most]
    return f"{whole.rstrip('.,;:')}…"
