"""How new weights are initialized."""

from typing import Literal

Initialization = Literal["normal", "megatron", "zero_out"]
"""``normal``: every matrix normal with the spec's standard deviation, biases 0, norms 1 (Devlin et al. 2019).

``megatron``: the same, truncated at two standard deviations; the output projections of attention and of the
feed-forward network have the deviation divided by sqrt(2 L), so that the sum of the 2 L contributions to a
state does not grow with depth (Shoeybi et al. 2019; also used for ModernBERT). The deviation is that of the
normal distribution before truncation, as in their code; the weights have 0.88 of it. ModernBERT also
initializes classifiers with 1 / sqrt(D); here heads use the spec's deviation.

``zero_out``: like ``normal``, with output projections 0, so that every layer of a pre-norm encoder starts as
the identity (Zhang, Dauphin & Ma 2019, who do this for the last layer of each residual branch).
"""
