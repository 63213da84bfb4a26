"""The public API as text, one line per name, and what a change of it owes to its users.

    python scripts/public_api.py             write tests/unit/public_api.txt
    python scripts/public_api.py --release   record it as that of the present version, when it is released

Public are the names of ``unmask.__all__``, those of the modules among them, what the documents import from
the package or name with its whole path, the results that these return, and the choices that they take. The
source is read, not imported: the text is the same on every system and version of Python.
"""

import argparse
import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
CURRENT = ROOT / "tests" / "unit" / "public_api.txt"
RELEASED = ROOT / "tests" / "unit" / "public_api_released.txt"
FIRST_RELEASE = (0, 2)
"""Before this version names are simply deleted."""
PAGES = ("README.md", "docs/**/*.md")
NO_PAGES = {"_build", "adding-a-family.md", "architecture.md", "decisions", "generated", "log", "log.md"}
"""Pages and folders that are built, for those who change the package, or records of the past."""
VALUES = ("dataclass", "settings", "NamedTuple", "TypedDict")
RESULTS = {"bulk", "evaluate", "interpret", "search", "tasks", "text", "training"}
"""What a public call returns is public if its class is of these kinds and rooms: users read its fields."""

IMPORTS = re.compile(r"^\s*from (unmask[\w.]*) import (\([^)]*\)|[^(\n]+)", re.MULTILINE)

UNTYPED = ast.Constant(...)

Node = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class Definition:
    """Where a name is defined: its module, its name there, and its statement; None for a module."""

    module: str
    name: str
    node: Node | None


def version() -> str:
    """The version of the package."""
    definition = resolved("unmask", "__version__")
    assert definition is not None
    assert isinstance(definition.node, ast.Assign)
    return str(ast.literal_eval(definition.node.value))


def numbers_of(text: str) -> tuple[int, ...]:
    """The numbers of a version, for comparison: ``0.2.0rc1`` counts as ``0.2.0``."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def snapshot() -> list[str]:
    """One line per public name, sorted: its whole name, its signature or type, and its deprecation."""
    named = dict(_named())
    paths = {definition: path for path, definition in reversed(named.items())}
    reached = list(paths)
    for definition in reached:
        reached += dict.fromkeys(other for other in _mentioned(definition) if other not in reached)
    names = Counter(definition.name for definition in reached)
    for other in reached[len(paths) :]:
        paths[other] = other.name if names[other.name] == 1 else f"{other.module}.{other.name}"
    return sorted(line for definition, path in paths.items() for line in _lines(path, definition))


def name_of(line: str) -> str:
    """The name that a line is about."""
    return re.split(r"[(:= ]", line.removeprefix("class ").removeprefix("module "), maxsplit=1)[0]


def changed(released: Iterable[str], current: Iterable[str]) -> list[str]:
    """The names that were added or removed, or whose lines differ; of a whole class only its own name."""
    before, after = ({name_of(line): line for line in lines} for lines in (released, current))
    names = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    whole = {name for name in names if name not in before or name not in after}
    return sorted(name for name in names if not any(name.startswith(f"{other}.") for other in whole))


def unmentioned(names: Iterable[str], changelog: str) -> list[str]:
    """Those of the changed names of which the changelog says nothing under "Unreleased"."""
    _, _, text = changelog.partition("\n## Unreleased\n")
    text = text.partition("\n## ")[0]
    return [name for name in names if not re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", text)]


def removed_unannounced(released: Iterable[str], current: Iterable[str], present: str) -> list[str]:
    """Names of the last release that are gone, although it did not announce that for the present version."""
    if numbers_of(present) < FIRST_RELEASE:
        return []
    remaining = {name_of(line) for line in current}
    announced = {
        name_of(line)
        for line in released
        if (when := re.search(r"\[deprecated .* removed in ([\d.]+)", line))
        and numbers_of(when[1]) <= numbers_of(present)
    }
    gone = [name for line in released if (name := name_of(line)) not in remaining]
    return [name for name in gone if not any(f"{name}.".startswith(f"{other}.") for other in announced)]


def newest_release(changelog: str) -> str | None:
    """The version of the newest heading below "Unreleased"; None before the first release."""
    heading = re.search(r"^## v?(\d[\w.]*)", changelog, re.MULTILINE)
    return heading[1] if heading else None


def recorded() -> tuple[str | None, list[str]]:
    """The last release, None before the first one, and its lines."""
    if not RELEASED.exists():
        return None, []
    first, *lines = RELEASED.read_text(encoding="utf-8").splitlines()
    return first.removeprefix("# "), lines


# What is public.


def _named() -> Iterator[tuple[str, Definition]]:
    """The names that are public by themselves, the shortest path of each first."""
    for name in _exported("unmask"):
        if definition := resolved("unmask", name):
            yield f"unmask.{name}", definition
    for name in _exported("unmask"):
        definition = resolved("unmask", name)
        if definition and definition.node is None:
            for member in _exported(definition.module):
                if inside := resolved(definition.module, member):
                    yield f"{definition.module}.{member}", inside
    for path in _documented():
        module, _, name = path.rpartition(".")
        if (definition := resolved(module, name)) and definition.node is not None:
            yield path, definition


def _documented() -> list[str]:
    """Whole names that pages for users import in a block, or write as code."""
    paths: set[str] = set()
    for page in sorted(page for pattern in PAGES for page in ROOT.glob(pattern)):
        if NO_PAGES & set(page.parts):
            continue
        text = page.read_text(encoding="utf-8")
        paths |= set(re.findall(r"`(unmask(?:\.\w+)+)[`(]", text))
        for module, names in IMPORTS.findall(text):
            paths |= {f"{module}.{name}" for name in re.findall(r"\w+", re.sub(r" as \w+|#.*", "", names))}
    return sorted(paths)


def _mentioned(definition: Definition) -> Iterator[Definition]:
    """The values that calls return and values hold, and the choices that arguments take."""
    members: list[tuple[str, ast.stmt]] = [(definition.module, definition.node)] if definition.node else []
    if isinstance(definition.node, ast.ClassDef):
        members = list(_members(definition))
    for module, member in members:
        for annotation, returned in _annotations(member):
            for name in re.findall(r"\b[A-Z]\w*", ast.unparse(annotation)):
                other = resolved(module, name)
                if other and other != definition and (_is_choice(other) or (returned and _is_value(other))):
                    yield other


def _annotations(node: ast.stmt) -> Iterator[tuple[ast.expr, bool]]:
    """Each annotation of a function or field, and whether it is of what users get."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = (part.annotation for part in ast.walk(node.args) if isinstance(part, ast.arg))
        yield from ((annotation, False) for annotation in arguments if annotation)
        if node.returns:
            yield node.returns, True
    elif isinstance(node, ast.AnnAssign):
        yield node.annotation, True


