"""Public names that are about to go: they work for at least one minor release, and say what replaces them."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T", bound=Callable[..., object])


def deprecated(instead: str, *, since: str, removed_in: str) -> Callable[[T], T]:
    """Mark a public function, method, property's function or class that another one replaces.

    Each call, and each new object of a class, gives a `DeprecationWarning` that names the replacement and
    the release without the old name. ``scripts/public_api.py`` writes the mark beside the name.

    Args:
        instead: what to write now, such as ``"unmask.Model.embed"``.
        since: the release that first warns, such as ``"0.3.0"``.
        removed_in: the release that no longer has the name, at least one minor release later.
    """

    def mark(thing: T) -> T:
        from typing_extensions import deprecated as warning  # in the module warnings from Python 3.13 on

        name = thing.__qualname__
        return warning(
            f"{name} is deprecated since unmask {since} and will be removed in {removed_in}; use {instead}"
        )(thing)

    return mark
