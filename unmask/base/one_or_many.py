"""Methods and functions of one text or several: a string gives its result, a list gives a list of results."""

import inspect
import types
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, get_args, overload

Result = TypeVar("Result")
P = ParamSpec("P")


class Bound(Protocol[P, Result]):
    """A bound method, or a function, as type checkers and editors see it."""

    @overload
    def __call__(self, texts: str, /, *args: P.args, **options: P.kwargs) -> Result: ...

    @overload
    def __call__(self, texts: Sequence[Any], /, *args: P.args, **options: P.kwargs) -> list[Result]: ...


class Method(Generic[P, Result]):
    """A method of a class, as type checkers see it; when it runs, it is a plain function."""

    def __get__(self, instance: object, owner: type | None = None) -> Bound[P, Result]:
        """The method of an object."""
        raise NotImplementedError


def one_or_many(method: Callable[Concatenate[Any, Any, P], list[Result]]) -> Method[P, Result]:
    """Let a method of texts that returns a list return the only result of one string.

    ``help`` and `inspect.signature` show both returns. To type checkers the first argument has no name.
    """
    return cast("Method[P, Result]", _either(method, 1))


def one_text_or_many(function: Callable[Concatenate[Any, P], list[Result]]) -> Bound[P, Result]:
    """The same for a function, whose first argument is the texts."""
    return cast("Bound[P, Result]", _either(function, 0))


def _either(function: Callable[..., list[Result]], place: int) -> Callable[..., Any]:
    """The function with both returns; its argument of that number is the texts."""
    signature = inspect.signature(function)
    name = list(signature.parameters)[place]
    (result,) = get_args(signature.return_annotation) or (_item_of(signature.return_annotation),)

    @wraps(function)
    def either(*args: Any, **options: Any) -> Any:
        results = function(*args, **options)
        texts = args[place] if len(args) > place else options[name]
        return results[0] if isinstance(texts, str) else results

    annotation = (
        f"{result} | list[{result}]" if isinstance(result, str) else result | types.GenericAlias(list, result)
    )
    vars(either)["__signature__"] = signature.replace(return_annotation=annotation)
    return either


def _item_of(annotation: str) -> str:
    """The name in ``"list[Name]"``."""
    return annotation.removeprefix("list[").removesuffix("]")
