"""Old names that keep working for one release, with one line that names the new one.

Everything that accepts an old name asks the tables here, so removing them is one deletion.
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
Kind = TypeVar("Kind")


class RenamedWarning(FutureWarning):
    """An old name was used; the message names the new one."""


COMMAND_OPTIONS: dict[str, str] = {
    "--no-unit-length": "--no-normalize",
    "--reach": "--pattern",
    "--shape": "--architecture",
    "--too-long": "--truncation",
    "--unit-length": "--normalize",
    "ablate --designs": "--variants",
    "ablate --out": "--output",
    "evaluate --out": "--output",
}
"""Options of the command line, such as ``--too-long``, by old name; those of one command follow its name."""

COMMANDS: dict[str, str] = {"evolve": "ablate", "wall": "scaling"}
"""Commands by old name."""

OPTION_VALUES: dict[tuple[str, str], str] = {
    ("--pattern", "blocks"): "block-sparse",
    ("--pattern", "globals"): "sliding-window-global",
    ("--pattern", "whole"): "full",
    ("--pattern", "window"): "sliding-window",
    ("--pooling", "first"): "cls",
    ("--pooling", "mean_sqrt"): "mean_sqrt_len",
    ("--truncation", "cut"): "end",
}
"""New values by (new option, old value)."""

MODEL_NAMES: dict[str, str] = {
    f"design/{name}": f"variant/{name}"
    for name in ("alibi", "disentangled", "learned", "linear", "local-global", "unordered", "windows")
}
"""Shipped models by old name."""

REPORT_PROTOCOLS: dict[str, str] = {"wall": "scaling"}
"""Protocols in the reports of earlier versions."""

RUN_FILE_KEYS: dict[str, dict[str, str]] = {
    "RunSettings": {"optimiser": "optimizer"},
    "ModelSettings": {"initialisation": "initialization", "shape": "architecture"},
    "MaskingSpec": {"instead": "replacement", "unit": "mask_unit", "copies": "static_masks"},
    "SentencePairSpec": {"question": "task"},
    "SourceSpec": {"pieces": "split_by"},
    "TeacherChoice": {"inherit": "init_from_teacher"},
}
"""For each settings class of a run file, by name: new keys by old ones."""

RUN_FILE_VALUES: dict[tuple[str, str], dict[str, str]] = {
    ("Objective", "kind"): {"segments": "sentence_pairs"},
}
"""For each (settings class, new key): new values by old ones."""

ARGUMENT_VALUES: dict[tuple[str, str], str] = {
    ("truncation", "cut"): "end",
    ("pooling", "first"): "cls",
    ("pooling", "mean_sqrt"): "mean_sqrt_len",
}
"""New values by (new argument name, old value)."""


SPEC_NAMES: dict[str, str] = {
    "Blocks": "BlockSparse",
    "Whole": "FullAttention",
    "Window": "SlidingWindow",
    "WindowAndGlobals": "SlidingWindowGlobal",
    "reach": "pattern",
}
"""Classes and fields of a spec in a config.json of unmask's own format, which earlier versions wrote."""


def warn_renamed(what: str, old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warn that ``old`` is now called ``new``; ``what`` says what kind of name it is."""
    warnings.warn(f"{what} {old} is now called {new}", RenamedWarning, stacklevel=stacklevel)


def renamed_arguments(**new_names: str) -> Callable[[Function], Function]:
    """Let a function accept old keyword arguments, given as ``old="new"``, and old values.

    Raises:
        TypeError: an old and its new name are both given.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def accept(*args: Any, **arguments: Any) -> Any:
            for old, new in new_names.items():
                if old not in arguments:
                    continue
                if new in arguments:
                    raise TypeError(f"{function.__name__}() got both {new!r} and its old name {old!r}")
                warn_renamed("the argument", old, new)
                value = arguments.pop(old)
                if isinstance(value, str):
                    value = ARGUMENT_VALUES.get((new, value), value)
                arguments[new] = value
            for name, value in arguments.items():
                if isinstance(value, str) and (name, value) in ARGUMENT_VALUES:
                    arguments[name] = ARGUMENT_VALUES[name, value]
                    warn_renamed(f"the value of {name}", repr(value), repr(arguments[name]))
            return function(*args, **arguments)

        accept.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        return accept  # type: ignore[return-value]

    return decorate


def renamed_fields(**new_names: str) -> Callable[[type[Kind]], type[Kind]]:
    """Let the constructor of a dataclass accept old field names, given as ``old="new"``."""

    def decorate(kind: type[Kind]) -> type[Kind]:
        kind.__init__ = renamed_arguments(**new_names)(kind.__init__)  # type: ignore[method-assign]
        return kind

    return decorate


def renamed_method(old: str, new: str) -> Callable[..., Any]:
    """A method under its old name, which warns and calls the one of the new name."""

    def forward(self: Any, *args: Any, **arguments: Any) -> Any:
        warn_renamed("the method", old, new)
        return getattr(self, new)(*args, **arguments)

    forward.__name__, forward.__doc__ = old, f"The old name of `{new}`."
    return forward


def renamed_property(old: str, new: str) -> property:
    """A property under its old name, which warns and reads the one of the new name."""

    def read(self: Any) -> Any:
        warn_renamed("the property", old, new)
        return getattr(self, new)

    return property(read, doc=f"The old name of `{new}`.")


def renamed_keys(kind: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of a run file with the present names of the settings class ``kind``.

    A key that is given under both names is left for the reader to refuse.
    """
    keys = RUN_FILE_KEYS.get(kind, {})
    found: dict[str, Any] = {}
    for key, value in table.items():
        new = keys.get(key, key)
        if new != key and new not in table:
            warn_renamed("the run-file key", key, new)
        name = new if new not in table else key
        values = RUN_FILE_VALUES.get((kind, name), {})
        if isinstance(value, str) and value in values:
            warn_renamed(f"the value of {name}", repr(value), repr(values[value]))
            value = values[value]  # noqa: PLW2901
        found[name] = value
    return found


def renamed_command_line(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Arguments of the program under their present names, and a note for each old one."""
    found: list[str] = []
    notes: list[str] = []
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if place == 0:
            new = COMMANDS.get(name, name)
        else:
            new = COMMAND_OPTIONS.get(name) or COMMAND_OPTIONS.get(f"{found[0]} {name}", name)
        if new != name:
            notes.append(f"{name} is now called {new}")
        option = new if equals else (found[-1] if found else "")
        given = value if equals else argument
        if (option, given) in OPTION_VALUES:
            changed = OPTION_VALUES[option, given]
            notes.append(f"{option} {given} is now called {option} {changed}")
            found.append(f"{new}={changed}" if equals else changed)
        else:
            found.append(f"{new}{equals}{value}")
    return found, notes
