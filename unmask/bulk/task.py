"""`BatchTask`: a model and a task as a picklable callable over batches, as engines for bulk work take it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unmask.bulk.arrow import arrow_column, arrow_types
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from unmask.models.load import Model


@dataclass(frozen=True)
class TaskOutput:
    """What a task computed for some rows."""

    columns: Mapping[str, NDArray[Any] | Sequence[Any]]
    """The columns that are added: one vector (S, E) per row, or values of JSON types."""
    tokens: int = 0
    truncated_texts: int = 0


@dataclass(frozen=True)
class BatchTask(ABC):
    """Adds columns to batches of rows; only settings are pickled, and each process loads the model once.

    Ray Data takes the object in ``map_batches``, Dask in ``map_partitions``, Daft in a batch function, and
    Spark's ``mapInPandas`` takes `iterate`; docs/bulk.md has each call.

    Args:
        model: a checkpoint folder, a hub id, or "default".
        column: the column that holds the texts.
        load: options of `unmask.load`, such as ``{"dtype": "bfloat16"}``.
        threads: CPU threads of torch in the process that computes; None leaves torch's choice. One thread per
            worker is the fastest with as many workers as cores.
    """

    model: str = "default"
    column: str = "text"
    load: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None

    @property
    def result(self) -> type | None:
        """The dataclass whose fields are the columns that are added; None if they are vectors."""
        return None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (self.column,)

    @property
    @abstractmethod
    def outputs(self) -> tuple[str, ...]:
        """The columns that are added."""

    @abstractmethod
    def check(self) -> None:
        """See that the model can do the task.

        Raises:
            InvalidRequest: it cannot, or an option is out of range.
        """

    @abstractmethod
    def compute(self, rows: Mapping[str, Sequence[Any]], name: Callable[[int], str]) -> TaskOutput:
        """The added columns for rows, from their values in the columns `inputs`.

        ``name`` names a row in errors.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
        """

    def map_keys(self) -> Mapping[str, Sequence[str]]:
        """The keys of every row's mapping, by the column that holds mappings."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """The settings, without the model that was loaded with them."""
        return {name: value for name, value in vars(self).items() if name != "_loaded"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    @property
    def loaded(self) -> "Model":
        """The model, loaded at the first use in this process."""
        if "_loaded" not in vars(self):
            from unmask.models.load import load

            if self.threads is not None:
                from unmask.engines.native.threads import set_thread_count

                set_thread_count(self.threads)
            vars(self)["_loaded"] = load(self.model, **self.load)
        model: Model = vars(self)["_loaded"]
        return model

    def __call__(self, batch: Any) -> Any:
        """The batch with the columns `outputs`: a dictionary of arrays, a pandas data frame, an Arrow table.

        Raises:
            InvalidRequest: the batch is none of these, or lacks a column.
            TextError: a text is empty, too long, or not Unicode text.
        """
        names = getattr(batch, "column_names", getattr(batch, "columns", batch))
        if not isinstance(batch, Mapping) and not hasattr(batch, "columns"):
            kind = type(batch).__name__
            raise InvalidRequest(
                f"the batch is a {kind}; give a dictionary, a pandas data frame or an Arrow table"
            )
        for name in self.inputs:
            if name not in names:
                raise InvalidRequest(
                    f"the batch has no column {name!r}, but {', '.join(map(str, names))}; set column="
                )
        columns = self.compute({name: _values(batch[name]) for name in self.inputs}, _numbered).columns
        if isinstance(batch, Mapping):
            return {**batch, **columns}
        if hasattr(batch, "append_column"):
            return self.with_columns(batch, columns)
        return batch.assign(**{name: list(values) for name, values in columns.items()})

    def with_columns(self, table: Any, columns: Mapping[str, NDArray[Any] | Sequence[Any]]) -> Any:
        """An Arrow table with the columns `outputs`, whose types are the same in every batch."""
        types = {} if self.result is None else arrow_types(self.result, self.map_keys())
        for name, values in columns.items():
            table = table.append_column(name, arrow_column(values, types.get(name)))
        return table

    def iterate(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches of an iterator one after the other, as ``mapInPandas`` of Spark asks for."""
        for batch in batches:
            yield self(batch)


def _values(column: Any) -> list[Any]:
    """The values of a column; lists of words as lists."""
    values = column.to_pylist() if hasattr(column, "to_pylist") else list(column)
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in values]


def _numbered(index: int) -> str:
    return f"row {index} of the batch"
