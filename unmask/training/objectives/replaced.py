"""Replaced-token detection (Clark, Luong, Le & Manning 2020; He, Gao & Chen 2023).

A small encoder, the generator, predicts masked words. Words sampled from its predictions replace the masked
tokens, and the encoder that is kept, the discriminator, predicts for every token whether it was replaced.
Both are trained jointly; no gradient passes through the sampling.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from unmask.base.arguments import at_least
from unmask.encoder.decoder import decode
from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import MaskedLMHead
from unmask.errors import InvalidRequest
from unmask.families import Family
from unmask.spec.check import require_positive
from unmask.spec.encoder import why_no_decoder
from unmask.training.data.stream import Chunk
from unmask.training.objectives.generator import Sharing, export, generator_spec, share, with_detector
from unmask.training.objectives.interface import LossOutput, Objective
from unmask.training.objectives.language_modeling import (
    LOGITS_AT_ONCE,
    MaskedExample,
    masked_example,
    selected_cross_entropy,
    wrap,
)
from unmask.training.objectives.masking import MaskingSpec
from unmask.training.table import settings
from unmask.training.vocabulary import Vocabulary


@settings
class ReplacedSpec:
    """How tokens are replaced and what the encoders share. The defaults are those of ELECTRA's code."""

    width_share: float = 0.25
    """Width share of the generator; 1/3 for ELECTRA's base size, 1 for DeBERTa v3."""
    layers_share: float = 1.0
    """Layer share of the generator; 1/2 for DeBERTa v3."""
    sharing: Sharing = "tied"
    """``gradient_disentangled`` for DeBERTa v3; see `unmask.training.objectives.generator`."""
    weight: float = 50.0
    """Weight of the discriminator's loss; the default in DeBERTa v3's code is 10."""
    temperature: float = 1.0
    """Logits are divided by it before sampling; it does not affect the generator's loss."""
    disallow_correct: bool = False
    """Never sample the original word."""
    masking: MaskingSpec = field(default_factory=lambda: MaskingSpec(replacement="electra"))
    """All selected tokens are replaced, including those visible to the generator; DeBERTa v3 masks all of
    them."""

    def __post_init__(self) -> None:
        require_positive("temperature", self.temperature)
        at_least("weight", self.weight, 0)


DEBERTA_V3 = ReplacedSpec(
    width_share=1.0,
    layers_share=0.5,
    sharing="gradient_disentangled",
    masking=MaskingSpec(replacement="mask"),
)
"""The settings of He, Gao & Chen 2023."""


@dataclass(frozen=True, eq=False)
class ReplacedExample(MaskedExample):
    """Texts with masked tokens, the original tokens, and a random number for sampling each replacement."""

    draws_M: NDArray[np.float64]
    """Uniform on 0 to 1."""


