"""Embedding sharing between the two encoders of replaced-token detection.

``tied``: the tables are the same parameters, trained by both losses (Clark et al. 2020).
``gradient_disentangled``: the discriminator reads the generator's tables plus its own shift; its loss
trains only the shift, so that the two losses do not compete for one table (He, Gao & Chen 2023).
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from unmask.encoder.decoder import why_no_decoder
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.spec import EncoderSpec
from unmask.weights.build import on_meta

Sharing = Literal["none", "tied", "gradient_disentangled"]


class ShiftedTable(nn.Module):
    """Another embedding's table, which is not trained here, plus a trained shift that starts at 0.

    A replacement for `nn.Embedding`: ``weight`` is the sum.
    """

    def __init__(self, base: nn.Embedding) -> None:
        super().__init__()
        # In a tuple, so that its parameters and state_dict entries belong only to the other encoder.
        self._base = (base,)
        self.shift = nn.Parameter(torch.zeros_like(base.weight))

    @property
    def weight(self) -> Tensor:
        """Shape (V, E): the sum of base and shift, with gradients only to the shift."""
        return self._base[0].weight.detach() + self.shift

    def forward(self, ids_T: Tensor) -> Tensor:
        """Shape (T,) in, (T, E) out; bit for bit the rows of `weight`, which is not computed."""
        base_TE = functional.embedding(ids_T, self._base[0].weight.detach())
        return base_TE + functional.embedding(ids_T, self.shift)


def shared_parts(discriminator: EncoderSpec, generator: EncoderSpec, sharing: Sharing) -> tuple[str, ...]:
    """The names of the embedding parts that two encoders share.

    Words are always shared, and positions if both number and add them in the same way. ``tied`` also shares
    token types and the norm, as in ELECTRA's code; ``gradient_disentangled`` does not, as in DeBERTa v3's.

    Raises:
        InvalidRequest: their word tables differ in shape, or there is no such way of sharing.
    """
    if sharing not in get_args(Sharing):
        raise InvalidRequest(f"sharing is {sharing!r}; it can be {', '.join(get_args(Sharing))}")
    if sharing == "none":
        return ()
    ours, theirs = discriminator.embedding, generator.embedding
    if (ours.vocabulary, ours.width) != (theirs.vocabulary, theirs.width):
        raise InvalidRequest(
            f"the discriminator's word table is {ours.vocabulary} x {ours.width} and the generator's "
            f'{theirs.vocabulary} x {theirs.width}; give them one shape, or sharing="none"'
        )
    parts = ["words"]
    if ours.positions is not None and ours.positions == theirs.positions:
        parts.append("positions")
    if sharing == "tied":
        if ours.segments and ours.segments == theirs.segments:
            parts.append("segments")
        norms = ((spec.embedding.norm, _norm_width(spec)) for spec in (discriminator, generator))
        if ours.norm is not None and len(set(norms)) == 1:
            parts.append("norm")
    return tuple(parts)


def share(discriminator: Encoder, generator: Encoder, sharing: Sharing) -> tuple[str, ...]:
    """Share parts of the two embeddings, in place; return the result of `shared_parts`.

    Shared parts start with the discriminator's values. A position table that the discriminator's embedding
    does not add gets no gradient from its loss: if positions are shared it is the generator's, without a
    shift. Tables without a gradient are frozen.

    Raises:
        InvalidRequest: see `shared_parts`.
    """
    parts = shared_parts(discriminator.spec, generator.spec, sharing)
    ours, theirs = discriminator.embedding, generator.embedding
    for part in parts:
        part_of_ours = ours.get_submodule(part)
        # One module in two places: its parameters are counted, moved and loaded once.
        theirs.register_module(part, part_of_ours)
        if sharing == "gradient_disentangled" and not (part == "positions" and _unread(discriminator)):
            assert isinstance(part_of_ours, nn.Embedding)
            ours.register_module(part, ShiftedTable(part_of_ours))
    for encoder in (discriminator, generator):
        if _unread(encoder):
            encoder.embedding.get_submodule("positions").requires_grad_(False)
    if why_no_decoder(generator.spec) is None:
        theirs.get_submodule("positions").requires_grad_(True)
    return parts


def is_shared(encoder: Encoder) -> bool:
    """Whether a table of the encoder is another's plus a shift."""
    return any(isinstance(module, ShiftedTable) for module in encoder.embedding.children())


def export(encoder: Encoder) -> Encoder:
    """The encoder with its own tables, the sums of base and shift. Outputs do not change.

    It shares no memory with the trained encoder. An encoder without shifts is returned unchanged.
    """
    if not is_shared(encoder):
        return encoder
    state = encoder.state_dict()
    for name, module in encoder.named_modules():
        if isinstance(module, ShiftedTable):
            del state[f"{name}.shift"]
            state[f"{name}.weight"] = module.weight
    exported = on_meta(encoder.spec, encoder.kernel)
    exported.load_state_dict({name: tensor.detach().clone() for name, tensor in state.items()}, assign=True)
    return exported.train(encoder.training)


def _norm_width(spec: EncoderSpec) -> int:
    projection = spec.embedding.projection
    return spec.width if projection is not None and projection.before_norm else spec.embedding.width


def _unread(encoder: Encoder) -> bool:
    """Whether it keeps a table of positions that its embedding does not add."""
    positions = encoder.spec.embedding.positions
    return positions is not None and not positions.added
