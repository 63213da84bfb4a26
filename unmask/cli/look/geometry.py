"""``unmask geometry``: geometry of the token vectors of every layer, and CKA between two models."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from unmask.cli.input import STANDARD_INPUT, read_standard_input
from unmask.cli.look.geometry_tables import CkaReport, GeometryReport, show, show_cka
from unmask.cli.look.projected import check_projection_file, write_projection
from unmask.cli.options import RUN, JsonOption, ModelOption, RunOptions
from unmask.cli.output import print_json, progress
from unmask.errors import InvalidRequest

if TYPE_CHECKING:
    from unmask.interpret.geometry import ReadTexts
    from unmask.models.elmo import ElmoModel
    from unmask.models.load import Model

    StateModel = Model | ElmoModel

MOST = 4096


def geometry(
    text: Annotated[str | None, Parameter(help="running text; - reads standard input")] = None,
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
        read, used = _read((loaded,), words, points)
        mask = None if special else read[0].special_T
        layers = measure(
            read[0].states, special_N=mask, points=points, seed=seed, watch=lambda _, i, of: report(i, of)
        )
        if projection is not None:
            made = project(
                read[0].states,
                method=method,
                basis=basis,
                special_N=read[0].special_T,
                seed=seed,
                watch=lambda _, i, of: report(i, of),
            )
            write_projection(projection, made, read[0])
        twin = None
        if random:
            twin_states = read_texts(random_baseline(loaded.encoder, seed), read[0].encodings).states
            twin = measure(twin_states, special_N=mask, points=points, seed=seed, shuffled=False)
    left += len(words) - used
    found = GeometryReport(loaded.name, loaded.revision, used, left, special, seed, layers, twin)
    if json:
        print_json(found)
    else:
        show(found)


def _words(text: str | None, file: Path | None, points: int) -> tuple[list[str], int]:
    """The words to read, at most one per point, and how many more there are."""
    if (text is None) == (file is None):
        raise InvalidRequest("give either a text or --file FILE")
    if file is None:
        assert text is not None
        every = (read_standard_input() if text == STANDARD_INPUT else text).split()
    else:
        every = list(_file_words(file))
    if not every:
        raise InvalidRequest("the text has no words; give a text with words")
    return every[:points], len(every[points:])


def _file_words(file: Path) -> Iterator[str]:
    from unmask.evaluate.probes.files import opened
    from unmask.text import read_lines

    with opened(file) as stream:
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
        made = cka(states_a, states_b, points=points, seed=seed, watch=lambda _, i, of: report(i, of))
    found = CkaReport(
        models=(a.name, b.name),
        revisions=(a.revision, b.revision),
        n=made.n,
        words=used,
        words_left=left + len(words) - used,
        seed=seed,
        debiased=made.debiased.tolist(),
        low=made.low.tolist(),
        high=made.high.tolist(),
        biased=made.biased.tolist(),
        shuffled=made.shuffled.tolist(),
        shuffled_biased=made.shuffled_biased.tolist(),
    )
    if json:
        print_json(found)
    else:
        show_cka(found)


def _aligned(a: "ReadTexts", b: "ReadTexts") -> tuple[list[object], list[object]]:
    """Mean vectors of the words for which both models have tokens."""
    rows_a, rows_b = [], []
    for number, encoding in enumerate(a.encodings):
        place = 0
        for word in encoding.text.split():
            start = encoding.text.index(word, place)
            place = start + len(word)
            both = [read.tokens_of((number, start, place)) for read in (a, b)]
            if all(map(len, both)):
                rows_a.append(both[0])
                rows_b.append(both[1])
    if not rows_a:
        raise InvalidRequest("no word of the text has tokens in both models; give another text")
    return list(a.mean_states(rows_a)), list(b.mean_states(rows_b))
