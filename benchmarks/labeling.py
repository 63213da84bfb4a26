"""How many wrong labels `unmask label-errors` finds, and what `unmask next` gains over chance.

    python benchmarks/labeling.py errors TABLE [--text sentence] [--label label] [--rows 6000]
    python benchmarks/labeling.py next TABLE TEST [--rows 3000] [--seeds 5]

The first replaces 5 % of the labels by others, seeded, and prints how many of the first texts of the list
have a replaced label. The second starts from 20 labels of random texts and adds four times 20, and prints the
accuracy of a classifier of 100 labels on another table, for each way to choose. A text is embedded once.
"""

import random
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import numpy as np

import unmask
from unmask.search import duplicates, labeling
from unmask.search.options import Acquisition
from unmask.text.rows import format_by_name, read_rows

Rows = list[tuple[str, str]]
VECTORS: dict[str, Any] = {}


@contextmanager
def vectors(model: Any, texts: Sequence[str], *_: Any, **__: Any) -> Iterator[tuple[Any, int]]:
    """The vectors of texts, each embedded once."""
    new = [text for text in dict.fromkeys(texts) if text not in VECTORS]
    with duplicates.document_vectors(model, new, "end", None) as (new_SE, _):
        VECTORS.update(zip(new, np.array(new_SE), strict=True))
    yield np.stack([VECTORS[text] for text in texts]), 0


def table(path: Path, options: Namespace, most: int | None) -> Rows:
    """Different texts with their labels, in a drawn order."""
    rows = {
        str(row[options.text]).strip(): str(row[options.label])
        for _, row in read_rows(path, format_by_name(path.name))
    }
    drawn = [(text, label) for text, label in rows.items() if len(text.split()) > 3]
    random.Random(0).shuffle(drawn)
    return drawn[:most]


def errors(options: Namespace, model: Any) -> None:
    """Print what is found of labels that were replaced."""
    rows = table(options.table, options, options.rows)
    for seed in range(options.seeds):
        draw = random.Random(seed)
        classes = sorted({label for _, label in rows})
        wrong = set(draw.sample(range(len(rows)), len(rows) // 20))
        labels = [
            draw.choice([other for other in classes if other != label]) if row in wrong else label
            for row, (_, label) in enumerate(rows)
        ]
        result = unmask.find_label_errors([text for text, _ in rows], labels, model, seed=seed)
        order = [suspect.row for suspect in result.rows]
        joint = [suspect.row for suspect in result.rows if suspect.is_confident]
        parts = [
            f"first {count}: {len(wrong & set(order[:count])) / count:.3f} wrong, "
            f"{len(wrong & set(order[:count])) / len(wrong):.3f} of all wrong"
            for count in (50, len(wrong), 2 * len(wrong))
        ]
        both = len(wrong & set(joint))
        joint_line = (
            f"joint {len(joint)}: {both / len(joint):.3f} wrong, {both / len(wrong):.3f} of all wrong"
        )
        print(f"seed {seed}: " + "; ".join([*parts, joint_line]), flush=True)


def accuracy(rows: Rows, test: Rows, model: Any) -> float:
    """That of the classifier of `choose_texts`, by its predictions for a pool that is the test."""
    chosen = unmask.choose_texts(
        [text for text, _ in test],
        len(test),
        model,
        labeled=[text for text, _ in rows],
        labels=[label for _, label in rows],
        by="margin",
    )
    return float(np.mean([text.predicted == test[text.row][1] for text in chosen.rows]))


def following(options: Namespace, model: Any) -> None:
    """Print the accuracy after 100 labels for each way to choose."""
    rows, test = table(options.table, options, options.rows), table(options.test, options, 2000)
    for by in get_args(Acquisition):
        figures = []
        for seed in range(options.seeds):
            order = np.random.default_rng(seed).permutation(len(rows))
            known = [rows[place] for place in order[:20]]
            for turn in range(4):
                rest = [row for row in rows if row not in known]
                chosen = unmask.choose_texts(
                    [text for text, _ in rest],
                    20,
                    model,
                    labeled=[text for text, _ in known],
                    labels=[label for _, label in known],
                    by=by,
                    seed=4 * seed + turn,
                )
                known += [rest[text.row] for text in chosen.rows]
            figures.append(accuracy(known, test, model))
        shown = " ".join(f"{figure:.3f}" for figure in figures)
        print(f"{by:9} {np.mean(figures):.4f}, deviation {np.std(figures):.4f}: {shown}", flush=True)


def main() -> None:
    """Measure."""
    parser = ArgumentParser()
    parser.add_argument("what", choices=["errors", "next"])
    parser.add_argument("table", type=Path)
    parser.add_argument("test", type=Path, nargs="?")
    parser.add_argument("--text", default="sentence")
    parser.add_argument("--label", default="label")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    labeling.document_vectors = vectors
    (errors if options.what == "errors" else following)(options, unmask.load("default"))


if __name__ == "__main__":
    main()
