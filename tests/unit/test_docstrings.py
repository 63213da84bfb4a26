"""Docstrings of public names: arrays have shapes, errors are named, and every name is in the reference."""

import ast
import inspect
import re
from functools import cache, cached_property
from importlib import import_module
from textwrap import dedent

import pytest

from tests.support.places import REPOSITORY

DOCS = REPOSITORY / "docs"
MODULES = (
    "unmask",
    "unmask.bulk",
    "unmask.errors",
    "unmask.evaluate",
    "unmask.families",
    "unmask.interpret",
    "unmask.interpret.geometry",
    "unmask.serve",
    "unmask.spec",
)
"""Modules whose names are public; other public names are those that the pages import."""
SHAPE = re.compile(r"\((?:[A-Za-z][\w +*/-]*|\d+),(?: ?[A-Za-z0-9][\w +*/-]*,?)*\)|\bshape|\bscalar")
"""A shape, such as (N,) or (L, H, N), or what says that there is one."""
ARRAY = re.compile(r"NDArray|ndarray|Tensor\b|Floats\b|\bIds\b")
AXES = re.compile(r"_[A-Z][A-Za-z0-9]{0,3}$")
"""The end of a name that has the axes of its array."""


def offered(module):
    """The public names of a module: its ``__all__``, or the classes of `unmask.errors`."""
    found = import_module(module)
    classes = (name for name, value in vars(found).items() if inspect.isclass(value))
    return getattr(found, "__all__", None) or [
        name for name in classes if getattr(found, name).__module__ == module
    ]


def imported():
    """(module, name) that the Python of a page imports from the package."""
    for page in DOCS.rglob("*.md"):
        if page.parent.name in ("generated", "log"):
            continue
        for block in re.findall(
            r"^```(?:python|text)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL
        ):
            for line in re.findall(r"^from unmask[\w.]* import (?:\([^)]*\)|.*)$", block, re.MULTILINE):
                (node,) = ast.parse(line).body
                yield from ((node.module, alias.name) for alias in node.names)


@cache
def public():
    """Every public object by its full name; each once."""
    names = [(module, name) for module in MODULES for name in offered(module)]
    found = {}
    for module, name in (*names, *sorted(set(imported()))):
        value = getattr(import_module(module), name)
        if not inspect.ismodule(value) and not any(value is other for other in found.values()):
            found[f"{module}.{name}"] = value
    return found


def functions():
    """(name, function, docstring of its class) of every public function, method and property."""
    for name, value in public().items():
        if inspect.isfunction(value):
            yield name, value, ""
        elif inspect.isclass(value):
            for owner in value.__mro__:
                if not owner.__module__.startswith("unmask"):
                    continue
                for member, found in vars(owner).items():
                    function = function_of(found)
                    # A lambda is the default of a field.
                    named = function is not None and function.__name__ == member
                    if named and not member.startswith("_"):
                        yield f"{name}.{member}", function, inspect.getdoc(owner) or ""


def function_of(member):
    """The function behind a method or a property; None if there is none."""
    match member:
        case property(fget=function) | cached_property(func=function):
            return inspect.unwrap(function)
        case classmethod() | staticmethod():
            return inspect.unwrap(member.__func__)
        case _:
            return inspect.unwrap(member) if inspect.isfunction(member) else None


def undocumented(kind):
    """Whether a class has no docstring, or the signature that a dataclass writes in its place."""
    return not kind.__doc__ or kind.__doc__.startswith(f"{kind.__name__}(")


def lacks(name, function, of_class=""):
    """What the docstring of a function does not say."""
    text = inspect.getdoc(function) or ""
    if not text:
        return "a docstring"
    returns = str(inspect.signature(function).return_annotation)
    if ARRAY.search(returns) and not (SHAPE.search(text) or SHAPE.search(of_class) or AXES.search(name)):
        return "the shape of what it returns"
    if raises(function) and "Raises:" not in text and not text.startswith("See `"):
        return "the errors that it raises"
    return None


def raises(function):
    """Whether a function itself raises an error or checks an argument."""
    body = ast.parse(dedent(inspect.getsource(function)))
    nodes = [*ast.walk(body)]
    called = {
        node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    checks = any(re.match(r"check_|require|whole_number$", name) for name in called)
    return checks or any(isinstance(node, ast.Raise) and node.exc is not None for node in nodes)


def test_public_names_say_what_they_are():
    assert len(public()) > 150
    classes = {name: value for name, value in public().items() if inspect.isclass(value)}
    assert [name for name, value in classes.items() if undocumented(value)] == []
    assert {name: missing for name, *rest in functions() if (missing := lacks(name, *rest))} == {}


def test_public_names_are_in_the_reference():
    pages = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    documented = set()
    for kind, name in re.findall(r"^\.\. auto(\w+):: (\S+)$", pages, re.MULTILINE):
        module, _, last = name.rpartition(".")
        whole = [getattr(import_module(name), one) for one in offered(name)] if kind == "module" else []
        documented |= {id(value) for value in whole or [getattr(import_module(module), last)]}
    assert [name for name, value in public().items() if id(value) not in documented] == []


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("def f() -> int: ...", "a docstring"),
        ("def f() -> 'NDArray':\n    '''Vectors.'''", "the shape of what it returns"),
        ("def f() -> 'NDArray':\n    '''Vectors, (S, E).'''", None),
        ("def f() -> None:\n    '''Do it.'''\n    raise ValueError('no')", "the errors that it raises"),
        ("def f() -> None:\n    '''Do it.\n\n    Raises:\n        E: no.\n    '''\n    raise E", None),
    ],
)
def test_what_a_docstring_lacks_is_seen(source, missing, tmp_path, monkeypatch):
    (tmp_path / "documented.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "documented", raising=False)
    assert lacks("f", import_module("documented").f) == missing
