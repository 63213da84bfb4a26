"""What a run tells while it trains: the methods that an object can have."""

import inspect
from collections.abc import Callable, Mapping
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
