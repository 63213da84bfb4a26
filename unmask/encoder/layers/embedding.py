"""The embedding: ids to the first layer's input."""

import torch
from torch import Tensor, nn

from unmask.encoder.layers.parts import build_norm
from unmask.kernels.dropout import Dropout
from unmask.spec import Embedding
from unmask.text.batch import SequenceLayout


class EmbeddingLayer(nn.Module):
    """Word + position + token type + task vectors, normalized, projected to D if E differs, with dropout.

    Devlin et al. 2019; the projection follows Lan et al. 2020 (ALBERT).
    """

    def __init__(self, spec: Embedding, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.words = nn.Embedding(spec.vocabulary, spec.width)
        positions = spec.positions
        self.positions = nn.Embedding(positions.rows, spec.width) if positions else None
        self.segments = nn.Embedding(spec.segments, spec.width) if spec.segments else None
        self.tasks = nn.Embedding(spec.tasks, spec.width) if spec.tasks else None
        projection = spec.projection
        self.projection = nn.Linear(spec.width, width, bias=projection.bias) if projection else None
        self.project_first = projection is not None and projection.before_norm
        self.norm = build_norm(spec.norm, width if self.project_first else spec.width)
        self.dropout = Dropout(spec.dropout)

    def forward(self, ids_T: Tensor, segments_T: Tensor, layout: SequenceLayout) -> Tensor:
        """Shape (T,) ids and token types in, (T, D) out."""
        scale_T1 = None
        if self.spec.token_dropout is not None:
            sequence_T = torch.from_numpy(layout.sequence_of_T).to(ids_T.device)
            kept_T = ids_T != self.spec.token_dropout.mask_id
            read_T = torch.ones_like(ids_T)
            if layout.unattended_T is not None:  # to the other tokens of their sequence they are absent
                read_T -= torch.from_numpy(layout.unattended_T).to(read_T)
            tokens_S, kept_S = (
                ids_T.new_zeros(layout.sequence_count).index_add_(0, sequence_T, counted_T)
                for counted_T in (read_T, read_T * kept_T)
            )
            scale_T1 = self.word_scale(kept_T, kept_S[sequence_T], tokens_S[sequence_T])
        return self.at(ids_T, segments_T, self.places(ids_T, layout), scale_T1)

    def word_scale(self, kept: Tensor, kept_tokens: Tensor, tokens: Tensor) -> Tensor:
        """What multiplies the word vectors of an embedding with `TokenDropout`, (..., 1).

        Args:
            kept: which tokens are not mask tokens, (...).
            kept_tokens: how many of their sequence are not, (...) or broadcast to it.
            tokens: how many tokens their sequence has, in the same shape.
        """
        assert self.spec.token_dropout is not None
        dtype = self.words.weight.dtype
        share = tokens.to(torch.promote_types(dtype, torch.float32)) / kept_tokens.clamp(min=1)
        return (kept * ((1 - self.spec.token_dropout.rate) * share))[..., None].to(dtype)

    def places(self, ids_T: Tensor, layout: SequenceLayout) -> Tensor | None:
        """The place of each token in its sequence, (T,); None where no vector of its place is added."""
        learned = self.spec.positions
        if learned is None or not learned.added:
            return None
        places_T = layout.positions_T
        if learned.left_out is not None:
            places_T = layout.positions_without(ids_T.numpy(force=True), learned.left_out)
        return torch.from_numpy(places_T).to(ids_T.device)

    def at(self, ids: Tensor, segments: Tensor, places: Tensor | None, scale: Tensor | None = None) -> Tensor:
        """`forward` for ids of any shape (...), at these places of their texts; (..., D).

        ``scale`` is that of `word_scale`, where there is one.
        """
        x_E: Tensor = self.words(ids)
        if scale is not None:
            x_E = x_E * scale
        if self.spec.scale != 1:
            x_E = x_E * self.spec.scale
        if self.segments is not None:
            x_E = x_E + self.segments(segments)
        if self.tasks is not None:
            x_E = x_E + self.tasks.weight[0]
        if self.positions is not None and self.spec.positions is not None and self.spec.positions.added:
            assert places is not None
            x_E = x_E + self.positions(places + self.spec.positions.offset)
        if self.projection is not None and self.project_first:
            x_E = self.projection(x_E)
        x: Tensor = self.dropout(self.norm(x_E))
        if self.projection is not None and not self.project_first:
            x = self.projection(x)
        return x
