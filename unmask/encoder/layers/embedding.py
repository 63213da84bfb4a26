"""The embedding: ids to the first layer's input.

Axes: X places, see `SetApart`.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.encoder.layers.parts import SetApart, build_norm
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
        added, projection = spec.added_width(width), spec.projection
        self.positions = nn.Embedding(positions.rows, added) if positions else None
        self.segments = nn.Embedding(spec.segments, added) if spec.segments else None
        self.tasks = nn.Embedding(spec.tasks, added) if spec.tasks else None
        self.projection = (
            nn.Linear(projection.tokens * spec.width, width, bias=projection.bias) if projection else None
        )
        self.project_words = projection is not None and projection.words_alone
        self.project_first = projection is not None and projection.before_norm and not self.project_words
        self.norm = build_norm(spec.norm, width if self.project_first or self.project_words else spec.width)
        self.dropout = Dropout(spec.dropout)

    def forward(self, ids_T: Tensor, segments_T: Tensor, layout: SequenceLayout) -> Tensor:
        """Shape (T,) ids and token types in, (T, D) out."""
        scale_T1 = self.scales(ids_T, layout)
        return self.at(ids_T, segments_T, self.places(ids_T, layout), scale_T1, self.around(layout))

    def scales(self, ids_T: Tensor, layout: SequenceLayout) -> Tensor | None:
        """`word_scale` of packed tokens, (T, 1); None for an embedding without `TokenDropout`."""
        if self.spec.token_dropout is None:
            return None
        sequence_T = torch.from_numpy(layout.sequence_of_T).to(ids_T.device)
        kept_T = ids_T != self.spec.token_dropout.mask_id
        read_T = torch.ones_like(ids_T)
        if layout.unattended_T is not None:  # to the other tokens of their sequence they are absent
            read_T -= torch.from_numpy(layout.unattended_T).to(read_T)
        tokens_S, kept_S = (
            ids_T.new_zeros(layout.sequence_count).index_add_(0, sequence_T, counted_T)
            for counted_T in (read_T, read_T * kept_T)
        )
        return self.word_scale(kept_T, kept_S[sequence_T], tokens_S[sequence_T])

    def around(self, layout: SequenceLayout) -> Callable[[Tensor], Tensor] | None:
        """What gives the word vectors of packed tokens those of their neighbors, see `Projection.neighbors`:
        (T, E) to (T, tokens E). None where no token reads another.
        """
        if self.spec.projection is None or not self.spec.reads_neighbors:
            return None
        apart = SetApart.of(layout, self.spec.projection.neighbors, self.words.weight.device)

        def beside(x_TE: Tensor) -> Tensor:
            x_XE = apart.spread(x_TE)
            return torch.cat([x_XE[apart.places_T + at] for at in reversed(range(apart.span))], dim=-1)

        return beside

    def around_padded(self, present_BN: Tensor) -> Callable[[Tensor], Tensor] | None:
        """`around` for padded texts, (B, N, E) to (B, N, tokens E); padding counts as zeros."""
        if self.spec.projection is None or not self.spec.reads_neighbors:
            return None
        far, length = self.spec.projection.neighbors, present_BN.shape[1]

        def beside(x_BNE: Tensor) -> Tensor:
            x_BXE = functional.pad(x_BNE * present_BN[..., None], (0, 0, far, far))
            return torch.cat([x_BXE[:, at : at + length] for at in reversed(range(2 * far + 1))], dim=-1)

        return beside

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

    def at(
        self,
        ids: Tensor,
        segments: Tensor,
        places: Tensor | None,
        scale: Tensor | None = None,
        around: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """`forward` for ids of any shape (...), at these places of their texts; (..., D).

        ``scale`` is that of `word_scale` and ``around`` that of `around`, where there is one.
        """
        x_E: Tensor = self.words(ids)
        if scale is not None:
            x_E = x_E * scale
        if self.spec.scale != 1:
            x_E = x_E * self.spec.scale
        if self.projection is not None and self.project_words:
            x_E = self.projection(x_E if around is None else around(x_E))
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
        if self.projection is not None and not (self.project_first or self.project_words):
            x = self.projection(x)
        return x
