"""Features of a layer: the directions of a sparse autoencoder, what activates them, and what they do.

Axes: F features.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.base.arguments import one_of, whole_number
from unmask.base.files import replaced_folder, user_cache
from unmask.base.progress import Watch, unwatched
from unmask.encoder.encoder import Encoder
from unmask.errors import CheckpointError, InvalidRequest
from unmask.interpret.activation_cache import ActivationCache, check_attention
from unmask.interpret.corpus.measure import MOST_TOKENS
from unmask.interpret.corpus.sparse_autoencoder import (
    MATCHED,
    AutoencoderSettings,
    SparseAutoencoder,
    Stability,
    matches,
    stability,
    train_autoencoder,
)
from unmask.interpret.corpus.texts import Corpus
from unmask.interpret.effects.attribution import TOKENS_AT_ONCE
from unmask.interpret.effects.intervention import InterventionRun
from unmask.interpret.effects.target import AttributionTarget, Scale, TargetScore
from unmask.spec.global_tokens import pack, trained_global_tokens
from unmask.text import Encoding, Tokenizer
from unmask.text.batch import token_budget_batches

EXAMPLES = 10
"""Tokens kept of each feature."""
HELD_OUT = 10
"""One text of so many is not trained on, and measures how much variance is explained."""
NEAR_CHANCE = 0.1
"""Features are called noise if their stability is less above the baseline than this share of what is left
to 1."""
WEIGHTS, DESCRIPTION = "features.safetensors", "features.json"
FORMAT = 1


@dataclass(frozen=True)
class FeatureExample:
    """A token that activates a feature, in its text."""

    text: str
    source: str
    span: tuple[int, int]
    """Its characters in the text."""
    activation: float


@dataclass(frozen=True)
class Feature:
    """One feature over the corpus."""

    number: int
    density: float
    """The share of tokens at which it is active; 0 for a dead feature."""
    mean: float
    """Its mean activation where it is active."""
    examples: tuple[FeatureExample, ...]
    """The strongest first, at most one of each text."""
    match: float | None = None
    """Its largest cosine with the features of the second seed; None where an earlier version trained it."""


@dataclass(frozen=True, eq=False)
class Features:
    """The features of the residual stream after one layer; made by `train_features` or `load_features`."""

    autoencoder: SparseAutoencoder
    model: str
    digest: str
    """Of the model's content, see `unmask.Model.content_digest`."""
    layer: int
    """They describe the output of this layer, from 0, before a final norm."""
    settings: AutoencoderSettings
    corpus: str
    corpus_sha256: str
    texts: int
    tokens: int
    """Trained on; special tokens are left out."""
    explained: float
    """The fraction of variance explained on the texts that were held out."""
    stability: Stability
    """With a second seed."""
    features: tuple[Feature, ...]

    @property
    def dead(self) -> int:
        """Features that no token of the corpus activates."""
        return sum(feature.density == 0 for feature in self.features)

    def verdict(self) -> str:
        """One sentence: whether a second seed finds the same features."""
        found, chance = self.stability.cosine, self.stability.baseline
        measured = f"{found:.2f} with a second seed, {chance:.2f} with random directions"
        if found - chance < NEAR_CHANCE * (1 - chance):
            return (
                f"These features are noise: their mean largest cosine is {measured}. Do not read meanings "
                "into them; train on more texts, with fewer features, or on another layer."
            )
        return (
            f"The mean largest cosine of the features is {measured}; {self.stability.matched:.0%} have a "
            f"match of {MATCHED} or more, and only those are properties of the model rather than of the seed."
        )


