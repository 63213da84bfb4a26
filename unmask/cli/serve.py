"""``unmask serve``: models over HTTP."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from unmask.base.arguments import whole_number as whole
from unmask.base.system import can_fork
from unmask.cli.options import MODEL_OPTIONS, JsonOption, ModelOptions, RunOptions, set_threads
from unmask.cli.output import print_json
from unmask.cli.search.index import open_index
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from unmask.models.adapters import AdapterModel
    from unmask.models.load import Model
    from unmask.search.index import Index
    from unmask.serve import Limits

KEYS_VARIABLE = "UNMASK_API_KEYS"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """What the server accepts, and how long it works on it; see `unmask.serve.Limits`."""

    tokens_per_pass: Annotated[
        int | None,
        Parameter(help="maximum number of tokens per forward pass (default: 512 on a CPU, otherwise 8192)"),
    ] = None
    queued_tokens: Annotated[
        int, Parameter(help="maximum number of tokens that wait; more are refused with 429")
    ] = 262_144
    texts: Annotated[int, Parameter(help="maximum number of texts per request")] = 2048
    body_megabytes: Annotated[float, Parameter(help="maximum size of a request, in MB")] = 4.0
    seconds: Annotated[float, Parameter(help="maximum time for a request")] = 60.0
    drain_seconds: Annotated[
        float, Parameter(help="maximum time for unfinished requests when the server is stopped")
    ] = 30.0

    def checked(self, device: str) -> "Limits":
        """The limits of a server whose models are on that device.

        Raises:
            InvalidRequest: one is out of range.
        """
        from unmask.serve import Limits

        if self.tokens_per_pass is not None:
            whole("--tokens-per-pass", self.tokens_per_pass, 1)
        if not 0 < self.body_megabytes < 1e6:
            raise InvalidRequest(f"--body-megabytes is {self.body_megabytes:g}; it must be more than 0")
        return Limits(
            tokens_per_pass=self.tokens_per_pass or (Limits.tokens_per_pass if device == "cpu" else 8192),
            queued_tokens=self.queued_tokens,
            texts=self.texts,
            body_bytes=max(1, int(self.body_megabytes * 1e6)),
            seconds=self.seconds,
            drain_seconds=self.drain_seconds,
        )


LIMITS = LimitOptions()


def serve(
    *,
    model: Annotated[
        list[str] | None,
        Parameter(
            name=["--model", "-m"],
            negative="",
            help="a checkpoint folder, a hub id such as owner/model, or default, and before it NAME= for the "
            "name that requests use; repeat it to serve several, of which --adapter is for the first "
            "(default: default)",
        ),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        Parameter(
            negative="",
            help="an adapter of the first model: a folder, or sentiment, entailment, names, entities, "
            "answers. After NAME= it is served under that name beside the model and shares its weights and "
            "passes; repeat it to serve several",
        ),
    ] = None,
    index: Annotated[
        list[Path] | None,
        Parameter(
            negative="",
            help="the folder of an index for /v1/search (see: unmask index), after NAME= for its name "
            "in requests; repeat it to serve several",
        ),
    ] = None,
    run: ModelOptions = MODEL_OPTIONS,
    host: Annotated[str, Parameter(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="port; 0 picks a free one")] = 8080,
    api_keys: Annotated[
        Path | None,
        Parameter(
            help="a file with one API key per line (or keys in the environment variable UNMASK_API_KEYS, "
            "separated by commas); needed if other machines reach the address"
        ),
    ] = None,
    truncate: Annotated[
        bool,
        Parameter(negative="", help="drop the end of texts that are too long instead of refusing them"),
    ] = False,
    limits: LimitOptions = LIMITS,
    workers: Annotated[
        int | None,
        Parameter(
            help="processes that run the models and searches, behind one port; one that ends is replaced. "
            "0: the process that listens runs them (default: 1 on a CPU, otherwise 0; on Windows always 0)"
        ),
    ] = None,
    log_requests: Annotated[
        bool,
        Parameter(negative="", help="write one line of JSON per request to standard error, without texts"),
    ] = False,
    otlp_endpoint: Annotated[
        str | None,
        Parameter(
            help="address of an OpenTelemetry collector, such as http://localhost:4318, that gets a span of "
            "each request without its texts"
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Serve models over HTTP: embeddings, scores of pairs, labels, entities, answers, words, search.

    Clients of OpenAI's embeddings, Text Embeddings Inference and Cohere can use it as it is. Texts of all
    clients are packed into common passes. The address ends with /docs for a page that tries the routes. Stop
    it with Ctrl+C or SIGTERM: it answers what it accepted.
    """
    from unmask.base.optional import require
    from unmask.serve import serve as serve_models

    require("serve")
    run = replace(run, special_tokens=run.special_tokens or "text")
    checked = limits.checked(run.device)
    keys = _keys(api_keys)
    models = _models(_named(model or ["default"]), _adapters(adapter or []), run)
    without_adapter = RunOptions(**vars(run.of_another_model()))
    indexes: dict[str, Callable[[], Index]] = {
        name: partial(open_index, Path(folder), (), without_adapter)
        for name, folder in _named([str(folder_) for folder_ in index or ()], "index").items()
    }
    if workers is None:
        workers = 1 if run.device == "cpu" and can_fork() else 0

    def ready(url: str) -> None:
        if json:
            print_json({"url": url, "models": list(models)})
        else:
            print(f"Serving {', '.join(models)} at {url}\nStop it with Ctrl+C.")
        sys.stdout.flush()

    serve_models(
        models,
        host=host,
        port=port,
        keys=keys,
        limits=checked,
        truncate=truncate,
        workers=workers,
        log=partial(print, file=sys.stderr, flush=True) if log_requests else None,
        on_ready=ready,
        indexes=indexes,
        otlp_endpoint=otlp_endpoint,
        special_tokens=run.special_tokens or "text",
    )


