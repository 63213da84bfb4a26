"""Methods that take one text or several: a string gives its result, a list gives a list of results."""

import inspect
import types
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, get_args, overload

P = ParamSpec("P")
R = TypeVar("R")


class Bound(Protocol[P, R]):
    """A bound method, as type checkers and editors see it."""

    @overload
    def __call__(self, texts: str, /, *args: P.args, **options: P.kwargs) -> R: ...

    @overload
    def __call__(self, texts: Sequence[Any], /, *args: P.args, **options: P.kwargs) -> list[R]: ...


class Method(Generic[P, R]):
    """A method of a class, as type checkers see it; when it runs, it is a plain function."""

    def __get__(self, instance: object, owner: type | None = None) -> Bound[P, R]:
        """The method of an object."""
        raise NotImplementedError


def one_or_many(method: Callable[Concatenate[Any, Any, P], list[R]]) -> Method[P, R]:
    """Let a method of texts that returns a list return the only result of one string.

    ``help`` and `inspect.signature` show both returns. To type checkers the first argument has no name.
    """
    signature = inspect.signature(method)
    first = list(signature.parameters)[1]
    (result,) = get_args(signature.return_annotation) or (_item_of(signature.return_annotation),)

    @wraps(method)
    def either(*args: Any, **options: Any) -> Any:
        results = method(*args, **options)
        texts = args[1] if len(args) > 1 else options[first]
        return results[0] if isinstance(texts, str) else results

    annotation = (
        f"{result} | list[{result}]" if isinstance(result, str) else result | types.GenericAlias(list, result)
    )
    vars(either)["__signature__"] = signature.replace(return_annotation=annotation)
    return cast("Method[P, R]", either)


def _item_of(annotation: str) -> str:
    """The name in ``"list[Name]"``."""
    return annotation.removeprefix("list[").removesuffix("]")
