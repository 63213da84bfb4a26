"""What a run tells while it trains, and who receives it: objects, functions, or standard error."""

import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from unmask.errors import InvalidRequest, quoted

ARGUMENTS: Mapping[str, int] = {"say": 1, "tokenizing": 3, "step": 1, "evaluation": 1, "end": 1}
"""The methods of a callback, with the number of their arguments."""

Say = Callable[[str], None]
"""Receives a sentence, such as `Callback.say`."""


class Callback:
    """What a run tells. Each method does nothing, so a subclass has only those that it needs, and
    ``unmask.Callback()`` itself makes a run silent."""

    def say(self, sentence: str) -> None:
        """Receive a note, such as the number of texts or the figures of an evaluation."""

    def tokenizing(self, source: str, documents: int, tokens: int) -> None:
        """A source is being tokenized; receive the documents and tokens processed so far."""

    def step(self, figures: Mapping[str, float]) -> None:
        """Receive a line of the log, with ``step``, ``steps``, ``tokens_per_second``, ``seconds_left`` and
        more."""

    def evaluation(self, figures: Mapping[str, float]) -> None:
        """Receive the figures of an evaluation, such as ``dev/accuracy``, with its ``step``."""

    def end(self, result: Any) -> None:
        """Receive the result of a run, which its function then returns. Of several seeds or trials, each has
        its own."""


def check_callback(callback: object) -> None:
    """Refuse what a run cannot call.

    Raises:
        InvalidRequest: it is no function of one mapping and has no method of `Callback`, or one with other
            arguments.
    """
    if callback is None:
        return
    if isinstance(callback, type):
        raise InvalidRequest(
            f"callback is the class {callback.__name__}; give an object of it, {callback.__name__}()"
        )
    methods = {name: getattr(callback, name) for name in ARGUMENTS if hasattr(callback, name)}
    if not methods and not callable(callback):
        raise InvalidRequest(
            f"callback is {quoted(callback)}; give a function of one mapping, or an object with some of the "
            f"methods {', '.join(ARGUMENTS)}, such as a subclass of unmask.Callback"
        )
    for name, method in (methods or {"": callback}).items():
        number = ARGUMENTS.get(name, 1)
        if not callable(method) or not _takes(method, number):
            what = f"the method {name} of callback" if name else "callback"
            raise InvalidRequest(
                f"{what} is {quoted(method)}; it must be a function that can be called with "
                f"{number} {'argument' if number == 1 else 'arguments'}, see unmask.Callback"
            )


def _takes(function: Callable[..., object], number: int) -> bool:
    try:
        inspect.signature(function).bind(*range(number))
    except TypeError:
        return False
    except ValueError:  # a function in C without a signature
        return True
    return True


SECONDS_BETWEEN_LINES = 10.0


class ProgressPrinter(Callback):
    """Prints progress to standard error: one updating line on a terminal, plain lines otherwise."""

    def __init__(self) -> None:
        # A program without a terminal, such as a service, may have no standard error.
        self._live = sys.stderr is not None and sys.stderr.isatty()
        self._last = -SECONDS_BETWEEN_LINES
        self._open = False

    def say(self, sentence: str) -> None:
        """Print a separate line."""
        self._print(sentence, end="\n")

    def tokenizing(self, source: str, documents: int, tokens: int) -> None:
        """Tokenization progress of a source, at most as often as `step`."""
        if self._wait():
            return
        counted = f"{documents:,} document" + ("" if documents == 1 else "s")
        self._print(f"tokenizing {source}: {counted}, {tokens:,} tokens", end="" if self._live else "\n")

    def step(self, figures: Mapping[str, float]) -> None:
        """Progress of the run; at most every ten seconds if not on a terminal."""
        if self._wait(last=figures["step"] == figures["steps"]):
            return
        terms = ", ".join(f"{name} {value:.3f}" for name, value in figures.items() if "/" in name)
        memory = f"{figures['memory_bytes'] / 2**30:.1f} GiB, " if "memory_bytes" in figures else ""
        line = (
            f"step {figures['step']:,.0f} of {figures['steps']:,.0f}: {terms}, "
            f"{figures['tokens_per_second']:,.0f} tokens/s, {figures['peak_share']:.0%} of peak, "
            f"{memory}{_duration(figures['seconds_left'])} left"
        )
        self._print(line, end="" if self._live else "\n")

    def end(self, result: Any) -> None:
        """End the updating line."""
        self.close()

    def close(self) -> None:
        """End the updating line."""
        if self._open:
            print(file=sys.stderr, flush=True)
            self._open = False

    def _wait(self, *, last: bool = False) -> bool:
        """Whether it is too soon for another progress line."""
        now = time.monotonic()
        if not self._live and now - self._last < SECONDS_BETWEEN_LINES and not last:
            return True
        self._last = now
        return False

    def _print(self, line: str, end: str) -> None:
        if sys.stderr is None:
            return
        print(f"\r\x1b[K{line}" if self._live else line, end=end, file=sys.stderr, flush=True)
        self._open = end == ""


def _duration(seconds: float) -> str:
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    return f"{hours} h {minutes % 60:02d} min" if hours else f"{minutes} min {int(seconds % 60):02d} s"


class _Adapted(Callback):
    """Passes on what a run tells to those of several objects that have the method."""

    def __init__(self, *receivers: object) -> None:
        for name in ARGUMENTS:
            methods = [getattr(receiver, name) for receiver in receivers if hasattr(receiver, name)]
            setattr(self, name, _all_of(methods))


def _all_of(methods: list[Callable[..., None]]) -> Callable[..., None]:
    def called(*values: Any) -> None:
        for method in methods:
            method(*values)

    return called


class _Function:
    """A function of one mapping as an object with methods."""

    def __init__(self, function: Callable[[Mapping[str, Any]], object]) -> None:
        self.function = function

    def step(self, figures: Mapping[str, float]) -> None:
        self.function({"event": "step", **figures})

    def evaluation(self, figures: Mapping[str, float]) -> None:
        self.function({"event": "evaluation", **figures})

    def end(self, result: Any) -> None:
        self.function({"event": "end", "result": result})


@contextmanager
def listener(callback: object, *, first: bool = True) -> Iterator[Callback]:
    """Who hears a run that was started with this callback.

    With none, and with a callback that has no method ``say``, notes and progress are printed to standard
    error, as on the command line.

    Args:
        callback: None; a function that takes one mapping; or an object with some methods of `Callback`.
        first: whether this is the first process of the run; others tell nothing.

    Raises:
        InvalidRequest: it is none of these.
    """
    check_callback(callback)
    if not first or isinstance(callback, Callback):
        yield callback if isinstance(callback, Callback) and first else Callback()
        return
    if hasattr(callback, "say"):
        yield _Adapted(callback)
        return
    printer = ProgressPrinter()
    known = any(hasattr(callback, name) for name in ARGUMENTS)
    try:
        yield _Adapted(printer, callback if known or not callable(callback) else _Function(callback))
    finally:
        printer.close()
