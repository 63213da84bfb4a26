"""The claims, the encoders that are trained to try each, and what is compared."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.claims import recall, text
from benchmarks.claims.results import UNTRAINED

Train = Callable[[str, int, int, Path, Path], tuple[float, dict[str, float]]]
"""Called with a variant, a seed, the tokens, the folder of the data and one for what is kept between runs;
returns seconds of CPU time of training, and figures. With 0 tokens it measures random weights."""


@dataclass(frozen=True)
class Experiment:
    """How encoders are trained and measured."""

    train: Train
    tokens: int
    """Per run, the same for all variants."""


EXPERIMENTS: Mapping[str, Experiment] = {
    "recall": Experiment(recall.run, 2_000_000),
    "text": Experiment(text.run, 2_000_000),
}


@dataclass(frozen=True)
class Table:
    """A figure of several variants, as one row each."""

    title: str
    columns: Mapping[str, str]
    """Header of each column, and the end of its figure's name."""
    rows: Mapping[str, tuple[str, str]]
    """Label of each row, with its variant and the beginning of its figures' names."""
    axis: str = ""
    """What the columns are, on the picture."""
    drawn: bool = True
    scattered: bool = False
    """The second column over the first, instead of the first alone."""
    better: Literal["lower", "higher"] = "lower"
    """Of the first column, or of the second where they are scattered."""


Said = Literal["lower", "higher", "not higher"]


