"""The program: its commands, and error handling (one line and a non-zero exit code)."""

import os
import sys
import warnings
from typing import NoReturn

from cyclopts import App, CycloptsError

import unmask
from unmask.base.onednn import bound_caches
from unmask.cli.input import STANDARD_INPUT
from unmask.cli.look.compare import compare
from unmask.cli.look.explore import explore
from unmask.cli.look.gallery import gallery
from unmask.cli.look.geometry import geometry
from unmask.cli.look.head import head
from unmask.cli.look.look import look
from unmask.cli.look.report import report
from unmask.cli.look.senses import senses
from unmask.cli.look.sentence import misuse, one_line
from unmask.cli.look.sinks import sinks
from unmask.cli.measure.ablate import ablate
from unmask.cli.measure.bench import bench
from unmask.cli.measure.evaluate import evaluate
from unmask.cli.measure.kernels import kernels
from unmask.cli.measure.models import models
from unmask.cli.measure.scaling import scaling
from unmask.cli.search.index import index
from unmask.cli.search.index_export import index_export
from unmask.cli.search.search import search
from unmask.cli.serve import serve
from unmask.cli.tasks.answer import answer
from unmask.cli.tasks.choose import choose
from unmask.cli.tasks.classify import classify
from unmask.cli.tasks.embed import embed
from unmask.cli.tasks.fill import fill
from unmask.cli.tasks.similarity import similarity
from unmask.cli.tasks.tag import tag
from unmask.cli.tasks.watch import watch
from unmask.cli.train.finetune import finetune
from unmask.cli.train.mine import mine
from unmask.cli.train.pretrain import pretrain
from unmask.cli.weights.convert import convert
from unmask.cli.weights.export import export
from unmask.cli.weights.inspect import inspect
from unmask.errors import BeyondTraining, UnmaskError

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
    arguments = [STANDARD_INPUT if argument == "-" else argument for argument in sys.argv[1:]]
    try:
        with warnings.catch_warnings(record=True, action="always", category=BeyondTraining) as caught:
            app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
        notes = {str(warning.message) for warning in caught if issubclass(warning.category, BeyondTraining)}
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
