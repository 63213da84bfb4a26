"""The formats of embeddings: rows are stored as they are computed, and some formats are made of them at the
end.

Axes: B rows of one block.
"""

import io
import json
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.base.optional import require
from unmask.cli.output import console, marked
from unmask.errors import InvalidRequest
from unmask.tasks.every_output import EveryOutput
from unmask.text import Encoding, Line, Tokenizer

BLOCK_BYTES = 1 << 25
"""Stored bytes that are converted at once, which is also the size of a row group of a Parquet file."""


NUMBERS = {"float32": "<f4", "binary": "|i1", "ubinary": "|u1"}
"""The numpy type of each precision of embeddings."""


class RowFormat(ABC):
    """How rows are stored while a run lasts. By itself the finished file is the header and the stored rows.

    Args:
        sources: the names of all inputs.
        width: the numbers of an embedding.
        number: their numpy type.
    """

    finish: Callable[[Path, Path], None] | None = None
    """Writes the finished file (the second path) from the stored rows (the first)."""

    def __init__(self, sources: Sequence[str], width: int, number: str = "<f4") -> None:
        self.sources, self.width, self.number = tuple(dict.fromkeys(sources)), width, number

    def header(self, rows: int) -> bytes:
        """The bytes before the first row."""
        return b""

    @abstractmethod
    def rows(
        self, lines: Sequence[Line], encodings: Sequence[Encoding], embeddings_SE: NDArray[Any]
    ) -> bytes:
        """The bytes of the given rows."""


class JsonLines(RowFormat):
    """One object per line: source, line, tokens, original_tokens (null if they were not all counted),
    embedding."""

    def rows(
        self, lines: Sequence[Line], encodings: Sequence[Encoding], embeddings_SE: NDArray[Any]
    ) -> bytes:
        """The bytes of the given rows."""
        return _json_lines(
            _said_of(line, encoding) | {"embedding": row.tolist()}
            for line, encoding, row in zip(lines, encodings, embeddings_SE, strict=True)
        )


def rows_of_every_output(
    lines: Sequence[Line],
    encodings: Sequence[Encoding],
    outputs: Sequence[EveryOutput],
    tokenizer: Tokenizer,
) -> bytes:
    """JSON lines with the fields of `JsonLines`, then words (the weight of each) and vectors (of tokens)."""
    return _json_lines(
        _said_of(line, encoding)
        | {
            "embedding": output.vector_E.tolist(),
            "words": {
                tokenizer.engine.id_to_token(id_): weight
                for id_, weight in zip(output.words.ids.tolist(), output.words.weights.tolist(), strict=True)
            },
            "vectors": output.tokens.vectors_NE.tolist(),
        }
        for line, encoding, output in zip(lines, encodings, outputs, strict=True)
    )


def _said_of(line: Line, encoding: Encoding) -> dict[str, Any]:
    return {
        "source": line.source,
        "line": line.number,
        "tokens": len(encoding),
        "original_tokens": _original_tokens(encoding),
    }


