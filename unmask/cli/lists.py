"""Options with several values, as people write them: repeated, or separated by spaces or commas."""

from collections.abc import Sequence
from typing import Any

from cyclopts import Parameter, Token, convert


def listed(help: str, name: str | None = None, *, spaces: bool = True) -> Parameter:
    """An option of a list, whose values do not hold commas.

    Args:
        help: what the values are.
        name: the option; None for that of the argument.
        spaces: False for commands whose other arguments may follow the option without a name.
    """
    ways = "spaces or commas" if spaces else "commas"
    return Parameter(
        name=name,
        negative="",
        consume_multiple=1 if spaces else False,
        converter=_converted,
        help=f"{help}; several are separated by {ways}",
    )


def _converted(kind: Any, tokens: Sequence[Token]) -> Any:
    return convert(kind, [token.evolve(value=part) for token in tokens for part in parts(token.value)])


def parts(value: str) -> list[str]:
    """The parts of a value that commas separate."""
    return [part.strip() for part in value.split(",") if part.strip()]
