"""``unmask explore``: the explorer's page in the browser."""

from typing import Annotated

from cyclopts import Parameter

from unmask.cli.options import CompatOption, DtypeOption, JsonOption, ModelOption, RevisionOption
from unmask.cli.output import print_json


def explore(
    text: Annotated[str | None, Parameter(help="the text to begin with")] = None,
    *,
    model: ModelOption = "default",
    revision: RevisionOption = None,
    dtype: DtypeOption = "float32",
    compat: CompatOption = "published",
    port: Annotated[int, Parameter(help="port on 127.0.0.1; 0 takes a free one")] = 0,
    browser: Annotated[bool, Parameter(help="open the page in the browser")] = True,
    json: JsonOption = False,
) -> None:
    """Open a local page that shows where an encoder looks while it reads your text.

    The page is served to this machine alone, behind a token that is new at each start.
    """
    from unmask.explorer import serve
    from unmask.loaded import load
    from unmask.optional import require

    require("explorer")

    def ready(url: str) -> None:
        if json:
            print_json({"url": url})
        else:
            print(f"The explorer is at {url}\nStop it with Ctrl+C.")
        import sys

        sys.stdout.flush()

    serve(
        load(model, dtype=dtype, revision=revision, compat=compat),
        port=port,
        text=text,
        open_browser=browser,
        on_ready=ready,
    )
