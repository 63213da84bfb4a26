"""Writes what the page knows of Python: `api/types.ts`, `api/requests.ts` and `views/list.ts` of `web/src`.

    python scripts/page_schema.py            write them, as `make web` does
    python scripts/page_schema.py --check    only say whether they are up to date

The first two are made from the requests that `unmask.explorer.routes` lists: the dataclasses of their
answers become types, and each request becomes a function that spells its path as Python does. The third is
the table of `unmask.explorer.page` with the component of each view.
"""

import dataclasses
import inspect
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any

from unmask.explorer.page import VERSION, VIEWS, Group, View
from unmask.explorer.routes import every_request
from unmask.explorer.routes.session import PdfText
from unmask.explorer.sessions.loading import ModelPreview
from unmask.explorer.wire.binary import array_fields
from unmask.explorer.wire.page_request import Arrays, PageRequest
from unmask.http.responses import Failure

FOLDER = Path(__file__).parents[1] / "web" / "src"
WRITTEN = "Written by scripts/page_schema.py from Python: change it there."
PLAIN = {
    int: "number",
    float: "number",
    str: "string",
    bool: "boolean",
    type(None): "null",
    typing.Any: "unknown",
}


def files() -> dict[str, str]:
    """The files, by their paths."""
    return {"api/types.ts": _types(), "api/requests.ts": _requests(), "views/list.ts": _views()}


def _types() -> str:
    head = f"/** The typed results of the API. {WRITTEN} */"
    version = (
        f"/** Version of the page's state in its address. */\nexport const ADDRESS_VERSION = '{VERSION}';"
    )
    return "\n\n".join((head, version, *map(_interface, _answers()))) + "\n"


def _answers() -> tuple[type, ...]:
    """The dataclasses of all answers, to GETs and of a PDF, each after those that it is made of."""
    answers: dict[type, None] = {}

    def add(kind: Any) -> None:
        for part in typing.get_args(kind):
            add(part)
        if dataclasses.is_dataclass(kind) and kind not in answers:
            for hint in typing.get_type_hints(kind).values():
                add(hint)
            answers[typing.cast(type, kind)] = None

    for answer in (Failure, PdfText, ModelPreview, *(request.answer for request in every_request())):
        add(answer)
    return tuple(answers)


def _interface(answer: type) -> str:
    hints, arrays = typing.get_type_hints(answer), array_fields(answer)
    names = (field.name for field in dataclasses.fields(answer) if field.name not in arrays)
    fields = "".join(f"  {name}: {_type(hints[name])};\n" for name in names)
    return f"{_comment(answer)}\nexport interface {answer.__name__} {{\n{fields}}}"


def _requests() -> str:
    head = f"/** The GETs of the API, each a function that spells its path. {WRITTEN} */"
    answers = (_answer(request) for request in every_request())
    names = sorted({answer.__name__ for answer in answers if dataclasses.is_dataclass(answer)})
    imports = "import { arrays, json } from './request';\n"
    imports += "import type {\n" + "".join(f"  {name},\n" for name in names) + "} from './types';"
    return "\n\n".join((head, imports, *map(_function, every_request()))) + "\n"


def _function(request: type[PageRequest]) -> str:
    name = request.__name__.removesuffix("Request")
    hints, fields = typing.get_type_hints(request), dataclasses.fields(request)
    optional = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
    defaults = [f"{key}: {_literal(value)}" for key, value in optional.items() if value is not None]
    declared = [f"path: '{request.path}'"]
    if request.query():
        declared.append(f"query: [{', '.join(map(_literal, request.query()))}]")
    if defaults:
        declared.append(f"defaults: {{ {', '.join(defaults)} }}")
    if request.grows:
        declared.append("grows: true")
    values = [f"{{ {', '.join(declared)} }}", *(["given"] if fields else [])]
    parameters = [
        f"{field.name}{'?' if field.name in optional else ''}: {_type(hints[field.name], exact=True)}"
        for field in fields
    ]
    takes = f"given: {{ {'; '.join(parameters)} }}" if fields else ""
    kind = "arrays" if _is_arrays(request) else "json"
    return (
        f"{_comment(request)}\nexport const {name[0].lower()}{name[1:]} = ({takes}) =>\n"
        f"  {kind}<{_type(_answer(request))}>({', '.join(values)});"
    )


def _views() -> str:
    names = {view.id: view.id.capitalize() for view in VIEWS}
    imports = [
        "import type { Component } from 'svelte';",
        "import type { Explorer } from '../state/explorer.svelte';",
        *(f"import {name} from './{id}/{name}.svelte';" for id, name in sorted(names.items())),
    ]
    hints = typing.get_type_hints(View)
    declared = [f"{name}: {_type(hint, exact=True)};" for name, hint in hints.items()]
    declared.append("component: Component<{ explorer: Explorer }>;")
    rows = []
    for view in VIEWS:
        values = (f"{name}: {json.dumps(value)}" for name, value in dataclasses.asdict(view).items())
        rows.append(f"  {{ {', '.join(values)}, component: {names[view.id]} }},\n")
    return "\n\n".join(
        (
            f"/** The views of the page and their components. {WRITTEN} */",
            "\n".join(imports),
            "/** Groups of tabs, in their order. */\nexport const GROUPS = "
            f"[{', '.join(map(_literal, typing.get_args(Group)))}] as const;",
            "export interface View {\n" + "".join(f"  {line}\n" for line in declared) + "}",
            "export const VIEWS: readonly View[] = [\n" + "".join(rows) + "];\n",
        )
    )


def _literal(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value)


def _is_arrays(request: type[PageRequest]) -> bool:
    return typing.get_origin(request.answer) is Arrays


def _answer(request: type[PageRequest]) -> Any:
    """What answers, or the meta of the arrays that do."""
    return typing.get_args(request.answer)[0] if _is_arrays(request) else request.answer


def _comment(answer: type) -> str:
    words = inspect.cleandoc(answer.__doc__ or "").replace("``", "`")
    if "\n" not in words:
        return f"/** {words} */"
    lines = "".join(f" * {line}".rstrip() + "\n" for line in words.splitlines())
    return f"/**\n{lines} */"


def _type(hint: Any, *, exact: bool = False) -> str:
    """A type of Python's as the page spells it; of a literal the values, if ``exact``."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " | ".join(f"'{part}'" for part in parts) if exact else "string"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(_type(part, exact=exact) for part in parts)
    if origin is tuple:
        if parts[1:] != (...,):
            return f"[{', '.join(map(_type, parts))}]"
        inner = _type(parts[0])
        return f"({inner})[]" if " | " in inner else f"{inner}[]"
    if origin is dict:
        return f"Record<{', '.join(map(_type, parts))}>"
    return hint.__name__ if dataclasses.is_dataclass(hint) else PLAIN[hint]


def main() -> int:
    """Write the files, or compare them."""
    wanted = files()
    if "--check" in sys.argv[1:]:
        return int(any((FOLDER / name).read_text(encoding="utf-8") != text for name, text in wanted.items()))
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
