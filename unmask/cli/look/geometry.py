"""``unmask geometry``: geometry of the token vectors of every layer, and CKA between two models."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from cyclopts import Parameter

from unmask.base.files import check_can_write, whole_file
from unmask.cli.options import RUN, JsonOption, ModelOption, RunOptions
from unmask.cli.output import console, present, progress, safe, table
from unmask.cli.streams import read_text
from unmask.errors import InvalidRequest, OutputError

if TYPE_CHECKING:
    from unmask.interpret.geometry import ReadTexts
    from unmask.models.elmo import ElmoModel
    from unmask.models.load import Model

    StateModel = Model | ElmoModel
    from unmask.interpret.geometry import Estimate, LayerGeometry, Projection


MOST = 4096


COLUMNS = (
    *("layer", "distinct", "TwoNN", "far", "k neighbors", "directions", "IsoScore", "rank"),
    *("cosine", "top 3 removed", "residual", "norm"),
)


NULLS = (
    *("layer", "TwoNN", "shuffled", "random", "far", "random ", "directions", "shuffled ", "random  "),
    *("cosine", "random   "),
)


SUFFIXES = (".npz", ".json")


@dataclass(frozen=True)
class GeometryReport:
    """What ``unmask geometry`` shows of one model."""

    model: str
    revision: str | None
    words: int
    """Words of the text that were read."""
    words_left: int
    """Words that were not read."""
    special: bool
    """Whether special tokens are among the points."""
    seed: int
    layers: "tuple[LayerGeometry, ...]"
    random: "tuple[LayerGeometry, ...] | None"
    """The baseline with random weights; None if not requested."""


@dataclass(frozen=True)
class CkaReport:
    """What ``unmask geometry --model-b`` shows: the layers of two models compared on the same words."""

    models: tuple[str, str]
    revisions: tuple[str | None, str | None]
    n: int
    """Words compared."""
    words: int
    words_left: int
    seed: int
    debiased: list[list[float]]
    low: list[list[float]]
    high: list[list[float]]
    biased: list[list[float]]
    shuffled: list[list[float]]
    shuffled_biased: list[list[float]]


def geometry(
    text: Annotated[str | None, Parameter(help="running text; default: standard input")] = None,
    *,
    file: Annotated[Path | None, Parameter(help="read this file of text instead, plain or .xz")] = None,
    model: ModelOption = "default",
    model_b: Annotated[
        str | None,
        Parameter(
            help="compare layers with this model's (CKA); --revision and --adapter are not applied to it"
        ),
    ] = None,
    run: RunOptions = RUN,
    points: Annotated[
        int, Parameter(help="maximum number of tokens measured (words, with --model-b)")
    ] = MOST,
    special: Annotated[bool, Parameter(negative="", help="include special tokens")] = False,
    random: Annotated[bool, Parameter(help="also measure a baseline with random weights")] = True,
    seed: Annotated[int, Parameter(help="random seed of samples, shuffles and random weights")] = 0,
    projection: Annotated[
        Path | None,
        Parameter(help="also write every token in three dimensions at every layer: .npz or .json"),
    ] = None,
    method: Annotated[
        Literal["pca", "umap"], Parameter(help="of --projection; umap needs the extra of that name")
    ] = "pca",
    basis: Annotated[
        Literal["own", "shared"],
        Parameter(help="of --projection by PCA: each layer's own directions, or one basis for all"),
    ] = "own",
    json: JsonOption = False,
) -> None:
    """Measure the geometry of hidden states: dimension, effective rank, anisotropy, collapse.

    Every number comes with its confidence interval, its sample size, and baselines from shuffled states and
    random weights. With --model-b, the similarity between the layers of two models (CKA). A model may also be
    a folder with an ELMo, whose layers are recurrent.
    """
    if not 1 <= points <= MOST:
        raise InvalidRequest(f"--points is {points}; it can be 1 to {MOST}")
    if projection is None and (method, basis) != ("pca", "own"):
        raise InvalidRequest("--method and --basis are of a projection; name a file with --projection")
    if projection is not None and model_b is not None:
        raise InvalidRequest("--projection is of one model; leave --model-b out")
    if projection is not None:
        check_projection_file(projection)
    words, left = _words(text, file, points)

    loaded = run.load_states(model)
    if model_b is not None:
        other = run.of_another_model().load_states(model_b)
        _compare((loaded, other), words, left, points, seed=seed, json=json)
        return
    from unmask.interpret.geometry import geometry as measure
    from unmask.interpret.geometry import project, random_baseline, read_texts

    with progress("Measuring layers", 0) as report:
        texts_read, used = _read((loaded,), words, points)
        mask = None if special else texts_read[0].special_T
        layers = measure(
            texts_read[0].states,
            special_N=mask,
            points=points,
            seed=seed,
            watch=lambda _, i, of: report(i, of),
        )
        if projection is not None:
            projected = project(
                texts_read[0].states,
                method=method,
                basis=basis,
                special_N=texts_read[0].special_T,
                seed=seed,
                watch=lambda _, i, of: report(i, of),
            )
            write_projection(projection, projected, texts_read[0])
        twin = None
        if random:
            twin_states = read_texts(random_baseline(loaded.encoder, seed), texts_read[0].encodings).states
            twin = measure(twin_states, special_N=mask, points=points, seed=seed, shuffled=False)
    left += len(words) - used
    result = GeometryReport(loaded.name, loaded.revision, used, left, special, seed, layers, twin)
    present(result, show, json=json)


def _words(text: str | None, file: Path | None, points: int) -> tuple[list[str], int]:
    """The words to read, at most one per point, and how many more there are."""
    if text is not None and file is not None:
        raise InvalidRequest("give either a text or --file FILE")
    every = read_text(text).split() if file is None else list(_file_words(file))
    if not every:
        raise InvalidRequest("the text has no words; give a text with words, or --file FILE")
    return every[:points], len(every[points:])


def _file_words(file: Path) -> Iterator[str]:
    from unmask.text import read_lines
    from unmask.text.lines import readable

    with readable(file) as stream:
        for line in read_lines(stream, str(file), blank="skip"):
            yield from line.text.split()


def _read(models: "tuple[StateModel, ...]", words: list[str], points: int) -> "tuple[list[ReadTexts], int]":
    """The beginning of the text for each model, in the same chunks: enough for ``points``."""
    from unmask.interpret.geometry import read_texts, stretches

    def tokens(model: "StateModel", stretch: str) -> int:
        return len(model.tokenizer.encode(stretch))

    def fits(stretch: str) -> bool:
        limits = ((m, limit) for m in models for limit in _limits(m))
        return all(limit is None or tokens(m, stretch) <= limit for m, limit in limits)

    chosen, count = [], 0
    for stretch in stretches(" ".join(words), fits):
        if count >= points:
            break
        chosen.append(stretch)
        count += tokens(models[0], stretch) if len(models) == 1 else len(stretch.split())
    read = [read_texts(model.encoder, model.tokenize(chosen)) for model in models]
    return read, sum(len(stretch.split()) for stretch in chosen)


def _limits(model: "StateModel") -> tuple[int | None, ...]:
    """The longest text that the model reads, and the longest that it was trained on; None for no limit."""
    from unmask.models.elmo import ElmoModel

    return () if isinstance(model, ElmoModel) else (model.max_tokens, model.checkpoint.trained_tokens)


def _compare(
    models: "tuple[StateModel, StateModel]",
    words: list[str],
    left: int,
    points: int,
    *,
    seed: int,
    json: bool,
) -> None:
    from unmask.interpret.geometry import cka
    from unmask.interpret.geometry.cka import MOST_ROWS

    a, b = models
    points = min(points, MOST_ROWS)
    with progress("Comparing layers", 0) as report:
        read, used = _read(models, words, points)
        states_a, states_b = _aligned(*read)
        similarity = cka(states_a, states_b, points=points, seed=seed, watch=lambda _, i, of: report(i, of))
    result = CkaReport(
        models=(a.name, b.name),
        revisions=(a.revision, b.revision),
        n=similarity.n,
        words=used,
        words_left=left + len(words) - used,
        seed=seed,
        debiased=similarity.debiased.tolist(),
        low=similarity.low.tolist(),
        high=similarity.high.tolist(),
        biased=similarity.biased.tolist(),
        shuffled=similarity.shuffled.tolist(),
        shuffled_biased=similarity.shuffled_biased.tolist(),
    )
    present(result, show_cka, json=json)


def _aligned(a: "ReadTexts", b: "ReadTexts") -> tuple[list[object], list[object]]:
    """Mean vectors of the words for which both models have tokens."""
    rows_a, rows_b = [], []
    for number, encoding in enumerate(a.encodings):
        place = 0
        for word in encoding.text.split():
            start = encoding.text.index(word, place)
            place = start + len(word)
            both = [texts.tokens_of((number, start, place)) for texts in (a, b)]
            if all(map(len, both)):
                rows_a.append(both[0])
                rows_b.append(both[1])
    if not rows_a:
        raise InvalidRequest("no word of the text has tokens in both models; give another text")
    return list(a.mean_states(rows_a)), list(b.mean_states(rows_b))


def show(result: GeometryReport) -> None:
    """Print two tables: the layers, and the baselines from shuffled states and random weights."""
    first = result.layers[0]
    screen = console()
    screen.print(
        f"[bold]{safe(result.model)}[/bold]: {first.n} tokens of {result.words} words"
        + (f" (the text has {result.words_left} more)" if result.words_left else "")
        + ("" if result.special else ", special tokens excluded")
        + "; ± is half of the 95 % interval"
    )
    rows = table(None, *COLUMNS, right=COLUMNS)
    for layer in result.layers:
        rows.add_row(*_row(layer))
    screen.print(rows)
    for reason in sorted({e.reason for e in (first.two_nn, first.mle) if e.reason}):
        screen.print(f"no neighbor-based dimension: {reason}")
    screen.print("\nCompared with shuffled states and random weights")
    nulls = table(None, *NULLS, right=NULLS)
    for layer, twin in zip(result.layers, result.random or (None,) * len(result.layers), strict=True):
        nulls.add_row(*_null_row(layer, twin))
    screen.print(nulls)
    scales = f" (GRIDE at k = {first.gride[-1].k})" if first.gride else ""
    screen.print(
        f"\nTwoNN: intrinsic dimension at the two nearest neighbors; far: at the largest scale{scales}; "
        "k neighbors: from 10 to 20 neighbors;\ndirections: participation ratio; rank: effective rank; "
        "cosine: mean over all pairs; top 3 removed: without the three dominant directions;\n"
        "residual: 0 if all tokens have the same vector"
    )


def _row(layer: "LayerGeometry") -> tuple[str, ...]:
    return (
        str(layer.layer),
        str(layer.distinct),
        _text(layer.two_nn),
        _text(layer.gride[-1].dimension if layer.gride else None),
        _text(layer.mle),
        _text(layer.participation_ratio),
        _text(layer.iso_score, 3),
        _text(layer.effective_rank, 0),
        _text(layer.anisotropy, 3),
        _text(layer.anisotropy_without[-1].anisotropy, 3),
        _text(layer.residual, 3),
        _text(layer.norm, 2),
    )


def _null_row(layer: "LayerGeometry", twin: "LayerGeometry | None") -> tuple[str, ...]:
    assert layer.shuffled is not None
    return (
        str(layer.layer),
        _plain(layer.two_nn),
        _plain(layer.shuffled.two_nn),
        _plain(None if twin is None else twin.two_nn),
        _plain(layer.gride[-1].dimension if layer.gride else None),
        _plain(twin.gride[-1].dimension if twin and twin.gride else None),
        _plain(layer.participation_ratio),
        _plain(layer.shuffled.participation_ratio),
        _plain(None if twin is None else twin.participation_ratio),
        _plain(layer.anisotropy, 3),
        _plain(None if twin is None else twin.anisotropy, 3),
    )


def _text(estimate: "Estimate | None", digits: int = 1) -> str:
    if estimate is None or estimate.value is None or estimate.high is None:
        return _plain(estimate, digits)
    return f"{estimate.value:.{digits}f} ±{estimate.high - estimate.value:.{digits}f}"


def _plain(estimate: "Estimate | None", digits: int = 1) -> str:
    return "-" if estimate is None or estimate.value is None else f"{estimate.value:.{digits}f}"


def show_cka(result: CkaReport) -> None:
    """Print the matrix of debiased CKA and its uncertainty."""
    screen = console()
    screen.print(
        f"Debiased linear CKA of {result.n} words: layers of [bold]{safe(result.models[0])}[/bold] down, "
        f"of [bold]{safe(result.models[1])}[/bold] across; 1: equal up to rotation and scale, 0: unrelated"
    )
    columns = ("layer", *map(str, range(len(result.debiased[0]))))
    rows = table(None, *columns, right=columns)
    for layer, values in enumerate(result.debiased):
        rows.add_row(str(layer), *(f"{value:.2f}" for value in values))
    screen.print(rows)
    pairs = zip(_flat(result.high), _flat(result.low), strict=True)
    widest = max((high - low) / 2 for high, low in pairs)
    screen.print(
        f"95 % intervals extend at most {widest:.2f} to either side; with shuffled words, the largest value "
        f"is {max(_flat(result.shuffled)):.2f} ({max(_flat(result.shuffled_biased)):.2f} if biased)"
    )


def _flat(rows: list[list[float]]) -> list[float]:
    return [value for row in rows for value in row]


def check_projection_file(path: Path) -> None:
    """Refuse a file that could not be written, before the work."""
    if path.suffix not in SUFFIXES:
        raise InvalidRequest(f"--projection is {str(path)!r}; its name must end with {' or '.join(SUFFIXES)}")
    check_can_write(path)


def write_projection(path: Path, projection: "Projection", texts: "ReadTexts") -> None:
    """Write the points (L + 1, N, 3), the shares of variance (none of UMAP), and of each token its piece, its
    chunk and whether it is special."""
    pieces = np.array([piece for encoding in texts.encodings for piece in encoding.pieces])
    chunks = np.repeat(np.arange(len(texts.encodings)), [len(encoding) for encoding in texts.encodings])
    explained = np.empty((0, 3)) if projection.explained_L3 is None else projection.explained_L3
    with whole_file(path) as partial:
        try:
            if path.suffix == ".npz":
                with partial.open("wb") as stream:
                    np.savez(
                        stream,
                        method=np.array(projection.method),
                        basis=np.array(projection.basis),
                        points=projection.points_LN3,
                        explained=explained,
                        piece=pieces,
                        chunk=chunks,
                        special=texts.special_T,
                    )
            else:
                described = {
                    "method": projection.method,
                    "basis": projection.basis,
                    "points": projection.points_LN3.tolist(),
                    "explained": explained.tolist(),
                    "piece": pieces.tolist(),
                    "chunk": chunks.tolist(),
                    "special": texts.special_T.tolist(),
                }
                partial.write_text(json.dumps(described), encoding="utf-8", newline="\n")
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror or error}") from None