def _json_lines(objects: Iterable[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in objects).encode()


class Preview(RowFormat):
    """A line for people: the length of each vector, its first numbers, and the text."""

    def rows(
        self, lines: Sequence[Line], encodings: Sequence[Encoding], embeddings_SE: NDArray[Any]
    ) -> bytes:
        """The bytes of the given rows."""
        from rich.table import Table

        shown = Table.grid(padding=(0, 2))
        for style in ("bold cyan", "dim", ""):
            shown.add_column(style=style, no_wrap=True)
        for line, row in zip(lines, embeddings_SE, strict=True):
            numbers = " ".join(f"{number:.{0 if number.dtype.kind in 'iu' else 3}f}" for number in row[:3])
            norm = float(np.linalg.norm(row.astype(np.float64)))
            shown.add_row(f"{self.width} numbers, norm {norm:.3f}", f"{numbers} …", marked(line.text))
        screen = console()
        with screen.capture() as printed:
            screen.print(shown)
        return printed.get().encode()


class Matrix(RowFormat):
    """An array (S, E)."""

    def header(self, rows: int) -> bytes:
        """The header of a .npy file."""
        return _npy_header(self.number, (rows, self.width))

    def rows(
        self, lines: Sequence[Line], encodings: Sequence[Encoding], embeddings_SE: NDArray[Any]
    ) -> bytes:
        """The bytes of the given rows."""
        return embeddings_SE.astype(self.number).tobytes()


class _Records(RowFormat):
    """Rows are stored as binary records, from which the finished file is made in blocks."""

    def __init__(self, sources: Sequence[str], width: int, number: str = "<f4") -> None:
        super().__init__(sources, width, number)
        self.record = np.dtype(
            [
                ("source", "<i4"),  # its place in ``sources``
                ("line", "<i8"),
                ("tokens", "<i8"),
                ("original_tokens", "<i8"),  # -1 if they were not all counted
                ("embedding", number, (width,)),
            ]
        )

    def rows(
        self, lines: Sequence[Line], encodings: Sequence[Encoding], embeddings_SE: NDArray[Any]
    ) -> bytes:
        """The bytes of the given rows."""
        places = {name: place for place, name in enumerate(self.sources)}
        records = np.empty(len(lines), self.record)
        records["source"] = [places[line.source] for line in lines]
        records["line"] = [line.number for line in lines]
        records["tokens"] = [len(encoding) for encoding in encodings]
        counts = map(_original_tokens, encodings)
        records["original_tokens"] = [-1 if count is None else count for count in counts]
        records["embedding"] = embeddings_SE
        return records.tobytes()

    def blocks(self, stored: Path) -> Iterator[NDArray[Any]]:
        """The stored records, in blocks of bounded size."""
        count = max(1, BLOCK_BYTES // self.record.itemsize)
        with stored.open("rb") as file:
            while content := file.read(count * self.record.itemsize):
                yield np.frombuffer(content, self.record)


class Archive(_Records):
    """A .npz file of four arrays: embeddings (S, E), and for each row its source, line and tokens."""

    def finish(self, stored: Path, output: Path) -> None:
        """Write one array after the other; each is a pass over the stored rows."""
        rows = stored.stat().st_size // self.record.itemsize
        names = np.array(self.sources)
        arrays: Mapping[str, tuple[str, tuple[int, ...], Callable[[NDArray[Any]], NDArray[Any]]]] = {
            "embeddings": (self.number, (rows, self.width), lambda block_B: block_B["embedding"]),
            "sources": (names.dtype.str, (rows,), lambda block_B: names[block_B["source"]]),
            "lines": ("<i8", (rows,), lambda block_B: block_B["line"]),
            "tokens": ("<i8", (rows,), lambda block_B: block_B["tokens"]),
        }
        with zipfile.ZipFile(output, "w") as archive:
            for name, (kind, shape, values) in arrays.items():
                # Without a date of its own, so that the same embeddings give the same bytes.
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                    member.write(_npy_header(kind, shape))
                    for block_B in self.blocks(stored):
                        member.write(values(block_B).tobytes())


class Parquet(_Records):
    """A Parquet file with the columns of `JsonLines`; one block is one row group."""

    def finish(self, stored: Path, output: Path) -> None:
        """Write the row groups one after the other."""
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        kind = {"<f4": arrow.float32(), "|i1": arrow.int8(), "|u1": arrow.uint8()}[self.number]
        schema = arrow.schema(
            {
                "source": arrow.string(),
                "line": arrow.int64(),
                "tokens": arrow.int64(),
                "original_tokens": arrow.int64(),
                "embedding": arrow.list_(kind, self.width),
            }
        )
        names = np.array(self.sources, dtype=object)
        with (
            output.open("wb") as stream,  # pyarrow takes no name that is not Unicode
            parquet.ParquetWriter(stream, schema, use_dictionary=["source"]) as writer,
        ):
            for block_B in self.blocks(stored):
                original_B = block_B["original_tokens"]
                embeddings = arrow.array(block_B["embedding"].reshape(-1), kind)
                columns = [
                    arrow.array(names[block_B["source"]], arrow.string()),
                    arrow.array(block_B["line"].copy()),
                    arrow.array(block_B["tokens"].copy()),
                    arrow.array(original_B.copy(), mask=original_B < 0),
                    arrow.FixedSizeListArray.from_arrays(embeddings, self.width),
                ]
                writer.write_table(arrow.table(columns, schema=schema), row_group_size=len(block_B))


FORMATS: Mapping[str, type[RowFormat]] = {
    ".jsonl": JsonLines,
    ".npy": Matrix,
    ".npz": Archive,
    ".parquet": Parquet,
}
"""Formats by the extension of the output."""


def extension_of(output: Path | None) -> str:
    """The key of `FORMATS` for a file name; that of JSON lines for standard output.

    Raises:
        InvalidRequest: the file name has another extension.
        MissingExtra: the package that writes the format is not installed.
    """
    if output is None:
        return ".jsonl"
    if output.suffix not in FORMATS:
        raise InvalidRequest(
            f"{output} ends in none of {', '.join(FORMATS)}; name the output with one of them"
        )
    if output.suffix == ".parquet":
        require("parquet")
    return output.suffix


def _original_tokens(encoding: Encoding) -> int | None:
    """The tokens of the whole text; None if they were not all counted."""
    return encoding.original_tokens if encoding.counted_whole else None


def _npy_header(kind: str, shape: tuple[int, ...]) -> bytes:
    written = io.BytesIO()
    described = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(written, described)
    return written.getvalue()
