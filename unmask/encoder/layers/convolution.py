"""A convolution over packed tokens that stays inside each sequence."""

import torch
from torch import Tensor, nn

from unmask.encoder.layers.parts import ACTIVATIONS, build_norm
from unmask.kernels.dropout import Dropout
from unmask.spec import Convolution
from unmask.text.batch import SequenceLayout


class ConvolutionLayer(nn.Module):
    """``norm(layer 0 + activation(conv(embedding)))``, see `Convolution` (He, Gao & Chen 2023)."""

    def __init__(self, spec: Convolution, width: int) -> None:
        super().__init__()
        self.radius = spec.kernel // 2
        self.inner = nn.Conv1d(width, width, spec.kernel, groups=spec.groups)
        self.activation = ACTIVATIONS[spec.activation]
        self.dropout = Dropout(spec.dropout)
        self.norm = build_norm(spec.norm, width)

    def forward(self, embedded_TD: Tensor, x_TD: Tensor, layout: SequenceLayout) -> Tensor:
        """All shapes are (T, D); ``x_TD`` is layer 0's output."""
        device = x_TD.device
        # Zeros between sequences, as many as half a kernel, keep the sequences independent.
        sequence_T = torch.repeat_interleave(
            torch.arange(layout.sequence_count, device=device), torch.from_numpy(layout.lengths).to(device)
        )
        places_T = torch.arange(len(x_TD), device=device) + self.radius * sequence_T
        apart_XD = x_TD.new_zeros(len(x_TD) + self.radius * (layout.sequence_count + 1), x_TD.shape[1])
        apart_XD = apart_XD.index_copy(0, places_T + self.radius, embedded_TD)
        mixed_TD = self.inner(apart_XD.T[None])[0].T[places_T]
        y_TD: Tensor = self.norm(x_TD + self.activation(self.dropout(mixed_TD)))
        return y_TD