def _is_choice(definition: Definition) -> bool:
    node = definition.node
    return isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Literal[")


def _is_value(definition: Definition) -> bool:
    if not isinstance(definition.node, ast.ClassDef) or not RESULTS & set(definition.module.split(".")[1:2]):
        return False
    marks = [ast.unparse(mark) for mark in (*definition.node.decorator_list, *definition.node.bases)]
    return any(mark.startswith(kind) for mark in marks for kind in VALUES)


# Reading the source.


@cache
def _module(name: str) -> ast.Module:
    return ast.parse(_file(name).read_text(encoding="utf-8"))


def _file(name: str) -> Path:
    path = ROOT.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _bound(node: ast.stmt) -> list[str]:
    """The names that a statement of a module or class gives a meaning."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.name]
        case ast.Assign():
            return [target.id for target in node.targets if isinstance(target, ast.Name)]
        case ast.AnnAssign():
            return [node.target.id] if isinstance(node.target, ast.Name) else []
        case _:
            return []


@cache
def _names(module: str) -> dict[str, Definition | tuple[str, str]]:
    """What a module defines, and what it imports from the package, each with where it comes from."""
    names: dict[str, Definition | tuple[str, str]] = {}
    for node in ast.walk(_module(module)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "unmask":
            for alias in node.names:  # those of the module itself come before those within functions
                names.setdefault(alias.asname or alias.name, (str(node.module), alias.name))
    for node in _module(module).body:
        if isinstance(node, Node):
            names |= {name: Definition(module, name, node) for name in _bound(node)}
    return names


def resolved(module: str, name: str) -> Definition | None:
    """Where a name of a module is defined within the package; None if it is not."""
    if not _file(module).is_file():
        return None
    source = _names(module).get(name)
    if source is None or source == (module, name):
        inner = f"{module}.{name}"
        return Definition(inner, "", None) if _file(inner).is_file() else None
    return source if isinstance(source, Definition) else resolved(*source)


def _exported(module: str) -> list[str]:
    """``__all__``; without one, the public classes and functions that the module itself defines."""
    names = _names(module)
    listed = names.get("__all__")
    if isinstance(listed, Definition) and isinstance(listed.node, ast.Assign):
        return [str(name) for name in ast.literal_eval(listed.node.value)]
    return [
        name
        for name, source in names.items()
        if isinstance(source, Definition)
        and not name.startswith("_")
        and isinstance(source.node, ast.ClassDef | ast.FunctionDef)
    ]


def _members(definition: Definition) -> Iterator[tuple[str, ast.stmt]]:
    """The public statements of a class and of its bases in the package, the nearest of each name."""
    seen: set[str] = set()
    for module, node in _with_bases(definition):
        fresh: set[str] = set()
        for member in (*node.body, *_attributes(node)):
            names = _bound(member)
            public = {name for name in names if not name.startswith("_") or name == "__init__"} - seen
            if public and "overload" not in _decorators(member):
                fresh |= public
                yield module, member
        seen |= fresh


def _attributes(node: ast.ClassDef) -> Iterator[ast.AnnAssign]:
    """The attributes that a constructor sets, as fields of a class; ``...`` for one without a type."""
    types: dict[str, ast.expr] = {}
    constructors = (member for member in node.body if _bound(member) == ["__init__"])
    for statement in (inner for constructor in constructors for inner in ast.walk(constructor)):
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in (part for whole in targets for part in ast.walk(whole)):
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                    types[target.attr] = getattr(statement, "annotation", types.get(target.attr, UNTYPED))
    for name, annotation in types.items():
        yield ast.AnnAssign(ast.Name(name), annotation, None, 1)


def _with_bases(definition: Definition) -> Iterator[tuple[str, ast.ClassDef]]:
    assert isinstance(definition.node, ast.ClassDef)
    yield definition.module, definition.node
    for base in definition.node.bases:
        source = resolved(definition.module, ast.unparse(base).partition("[")[0])
        if source and isinstance(source.node, ast.ClassDef):
            yield from _with_bases(source)


def _decorators(node: ast.stmt) -> list[str]:
    return [ast.unparse(decorator) for decorator in getattr(node, "decorator_list", [])]


# Writing lines.


def _lines(path: str, definition: Definition) -> Iterator[str]:
    node = definition.node
    if node is None:
        yield f"module {path}"
        return
    if not isinstance(node, ast.ClassDef):
        yield _line(path, node)
        return
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    yield f"class {path}{f'({bases})' if bases else ''}{_marks(node)}"
    for _, member in _members(definition):
        for name in _bound(member):
            yield _line(f"{path}.{name}", member)


def _line(path: str, node: ast.stmt) -> str:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            return f"{path}({ast.unparse(node.args)}){returns}{_marks(node)}"
        case ast.AnnAssign():
            # The value of a field is its default, that of an alias its meaning, that of a constant an inside.
            shown = node.value is not None and not path.rpartition(".")[2].isupper()
            value = f" = {ast.unparse(node.value)}" if shown and node.value else ""
            return f"{path}: {ast.unparse(node.annotation)}{value}"
        case ast.Assign():
            return path if path.rpartition(".")[2].isupper() else f"{path} = {ast.unparse(node.value)}"
        case _:
            raise TypeError(f"{path} is no function, class or value")


def _marks(node: ast.stmt) -> str:
    """What decorators make of it: how it is read or called, and until when it stays."""
    text = ""
    for decorator in _decorators(node):
        if decorator.startswith("deprecated("):
            call = ast.parse(decorator, mode="eval").body
            assert isinstance(call, ast.Call)
            when = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
            instead = ast.literal_eval(call.args[0])
            text += f"  [deprecated since {when['since']}, removed in {when['removed_in']}: use {instead}]"
        else:
            text += f"  @{decorator}"
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file, or the record of a release."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--release", action="store_true", help="record the API of this version as released")
    lines = snapshot()
    CURRENT.write_text("\n".join([*lines, ""]), encoding="utf-8")
    if parser.parse_args(arguments).release:
        RELEASED.write_text("\n".join([f"# {version()}", *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
