"""Whether an encoder has an enhanced mask decoder (He et al. 2021), according to its spec."""

from unmask.spec.attention import SlidingWindowGlobal, SoftmaxAttention
from unmask.spec.encoder import EncoderSpec
from unmask.spec.heads import MaskedLM


def why_no_decoder(spec: EncoderSpec) -> str | None:
    """Why an encoder has no enhanced mask decoder, as the end of "... because"; None if it has one."""
    positions, mixer = spec.embedding.positions, spec.layers[-1].mixer
    if not any(isinstance(head, MaskedLM) and head.enhanced for head in spec.heads):
        return "it has no head with the role enhanced"
    if positions is None or positions.added:
        return "it has no table of absolute positions separate from its embedding"
    if spec.embedding.width != spec.width:
        return f"its positions are {spec.embedding.width} wide and its states {spec.width}"
    if not isinstance(mixer, SoftmaxAttention):
        return f"its last layer mixes by {type(mixer).__name__}, which has no queries separate from keys"
    if isinstance(mixer.pattern, SlidingWindowGlobal) and mixer.pattern.own_projections:
        return "global tokens of its last layer have projections of their own"
    return None
