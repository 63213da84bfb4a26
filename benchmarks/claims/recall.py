"""Planted facts and questions about them: does a mixer find one token among many?

A text is n facts and `QUESTIONS` questions. A fact is one token: its word is a key, its token type a value.
No two facts of a text have the same key. A question is a key with the token type `VALUES`; its answer is the
value of the fact with this key. Order carries no information and the encoder has no positions: attention only
has to find, by its content, one token among n + `QUESTIONS`, and read it. Guessing is right 1 / `VALUES` of
the time.

Axes: S texts, N tokens of a text, Q questions, T tokens of all texts, H heads, K features of a head, D width.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from unmask.encoder.encoder import Encoder
from unmask.encoder.hooks import Hook, HookPoint
from unmask.encoder.layers.linear_attention import LinearMixer
from unmask.spec import (
    Classifier,
    Embedding,
    EncoderSpec,
    Layer,
    LayerNorm,
    LinearAttention,
    Mixer,
    PlainFeedForward,
    SoftmaxAttention,
)
from unmask.text import SequenceLayout

KEYS, VALUES, QUESTIONS = 256, 8, 16
FACTS = (4, 8, 16, 32, 64, 128, 256)
"""Facts of a text: lengths that are trained, a different one in each step, and evaluated."""
WIDTH, HEADS = 64, 4
TOKENS = 2048
"""Tokens per step."""
EVALUATED = 4096
"""Questions per length."""
AT_ONCE = 32
"""Texts that are evaluated together; the weights of the first of these are read."""
RATE = 1e-2

MIXERS: dict[str, Mixer] = {
    "softmax": SoftmaxAttention(HEADS, WIDTH // HEADS),
    "linear": LinearAttention(HEADS, WIDTH // HEADS, "elu+1"),
    "performer": LinearAttention(HEADS, WIDTH // HEADS, "favor+", 64, 1e-4),
}


def spec_of(variant: str) -> EncoderSpec:
    """Two layers with the variant's mixer, no positions, and a classifier of values for each token."""
    norm = LayerNorm(1e-5)
    layer = Layer(MIXERS[variant], PlainFeedForward(4 * WIDTH, "gelu"), norm, norm_first=True)
    return EncoderSpec(
        WIDTH,
        Embedding(KEYS, WIDTH, segments=VALUES + 1),
        (layer, layer),
        final_norm=norm,
        heads=(Classifier("tokens", VALUES, "tokens"),),
        init_std=WIDTH**-0.5,
    )


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts of equal length: S texts of N tokens, the last Q of which are questions."""

    keys_SN: NDArray[np.int64]
    """Ids of the words."""
    values_SN: NDArray[np.int64]
    """Token types: the values of the facts, and `VALUES` for a question."""
    answers_SQ: NDArray[np.int64]
    places_SQ: NDArray[np.int64]
    """Positions of the facts that are asked for."""

    @classmethod
    def drawn(cls, draw: np.random.Generator, facts: int, count: int) -> "Texts":
        """Draw ``count`` texts."""
        keys_SF = np.stack([draw.permutation(KEYS)[:facts] for _ in range(count)])
        values_SF = draw.integers(VALUES, size=(count, facts))
        places_SQ = draw.integers(facts, size=(count, QUESTIONS))
        asked_SQ = np.take_along_axis(keys_SF, places_SQ, 1)
        return cls(
            np.concatenate([keys_SF, asked_SQ], 1),
            np.concatenate([values_SF, np.full_like(asked_SQ, VALUES)], 1),
            np.take_along_axis(values_SF, places_SQ, 1),
            places_SQ,
        )

    @property
    def layout(self) -> SequenceLayout:
        """The layout of these texts."""
        return SequenceLayout.of_lengths([self.keys_SN.shape[1]] * len(self.keys_SN))

    def states(self, encoder: Encoder, hook: Hook | None = None) -> Tensor:
        """Last hidden states, (S, N, D)."""
        keys_T, values_T = (
            torch.from_numpy(self.keys_SN).flatten(),
            torch.from_numpy(self.values_SN).flatten(),
        )
        return encoder(keys_T, self.layout, values_T, hook=hook).view(*self.keys_SN.shape, -1)

    def logits(self, encoder: Encoder) -> Tensor:
        """Logits of the answers, (S * Q, VALUES)."""
        x_QD = self.states(encoder)[:, -QUESTIONS:].flatten(0, 1)
        return encoder.logits("tokens", x_QD, self.layout)


def train(variant: str, seed: int, tokens: int) -> Encoder:
    """Train on texts of all lengths in turn, with AdamW and a linear schedule with warm-up."""
    torch.manual_seed(seed)
    draw = np.random.default_rng([seed, 1])
    encoder = Encoder(spec_of(variant))
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=RATE, weight_decay=0.01)
    steps = tokens // TOKENS
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (0.05 * steps + 1), (steps - step) / (0.95 * steps + 1))
    )
    for step in range(steps):
        facts = FACTS[step % len(FACTS)]
        texts = Texts.drawn(draw, facts, TOKENS // (facts + QUESTIONS))
        loss = functional.cross_entropy(texts.logits(encoder), torch.from_numpy(texts.answers_SQ).flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return encoder.eval()


def weights_on_facts(encoder: Encoder, texts: Texts) -> Tensor:
    """The weight of each question on the fact it asks for, averaged over questions, (layers, H)."""
    kept: dict[tuple[HookPoint, int], Tensor] = {}

    def keep(point: HookPoint, layer: int, x_THK: Tensor) -> None:
        kept[point, layer] = x_THK.unflatten(0, texts.keys_SN.shape).transpose(1, 2)

    texts.states(encoder, keep)
    found = []
    places_S1Q1 = torch.from_numpy(texts.places_SQ)[:, None, :, None].expand(-1, HEADS, -1, -1)
    for layer, block in enumerate(encoder.layers):
        q_SHNK, k_SHNK = kept[HookPoint.QUERY, layer][:, :, -QUESTIONS:], kept[HookPoint.KEY, layer]
        if isinstance(block.attention, LinearMixer):
            every = [block.attention.features(*one) for one in zip(q_SHNK, k_SHNK, strict=True)]
            p_SHQN = torch.stack([q_HQM @ k_HNM.mT for q_HQM, k_HNM in every])
            p_SHQN = p_SHQN / p_SHQN.sum(-1, keepdim=True)
        else:
            p_SHQN = (q_SHNK @ k_SHNK.mT / q_SHNK.shape[-1] ** 0.5).softmax(-1)
        found.append(p_SHQN.gather(-1, places_S1Q1).mean((0, 2, 3)))
    return torch.stack(found)


@torch.inference_mode()
def measure(encoder: Encoder) -> dict[str, float]:
    """Accuracy by length, and the mean weight on the fact asked for, in the head where it is largest."""
    made = {}
    for facts in FACTS:
        draw = np.random.default_rng([0, facts])
        every = [Texts.drawn(draw, facts, AT_ONCE) for _ in range(EVALUATED // (AT_ONCE * QUESTIONS))]
        right = [one.logits(encoder).argmax(-1).numpy() == one.answers_SQ.reshape(-1) for one in every]
        made[f"accuracy@{facts}"] = float(np.mean(right))
        made[f"weight@{facts}"] = float(weights_on_facts(encoder, every[0]).max())
    return made


def run(variant: str, seed: int, tokens: int, data: Path, work: Path) -> tuple[float, dict[str, float]]:
    """Train and measure one encoder; 0 tokens: random weights."""
    start = time.process_time()
    encoder = train(variant, seed, tokens)
    return time.process_time() - start, measure(encoder)
