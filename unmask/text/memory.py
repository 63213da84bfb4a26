"""Rows of tables in memory: dictionaries, columns, DataFrames, generators, Arrow tables and datasets."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import InvalidRequest, quoted
from unmask.text.rows import Place, Record, class_names, with_class_names

KINDS = (
    "a list or generator of dictionaries, a dictionary of columns, a DataFrame of pandas or polars, a table "
    "of pyarrow, or a datasets.Dataset"
)


class Rows(str):
    """Rows in memory in place of the name of a file. As a string it says how many they are."""

    records: tuple[Record, ...]

    def __new__(cls, records: Sequence[Record]) -> "Rows":
        """Keep the records, each with its name in errors."""
        rows = super().__new__(cls, f"{len(records):,} {'row' if len(records) == 1 else 'rows'} in memory")
        rows.records = tuple(records)
        return rows

    def __deepcopy__(self, memo: object) -> "Rows":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (self.records,)


def tables_in_memory(value: object, option: str) -> object:
    """A value of an option that names files, with `Rows` in place of tables in memory.

    Names of files, and what is neither, stay as they are.

    Raises:
        InvalidRequest: rows are not dictionaries, columns differ in length, or there is no row.
    """
    if isinstance(value, str | bytes | None):
        return value
    if isinstance(value, Mapping) and isinstance(getattr(value, "num_rows", None), dict):
        raise InvalidRequest(
            f"{option} is a dataset of several splits; choose one of them: {', '.join(map(repr, value))}"
        )
    if isinstance(value, Path):
        return (str(value),)
    if isinstance(value, list | tuple) and not (value and isinstance(value[0], Mapping)):
        return tuple(name for each in value for name in _as_names(each, option))
    return (_rows(value, option),)


def _as_names(value: object, option: str) -> Sequence[object]:
    """One entry of a list of files or tables."""
    if isinstance(value, str | bytes | int | float | None):
        return [value]
    names = tables_in_memory(value, option)
    assert isinstance(names, tuple)
    return names


def _rows(value: object, option: str) -> Rows:
    names = class_names(getattr(value, "features", None))
    records = []
    for number, row in enumerate(_mappings(value, option), start=1):
        if not isinstance(row, Mapping):
            raise InvalidRequest(
                f"row {number} of {option} is {quoted(row)}; give {KINDS}, or the names of files"
            )
        records.append((Place("row", number, option), with_class_names(row, names)))
    if not records:
        raise InvalidRequest(f"{option} has no rows; give at least one")
    return Rows(records)


def _mappings(value: Any, option: str) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from _of_columns(value, option)
    elif hasattr(value, "iter_rows") and hasattr(value, "get_column"):  # polars
        yield from value.iter_rows(named=True)
    elif hasattr(value, "iterrows") and hasattr(value, "to_dict"):  # pandas
        yield from value.to_dict("records")
    elif hasattr(value, "to_pylist"):  # pyarrow
        yield from value.to_pylist()
    elif isinstance(value, Iterable):
        yield from value
    else:
        raise InvalidRequest(f"{option} is {quoted(value)}; give {KINDS}, or the names of files")


def _of_columns(columns: Mapping[Any, Any], option: str) -> Iterator[dict[Any, Any]]:
    lists = {name: list(values) for name, values in columns.items() if isinstance(values, Iterable)}
    if len(lists) != len(columns) or any(isinstance(values, str) for values in columns.values()):
        raise InvalidRequest(f"{option} is one dictionary, and its values are no columns; give {KINDS}")
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        sizes = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise InvalidRequest(f"{option} has columns of different lengths ({sizes}); give them one length")
    for values in zip(*lists.values(), strict=True):
        yield dict(zip(lists, values, strict=True))
