"""The embedding: ids to the first layer's input."""

import torch
from torch import Tensor, nn

from unmask.encoder.layers.parts import build_norm
from unmask.kernels.dropout import Dropout
from unmask.spec import Embedding
from unmask.text.batch import SequenceLayout


class EmbeddingLayer(nn.Module):
    """Word + position + token type vectors, normalized, projected to D if E differs, with dropout.

    Devlin et al. 2019; the projection follows Lan et al. 2020 (ALBERT).
    """

    def __init__(self, spec: Embedding, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.words = nn.Embedding(spec.vocabulary, spec.width)
        positions = spec.positions
        self.positions = nn.Embedding(positions.rows, spec.width) if positions else None
        self.segments = nn.Embedding(spec.segments, spec.width) if spec.segments else None
        projection = spec.projection
        self.projection = nn.Linear(spec.width, width, bias=projection.bias) if projection else None
        self.project_first = projection is not None and projection.before_norm
        self.norm = build_norm(spec.norm, width if self.project_first else spec.width)
        self.dropout = Dropout(spec.dropout)

    def forward(self, ids_T: Tensor, segments_T: Tensor, layout: SequenceLayout) -> Tensor:
        """Shape (T,) ids and token types in, (T, D) out."""
        return self.at(ids_T, segments_T, self.places(ids_T, layout))

    def places(self, ids_T: Tensor, layout: SequenceLayout) -> Tensor | None:
        """The place of each token in its sequence, (T,); None where no vector of its place is added."""
        learned = self.spec.positions
        if learned is None or not learned.added:
            return None
        places_T = layout.positions_T
        if learned.left_out is not None:
            places_T = layout.positions_without(ids_T.numpy(force=True), learned.left_out)
        return torch.from_numpy(places_T).to(ids_T.device)

    def at(self, ids: Tensor, segments: Tensor, places: Tensor | None) -> Tensor:
        """`forward` for ids of any shape (...), at these places of their texts; (..., D)."""
        x_E: Tensor = self.words(ids)
        if self.spec.scale != 1:
            x_E = x_E * self.spec.scale
        if self.segments is not None:
            x_E = x_E + self.segments(segments)
        if self.positions is not None and self.spec.positions is not None and self.spec.positions.added:
            assert places is not None
            x_E = x_E + self.positions(places + self.spec.positions.offset)
        if self.projection is not None and self.project_first:
            x_E = self.projection(x_E)
        x: Tensor = self.dropout(self.norm(x_E))
        if self.projection is not None and not self.project_first:
            x = self.projection(x)
        return x
