"""Tasks over batches of texts, the embedding of one among them, and the Arrow columns of their results."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.spec import PoolingMode
from unmask.tasks import embed
from unmask.tasks.embed import Precision, quantize
from unmask.tasks.prompts import chosen_prompt
from unmask.text import Truncation

if TYPE_CHECKING:
    from unmask.models.load import Model


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


@dataclass(frozen=True)
class BatchEmbedder(BatchTask):
    """Embeds batches of texts, see `BatchTask`.

    Args:
        output_column: the column that is added.
        truncation, pooling, normalize, prompt, prompt_name, truncate_dim, precision: see `Model.embed`.
    """

    output_column: str = "embedding"
    truncation: Truncation = "error"
    pooling: PoolingMode | None = None
    normalize: bool | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    truncate_dim: int | None = None
    precision: Precision = "float32"

    @property
    def outputs(self) -> tuple[str, ...]:
        """See `BatchTask`."""
        return (self.output_column,)

    def check(self) -> None:
        """See `BatchTask`."""
        head = self.loaded.embedding_head(self.pooling, self.normalize, self.truncate_dim)
        chosen_prompt(head, self.prompt, self.prompt_name, self.loaded.name)

    def compute(self, rows: Mapping[str, Sequence[Any]], name: Callable[[int], str]) -> TaskOutput:
        """See `BatchTask`."""
        if not rows[self.column]:
            return TaskOutput({self.output_column: np.empty((0, 0), np.float32)})
        model = self.loaded
        ready = embed.prepare(
            model.reader,
            rows[self.column],
            model.embedding_head(self.pooling, self.normalize, self.truncate_dim),
            prompt=self.prompt,
            prompt_name=self.prompt_name,
            truncation=self.truncation,
            name=name,
        )
        embeddings_SE = quantize(ready(model.engine), self.precision)
        return TaskOutput({self.output_column: embeddings_SE}, ready.tokens, ready.truncated)
