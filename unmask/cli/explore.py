"""``unmask explore``: the explorer's page in the browser."""

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.cli.options import RUN, JsonOption, RunOptions
from unmask.cli.output import print_json
from unmask.errors import InvalidRequest, UnmaskError

if TYPE_CHECKING:
    from unmask.loaded import Model

MODELS = ("default", "unmask-mini")
"""What is opened where no model is named: sentence embeddings, and one that predicts masked words."""


def explore(
    text: Annotated[str | None, Parameter(help="the text to begin with")] = None,
    *,
    model: Annotated[
        list[str] | None,
        Parameter(
            name=["--model", "-m"],
            negative="",
            help="a checkpoint folder, a hub id such as owner/model, unmask-mini, or default; may be "
            "repeated, and texts are compared between two (none: default and unmask-mini)",
        ),
    ] = None,
    run: RunOptions = RUN,
    port: Annotated[int, Parameter(help="port on 127.0.0.1; 0 takes a free one")] = 0,
    browser: Annotated[bool, Parameter(help="open the page in the browser")] = True,
    memory: Annotated[float, Parameter(help="GB that the texts in memory may hold together")] = 2.0,
    json: JsonOption = False,
) -> None:
    """Open a local page that shows where encoders look while they read your text.

    The page is served to this machine alone, behind a token that is new at each start. Models are loaded
    while it is already there.
    """
    from unmask.explorer import serve
    from unmask.optional import require

    require("explorer")
    names = list(dict.fromkeys(model or MODELS))
    if run.revision is not None and len(names) != 1:
        raise InvalidRequest(
            f"--revision {run.revision} was given for {len(names)} models; name one --model with it"
        )
    if not 0 < memory < 1e6:
        raise InvalidRequest(f"--memory is {memory:g} GB; it must be more than 0")

    def ready(url: str) -> None:
        if json:
            print_json({"url": url})
        else:
            print(f"The explorer is at {url}\nStop it with Ctrl+C.")
        sys.stdout.flush()

    serve(
        [(name, partial(_load, name, run)) for name in names],
        port=port,
        text=text,
        open_browser=browser,
        on_ready=ready,
        held_bytes=int(memory * 1e9),
    )


def _load(name: str, run: RunOptions) -> "Model":
    """Load a model in the background; what is wrong with it is said here too, not on the page alone."""
    try:
        return run.load(name)
    except UnmaskError as error:
        print(f"unmask: {name}: {error}", file=sys.stderr)
        raise
