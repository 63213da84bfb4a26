"""Settings: frozen dataclasses whose values have the types of their fields, from Python or from TOML."""

import dataclasses
import difflib
import functools
import numbers
import tomllib
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from unmask.errors import InvalidRequest, UnmaskError

Value = TypeVar("Value")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def settings(kind: type[Value]) -> type[Value]:
    """A frozen dataclass that checks the types of its values before its own ``__post_init__``.

    Whole numbers and numbers of other libraries become Python's, lists become tuples, and a table may stand
    for a field that is a dataclass.

    Raises (its constructor):
        InvalidRequest: a value does not have the type of its field.
    """
    check_ranges = getattr(kind, "__post_init__", None)

    @functools.cache
    def field_types() -> dict[str, Any]:
        types_of = get_type_hints(kind)
        return {field.name: types_of[field.name] for field in dataclasses.fields(kind) if field.init}  # type: ignore[arg-type]

    def check(self: Any) -> None:
        for name, field_type in field_types().items():
            object.__setattr__(self, name, _value(field_type, getattr(self, name), name))
        if check_ranges is not None:
            check_ranges(self)

    kind.__post_init__ = check  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True)(kind)


def read_toml(path: Path, read: Callable[[Mapping[str, Any]], Value]) -> Value:
    """Read the settings in a TOML file with ``read``, whose errors then name the file.

    Raises:
        InvalidRequest: it cannot be read, is not TOML, or has invalid settings.
    """
    try:
        table = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} is not TOML: {error}") from None
    try:
        return read(table)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path.name}: {error}") from None


def read_table(kind: type[Value], table: object, where: str) -> Value:
    """Create the dataclass ``kind`` from the values of ``table``.

    Fields may be dataclasses (tables), tuples of them (arrays of tables), tuples, literals, numbers,
    strings, booleans, mappings, and unions of these with None. None, which JSON has and TOML lacks, is
    accepted where a field may be None.

    Args:
        kind: the dataclass.
        table: its fields by name; missing ones have their defaults.
        where: keys that lead to the table, as errors name them; empty for the outermost.

    Raises:
        InvalidRequest: a key is not a field, a field without a default is missing, or a value has the wrong
        type or is refused by the dataclass.
    """
    if not isinstance(table, Mapping):
        raise InvalidRequest(f"{where or 'the whole'} is {table!r}; it must be a table")
    called = f"{where} " if where else ""
    before = f"{where}." if where else ""
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}  # type: ignore[arg-type]
    for key in table:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; it can hold {', '.join(fields)}"
            raise InvalidRequest(f"{called or 'it '}has no key {key!r}{hint}")
    types_of = get_type_hints(kind)
    values = {key: _value(types_of[key], value, f"{before}{key}") for key, value in table.items()}
    absent = dataclasses.MISSING
    for name, field in fields.items():
        if name not in values and field.default is absent and field.default_factory is absent:
            raise InvalidRequest(f"{called or 'it '}needs {name}, and it is not given")
    try:
        return kind(**values)
    except UnmaskError as error:
        raise InvalidRequest(f"{where}: {error}" if where else str(error)) from None


def _value(kind: Any, value: object, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _one_of(arguments, value, where)
    if origin is Literal:
        if value not in arguments:
            raise InvalidRequest(f"{where} is {value!r}; it can be {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        return _tuple(arguments, value, where)
    if dataclasses.is_dataclass(kind):
        is_read = isinstance(value, kind)  # type: ignore[arg-type]
        return value if is_read else read_table(kind, value, where)  # type: ignore[arg-type]
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise InvalidRequest(f"{where} is {value!r}; it must be a table")
        return dict(value)
    return _plain(kind, value, where)


def _tuple(arguments: Sequence[Any], value: object, where: str) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidRequest(f"{where} is {value!r}; it must be a list")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_value(arguments[0], item, f"{where}[{place}]") for place, item in enumerate(value))
    if len(arguments) != len(value):
        raise InvalidRequest(f"{where} is {list(value)}; it must have {len(arguments)} values")
    return tuple(_value(argument, item, where) for argument, item in zip(arguments, value, strict=True))


def _one_of(kinds: Sequence[Any], value: object, where: str) -> Any:
    """Read the value as the first type that fits; errors are those of the first type that is not None."""
    if value is None and types.NoneType in kinds:
        return None
    problem: InvalidRequest | None = None
    for kind in kinds:
        if kind is types.NoneType:
            continue
        try:
            return _value(kind, value, where)
        except InvalidRequest as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _plain(kind: Any, value: object, where: str) -> Any:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if kind is int and is_number and isinstance(value, numbers.Integral):
        return int(value)
    if kind is float and is_number:
        assert isinstance(value, numbers.Real)
        try:
            return float(value)
        except OverflowError:
            raise InvalidRequest(
                f"{where} has {len(str(value))} digits; it must be a smaller number"
            ) from None
    if kind is Any or type(value) is kind or (kind is str and isinstance(value, str)):
        return value
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string in quotes"}
    raise InvalidRequest(f"{where} is {value!r}; it must be {names.get(kind, kind)}")