class ReplacedTokenDetection(Objective[Chunk, ReplacedExample]):
    """Masked language modeling of a generator plus ``weight`` times detection of what it replaced.

    Terms: ``masked``, a mean over selected tokens (``masked/loss``, ``masked/accuracy``), and ``replaced``, a
    mean over all tokens, special tokens included: ``replaced/loss``, ``replaced/accuracy``, and the shares of
    tokens that are replaced (``replaced/true``), predicted as replaced (``replaced/said``) and both
    (``replaced/found``). Precision is found / said, recall found / true.

    A selected token for which the same word is sampled counts as not replaced.

    Args:
        discriminator: the encoder that is kept. If it has no replaced-token-detection head, a copy gets one
        and loses its other heads; see `discriminator_spec`.
        vocabulary: the special tokens.
        spec: the settings.
        generator: used instead of a new one with the spec's shares, see `generator_spec`.
        family: in whose files the discriminator is to be saved; None for any.

    Raises:
        InvalidRequest: the generator has no MLM head, or the tables to be shared differ in shape.
    """

    def __init__(
        self,
        discriminator: Encoder,
        vocabulary: Vocabulary,
        spec: ReplacedSpec | None = None,
        generator: Encoder | None = None,
        family: Family | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec = spec or ReplacedSpec()
        if generator is None:
            generator = _fresh_generator(discriminator, spec)
        self.role = generator_role(generator)
        self.discriminator = with_detector(discriminator, family)
        self.generator = generator
        self.vocabulary = vocabulary
        self.shared = share(self.discriminator, generator, spec.sharing)

    def prepare(self, chunks: Sequence[Chunk], draw: np.random.Generator, progress: float) -> ReplacedExample:
        """Make [CLS] chunk [SEP] of each chunk, and mask tokens."""
        return replaced_example(chunks, self.vocabulary, self.spec.masking, draw, progress)

    def forward(self, example: ReplacedExample, totals: Mapping[str, int]) -> LossOutput:
        """Both sums, each divided by its number in the global batch, the second multiplied by the weight."""
        masked, right, words_M = self.propose(example)
        detected, sums = self.detect(example, words_M)
        loss = masked / totals["masked"] + self.spec.weight * detected / totals["replaced"]
        return LossOutput(loss, {"masked/loss": masked.detach(), "masked/accuracy": right.detach(), **sums})

    def propose(self, example: ReplacedExample) -> tuple[Tensor, Tensor, Tensor]:
        """The generator's part: its sum of cross-entropies, the number correct, and sampled words, (M,)."""
        return propose(self.generator, example, self.spec)

    def detect(self, example: ReplacedExample, words_M: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The discriminator's part: its sum of binary cross-entropies, in nats, and what to report."""
        encoder, batch = self.discriminator, example.batch
        ids_T, segments_T, chosen_M, targets_M = _on(
            words_M.device, batch.ids_T, batch.token_type_ids_T, example.chosen_M, example.targets_M
        )
        # Selected tokens that were kept or randomized are replaced too.
        ids_T = ids_T.index_copy(0, chosen_M, words_M)
        truth_T = torch.zeros_like(ids_T, dtype=torch.bool).index_copy(0, chosen_M, words_M != targets_M)
        x_TD = encoder(ids_T, batch.layout, segments_T)
        logits_T = encoder.logits("replaced", x_TD, batch.layout).squeeze(-1)
        logits_T = logits_T.to(torch.promote_types(logits_T.dtype, torch.float32))
        loss = functional.binary_cross_entropy_with_logits(
            logits_T, truth_T.to(logits_T.dtype), reduction="sum"
        )
        said_T = logits_T > 0
        return loss, {
            "replaced/loss": loss.detach(),
            "replaced/accuracy": (said_T == truth_T).sum(),
            "replaced/true": truth_T.sum(),
            "replaced/said": said_T.sum(),
            "replaced/found": (said_T & truth_T).sum(),
        }

    def encoders(self) -> Mapping[str, Encoder]:
        """The discriminator, with its own copy of tables shared with the generator, and the generator."""
        return {"": export(self.discriminator), "generator": self.generator}


def replaced_example(
    chunks: Sequence[Chunk],
    vocabulary: Vocabulary,
    masking: MaskingSpec,
    draw: np.random.Generator,
    progress: float,
) -> ReplacedExample:
    """Make [CLS] chunk [SEP] of each chunk, mask tokens, and draw a number for each replacement."""
    masked = masked_example(wrap(chunks, vocabulary), vocabulary, masking, draw, progress)
    counts, draws_M = {**masked.counts, "replaced": masked.tokens}, draw.random(len(masked.chosen_M))
    return masked.extended(ReplacedExample, counts=counts, draws_M=draws_M)


def propose(
    generator: Encoder, example: ReplacedExample, spec: ReplacedSpec
) -> tuple[Tensor, Tensor, Tensor]:
    """A generator's sum of cross-entropies, the number correct, and the words that it samples, (M,)."""
    batch = example.batch
    ids_T, segments_T, chosen_M, targets_M, draws_M = _on(
        generator.device,
        *(batch.ids_T, batch.token_type_ids_T, example.chosen_M, example.targets_M, example.draws_M),
    )
    role = generator_role(generator)
    if role == "enhanced":
        x_MD = decode(generator, ids_T, batch.layout, segments_T, selected_M=chosen_M)
    else:
        x_MD = generator(ids_T, batch.layout, segments_T)[chosen_M]
    head = generator.heads[role]
    assert isinstance(head, MaskedLMHead)
    state_ME, matrix_VE, bias_V = head.factors(x_MD, generator.embedding.words.weight)
    loss, right = selected_cross_entropy(state_ME, matrix_VE, bias_V, targets_M)
    words_M = draw_words(
        state_ME,
        matrix_VE,
        bias_V,
        draws_M,
        temperature=spec.temperature,
        never_M=targets_M if spec.disallow_correct else None,
    )
    return loss, right, words_M


@torch.no_grad()
def draw_words(
    state_ME: Tensor,
    words_VE: Tensor,
    bias_V: Tensor | None,
    draws_M: Tensor,
    *,
    temperature: float = 1.0,
    never_M: Tensor | None = None,
) -> Tensor:
    """Sample one word per row from ``softmax((state words^T + bias) / temperature)``; ids of shape (M,).

    Sampling by inversion returns the first word at which the cumulative probability exceeds the row's random
    number. It needs one number per row, made on the host, while Gumbel noise (as in ELECTRA's code) needs one
    per word; so words do not depend on a device's random numbers. Sums are in float32 or better.

    Args:
        state_ME: states that predict.
        words_VE: a vector per word.
        bias_V: a number per word, or None.
        draws_M: uniform numbers, at least 0 and below 1.
        temperature: values below 1 sharpen the distribution.
        never_M: a word per row that must not be sampled; None excludes none.
    """
    kind = state_ME.device.type
    if torch.is_autocast_enabled(kind):  # the dtype of the loss's matrix products
        state_ME = state_ME.to(torch.get_autocast_dtype(kind))
    exact = torch.promote_types(state_ME.dtype, torch.float32)
    matrix_VE = words_VE.to(state_ME.dtype)
    # A random number that rounds to 1 would be beyond the last word.
    draws_M = draws_M.to(exact).clamp(max=1 - torch.finfo(exact).eps / 2)
    step = max(1, LOGITS_AT_ONCE * (1 if kind == "cpu" else 64) // len(words_VE))
    words = []
    for first in range(0, len(state_ME), step):
        rows = slice(first, first + step)
        with torch.autocast(kind, enabled=False):
            logits_RV = functional.linear(state_ME[rows], matrix_VE).to(exact)
        if bias_V is not None:
            logits_RV += bias_V
        if never_M is not None:
            logits_RV.scatter_(1, never_M[rows, None], -torch.inf)
        logits_RV -= logits_RV.amax(-1, keepdim=True)
        sums_RV = (logits_RV / temperature).exp_().cumsum(-1)
        wanted_R1 = draws_M[rows, None] * sums_RV[:, -1:]
        words.append(torch.searchsorted(sums_RV, wanted_R1, right=True).squeeze(-1))
    return torch.cat(words)


def _on(device: torch.device, *arrays: NDArray[Any]) -> Iterator[Tensor]:
    return (torch.from_numpy(array).to(device) for array in arrays)


def _fresh_generator(discriminator: Encoder, spec: ReplacedSpec) -> Encoder:
    smaller = generator_spec(discriminator.spec, width_share=spec.width_share, layers_share=spec.layers_share)
    if spec.sharing == "none" and smaller.width < smaller.embedding.width:
        # A separate table need not be wider than the rest.
        smaller = generator_spec(
            discriminator.spec,
            width_share=spec.width_share,
            layers_share=spec.layers_share,
            embedding_width=smaller.width,
        )
    encoder = Encoder(smaller, kernel=discriminator.kernel)
    return encoder.to(device=discriminator.device, dtype=discriminator.embedding.words.weight.dtype)


def generator_role(generator: Encoder) -> str:
    """The role of the head by which a generator predicts masked words; an error if it has none."""
    if why_no_decoder(generator.spec) is None:
        return "enhanced"
    if "masked" not in generator.heads:
        has = ", ".join(generator.heads) or "none"
        raise InvalidRequest(
            f"the generator has no head that predicts masked words (heads: {has}); give its spec a MaskedLM"
        )
    return "masked"
