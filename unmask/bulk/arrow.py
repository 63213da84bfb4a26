"""Arrow columns of results. Types follow from the fields of a result, not from the values of a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray


def arrow_types(result: type, keys: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The Arrow type of each field of a dataclass; ``keys`` has the keys of each field that is a mapping."""
    hints = get_type_hints(result)
    return {
        column.name: _arrow_type(hints[column.name], keys.get(column.name, ())) for column in fields(result)
    }


def _arrow_type(hint: Any, keys: Sequence[str]) -> Any:
    pyarrow = import_module("pyarrow")
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return pyarrow.struct(arrow_types(hint, {}))
    if get_origin(hint) is tuple:
        return pyarrow.list_(_arrow_type(get_args(hint)[0], ()))
    if get_origin(hint) is Mapping:
        return pyarrow.struct(dict.fromkeys(keys, _arrow_type(get_args(hint)[1], ())))
    simple = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
    return simple.get(hint, pyarrow.string())


def arrow_column(values: NDArray[Any] | Sequence[Any], kind: Any) -> Any:
    """Values as an Arrow array: vectors (S, E) as lists of fixed size, others with the given type."""
    pyarrow = import_module("pyarrow")
    if not isinstance(values, np.ndarray):
        return pyarrow.array(values, type=kind)
    flat = pyarrow.array(values.reshape(-1))
    return pyarrow.FixedSizeListArray.from_arrays(flat, max(1, values.shape[1]))
