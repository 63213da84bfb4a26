"""`BatchEmbedder`: a model as a picklable callable over batches, as engines for bulk inference take it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unmask.errors import InvalidRequest
from unmask.model.spec import PoolingMode
from unmask.tasks.prompts import chosen_prompt
from unmask.tasks.quantize import Precision, quantize
from unmask.text import Encoding, Truncation

if TYPE_CHECKING:
    from unmask.loaded import Model


@dataclass(frozen=True)
class BatchEmbedder:
    """Embeds batches of texts; only its settings are pickled, and each process loads the model once.

    Ray Data takes the object in ``map_batches``, Dask in ``map_partitions``, Daft in a batch function, and
    Spark's ``mapInPandas`` takes `iterate`; docs/bulk.md has each call, and says which are tested.

    Args:
        model: a checkpoint folder, a hub id, or "default".
        column: the column that holds the texts.
        output_column: the column that is added.
        load: options of `unmask.load`, such as ``{"dtype": "bfloat16"}``.
        threads: CPU threads of torch in the process that embeds; None leaves torch's choice. One thread per
            worker is the fastest with as many workers as cores.
        truncation, pooling, normalize, prompt, prompt_name, truncate_dim, precision: see `Model.embed`.
    """

    model: str = "default"
    column: str = "text"
    output_column: str = "embedding"
    load: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None
    truncation: Truncation = "error"
    pooling: PoolingMode | None = None
    normalize: bool | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    truncate_dim: int | None = None
    precision: Precision = "float32"

    def __getstate__(self) -> dict[str, Any]:
        """The settings, without the model that was loaded with them."""
        return {name: value for name, value in vars(self).items() if name != "_loaded"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    @property
    def loaded(self) -> "Model":
        """The model, loaded at the first use in this process."""
        if "_loaded" not in vars(self):
            from unmask.loaded import load

            if self.threads is not None:
                from unmask.model.native.threads import set_thread_count

                set_thread_count(self.threads)
            vars(self)["_loaded"] = load(self.model, **self.load)
        found: Model = vars(self)["_loaded"]
        return found

    def embed(self, texts: Sequence[str], name: Callable[[int], str]) -> tuple[NDArray[Any], list[Encoding]]:
        """Embeddings (S, E) of texts, and what the model read of each. ``name`` names a text in errors.

        Raises:
            TextError: a text is empty, too long, or not Unicode text.
        """
        loaded = self.loaded
        head = loaded.embedding_head(self.pooling, self.normalize, self.truncate_dim)
        before = chosen_prompt(head, self.prompt, self.prompt_name, loaded.name)
        encodings = loaded.tokenizer.encode_batch(
            [before + text if isinstance(text, str) and text.strip() else text for text in texts],
            max_tokens=loaded.max_tokens,
            truncation=self.truncation,
            name=name,
        )
        embeddings_SE = loaded.embed_encodings(encodings, head, prompt=before, name=name)
        return quantize(embeddings_SE, self.precision), encodings

    def __call__(self, batch: Any) -> Any:
        """The batch with `output_column`: a dictionary of arrays, a pandas data frame or an Arrow table.

        Raises:
            InvalidRequest: the batch is none of these, or lacks `column`.
            TextError: a text is empty, too long, or not Unicode text.
        """
        names = getattr(batch, "column_names", getattr(batch, "columns", batch))
        if not isinstance(batch, Mapping) and not hasattr(batch, "columns"):
            kind = type(batch).__name__
            raise InvalidRequest(
                f"the batch is a {kind}; give a dictionary, a pandas data frame or an Arrow table"
            )
        if self.column not in names:
            raise InvalidRequest(
                f"the batch has no column {self.column!r}, but {', '.join(map(str, names))}; set column="
            )
        column = batch[self.column]
        texts = column.to_pylist() if hasattr(column, "to_pylist") else list(column)
        embeddings_SE, _ = self.embed(texts, _numbered) if texts else (np.empty((0, 0), np.float32), [])
        if isinstance(batch, Mapping):
            return {**batch, self.output_column: embeddings_SE}
        if hasattr(batch, "append_column"):
            return with_embeddings(batch, self.output_column, embeddings_SE)
        return batch.assign(**{self.output_column: list(embeddings_SE)})

    def iterate(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches of an iterator one after the other, as ``mapInPandas`` of Spark asks for."""
        for batch in batches:
            yield self(batch)


def with_embeddings(table: Any, column: str, embeddings_SE: NDArray[Any]) -> Any:
    """An Arrow table with embeddings (S, E) as a column of lists of fixed size."""
    pyarrow = import_module("pyarrow")

    flat = pyarrow.array(embeddings_SE.reshape(-1))
    return table.append_column(
        column, pyarrow.FixedSizeListArray.from_arrays(flat, max(1, embeddings_SE.shape[1]))
    )


def _numbered(index: int) -> str:
    return f"row {index} of the batch"