def _models(
    sources: dict[str, str], adapters: dict[str | None, str], run: ModelOptions
) -> "dict[str, Callable[[], Model]]":
    """What loads each model and adapter, by its name; adapters and revision are of the first model."""
    if run.revision is not None and len(sources) != 1:
        raise InvalidRequest(
            f"--revision {run.revision} was given for {len(sources)} models; name one --model with it"
        )
    (first, source), *others = sources.items()
    loaders: dict[str, Callable[[], Model]] = {first: partial(run.load_with, source, adapters.get(None))}
    adapter_of = {name: adapter_name for name, adapter_name in adapters.items() if name is not None}
    if adapter_of:
        if run.layers is not None:
            raise InvalidRequest(
                f"--first-layers is {run.layers}, and adapters were trained with all layers; leave one out"
            )
        if run.backend == "native" or run.dtype == "int8":
            option = "--backend native" if run.backend == "native" else "--dtype int8"
            raise InvalidRequest(
                f"{option} is given, and adapters that share a model's weights run in torch; leave it out, "
                "or serve one --adapter without a name"
            )
        shared = cache(partial(_with_adapters, source, adapter_of, run))
        loaders[first] = lambda: shared().model()
        for name in adapter_of:
            if name in sources:
                raise InvalidRequest(
                    f"a model and an adapter are named {name}; give one another name: --adapter NAME=ADAPTER"
                )
            loaders[name] = partial(_adapter, shared, name)
    return loaders | {name: partial(run.of_another_model().load_with, other, None) for name, other in others}


def _adapter(shared: "Callable[[], AdapterModel]", name: str) -> "Model":
    return shared().model(name)


def _with_adapters(source: str, adapters: dict[str, str], run: ModelOptions) -> "AdapterModel":
    """The model with its adapters, which share its weights."""
    from unmask.models.adapters import load_adapters

    options = run.options_with(source, None)
    set_threads(run.threads)
    for refused in ("adapter", "backend", "layers"):
        del options[refused]
    return load_adapters(source, adapters, **options)


def _adapters(options: list[str]) -> dict[str | None, str]:
    """Each adapter by its name; None for one that becomes part of the model."""
    if len(options) == 1 and ("=" not in options[0] or Path(options[0]).exists()):
        return {None: options[0]}
    for option in options:
        if "=" not in option or Path(option).exists():
            raise InvalidRequest(
                f"--adapter is {option!r} beside {len(options) - 1} more; "
                f"give each a name: --adapter NAME={option}"
            )
    return {name: folder for name, folder in _named(options, "adapter").items()}


def _named(options: list[str], what: str = "model") -> dict[str, str]:
    """Each model or index by its name, in the given order."""
    path_of: dict[str, str] = {}
    plural = "indexes" if what == "index" else f"{what}s"
    for option in options:
        name, equals, source = option.partition("=")
        if not equals or "/" in name or Path(option).exists():
            name = source = option
            if what == "index":
                name = Path(option).resolve().name
        if not name.strip() or not source.strip():
            raise InvalidRequest(f"--{what} is {option!r}; give one, or NAME={what.upper()}")
        if name in path_of:
            raise InvalidRequest(
                f"two {plural} are named {name}; give one another name: --{what} NAME={what.upper()}"
            )
        path_of[name] = source
    return path_of


def _keys(path: Path | None) -> list[str]:
    if path is None:
        keys = os.environ.get(KEYS_VARIABLE, "").split(",")
        return [key.strip() for key in keys if key.strip()]
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not ASCII text"
        raise InvalidRequest(
            f"--api-keys {path} cannot be read: {reason.lower()}; name another file"
        ) from None
    keys_of_file = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys_of_file:
        raise InvalidRequest(f"--api-keys {path} has no key; write one per line")
    return keys_of_file
