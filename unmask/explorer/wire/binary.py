"""Arrays as bytes: one container, "UMK2", for every array the API answers. All little-endian.

    offset  0   4 bytes   the characters "UMK2"
            4   uint32    h, the length of the header
            8   h bytes   JSON: {"arrays": [{"name", "dtype", "shape", "offset"}, ...], "meta": {...}},
                          padded with spaces so that 8 + h is a multiple of 8
        8 + h             the arrays, row by row; each begins at its offset from here, a multiple of 8

``dtype`` is ``u1`` (uint8), ``i4`` (int32) or ``f4`` (float32). ``web/src/api/binary.ts`` reads it.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from unmask.errors import NonFiniteResult
from unmask.http.responses import Answer

MAGIC = b"UMK2"
MEDIA_TYPE = "application/octet-stream"
_ALIGNMENT = 8
_WRITTEN = {"b": "u1", "u": "u1", "i": "i4", "f": "f4"}


def pack(arrays: Mapping[str, npt.NDArray[Any]], meta: Any = None) -> bytes:
    """The container of some named arrays; ``meta`` is a dataclass of the results, or plain values.

    Truth values and unsigned numbers are written as uint8, whole numbers as int32, fractions as float32.

    Raises:
        NonFiniteResult: an array or the meta holds infinity or not-a-number, which must not be drawn as if
            it were a number.
        ValueError: a whole number does not fit.
    """
    described, parts, offset = [], [], 0
    for name, array in arrays.items():
        dtype = _WRITTEN[array.dtype.kind]
        data = _bytes(name, array, dtype)
        described.append({"name": name, "dtype": dtype, "shape": list(array.shape), "offset": offset})
        parts.append(data + bytes(-len(data) % _ALIGNMENT))
        offset += len(parts[-1])
    value = asdict(meta) if hasattr(meta, "__dataclass_fields__") else (meta or {})
    try:
        header = json.dumps({"arrays": described, "meta": value}, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise NonFiniteResult("a result is not a finite number; nothing is shown") from None
    written = header.encode("ascii")
    written += b" " * (-(8 + len(written)) % _ALIGNMENT)
    return b"".join((MAGIC, len(written).to_bytes(4, "little"), written, *parts))


def typed_answer(result: Any) -> Answer:
    """A typed result in this container: its arrays under their names, its other fields as the meta.

    The letters of axes at the end of a name are left out, and so are arrays that are None.
    """
    arrays = array_fields(type(result))
    values = {name: getattr(result, name) for name in arrays}
    by_name = {re.sub(r"_[A-Z]\w*$", "", name): array for name, array in values.items() if array is not None}
    others = {field.name: getattr(result, field.name) for field in fields(result) if field.name not in arrays}
    return array_answer(by_name, others)


def array_fields(result: type) -> frozenset[str]:
    """The fields of a dataclass that are arrays, or arrays or None."""
    hints = get_type_hints(result)
    return frozenset(
        name
        for name, hint in hints.items()
        if any(get_origin(kind) is np.ndarray for kind in (hint, *get_args(hint)))
    )


def array_answer(values: Mapping[str, npt.NDArray[Any]], meta: Any = None) -> Answer:
    """Named arrays in this container, as an answer."""
    data = pack(values, meta)
    return Answer(200, MEDIA_TYPE, data, f'"{hashlib.sha256(data).hexdigest()[:32]}"')


def unpack(data: bytes) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Arrays and meta of a container; raises ValueError for anything else."""
    if data[:4] != MAGIC:
        raise ValueError("these bytes are not a UMK2 container")
    start = 8 + int.from_bytes(data[4:8], "little")
    header = json.loads(data[8:start])
    arrays = {
        array["name"]: np.frombuffer(
            data, "<" + array["dtype"], int(np.prod(array["shape"], dtype=np.int64)), start + array["offset"]
        ).reshape(array["shape"])
        for array in header["arrays"]
    }
    return arrays, header["meta"]


def _bytes(name: str, array: npt.NDArray[Any], dtype: str) -> bytes:
    if dtype == "f4":
        with np.errstate(over="ignore"):  # what does not fit float32 is found below
            array = array.astype("<f4")
        if not np.isfinite(array).all():
            raise NonFiniteResult("the model produced a number that is not finite; nothing is shown")
    elif array.size:
        limits = np.iinfo(dtype)
        if array.min() < limits.min or array.max() > limits.max:
            raise ValueError(f"{name} has numbers that do not fit {dtype}")
    return np.ascontiguousarray(array, dtype="<" + dtype).tobytes()
