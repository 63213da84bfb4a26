"""Writes `web/src/api/types.ts`: the results of the explorer's API as the page's TypeScript knows them.

    python scripts/page_schema.py            write it, as `make web` does
    python scripts/page_schema.py --check    only say whether it is up to date

The schema is defined in Python: the dataclasses of `unmask.explorer.api.session_schemas` and
`analysis_schemas`, and the version of the page's address.
"""

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unmask.explorer.api import analysis_schemas as findings
from unmask.explorer.api import session_schemas as results
from unmask.explorer.server.address import VERSION

TARGET = Path(__file__).parents[1] / "web" / "src" / "api" / "types.ts"
HEAD = "/** The typed results of the API. Written by scripts/page_schema.py from Python: change it there. */"
PLAIN = {
    int: "number",
    float: "number",
    str: "string",
    bool: "boolean",
    type(None): "null",
    typing.Any: "unknown",
}


def classes() -> Iterator[type]:
    """Everything that is answered, in the order of the file."""
    yield from findings.PUBLISHED
    for module in (results, findings):
        for value in vars(module).values():
            if dataclasses.is_dataclass(value) and value.__module__ == module.__name__:
                yield typing.cast(type, value)


def schema() -> str:
    """The whole file."""
    version = (
        f"/** Version of the page's state in its address. */\nexport const ADDRESS_VERSION = '{VERSION}';"
    )
    return "\n\n".join((HEAD, version, *map(_interface, classes()))) + "\n"


def _interface(one: type) -> str:
    hints = typing.get_type_hints(one)
    fields = "".join(f"  {field.name}: {_type(hints[field.name])};\n" for field in dataclasses.fields(one))
    return f"{_comment(one)}\nexport interface {one.__name__} {{\n{fields}}}"


def _comment(one: type) -> str:
    words = inspect.cleandoc(one.__doc__ or "").replace("``", "`")
    if "\n" not in words:
        return f"/** {words} */"
    lines = "".join(f" * {line}".rstrip() + "\n" for line in words.splitlines())
    return f"/**\n{lines} */"


def _type(given: Any) -> str:
    """A type of Python's as the page spells it."""
    origin, parts = typing.get_origin(given), typing.get_args(given)
    if origin is typing.Literal:
        return "string"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(_type, parts))
    if origin is tuple:
        return _type(parts[0]) + "[]" if parts[1:] == (...,) else f"[{', '.join(map(_type, parts))}]"
    if origin is dict:
        return f"Record<{', '.join(map(_type, parts))}>"
    return given.__name__ if dataclasses.is_dataclass(given) else PLAIN[given]


def main() -> int:
    """Write the file, or compare it."""
    wanted = schema()
    if "--check" in sys.argv[1:]:
        return 0 if TARGET.read_text(encoding="utf-8") == wanted else 1
    TARGET.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
