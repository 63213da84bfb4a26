"""`BatchEmbedder`: embeddings of batches of texts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.bulk.task import BatchTask, TaskOutput
from unmask.spec import PoolingMode
from unmask.tasks import embed
from unmask.tasks.prompts import chosen_prompt
from unmask.tasks.quantize import Precision, quantize
from unmask.text import Truncation


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
