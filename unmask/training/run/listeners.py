"""Who hears a run: a function, an object with some methods, or standard error."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from unmask.training.run.callbacks import ARGUMENTS, Callback, check_callback
from unmask.training.run.printed import ProgressPrinter


class _Adapted(Callback):
    """Passes on what a run tells to those of several objects that have the method."""

    def __init__(self, *heard: object) -> None:
        for name in ARGUMENTS:
            methods = [getattr(one, name) for one in heard if hasattr(one, name)]
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
