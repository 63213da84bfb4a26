"""TopK sparse autoencoders (Gao et al. 2024): a state as a sum of a few out of many learned directions.

``z = TopK(W (x - b) / s + c)`` and ``x' = s z D + b``, with rows of D of length 1, b the mean state and s the
root mean square of what is left. Latents that no token has activated for an epoch take part in a second loss,
which asks them for what is missing (the paper's AuxK, with its weight of 1/32), so that few stay dead. Unlike
the paper, b is not trained.

Axes: F features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, normalize

from unmask.base.arguments import whole_number
from unmask.base.progress import Watch, unwatched
from unmask.errors import InvalidRequest, NonFiniteResult

AUXILIARY_SHARE = 1 / 32
"""The weight of the loss of dead latents."""


@dataclass(frozen=True)
class AutoencoderSettings:
    """How a sparse autoencoder is trained.

    Raises:
        InvalidRequest: a number is out of range.
    """

    features: int = 512
    """Directions that are learned."""
    active: int = 16
    """Of them, those that are active at a token: k."""
    epochs: int = 10
    """How often each state is seen."""
    tokens_per_step: int = 256
    learning_rate: float = 2e-3
    """Of Adam; it falls to 0 over the last fifth of the steps."""

    def __post_init__(self) -> None:
        for name in ("features", "active", "epochs", "tokens_per_step"):
            whole_number(name, getattr(self, name), 1)
        if self.active > self.features:
            raise InvalidRequest(
                f"active is {self.active}, and there are {self.features} features; at most all can be active"
            )
        if not self.learning_rate > 0:
            raise InvalidRequest(f"learning_rate is {self.learning_rate}; it must be above 0")


@dataclass(frozen=True, eq=False)
class SparseAutoencoder:
    """A trained autoencoder, in float32 on the CPU."""

    encoder_FD: Tensor
    bias_F: Tensor
    decoder_FD: Tensor
    """A direction for each feature, of length 1."""
    mean_D: Tensor
    scale: float
    active: int

    @property
    def features(self) -> int:
        """F."""
        return len(self.bias_F)

    def activations(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        """The active features of each state, largest first: numbers and activations, (N, k) each.

        An activation is the length of what the feature adds to the state; 0 where fewer than k are positive.
        """
        values_Nk, features_Nk = self.latents(x_ND).topk(self.active, dim=-1)
        return features_Nk, values_Nk.clamp(min=0) * self.scale

    def latents(self, x_ND: Tensor) -> Tensor:
        """Every latent before TopK, (N, F), in units of the scale."""
        return self._normalized(x_ND) @ self.encoder_FD.T + self.bias_F

    def reconstruct(self, x_ND: Tensor) -> Tensor:
        """The mean and what the active features add, (N, D)."""
        features_Nk, activations_Nk = self.activations(x_ND)
        return self.mean_D + _sum_of(self.decoder_FD, features_Nk, activations_Nk)

    def explained(self, x_ND: Tensor) -> float:
        """The fraction of the variance of some states around the mean that it explains."""
        if not len(x_ND):
            return float("nan")
        x_ND = x_ND.float()
        missing = (x_ND - self.reconstruct(x_ND)).square().sum()
        return float(1 - missing / (x_ND - self.mean_D).square().sum())

    def _normalized(self, x_ND: Tensor) -> Tensor:
        return (x_ND.float() - self.mean_D) / self.scale


def train_autoencoder(
    x_TD: Tensor, settings: AutoencoderSettings, *, seed: int = 0, watch: Watch | None = None
) -> SparseAutoencoder:
    """Train a sparse autoencoder on states.

    Args:
        x_TD: the states of T tokens.
        settings: see there.
        seed: of the first directions and of the order of tokens.
        watch: called after each step with the steps done and in all.

    Raises:
        InvalidRequest: there are fewer states than features.
        NonFiniteResult: the loss is not finite.
        Cancelled: ``watch`` stopped the work.
    """
    tokens, width = x_TD.shape
    if tokens < settings.features:
        raise InvalidRequest(
            f"there are {tokens} states for {settings.features} features; give more texts or fewer features"
        )
    generator = torch.Generator().manual_seed(seed)
    x_TD = x_TD.detach().float().cpu()
    mean_D = x_TD.mean(0)
    scale = float((x_TD - mean_D).square().mean().sqrt()) or 1.0
    x_TD = (x_TD - mean_D) / scale
    decoder_FD = normalize(torch.randn(settings.features, width, generator=generator), dim=-1)
    parts = [decoder_FD.clone(), torch.zeros(settings.features), decoder_FD]
    encoder_FD, bias_F, decoder_FD = (part.requires_grad_() for part in parts)
    optimizer = torch.optim.Adam([encoder_FD, bias_F, decoder_FD], lr=settings.learning_rate)
    steps_each = -(-tokens // settings.tokens_per_step)
    steps, watch, step = steps_each * settings.epochs, watch or unwatched, 0
    unseen_F = torch.zeros(settings.features, dtype=torch.int64)
    for _ in range(settings.epochs):
        for some_B in torch.split(torch.randperm(tokens, generator=generator), settings.tokens_per_step):
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * min(1.0, 5 * (1 - step / steps))
            with torch.enable_grad():
                loss, fired_F = _loss(
                    x_TD[some_B], (encoder_FD, bias_F, decoder_FD), settings.active, unseen_F >= tokens
                )
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
            if not bool(torch.isfinite(loss)):
                raise NonFiniteResult("the loss of the autoencoder is not finite; lower learning_rate")
            optimizer.step()
            with torch.no_grad():
                decoder_FD.copy_(normalize(decoder_FD, dim=-1))
            unseen_F = torch.where(fired_F, 0, unseen_F + len(some_B))
            step += 1
            watch("training", step, steps)
    return SparseAutoencoder(
        encoder_FD.detach(), bias_F.detach(), decoder_FD.detach(), mean_D, scale, settings.active
    )


def _loss(
    x_BD: Tensor, weights: tuple[Tensor, Tensor, Tensor], active: int, dead_F: Tensor
) -> tuple[Tensor, Tensor]:
    """The share of variance that is missing, with the share of that which dead latents leave, and which
    features fired."""
    encoder_FD, bias_F, decoder_FD = weights
    latents_BF = x_BD @ encoder_FD.T + bias_F
    values_Bk, features_Bk = latents_BF.topk(active, dim=-1)
    values_Bk = values_Bk.relu()
    missing_BD = x_BD - _sum_of(decoder_FD, features_Bk, values_Bk)
    variance = x_BD.square().sum()
    loss = missing_BD.square().sum() / variance
    fired_F = torch.zeros_like(dead_F).index_fill_(0, features_Bk[values_Bk > 0], value=True)
    dead = int(dead_F.sum())
    if dead:
        most = min(dead, max(1, x_BD.shape[1] // 2))
        values_Bk, features_Bk = latents_BF.masked_fill(~dead_F, -torch.inf).topk(most, dim=-1)
        left_BD = missing_BD.detach()
        unfilled_BD = left_BD - _sum_of(decoder_FD, features_Bk, values_Bk.relu())
        loss = loss + AUXILIARY_SHARE * unfilled_BD.square().sum() / left_BD.square().sum()
    return loss, fired_F


def _sum_of(decoder_FD: Tensor, features_Nk: Tensor, values_Nk: Tensor) -> Tensor:
    """``sum_k value_k D[feature_k]`` for each token, (N, D)."""
    return embedding_bag(features_Nk, decoder_FD, per_sample_weights=values_Nk, mode="sum")


@dataclass(frozen=True)
class Stability:
    """How alike the features of two seeds are, by the largest cosine of each direction with those of the
    other; means over the features that are not dead."""

    cosine: float
    """Of the two autoencoders."""
    baseline: float
    """Of the first with as many random directions that have the covariance of the states."""
    matched: float
    """The share of features whose largest cosine is 0.7 or more, as feature comparisons usually require."""


MATCHED = 0.7
"""The cosine from which two directions count as the same feature."""


def matches(first: SparseAutoencoder, second: SparseAutoencoder) -> Tensor:
    """The largest cosine of each direction of the first with those of the second, (F,)."""
    return (first.decoder_FD @ second.decoder_FD.T).amax(-1)


def stability(
    first: SparseAutoencoder, second: SparseAutoencoder, x_TD: Tensor, alive_F: Tensor, *, seed: int = 0
) -> Stability:
    """Compare two autoencoders of the same states that were trained with different seeds.

    Args:
        first: whose features are matched.
        second: those to match with.
        x_TD: states that both were trained on.
        alive_F: which features of the first are not dead.
        seed: of the random directions.

    Raises:
        InvalidRequest: every feature is dead.
    """
    if not bool(alive_F.any()):
        raise InvalidRequest("every feature is dead; train longer, or with fewer features")
    generator = torch.Generator().manual_seed(seed)
    centered_TD = x_TD.float() - first.mean_D
    # Gaussian mixtures of states have their covariance.
    sample_MD = centered_TD[torch.randperm(len(centered_TD), generator=generator)[:MOST_MIXED]]
    mixed_FM = torch.randn(second.features, len(sample_MD), generator=generator)
    random_FD = normalize(mixed_FM @ sample_MD, dim=-1)
    best_F = matches(first, second)[alive_F]
    random_F = (first.decoder_FD[alive_F] @ random_FD.T).amax(-1)
    shares = (best_F.mean(), random_F.mean(), (best_F >= MATCHED).float().mean())
    return Stability(*(float(share) for share in shares))


MOST_MIXED = 4096
"""States of which random directions are mixed."""
