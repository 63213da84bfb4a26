"""``unmask features``: learn the features of a layer over a corpus, and show those of a text."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from unmask.base.progress import counted
from unmask.cli.look.effects import LabelOption, ScaleOption, WordOption, target_of
from unmask.cli.options import RUN, JsonOption, ModelOption, RunOptions, TextArgument, how_many
from unmask.cli.output import console, present, print_legend, progress, safe, table
from unmask.cli.streams import read_text
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from unmask.interpret.corpus.features import Feature, FeatureExample, Features
    from unmask.interpret.corpus.sparse_autoencoder import Stability

features = App(
    name="features",
    help="Features of a layer by a sparse autoencoder: train them over a corpus, show those of a text.",
)

LEGEND = """\
activation   length of what the feature adds to the state, at the token where it is strongest
effect       the {unit} with the feature minus without it, at all its tokens; {value:.4g} with all
The strongest features explain {explained:.0%} of the variance of this text's states.
{verdict}"""

FOLDER = "folder of the features (default: one for each layer below ~/.cache/unmask/features)"
FolderOption = Annotated[Path | None, Parameter(help=f"the {FOLDER}")]
LayerOption = Annotated[int | None, Parameter(name=["--layer", "-l"], help="default: the middle one")]

SHOWN_EXAMPLES = 3
AROUND = 18
"""Characters shown before an example."""


@dataclass(frozen=True)
class TrainedFeatures:
    """Everything ``unmask features train`` shows."""

    model: str
    revision: str | None
    folder: str
    layer: int
    features: int
    active: int
    corpus: str
    corpus_sha256: str
    texts: int
    tokens: int
    explained: float
    dead: int
    stability: "Stability"
    verdict: str


@dataclass(frozen=True)
class ShownFeature:
    """One feature that is active in the text."""

    number: int
    token: int
    surface: str
    activation: float
    effect: float
    tokens: tuple[int, ...]
    density: float
    examples: tuple["FeatureExample", ...]
    """Of the corpus that it was trained on."""


@dataclass(frozen=True)
class ShownFeatures:
    """Everything ``unmask features show`` shows."""

    model: str
    revision: str | None
    layer: int
    target: str
    unit: str
    value: float
    explained: float
    features: tuple[ShownFeature, ...]
    verdict: str


@features.command
def train(
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"], help=f"a new {FOLDER}")] = None,
    model: ModelOption = "unmask-mini",
    run: RunOptions = RUN,
    layer: LayerOption = None,
    corpus: Annotated[
        Path | None,
        Parameter(help="a .txt or .jsonl file (default: the 3,024 sentences that come with the package)"),
    ] = None,
    count: Annotated[int, Parameter(name="--features", help="directions that are learned")] = 512,
    active: Annotated[int, Parameter(help="features that are active at a token")] = 16,
    epochs: Annotated[int, Parameter(help="how often each token is seen")] = 10,
    seed: Annotated[int, Parameter(help="of the first directions; the second run has the next")] = 0,
    json: JsonOption = False,
) -> None:
    """Train sparse autoencoders with two seeds on the states of a layer, and keep the features of the first.

    It takes minutes. What is printed says whether a second seed finds the same features; if it does not, they
    are noise, however meaningful their examples look.
    """
    from unmask.interpret.corpus.features import (
        features_folder,
        middle_layer,
        save_features,
        train_features,
    )
    from unmask.interpret.corpus.sparse_autoencoder import AutoencoderSettings
    from unmask.interpret.corpus.texts import corpus_of

    if output is not None and output.exists():
        raise InvalidRequest(f"--output {output} exists; name a new folder")
    settings = AutoencoderSettings(features=count, active=active, epochs=epochs)
    texts = corpus_of(corpus)
    loaded = run.load(model)
    digest = loaded.content_digest()
    with progress("steps", 0) as report:
        found = train_features(
            loaded.encoder,
            loaded.tokenizer,
            texts,
            middle_layer(loaded.encoder) if layer is None else layer,
            settings=settings,
            seed=seed,
            max_tokens=loaded.max_tokens,
            model=loaded.name,
            digest=digest,
            watch=lambda _, done, of: report(done, of),
        )
    folder = features_folder(digest, found.layer) if output is None else output
    save_features(found, folder)
    result = TrainedFeatures(
        model=loaded.name,
        revision=loaded.revision,
        folder=str(folder),
        layer=found.layer,
        features=count,
        active=active,
        corpus=found.corpus,
        corpus_sha256=found.corpus_sha256,
        texts=found.texts,
        tokens=found.tokens,
        explained=found.explained,
        dead=found.dead,
        stability=found.stability,
        verdict=found.verdict(),
    )
    present(result, lambda result: _show_trained(result, found.features), json=json)


def _show_trained(result: TrainedFeatures, every: "tuple[Feature, ...]") -> None:
    screen = console()
    screen.print(
        f"[bold]{safe(result.model)}[/bold], layer {result.layer}: {result.features:,} features, "
        f"{result.active} active at a token, from {counted(result.tokens, 'token')} of {safe(result.corpus)}"
    )
    screen.print(f"variance explained on texts held out  {result.explained:.1%}")
    screen.print(f"dead features                         {result.dead:,}")
    screen.print(safe(result.verdict), soft_wrap=True)
    grid = table(None, "feature", "density", "strongest tokens", right=("density",))
    by_density = sorted(every, key=lambda feature: -feature.density)
    for feature in by_density[:: max(1, len(by_density) // 10)][:10]:
        grid.add_row(str(feature.number), f"{feature.density:.2%}", _examples(feature.examples))
    screen.print(grid)
    print_legend(f"Written to {safe(result.folder)}; unmask features show TEXT shows those of a text.")


@features.command
def show(
    text: TextArgument = None,
    *,
    folder: FolderOption = None,
    model: ModelOption = "unmask-mini",
    run: RunOptions = RUN,
    layer: LayerOption = None,
    word: WordOption = None,
    label: LabelOption = None,
    scale: ScaleOption = "logit",
    top: Annotated[int, how_many("features of the text that are measured")] = 12,
    json: JsonOption = False,
) -> None:
    """Show the strongest features of a text, and what a prediction or the embedding loses without each.

    The target is as in `unmask attribute`; of an embedding, its cosine with what it is.
    """
    from unmask.interpret.corpus.features import (
        features_folder,
        load_features,
        middle_layer,
        text_features,
    )

    text = read_text(text)
    if folder is not None and layer is not None:
        raise InvalidRequest(f"--folder {folder} and --layer {layer} both name features; leave one out")
    if top < 1:
        raise InvalidRequest(f"--top is {top}; it must be at least 1")
    loaded = run.load(model)
    digest = loaded.content_digest()
    at = middle_layer(loaded.encoder) if layer is None else layer
    known = load_features(features_folder(digest, at) if folder is None else folder)
    check_model(known, digest, loaded.name)
    cache = loaded.attention(text).cache
    target, name = target_of(loaded, cache, word, label, compared=True)
    with progress("features", 0) as report:
        found = text_features(
            known, cache, target, top=top, scale=scale, watch=lambda _, done, of: report(done, of)
        )
    result = ShownFeatures(
        model=loaded.name,
        revision=loaded.revision,
        layer=known.layer,
        target=name,
        unit=found.unit,
        value=found.value,
        explained=found.explained,
        features=tuple(
            ShownFeature(
                number=one.number,
                token=one.token,
                surface=cache.encoding.surface(one.token),
                activation=one.activation,
                effect=one.effect,
                tokens=one.tokens,
                density=known.features[one.number].density,
                examples=known.features[one.number].examples,
            )
            for one in found.active
        ),
        verdict=known.verdict(),
    )
    present(result, _show_text, json=json)


def check_model(known: "Features", digest: str, name: str) -> None:
    """Refuse features of another model.

    Raises:
        InvalidRequest: the digests differ.
    """
    if known.digest != digest:
        raise InvalidRequest(
            f"the features are of {known.model}, and its weights are not those of {name}; name the model "
            "that they were trained on with --model"
        )


def _show_text(result: ShownFeatures) -> None:
    screen = console()
    screen.print(f"[bold]{safe(result.model)}[/bold], layer {result.layer}: {safe(result.target)}")
    right = ("activation", "effect", "density")
    grid = table(None, "feature", "strongest at", *right, "strongest tokens of the corpus", right=right)
    for one in result.features:
        grid.add_row(
            str(one.number),
            f"{safe(one.surface)} ({one.token})",
            f"{one.activation:.2f}",
            f"{one.effect:+.4f}",
            f"{one.density:.2%}",
            _examples(one.examples),
        )
    screen.print(grid)
    print_legend(
        LEGEND.format(
            unit=result.unit, value=result.value, explained=result.explained, verdict=safe(result.verdict)
        )
    )


def _examples(examples: "tuple[FeatureExample, ...]") -> str:
    shown = []
    for example in examples[:SHOWN_EXAMPLES]:
        start, end = example.span
        before = example.text[max(0, start - AROUND) : start]
        shown.append(f"{safe(before)}[bold]{safe(example.text[start:end])}[/bold]")
    return "   ".join(shown)
