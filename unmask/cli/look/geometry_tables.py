"""How ``unmask geometry`` shows its results in the terminal."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from unmask.cli.output import console, safe, table

if TYPE_CHECKING:
    from unmask.interpret.geometry import Estimate, LayerGeometry

COLUMNS = (
    *("layer", "distinct", "TwoNN", "far", "k neighbors", "directions", "IsoScore", "rank"),
    *("cosine", "top 3 removed", "residual", "norm"),
)
NULLS = (
    *("layer", "TwoNN", "shuffled", "random", "far", "random ", "directions", "shuffled ", "random  "),
    *("cosine", "random   "),
)


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


def show(found: GeometryReport) -> None:
    """Print two tables: the layers, and the baselines from shuffled states and random weights."""
    first = found.layers[0]
    screen = console()
    screen.print(
        f"[bold]{safe(found.model)}[/bold]: {first.n} tokens of {found.words} words"
        + (f" (the text has {found.words_left} more)" if found.words_left else "")
        + ("" if found.special else ", special tokens excluded")
        + "; ± is half of the 95 % interval"
    )
    rows = table(None, *COLUMNS, right=COLUMNS)
    for one in found.layers:
        rows.add_row(*_row(one))
    screen.print(rows)
    for reason in sorted({e.reason for e in (first.two_nn, first.mle) if e.reason}):
        screen.print(f"no neighbor-based dimension: {reason}")
    screen.print("\nCompared with shuffled states and random weights")
    nulls = table(None, *NULLS, right=NULLS)
    for one, twin in zip(found.layers, found.random or (None,) * len(found.layers), strict=True):
        nulls.add_row(*_null_row(one, twin))
    screen.print(nulls)
    scales = f" (GRIDE at k = {first.gride[-1].k})" if first.gride else ""
    screen.print(
        f"\nTwoNN: intrinsic dimension at the two nearest neighbors; far: at the largest scale{scales}; "
        "k neighbors: from 10 to 20 neighbors;\ndirections: participation ratio; rank: effective rank; "
        "cosine: mean over all pairs; top 3 removed: without the three dominant directions;\n"
        "residual: 0 if all tokens have the same vector"
    )


def _row(one: "LayerGeometry") -> tuple[str, ...]:
    return (
        str(one.layer),
        str(one.distinct),
        _text(one.two_nn),
        _text(one.gride[-1].dimension if one.gride else None),
        _text(one.mle),
        _text(one.participation_ratio),
        _text(one.iso_score, 3),
        _text(one.effective_rank, 0),
        _text(one.anisotropy, 3),
        _text(one.anisotropy_without[-1].anisotropy, 3),
        _text(one.residual, 3),
        _text(one.norm, 2),
    )


def _null_row(one: "LayerGeometry", twin: "LayerGeometry | None") -> tuple[str, ...]:
    assert one.shuffled is not None
    return (
        str(one.layer),
        _plain(one.two_nn),
        _plain(one.shuffled.two_nn),
        _plain(None if twin is None else twin.two_nn),
        _plain(one.gride[-1].dimension if one.gride else None),
        _plain(twin.gride[-1].dimension if twin and twin.gride else None),
        _plain(one.participation_ratio),
        _plain(one.shuffled.participation_ratio),
        _plain(None if twin is None else twin.participation_ratio),
        _plain(one.anisotropy, 3),
        _plain(None if twin is None else twin.anisotropy, 3),
    )


def _text(one: "Estimate | None", digits: int = 1) -> str:
    if one is None or one.value is None or one.high is None:
        return _plain(one, digits)
    return f"{one.value:.{digits}f} ±{one.high - one.value:.{digits}f}"


def _plain(one: "Estimate | None", digits: int = 1) -> str:
    return "-" if one is None or one.value is None else f"{one.value:.{digits}f}"


def show_cka(found: CkaReport) -> None:
    """Print the matrix of debiased CKA and its uncertainty."""
    screen = console()
    screen.print(
        f"Debiased linear CKA of {found.n} words: layers of [bold]{safe(found.models[0])}[/bold] down, "
        f"of [bold]{safe(found.models[1])}[/bold] across; 1: equal up to rotation and scale, 0: unrelated"
    )
    columns = ("layer", *map(str, range(len(found.debiased[0]))))
    rows = table(None, *columns, right=columns)
    for layer, values in enumerate(found.debiased):
        rows.add_row(str(layer), *(f"{value:.2f}" for value in values))
    screen.print(rows)
    pairs = zip(_flat(found.high), _flat(found.low), strict=True)
    widest = max((high - low) / 2 for high, low in pairs)
    screen.print(
        f"95 % intervals extend at most {widest:.2f} to either side; with shuffled words, the largest value "
        f"is {max(_flat(found.shuffled)):.2f} ({max(_flat(found.shuffled_biased)):.2f} if biased)"
    )


def _flat(rows: list[list[float]]) -> list[float]:
    return [value for row in rows for value in row]