@dataclass(frozen=True)
class Comparison:
    """A difference of two figures, taken seed by seed."""

    text: str
    ours: tuple[str, str]
    """Variant and figure."""
    theirs: tuple[str, str]
    """Variant and figure that are subtracted."""
    said: Said | None = None
    """What the claim says of the difference; ``not higher`` means by no more than `MARGIN`. None: nothing."""


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation of two figures over variants, taken seed by seed."""

    text: str
    variants: tuple[str, ...]
    figures: tuple[str, str]
    said: Said | None = None
    """What the claim says of the correlation."""


MARGIN = 0.02
"""Nats of loss that count as no difference."""


@dataclass(frozen=True)
class Claim:
    """A claim, and the variants of an experiment that try it; claims may share runs."""

    name: str
    says: str
    source: str
    experiment: str
    variants: tuple[str, ...]
    """The first is also measured with random weights, as a baseline."""
    tables: tuple[Table, ...]
    comparisons: tuple[Comparison | Correlation, ...] = field(default=())


FACTS = {str(facts): f"@{facts}" for facts in recall.FACTS}
RECALL_ROWS = {"softmax": "softmax", "linear (elu + 1)": "linear", "Performer (FAVOR+)": "performer"}


def _recall(title: str, prefix: str, axis: str) -> Table:
    rows = {label: (variant, prefix) for label, variant in RECALL_ROWS.items()}
    return Table(title, FACTS, {**rows, "softmax, random weights": (f"softmax{UNTRAINED}", prefix)}, axis)


FREQUENCIES = "word frequencies alone"
LENGTHS = {f"{times}x": f"@{times}" for times in text.TIMES}


def _losses(*variants: str, first: str = "") -> Table:
    """The losses of some variants; ``first``: what the first of them is called, if not by its name."""
    rows = {variant: (variant, "") for variant in (*variants, f"{variants[0]}{UNTRAINED}")}
    rows = {(first or label) if label == variants[0] else label: row for label, row in rows.items()}
    columns = {"masked loss, nats": "loss@1", "parameters": "parameters"}
    return Table("", columns, {**rows, FREQUENCIES: (variants[0], "unigram:")})


def _states(*variants: str) -> Table:
    """How alike the states of the two layers are, and how far they collapse, where it was recorded."""
    rows = {variant: (variant, "") for variant in (*variants, f"{variants[0]}{UNTRAINED}")}
    columns = {
        "CKA of layers 1 and 2": "cka@2",
        "cosine of a token in both": "same@2",
        "cosine of different words, layer 1": "cosine@1",
        "layer 2": "cosine@2",
        "intrinsic dimension, layer 1": "dimension@1",
        "dimension, layer 2": "dimension@2",
    }
    return Table("States of different words in held-out text", columns, rows, drawn=False)


EQUAL = (
    *("rotary", "alibi", "learned", "disentangled", "shared", "replaced"),
    *("geglu", "pre-norm", "no-biases", "no-embedding-norm", "local-global"),
)
"""Designs of the same width that read the same text."""
DESIGNS = (*EQUAL, "half", "half-distilled", "quarter", "quarter-distilled")
FORMS = "most frequent tag of each form"
LAST = text.SIZES.layers


def _tags(*variants: str, scattered: bool = False, **more: str) -> Table:
    """The score of the probe, and what the encoders cost."""
    rows = {variant: (variant, "") for variant in (*variants, f"{variants[0]}{UNTRAINED}")}
    columns = {**more, "right tags": "tags", "in the last layer": f"tags@{LAST}"}
    if not scattered:
        columns |= {"10^9 operations": "operations", "seconds of training": "seconds"}
    baseline = {FORMS: (variants[0], "form ")}
    return Table("", columns, {**rows, **baseline}, scattered=scattered, better="higher")


def _loss(variant: str, times: int = 1) -> tuple[str, str]:
    return variant, f"loss@{times}"


def _taught(size: str) -> tuple[Comparison, ...]:
    """An encoder of this size with a teacher against the same one alone, and against the teacher."""
    taught = f"{size}-distilled"
    return (
        Comparison(f"{size} the width, loss, taught against alone", _loss(taught), _loss(size), "lower"),
        Comparison(
            f"{size} the width, right tags, taught against alone", (taught, "tags"), (size, "tags"), "higher"
        ),
        Comparison(
            f"{size} the width, right tags, taught against the teacher", (taught, "tags"), ("rotary", "tags")
        ),
    )


CLAIMS = (
    Claim(
        "linear-attention",
        "Linear attention blurs the peaks of softmax attention",
        "the usual criticism of Katharopoulos et al. 2020 and Choromanski et al. 2021",
        "recall",
        tuple(RECALL_ROWS.values()),
        (
            _recall("Right answers, by the number of facts", "accuracy", "facts in the text"),
            _recall("Weight on the fact that is asked for", "weight", "facts in the text"),
        ),
        tuple(
            Comparison(
                f"{label}, {title}, {facts} facts",
                (variant, f"{key}@{facts}"),
                ("softmax", f"{key}@{facts}"),
                "lower",
            )
            for label, variant in list(RECALL_ROWS.items())[1:]
            for key, title in (("accuracy", "right answers"), ("weight", "weight"))
            for facts in (16, 256)
        ),
    ),
    Claim(
        "extrapolation",
        "Rotary positions extrapolate flawlessly to longer texts",
        "popular accounts of Su et al. 2021; Press et al. 2022 and Chen et al. 2023 deny it",
        "text",
        ("rotary", "alibi", "learned", "disentangled"),
        (
            Table(
                "Masked loss in nats, by the length of the windows",
                LENGTHS,
                {
                    "rotary": ("rotary", "loss"),
                    "rotary, positions interpolated": ("rotary", "interpolated"),
                    "rotary, NTK-aware base": ("rotary", "ntk"),
                    "ALiBi": ("alibi", "loss"),
                    "learned": ("learned", "loss"),
                    "disentangled": ("disentangled", "loss"),
                    FREQUENCIES: ("rotary", "unigram:loss"),
                    "rotary, random weights": (f"rotary{UNTRAINED}", "loss"),
                },
                "length, in multiples of the trained one",
            ),
        ),
        (
            *(
                Comparison(
                    f"rotary, {times}x against 1x", _loss("rotary", times), _loss("rotary"), "not higher"
                )
                for times in text.TIMES[1:]
            ),
            Comparison("rotary, 16x, against word frequencies", _loss("rotary", 16), ("rotary", "unigram")),
            Comparison("interpolated, 16x against 1x", ("rotary", "interpolated@16"), _loss("rotary")),
            Comparison("NTK-aware base, 16x against 1x", ("rotary", "ntk@16"), _loss("rotary")),
            *(
                Comparison(f"{variant}, 16x against 1x", _loss(variant, 16), _loss(variant))
                for variant in ("alibi", "learned", "disentangled")
            ),
        ),
    ),
    Claim(
        "dynamic-masks",
        "A new mask at every reading is better than masks drawn once",
        "Liu et al. 2019",
        "text",
        ("dynamic", "static-4", "static-1"),
        (_losses("dynamic", "static-4", "static-1"), _states("dynamic", "static-4", "static-1")),
        (
            Comparison("new masks against four per text", _loss("dynamic"), _loss("static-4"), "lower"),
            Comparison("new masks against one per text", _loss("dynamic"), _loss("static-1"), "lower"),
        ),
    ),
    Claim(
        "next-sentence",
        "Next-sentence prediction can be left out without loss",
        "Liu et al. 2019, against Devlin et al. 2019",
        "text",
        ("pairs", "pairs-nsp", "rotary"),
        (_losses("pairs", "pairs-nsp", "rotary"),),
        (
            Comparison("without it against with it", _loss("pairs"), _loss("pairs-nsp"), "not higher"),
            Comparison(
                "whole texts against pairs with it", _loss("rotary"), _loss("pairs-nsp"), "not higher"
            ),
        ),
    ),
    Claim(
        "shared-layers",
        "Layers may share their weights at little cost",
        "Lan et al. 2020",
        "text",
        ("rotary", "shared"),
        (_losses("rotary", "shared"), _states("rotary", "shared")),
        (Comparison("shared against own weights", _loss("shared"), _loss("rotary"), "not higher"),),
    ),
    Claim(
        "one-change",
        "Each part of the modern recipe helps on its own",
        "Shazeer 2020; Xiong et al. 2020; Warner et al. 2024",
        "text",
        ("rotary", "geglu", "pre-norm", "no-biases", "no-embedding-norm", "local-global"),
        (
            _losses(
                *("rotary", "geglu", "pre-norm", "no-biases", "no-embedding-norm", "local-global"),
                first="no change",
            ),
        ),
        (
            Comparison("GeGLU against GELU", _loss("geglu"), _loss("rotary"), "lower"),
            Comparison("pre-norm against post-norm", _loss("pre-norm"), _loss("rotary"), "lower"),
            Comparison("no biases against biases", _loss("no-biases"), _loss("rotary"), "not higher"),
            Comparison(
                "norm after the embedding against none", _loss("rotary"), _loss("no-embedding-norm"), "lower"
            ),
            Comparison(
                "windows in a layer against none", _loss("local-global"), _loss("rotary"), "not higher"
            ),
        ),
    ),
    Claim(
        "replaced-tokens",
        "Replaced tokens teach more than masked words for the same computation",
        "Clark et al. 2020",
        "text",
        ("rotary", "replaced"),
        (_tags("rotary", "replaced"),),
        (
            *(
                Comparison(
                    f"replaced tokens against masked words, {where}",
                    ("replaced", figure),
                    ("rotary", figure),
                    "higher",
                )
                for where, figure in (("best layer", "tags"), ("last layer", f"tags@{LAST}"))
            ),
            Comparison(
                "masked words against random weights", ("rotary", "tags"), (f"rotary{UNTRAINED}", "tags")
            ),
            Comparison("masked words against frequent tags", ("rotary", "tags"), ("rotary", "form tags")),
        ),
    ),
    Claim(
        "distillation",
        "A small encoder learns more from a teacher than alone",
        "Hinton et al. 2015; Sanh et al. 2019",
        "text",
        ("rotary", "half", "half-distilled", "quarter", "quarter-distilled"),
        (
            _losses("rotary", "half", "half-distilled", "quarter", "quarter-distilled"),
            _tags(
                *("rotary", "half", "half-distilled", "quarter", "quarter-distilled"),
                scattered=True,
                parameters="parameters",
            ),
        ),
        tuple(comparison for size in ("half", "quarter") for comparison in _taught(size)),
    ),
    Claim(
        "speed",
        "What an encoder gains in speed it loses in clarity",
        "a common expectation",
        "text",
        DESIGNS,
        tuple(
            Table(
                title,
                {"speed": "speed", header: figure},
                {variant: (variant, "") for variant in DESIGNS},
                scattered=True,
                better="higher",
            )
            for title, header, figure in (
                ("Right tags of a linear probe", "right tags", "tags"),
                ("Intrinsic dimension of the last layer", "dimension", f"dimension@{LAST}"),
            )
        ),
        (
            Correlation("speed and right tags, all designs", DESIGNS, ("speed", "tags"), "lower"),
            Correlation("speed and right tags, equal width", EQUAL, ("speed", "tags"), "lower"),
            Correlation("speed and intrinsic dimension", DESIGNS, ("speed", f"dimension@{LAST}")),
        ),
    ),
)
