"""The reference of the commands, one page for each panel of ``unmask --help``."""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from cyclopts import App, Argument

from site_pages.markdown import code, prose, table
from unmask.cli.commands import PANELS
from unmask.cli.options import ModelOptions

WORDS = {str: "text", int: "number", float: "number", Path: "path", bool: "true or false"}
"""How the type of an option's value is called."""


INTRODUCTION = """\
# Commands

Every command has `--help`, which shows what these pages show. `unmask --version` prints the version. An error
is one line on standard error; the exit code is 1 if a command failed, 2 if its arguments are wrong, and 130
if it was stopped.
"""


def pages() -> dict[str, str]:
    """The Markdown of each page, by the name of its file; the first lists all commands."""
    shelves = {f"commands-{_slug(title)}.md": title for title in PANELS}
    found = {"commands.md": _overview(shelves)}
    for file, title in shelves.items():
        sections = (_section(name, function) for name, function in _functions(title))
        found[file] = f"# {title}\n\n" + "\n".join(sections)
    return found


def _slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower())


def _overview(shelves: dict[str, str]) -> str:
    """The page that lists the commands with the first sentence of each."""
    parts = [INTRODUCTION]
    for file, title in shelves.items():
        rows = [
            (f"[`unmask {command.name}`]({file}#unmask-{command.name})", prose(command.help))
            for command in PANELS[title]
        ]
        parts.append(f"## {title}\n\n{table(('command', 'what it does'), rows)}")
    tree = "\n".join(Path(file).stem for file in shelves)
    return "\n".join([*parts, f"```{{toctree}}\n:hidden:\n\n{tree}\n```\n"])


def _functions(title: str) -> Iterator[tuple[str, "Callable[..., None] | App"]]:
    """The commands of a panel, each group before its own commands."""
    for command in PANELS[title]:
        loaded = command.load()
        yield command.name, loaded
        if isinstance(loaded, App):
            for name in loaded:
                if not name.startswith("-"):
                    yield f"{command.name} {name}", loaded[name].default_command


def _section(name: str, function: "Callable[..., None] | App") -> str:
    """One command: how it is called, what it does and its options."""
    if isinstance(function, App):
        return f"## unmask {name}\n\n{prose(function.help)}\n"
    level = "###" if " " in name else "##"
    app = App()
    app.default(function)
    arguments = [one for one in app.assemble_argument_collection() if one.names != ("*",)]
    shared = {field.replace("_", "-") for field in ModelOptions.__dataclass_fields__} | {"adapter"}
    positional = [one for one in arguments if one.field_info.is_positional]
    options = [one for one in arguments if not one.field_info.is_positional]
    of_model = [one for one in options if one.name.removeprefix("--") in shared]
    if len(of_model) < len(ModelOptions.__dataclass_fields__):
        of_model = []
    rest = [one for one in options if one not in of_model]
    parts = [f"{level} unmask {name}", _usage(name, positional), prose(inspect.getdoc(function) or "")]
    for title, group in (("argument", positional), ("option", rest), ("model option", of_model)):
        if group:
            parts.append(table((title, "value", "default", "what it is"), map(_row, group)))
    return "\n\n".join(parts) + "\n"


def _usage(name: str, positional: list[Argument]) -> str:
    words = [_called(one) if one.required else f"[{_called(one)}]" for one in positional]
    return f"```text\n{' '.join(['unmask', name, *words, '[OPTIONS]'])}\n```"


def _called(argument: Argument) -> str:
    return argument.name.removeprefix("--").upper()


def _row(argument: Argument) -> tuple[str, str, str, str]:
    names = (_called(argument), *argument.names) if argument.field_info.is_positional else argument.names
    names = [name for name in names if name.startswith("-") or name == _called(argument)]
    default = argument.field_info.default
    if argument.required:
        said = "required"
    elif default in (None, False, (), "") or default is inspect.Parameter.empty:
        said = ""
    else:
        said = code(str(default).lower() if isinstance(default, bool) else str(default))
    return ", ".join(map(code, names)), value(argument.hint), said, prose(argument.parameter.help or "")


def value(hint: Any) -> str:
    """What an option takes: the word for its type, its choices, or nothing for a flag."""
    if hint is bool:
        return ""
    origin, members = get_origin(hint), get_args(hint)
    if origin is Literal:
        return ", ".join(code(str(member)) for member in members)
    if origin in (Union, UnionType):
        words = (value(member) for member in members if member is not NoneType)
        return ", ".join(dict.fromkeys(word for word in words if word))
    if origin in (list, tuple) and members:
        return f"{value(members[0])}, several"
    return WORDS.get(hint, code(getattr(hint, "__name__", str(hint))))