def train_features(
    encoder: Encoder,
    tokenizer: Tokenizer,
    corpus: Corpus,
    layer: int,
    *,
    settings: AutoencoderSettings | None = None,
    seed: int = 0,
    max_tokens: int | None = None,
    model: str = "",
    digest: str = "",
    watch: Watch | None = None,
) -> Features:
    """Train sparse autoencoders on states of a layer, with two seeds, and describe the first over a corpus.

    Args:
        encoder: reads the texts.
        tokenizer: of the encoder.
        corpus: the texts, whose order is random.
        layer: whose output is described.
        settings: of the autoencoder; see there for the defaults.
        seed: of the first autoencoder; the second has the next.
        max_tokens: what the encoder reads; texts of more tokens, and of more than 512, are truncated.
        model: the name of the model, and
        digest: of its content, which are kept.
        watch: called while texts are read (``reading``) and after each step (``training``).

    Raises:
        UnknownArchitecture: the encoder is no Transformer.
        InvalidRequest: there is no such layer, or there are too few tokens.
        NonFiniteResult: a state or the loss is not finite.
        Cancelled: ``watch`` stopped the work.
    """
    check_attention(encoder, "explain")
    one_of("layer", layer, len(encoder.spec.layers), "this encoder has layers")
    settings = settings or AutoencoderSettings()
    limit = MOST_TOKENS if max_tokens is None else min(MOST_TOKENS, max_tokens)
    encodings = tokenizer.encode_batch(
        [text.text for text in corpus.texts],
        max_tokens=limit,
        truncation="end",
        name=lambda number: corpus.texts[number].source,
    )
    x_TD, places_T2 = _states(encoder, encodings, layer, watch or unwatched)
    held_T = torch.from_numpy(places_T2[:, 0] % HELD_OUT == HELD_OUT - 1)
    trained_TD = x_TD[~held_T]
    first, second = (
        train_autoencoder(trained_TD, settings, seed=seed + number, watch=_of_two(watch, number))
        for number in range(2)
    )
    features = tuple(
        replace(feature, match=match)
        for feature, match in zip(
            _described(first, x_TD, places_T2, encodings, corpus),
            matches(first, second).tolist(),
            strict=True,
        )
    )
    alive_F = torch.tensor([feature.density > 0 for feature in features])
    return Features(
        autoencoder=first,
        model=model,
        digest=digest,
        layer=layer,
        settings=settings,
        corpus=corpus.name,
        corpus_sha256=corpus.sha256,
        texts=len(encodings),
        tokens=len(trained_TD),
        explained=first.explained(x_TD[held_T] if bool(held_T.any()) else x_TD),
        stability=stability(first, second, trained_TD, alive_F, seed=seed),
        features=features,
    )


FeatureOrder = Literal["density", "rare", "match", "activation"]
"""How features are listed: those that fire at most tokens first, at fewest tokens, those that a second seed
found again most exactly, or those with the strongest activation."""


def in_order(features: Sequence[Feature], order: FeatureOrder) -> list[Feature]:
    """Features in an order; dead ones come last, equal ones by their number."""
    values: dict[FeatureOrder, Callable[[Feature], float]] = {
        "density": lambda feature: feature.density,
        "rare": lambda feature: -feature.density,
        "match": lambda feature: -1.0 if feature.match is None else feature.match,
        "activation": lambda feature: feature.examples[0].activation if feature.examples else 0.0,
    }
    return sorted(features, key=lambda feature: (feature.density == 0, -values[order](feature)))


def _of_two(watch: Watch | None, number: int) -> Watch:
    """Progress of two runs of equal length as that of one."""

    def both(what: str, done: int, of: int) -> None:
        (watch or unwatched)(what, number * of + done, 2 * of)

    return both


@torch.no_grad()
def _states(
    encoder: Encoder, encodings: Sequence[Encoding], layer: int, watch: Watch
) -> tuple[Tensor, NDArray[np.int64]]:
    """The output of a layer at every token that is not special, float32, and the text and place of each."""
    chosen = trained_global_tokens(encoder.spec, paired=False)
    states: dict[int, Tensor] = {}
    lengths = np.array([len(encoding) for encoding in encodings])
    for numbers in token_budget_batches(lengths, TOKENS_AT_ONCE * 4):
        batch = pack(encoder.spec, [encodings[number] for number in numbers], chosen)
        ids_T, segments_T = (
            torch.from_numpy(array).to(encoder.device) for array in (batch.ids_T, batch.token_type_ids_T)
        )
        x_TD = encoder(ids_T, batch.layout, segments_T, layers=layer + 1).float().cpu()
        for at, number in enumerate(numbers.tolist()):
            words_N = torch.tensor(~encodings[number].special)
            states[number] = x_TD[batch.layout.rows(at)][words_N]
        watch("reading", len(states), len(encodings))
    places = [
        (number, token)
        for number, encoding in enumerate(encodings)
        for token in np.flatnonzero(~encoding.special)
    ]
    every = torch.cat([states[number] for number in range(len(encodings))])
    return every, np.array(places, dtype=np.int64).reshape(-1, 2)


