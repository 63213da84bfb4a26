"""The program: its commands, and error handling (one line and a non-zero exit code)."""

import os
import sys
import warnings
from typing import NoReturn

from cyclopts import App, CycloptsError

import unmask
from unmask.cli.ablate import ablate
from unmask.cli.answer import answer
from unmask.cli.bench import bench
from unmask.cli.choose import choose
from unmask.cli.classify import classify
from unmask.cli.compare import compare
from unmask.cli.convert import convert
from unmask.cli.embed import embed
from unmask.cli.evaluate import evaluate
from unmask.cli.explore import explore
from unmask.cli.export import export
from unmask.cli.fill import fill
from unmask.cli.finetune import finetune
from unmask.cli.gallery import gallery
from unmask.cli.geometry import geometry
from unmask.cli.head import head
from unmask.cli.index import index
from unmask.cli.index_export import index_export
from unmask.cli.input import STANDARD_INPUT
from unmask.cli.inspect import inspect
from unmask.cli.kernels import kernels
from unmask.cli.look import look
from unmask.cli.mine import mine
from unmask.cli.models import models
from unmask.cli.output import write_everything
from unmask.cli.pretrain import pretrain
from unmask.cli.report import report
from unmask.cli.scaling import scaling
from unmask.cli.search import search
from unmask.cli.senses import senses
from unmask.cli.sentence import misuse, one_line
from unmask.cli.serve import serve
from unmask.cli.similarity import similarity
from unmask.cli.sinks import sinks
from unmask.cli.tag import tag
from unmask.cli.watch import watch
from unmask.deprecation import RenamedWarning, renamed_command_line
from unmask.errors import BeyondTraining, UnmaskError
from unmask.onednn import bound_caches

COMMANDS = (
    look,
    head,
    sinks,
    explore,
    report,
    gallery,
    geometry,
    senses,
    fill,
    watch,
    compare,
    embed,
    similarity,
    index,
    index_export,
    search,
    classify,
    tag,
    answer,
    choose,
    serve,
    finetune,
    mine,
    pretrain,
    inspect,
    convert,
    export,
    models,
    kernels,
    scaling,
)
"""Every command, in the order of the help text."""
GROUPS = (bench, evaluate, ablate)
"""Commands with subcommands; they come last."""

LONGEST_SENTENCE = 3000
"""Printed characters of an error; our longest errors list the refusal of every kernel."""

app = App(
    name="unmask",
    help="Encoder-only Transformers: load them, run them fast, look inside them.",
    version=unmask.__version__,
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
for command in COMMANDS:
    app.command(command, sort_key=COMMANDS.index(command))
for group in GROUPS:
    app.command(group)


def main() -> None:
    """Run the command that the arguments name; exit 0, 1 (it failed), 2 (misused) or 130 (stopped)."""
    bound_caches()
    if sys.stdout is None:
        _stop(1, "standard output is closed, so no result can be shown; leave it open")
    for stream in (sys.stdout, sys.stderr):
        write_everything(stream)
    arguments = [STANDARD_INPUT if argument == "-" else argument for argument in sys.argv[1:]]
    arguments, renamed = renamed_command_line(arguments)
    for note in renamed:
        _say(f"note: {note}")
    try:
        with warnings.catch_warnings(record=True, action="always", category=BeyondTraining) as caught:
            warnings.simplefilter("always", RenamedWarning)
            app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
        notes = {
            str(one.message) for one in caught if issubclass(one.category, (BeyondTraining, RenamedWarning))
        }
        for note in sorted(notes):
            _say(f"note: {note}")
    except UnmaskError as error:
        _stop(1, str(error))
    except CycloptsError as error:
        _stop(2, misuse(error, arguments))
    except KeyboardInterrupt as stop:
        _stop(130, str(stop) or "stopped")
    except BrokenPipeError:
        # The reader, such as head, closed the pipe; nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _stop(1, f"{error.strerror or error}: {error.filename or 'standard output'}")


def _say(sentence: str) -> None:
    print(f"unmask: {one_line(sentence)}", file=sys.stderr)


def _stop(code: int, sentence: str) -> NoReturn:
    _say(sentence)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - a failed flush must not be reported again at exit
    sys.exit(code)
