"""The program: its commands, and error handling (one line and a non-zero exit code).

The parser of the command line is imported where it is used: ``unmask --version`` needs none.
"""

import gc
import os
import re
import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NoReturn

import unmask
from unmask.base.progress import bound_caches
from unmask.cli.commands import PANELS
from unmask.cli.streams import STANDARD_INPUT, write_everything
from unmask.errors import BeyondTraining, UnmaskError

if TYPE_CHECKING:
    from cyclopts import App, CycloptsError, Group

LONGEST_PRINTED = 3000
"""Printed characters of an error; our longest errors list the refusal of every kernel."""


LONGEST = 1000
"""Maximum characters of a sentence; the middle of a longer one is omitted."""


_BOTH_WAYS = re.compile(r"\(\w+=[^()]*?, or (--[^()]+)\)")
"""How errors name a remedy for both interfaces: ``(truncation='end', or --truncation end)``."""


@cache
def _panels() -> "dict[str, Group]":
    """Made once: a command that several programs of this process hold is in one panel."""
    from cyclopts import Group

    return {title: Group(title, sort_key=number) for number, title in enumerate(PANELS)}


def program(chosen: str | None = None) -> "App":
    """The program, with the command of that name imported and all others by name alone."""
    from cyclopts import App

    app = App(
        name="unmask",
        help="Encoder-only Transformers: load them, run them fast, look inside them.",
        version=unmask.__version__,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for title, commands in PANELS.items():
        panel = _panels()[title]
        for number, command in enumerate(commands):
            path = f"{command.module}:{command.function}"
            if command.name != chosen:
                app.command(path, name=command.name, help=command.help, group=panel, sort_key=number)
            else:
                loaded = command.load()
                app.command(loaded, **({} if isinstance(loaded, App) else {"name": command.name}))
    return app


def main(build: "Callable[[str | None], App]" = program, name: str = "unmask") -> None:
    """Run the command that the arguments name; exit 0, 1 (it failed), 2 (misused) or 130 (stopped).

    ``build`` makes the program, given its first argument, and ``name`` is how it is started.
    """
    bound_caches()
    if sys.stdout is None:
        _stop(1, "standard output is closed, so no result can be shown; leave it open")
    for stream in (sys.stdout, sys.stderr):
        write_everything(stream)
    arguments = [STANDARD_INPUT if argument == "-" else argument for argument in sys.argv[1:]]
    try:
        with warnings.catch_warnings(record=True, action="always", category=BeyondTraining) as caught:
            if arguments == ["--version"] and build is program:
                print(unmask.__version__)
            else:
                _run(build, arguments)
        sys.stdout.flush()
        notes = {str(warning.message) for warning in caught if issubclass(warning.category, BeyondTraining)}
        for note in sorted(notes):
            _say(f"note: {note}")
    except UnmaskError as error:
        _stop(1, str(error))
    except KeyboardInterrupt as stop:
        _stop(130, str(stop) or "stopped")
    except BrokenPipeError:
        # The reader, such as head, closed the pipe; nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _stop(1, f"{error.strerror or error}: {error.filename or 'standard output'}")
    except Exception as error:
        from cyclopts import CycloptsError

        if not isinstance(error, CycloptsError):
            raise
        _stop(2, misuse(error, arguments, name))


def _run(build: "Callable[[str | None], App]", arguments: list[str]) -> None:
    try:
        _build_and_run(build, arguments)
    except ModuleNotFoundError as error:
        from unmask.base.optional import is_torch, require_torch

        if is_torch(error):
            require_torch(f"unmask {' '.join(arguments[:1])}")
        raise


def _build_and_run(build: "Callable[[str | None], App]", arguments: list[str]) -> None:
    # What imports allocate lives as long as the process: it is searched for garbage neither now nor later.
    gc.disable()
    try:
        built = build(next(iter(arguments), None))
        gc.freeze()
    finally:
        gc.enable()
    built(arguments, exit_on_error=False, print_error=False)


def _say(sentence: str) -> None:
    print(f"unmask: {one_line(sentence)}", file=sys.stderr)


def _stop(code: int, sentence: str) -> NoReturn:
    _say(sentence)
    # A failed flush must not be reported again at exit.
    sys.stdout = open(os.devnull, "w", encoding="utf-8", newline="\n")  # noqa: SIM115
    sys.exit(code)


def one_line(sentence: str) -> str:
    """The sentence on one printable line of bounded length."""
    line = _BOTH_WAYS.sub(r"(\1)", sentence.replace(STANDARD_INPUT, "-"))
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def misuse(error: "CycloptsError", arguments: list[str], program: str = "unmask") -> str:
    """What was wrong with the arguments of the program, in the terms the user typed."""
    from cyclopts import MissingArgumentError, UnknownOptionError, UnusedCliTokensError

    sentence = " ".join(str(error).split())
    if isinstance(error, UnknownOptionError) and arguments[0] in ("finetune", "pretrain"):
        from unmask.training.run.trainer_names import OURS, PRETRAINING, instead_of_option

        names = OURS if arguments[0] == "finetune" else PRETRAINING
        option = re.search(r"-[\w-]+", sentence)
        sentence = sentence if option is None else instead_of_option(option[0], names)
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        extra = " ".join(error.unused_tokens)
        sentence = (
            f"nothing takes {extra!r}; an option has one value unless its help says how several are separated"
        )
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.argument.name
        if name not in arguments and error.argument.field_info.is_positional:
            sentence = f"{name.removeprefix('--').upper()} is missing"
        elif name in arguments[:-1] and (value := arguments[arguments.index(name) + 1]).startswith("-"):
            sentence = f'{name} has no value; one that begins with "-" is given as {name}={value}'
    return f"{sentence} (see: {program} --help)"
