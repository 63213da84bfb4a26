"""Write the splits of data that have no official one, as files that run files in recipes/tasks/ name.

``python scripts/splits.py [DATA] [OUT]`` reads shared data (default: ../shared/data) and writes to
runs/splits. Every split is a rule on a SHA-256 digest of what must not be on both sides, so it is the same
everywhere:

- nli: trained on SNLI's dev and test parts and half of MNLI's matched dev part, evaluated on the other half.
  All pairs of a premise are in the same half.
- squad: SQuAD v1.1's dev part, 40 articles to train on and 8 to evaluate on; and both parts of QAMR to train
  on, without the sentences that those 8 articles contain too.
- names: WikiANN's English part, without the "en:" before every word, and WNUT-17 with WikiANN's names for its
  types: person is PER, corporation and group are ORG, location is LOC, and what is left is O.
- qnli: QNLI's dev part in 5 folds; all pairs of a question are in the same fold.
- movie_reviews: the 10 folds that its authors gave.
"""

import hashlib
import json
import lzma
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent


def digest(key: str) -> int:
    """A number that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


def rows(path: Path) -> list[dict[str, Any]]:
    """The records of a compressed JSONL file."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def write(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write records as JSONL, and say how many."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    path.write_text("".join(lines), encoding="utf-8")
    print(f"{path}: {len(lines):,} records")


def nli(data: Path, out: Path) -> None:
    """Entailment: premise, hypothesis, label."""
    mnli = rows(data / "mnli" / "dev_matched.jsonl.xz")
    train = [record for part in ("dev", "test") for record in rows(data / "snli" / f"{part}.jsonl.xz")]
    write(
        out / "nli" / "train.jsonl", train + [record for record in mnli if digest(record["premise"]) % 2 == 0]
    )
    write(out / "nli" / "dev.jsonl", (record for record in mnli if digest(record["premise"]) % 2))


def squad(data: Path, out: Path) -> None:
    """Whole articles of SQuAD, and sentences of QAMR, in SQuAD's layout."""
    articles = questions(data / "squad_v1.1" / "dev-v1.1.json.xz")
    articles.sort(key=lambda article: digest(article["title"]))
    evaluated = "".join(part["context"] for article in articles[40:] for part in article["paragraphs"])
    sentences = [
        article for part in ("dev", "test") for article in questions(data / "qamr" / f"{part}.json.xz")
    ]
    # Their white space around punctuation differs, so the beginnings are compared.
    apart = [article for article in sentences if article["paragraphs"][0]["context"][:60] not in evaluated]
    for name, chosen in (("train-40", articles[:40]), ("dev-8", articles[40:]), ("qamr", apart)):
        path = out / "squad" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"version": "1.1", "data": chosen}, ensure_ascii=False), encoding="utf-8")
        print(f"{path}: {len(chosen)} of {len(sentences) if name == 'qamr' else len(articles)} articles")


def questions(path: Path) -> list[dict[str, Any]]:
    """The articles of a compressed file in SQuAD's layout."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return list(json.load(file)["data"])


TYPES = {"person": "PER", "corporation": "ORG", "group": "ORG", "location": "LOC"}


def names(data: Path, out: Path) -> None:
    """Persons, organizations and locations, in the official parts of both sets."""
    wnut = {"train": "wnut17train.conll", "dev": "emerging.dev.conll", "test": "emerging.test.annotated"}
    for part, file in wnut.items():
        with lzma.open(data / "wikiann_en" / f"{part}.conll.xz", "rt", encoding="utf-8") as wikiann:
            lines = [line.removeprefix("en:").rstrip("\n") for line in wikiann]
        with lzma.open(data / "wnut17" / f"{file}.xz", "rt", encoding="utf-8") as tweets:
            mapped = [mapped_line(line.strip()) for line in tweets]
        for name, chosen in (("wikiann", lines), ("wnut17", mapped)):
            path = out / "names" / f"{name}-{part}.conll"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(chosen) + "\n", encoding="utf-8")
            print(f"{path}: {sum(bool(line) for line in chosen):,} words")


def mapped_line(line: str) -> str:
    """A word of WNUT-17 with the label that WikiANN would give it."""
    if not line:
        return ""
    word, label = line.split("\t")
    start, _, kind = label.partition("-")
    return f"{word}\t{start}-{TYPES[kind]}" if kind in TYPES else f"{word}\tO"


def qnli(data: Path, out: Path) -> None:
    """Five folds of pairs of a question and a sentence."""
    with lzma.open(data / "glue" / "QNLI" / "dev.tsv.xz", "rt", encoding="utf-8") as file:
        names, *lines = (line.rstrip("\n").split("\t") for line in file)
    pairs = [dict(zip(names, line, strict=True)) for line in lines]
    for fold in range(5):
        for part, inside in (("train", False), ("dev", True)):
            chosen = (pair for pair in pairs if (digest(pair["question"]) % 5 == fold) == inside)
            write(out / "qnli" / f"fold-{fold}" / f"{part}.jsonl", chosen)


def movie_reviews(data: Path, out: Path) -> None:
    """Ten folds of whole reviews."""
    reviews = rows(data / "movie_reviews" / "movie_reviews.jsonl.xz")
    for fold in range(10):
        for part, inside in (("train", False), ("dev", True)):
            chosen = (review for review in reviews if (review["fold"] == fold) == inside)
            write(out / "movie_reviews" / f"fold-{fold}" / f"{part}.jsonl", chosen)


if __name__ == "__main__":
    data = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "shared" / "data"
    out = Path(sys.argv[2]) if len(sys.argv) > 2 else HERE / "runs" / "splits"
    for split in (nli, squad, names, qnli, movie_reviews):
        split(data, out)