@torch.no_grad()
def _described(
    autoencoder: SparseAutoencoder,
    x_TD: Tensor,
    places_T2: NDArray[np.int64],
    encodings: Sequence[Encoding],
    corpus: Corpus,
) -> tuple[Feature, ...]:
    """Density, mean and strongest tokens of every feature."""
    parts = [autoencoder.activations(some_TD) for some_TD in torch.split(x_TD, 4 * TOKENS_AT_ONCE)]
    features_Tk, values_Tk = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
    tokens, columns = np.nonzero(values_Tk)
    features, values = features_Tk[tokens, columns], values_Tk[tokens, columns]
    order = np.lexsort((-values, features))
    tokens, features, values = tokens[order], features[order], values[order]
    ends = np.searchsorted(features, np.arange(autoencoder.features + 1))
    described = []
    for number, (start, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
        examples: dict[int, FeatureExample] = {}
        for at in range(start, end):
            text, token = places_T2[tokens[at]].tolist()
            if text not in examples:
                first, last = encodings[text].offsets[token].tolist()
                entry = corpus.texts[text]
                examples[text] = FeatureExample(entry.text, entry.source, (first, last), float(values[at]))
            if len(examples) == EXAMPLES:
                break
        mean = float(values[start:end].mean()) if end > start else 0.0
        described.append(Feature(number, (end - start) / len(x_TD), mean, tuple(examples.values())))
    return tuple(described)


@dataclass(frozen=True)
class ActiveFeature:
    """A feature that is active in a text."""

    number: int
    token: int
    """Where it is strongest."""
    activation: float
    """There."""
    tokens: tuple[int, ...]
    """Every token at which it is active."""
    effect: float
    """The target with the feature minus the target without it, in the target's units."""


@dataclass(frozen=True)
class TextFeatures:
    """The features of one text, by the size of their effect on a target."""

    unit: str
    value: float
    """The target on the text."""
    explained: float
    """The fraction of the variance of this text's states that the active features explain."""
    active: tuple[ActiveFeature, ...]


def text_features(
    features: Features,
    cache: ActivationCache,
    target: AttributionTarget,
    *,
    top: int = 20,
    scale: Scale = "logit",
    watch: Watch | None = None,
) -> TextFeatures:
    """The strongest features of a text, and what the target loses without each.

    A state is exactly the mean, what each active feature adds, and an error. What one feature adds is taken
    away at every token, the rest stays, and the layers above run again: the effect is measured, and that of
    several features is not the sum. Special tokens have no features, because none were trained on.

    Args:
        features: of the model that read the text.
        cache: the text.
        target: what is measured.
        top: features that are measured, the strongest of the text.
        scale: of a word, its logit or its log-probability.
        watch: called after each batch of runs.

    Raises:
        InvalidRequest: the features are of states of another width or of a layer that the text does not have;
            or the enhanced mask decoder predicts the target in place of their layer.
        Cancelled: ``watch`` stopped the work.
    """
    whole_number("top", top, 1)
    autoencoder, level = features.autoencoder, features.layer + 1
    width = autoencoder.mean_D.shape[0]
    layers, other = cache.layer_count, cache.states[0].shape[1]
    if width != other or level > layers:
        raise InvalidRequest(
            f"the features describe layer {features.layer} of {features.model}, of width {width}, and this "
            f"model has {layers} layers of width {other}; load the model they describe"
        )
    score, run = TargetScore(cache, target), InterventionRun(cache)
    if level > run.layers - score.by_decoder:
        raise InvalidRequest(
            f"words are predicted by the enhanced mask decoder in place of layer {features.layer}; use "
            "features of a layer below"
        )
    x_ND, words_N = cache.states[level], torch.tensor(~cache.encoding.special)
    with torch.no_grad():
        features_Nk, values_Nk = autoencoder.activations(x_ND.cpu())
        dense_NF = torch.zeros(len(x_ND), autoencoder.features).scatter(1, features_Nk, values_Nk)
        dense_NF *= words_N[:, None]
        explained = autoencoder.explained(x_ND.cpu()[words_N])
    value = float(run.score_from(score, level, x_ND, scale)[0])
    strongest = dense_NF.amax(0).topk(min(top, autoencoder.features))
    chosen = [int(at) for at, most in zip(strongest.indices, strongest.values, strict=True) if most > 0]
    active, at_once = [], max(1, TOKENS_AT_ONCE // len(x_ND))
    for first in range(0, len(chosen), at_once):
        some = chosen[first : first + at_once]
        added_SND = dense_NF.T[some][..., None] * autoencoder.decoder_FD[some][:, None]
        without_TD = (x_ND - added_SND.to(x_ND)).flatten(0, 1)
        left_S = run.score_from(score, level, without_TD, scale).tolist()
        active += [
            _active(number, dense_NF[:, number], value - left)
            for number, left in zip(some, left_S, strict=True)
        ]
        (watch or unwatched)("features", len(active), len(chosen))
    active.sort(key=lambda feature: -abs(feature.effect))
    return TextFeatures(score.unit_of_value(scale), value, explained, tuple(active))


def _active(number: int, values_N: Tensor, effect: float) -> ActiveFeature:
    token = int(values_N.argmax())
    tokens = tuple(torch.nonzero(values_N)[:, 0].tolist())
    return ActiveFeature(number, token, float(values_N[token]), tokens, effect)


def features_folder(digest: str, layer: int) -> Path:
    """Where the features of a layer are kept unless another folder is named: in the user's cache."""
    return user_cache("features") / f"{digest[:32]}-{layer}"


def middle_layer(encoder: Encoder) -> int:
    """The layer whose features are learned and shown by default."""
    return (len(encoder.spec.layers) - 1) // 2


def save_features(features: Features, folder: str | Path) -> None:
    """Write features to a folder: tensors as safetensors, everything else as JSON.

    Raises:
        OutputError: the folder cannot be written.
    """
    autoencoder = features.autoencoder
    described = {
        **{
            name: getattr(features, name)
            for name in (
                "model",
                "digest",
                "layer",
                "corpus",
                "corpus_sha256",
                "texts",
                "tokens",
                "explained",
            )
        },
        "format": FORMAT,
        "scale": autoencoder.scale,
        "settings": asdict(features.settings),
        "stability": asdict(features.stability),
        "features": [asdict(feature) for feature in features.features],
    }
    with replaced_folder(Path(folder)) as partial:
        tensors = {name: getattr(autoencoder, name).contiguous() for name in TENSORS}
        save_file(tensors, partial / WEIGHTS)
        text = json.dumps(described, ensure_ascii=False, allow_nan=False)
        (partial / DESCRIPTION).write_text(text + "\n", encoding="utf-8", newline="\n")


FACTS = ("model", "digest", "layer", "corpus", "corpus_sha256", "texts", "tokens", "explained")
TENSORS = ("encoder_FD", "bias_F", "decoder_FD", "mean_D")


def load_features(folder: str | Path) -> Features:
    """Read the features of a folder that `save_features` has written.

    Raises:
        CheckpointError: there are none, or the files are damaged.
    """
    folder = Path(folder)
    try:
        described = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        tensors = load_file(folder / WEIGHTS)
        if described.pop("format") != FORMAT:
            raise CheckpointError(
                f"{folder} was written by another version of unmask; train the features again"
            )
        settings = AutoencoderSettings(**described.pop("settings"))
        encoder_FD, bias_F, decoder_FD, mean_D = (tensors[name] for name in TENSORS)
        scale = described.pop("scale")
        autoencoder = SparseAutoencoder(encoder_FD, bias_F, decoder_FD, mean_D, scale, settings.active)
        listed = tuple(_feature(one) for one in described.pop("features"))
        measured = Stability(**described.pop("stability"))
        return Features(autoencoder, settings=settings, stability=measured, features=listed, **described)
    except FileNotFoundError:
        raise CheckpointError(
            f"there are no features in {folder}; learn them with: unmask features train"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} holds no features that can be read ({type(error).__name__}); write them with unmask "
            "features train"
        ) from None


def _feature(described: dict[str, object]) -> Feature:
    examples = described.pop("examples")
    assert isinstance(examples, list)
    each = (FeatureExample(**{**one, "span": tuple(one["span"])}) for one in examples)
    return Feature(**described, examples=tuple(each))  # type: ignore[arg-type]
