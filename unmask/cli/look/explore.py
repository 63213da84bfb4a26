"""``unmask explore``: the explorer in the browser."""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.base.files import user_cache
from unmask.cli.options import RUN, JsonOption, RunOptions
from unmask.cli.output import print_json
from unmask.errors import InvalidRequest, UnmaskError

if TYPE_CHECKING:
    from unmask.models.elmo import ElmoModel
    from unmask.models.load import Model

MODELS = ("default", "unmask-mini")
"""The default models: one for sentence embeddings, and one with an MLM head."""
FIRST_SECONDS = 1.0
"""How long the next model waits after the first, of which the page draws its first picture."""


def explore(
    text: Annotated[str | None, Parameter(help="the initial text")] = None,
    *,
    model: Annotated[
        list[str] | None,
        Parameter(
            name=["--model", "-m"],
            negative="",
            help="a checkpoint folder, a hub id such as owner/model, unmask-mini, or default; repeat it "
            "to compare models, of which --adapter is for the first (default: default and unmask-mini)",
        ),
    ] = None,
    index: Annotated[
        Path | None,
        Parameter(help="the folder of an index, which the page can then search (see: unmask index)"),
    ] = None,
    corpus: Annotated[
        Path | None,
        Parameter(
            help="texts to show heads on: a .txt file with one text per line, or .jsonl with a text under "
            "the key text (default: 3,024 sentences of books)"
        ),
    ] = None,
    run: RunOptions = RUN,
    state: Annotated[
        str | None,
        Parameter(
            name="--open", help="what the page's Share copied: an address of the page, or its part from # on"
        ),
    ] = None,
    port: Annotated[int, Parameter(help="port on 127.0.0.1; 0 picks a free one")] = 0,
    browser: Annotated[bool, Parameter(help="open the page in the browser")] = True,
    memory: Annotated[float, Parameter(help="memory limit for all open texts, in GB")] = 2.0,
    load: Annotated[
        bool, Parameter(help="let the page load other models: folders of this machine, and hub ids")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Open a local page that shows the attention and the inner workings of encoders on your text.

    The page is served only to this machine, protected by a token that is new at each start. Models are loaded
    in the background.
    """
    from unmask.base.optional import require
    from unmask.explorer import serve
    from unmask.explorer.sessions.loading import PageLoader

    require("explorer")
    names = list(dict.fromkeys(model or MODELS))
    if run.revision is not None and len(names) != 1:
        raise InvalidRequest(
            f"--revision {run.revision} was given for {len(names)} models; name one --model with it"
        )
    if state is not None and text is not None:
        raise InvalidRequest("a text and --open were given; an address names its text, so leave one out")
    if not 0 < memory < 1e6:
        raise InvalidRequest(f"--memory is {memory:g} GB; it must be more than 0")
    if index is not None:
        from unmask.search.store import Store

        Store.open(index, check="quick")

    texts = None
    if corpus is not None:
        from unmask.interpret.corpus.texts import read_corpus

        texts = read_corpus(corpus)

    def ready(url: str) -> None:
        if json:
            print_json({"url": url})
        else:
            print(f"The explorer is at {url}\nStop it with Ctrl+C.")
        sys.stdout.flush()

    with _without_collections() as started:

        def load_named(name: str) -> "Model | ElmoModel":
            if name != names[0]:
                # The page draws its first picture with the first model alone: it would take twice the time.
                time.sleep(FIRST_SECONDS)
                return _load(name, run.of_another_model())
            try:
                return _load(name, run)
            finally:
                started()

        serve(
            [(name, partial(load_named, name)) for name in names],
            port=port,
            text=text,
            state=state,
            open_browser=browser,
            on_ready=ready,
            held_bytes=int(memory * 1e9),
            index=index,
            corpus=texts,
            corpus_cache=user_cache("corpus"),
            loader=PageLoader(partial(_load, run=run.of_another_model()), run.dtype) if load else None,
        )


def _load(name: str, run: RunOptions) -> "Model | ElmoModel":
    """Load a model in the background; errors are printed here as well as shown on the page."""
    try:
        return run.load_states(name)
    except UnmaskError as error:
        print(f"unmask: {name}: {error}", file=sys.stderr)
        raise


@contextmanager
def _without_collections() -> Iterator[Callable[[], None]]:
    """Collect no garbage until the function that this gives is called, or the context ends.

    Nearly all objects that imports make stay until the end. Looking through them for garbage again and again
    takes a tenth of the start; they are left out of later collections too.
    """
    collected = gc.isenabled()
    gc.disable()

    def started() -> None:
        if collected and not gc.isenabled():
            gc.freeze()
            gc.enable()

    try:
        yield started
    finally:
        if collected:
            gc.enable()
