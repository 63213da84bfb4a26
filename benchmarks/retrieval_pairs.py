"""Queries with the documents that answer them, as JSONL to train retrievers on, from the shared data.

    python benchmarks/retrieval_pairs.py code -o runs/retrieval/code
    python benchmarks/retrieval_pairs.py general -o runs/retrieval/general
    python benchmarks/retrieval_pairs.py science -o runs/retrieval/science
    python benchmarks/retrieval_pairs.py queries -o runs/cosqa

Writes train.jsonl and dev.jsonl with ``query`` and ``positive``. No test query of SciFact or CosQA is in
them.

- code: the docstring of every function of CosQA's corpus with the function without it, and its name with the
  whole function, in lower case and half of them after "python", as queries are typed; 400 of its 500 dev
  queries with their functions (the other 100 are the dev data); right pairs of its question answering data.
- general: those, and SciFact's training queries with the abstracts that answer them; SQuAD's dev questions
  with their paragraphs; QAMR's questions with their sentences; QNLI's positive dev pairs; titles of openstax
  modules with the beginning of the module.
- science: SciFact's training queries with the abstracts that answer them (40 queries are the dev data), and
  the last sentences of abstracts, without the heading, with their abstracts. corpus.jsonl has all abstracts,
  for `unmask mine`.
- queries: of the pairs of code those whose query somebody typed. The dev queries are a collection in BEIR's
  layout, in the folder dev, to be ranked among all functions; corpus.jsonl has them for `unmask mine`.
"""

import ast
import csv
import io
import json
import lzma
import random
import re
import textwrap
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

DATA = Path(__file__).parents[2] / "shared" / "data"
Pair = tuple[str, str]
DEV_QUERIES = 100
PER_SENTENCE = 3
"""QAMR asks about forty questions of each sentence; more of them teach little and are false negatives."""


def rows(name: str) -> Iterator[dict[str, object]]:
    """The rows of a compressed JSONL file."""
    with lzma.open(DATA / name, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def table(name: str) -> Iterator[dict[str, str]]:
    """The rows of a compressed file of tab-separated values."""
    with lzma.open(DATA / name, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


def document(row: dict[str, object]) -> str:
    """The text of a document of BEIR as it is indexed."""
    return f"{row.get('title', '')} {row['text']}".strip()


def judged(folder: str, split: str) -> list[Pair]:
    """Queries with the documents that are relevant for them."""
    texts = {str(row["_id"]): document(row) for row in rows(f"{folder}/corpus.jsonl.xz")}
    queries = {str(row["_id"]): str(row["text"]) for row in rows(f"{folder}/queries.jsonl.xz")}
    return [
        (queries[row["query-id"]], texts[row["corpus-id"]])
        for row in table(f"{folder}/qrels/{split}.tsv.xz")
        if int(row["score"]) > 0
    ]


def docstrings() -> Iterator[Pair]:
    """The first paragraph of a function's docstring, and the function without the docstring."""
    for row in rows("cosqa/corpus.jsonl.xz"):
        source = textwrap.dedent(str(row["text"]))
        try:
            (function,) = ast.parse(source).body
        except (SyntaxError, ValueError):
            continue
        found = ast.get_docstring(function) if isinstance(function, ast.FunctionDef) else None
        if not found or len(function.body) < 2:
            continue
        lines = source.splitlines(keepends=True)
        first = function.body[0]
        code = "".join(lines[: first.lineno - 1] + lines[first.end_lineno :]).rstrip()
        said = " ".join(re.split(r"\n\s*\n|\n\s*[:@]", found)[0].split())
        if len(said.split()) >= 3:
            yield as_typed(said), code
        named = " ".join(part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", function.name))
        if len(named.split()) >= 2:
            yield as_typed(named), source.rstrip()


def as_typed(said: str) -> str:
    """A description as people type it into a search engine, half of them with the language."""
    words = said.rstrip(".").lower()
    return f"python {words}" if random.Random(said).random() < 0.5 else words


def code() -> tuple[list[Pair], list[Pair]]:
    """Training and dev pairs of code search."""
    tested = {query for query, _ in judged("cosqa", "test")}
    queries = judged("cosqa", "dev")
    random.Random(0).shuffle(queries)
    answers = [
        (str(row["query"]), str(row["code"]))
        for row in rows("cosqa/qa_dev.jsonl.xz")
        if row["label"] == 1 and row["query"] not in tested
    ]
    held = {query for query, _ in queries[:DEV_QUERIES]}
    answers = [pair for pair in answers if pair[0] not in held]
    train = [*docstrings(), *queries[DEV_QUERIES:], *answers]
    assert not tested & {query for query, _ in train}
    return train, queries[:DEV_QUERIES]


def queries() -> tuple[list[Pair], list[Pair]]:
    """Training and dev pairs of code search that have queries which somebody typed."""
    train, dev = code()
    made = set(docstrings())
    return [pair for pair in train if pair not in made], dev


def squad(name: str, most: int | None = None) -> Iterator[Pair]:
    """Questions with the paragraphs that answer them."""
    with lzma.open(DATA / name, "rt", encoding="utf-8") as file:
        for article in json.load(file)["data"]:
            for paragraph in article["paragraphs"]:
                for one in paragraph["qas"][:most]:
                    yield one["question"].strip(), paragraph["context"]


def modules() -> Iterator[Pair]:
    """Titles of sections with their first 150 words."""
    for row in rows("openstax/openstax_ccby.jsonl.xz"):
        if row["split"] == "train" and row["title"] not in ("Preface", "Introduction"):
            yield f"{row['title']}", " ".join(str(row["text"]).split()[:150])


def general() -> tuple[list[Pair], list[Pair]]:
    """Training and dev pairs of all kinds."""
    science = judged("scifact", "train")
    tested = {query for query, _ in judged("scifact", "test")}
    science = [pair for pair in science if pair[0] not in tested]
    random.Random(0).shuffle(science)
    train, dev = code()
    entailed = [
        (row["question"], row["sentence"])
        for row in table("glue/QNLI/dev.tsv.xz")
        if row["label"] == "entailment"
    ]
    questions = [*squad("qamr/dev.json.xz", PER_SENTENCE), *squad("qamr/test.json.xz", PER_SENTENCE)]
    paragraphs = list(squad("squad_v1.1/dev-v1.1.json.xz"))
    train += [*science[DEV_QUERIES:], *entailed, *questions, *paragraphs, *modules()]
    return train, dev + science[:DEV_QUERIES]


SCIENCE_DEV_QUERIES = 40
"""Each is scored with many documents by cross-encoders, so they are few."""


def held_out() -> set[str]:
    """The training queries of SciFact that are dev data instead; none of them is a test query."""
    tested = {query for query, _ in judged("scifact", "test")}
    queries = sorted({query for query, _ in judged("scifact", "train")} - tested)
    return set(random.Random(0).sample(queries, SCIENCE_DEV_QUERIES))


def last_sentences() -> Iterator[Pair]:
    """The last sentence of each abstract of at least 150 words, most of which conclude, and the abstract."""
    for row in rows("scifact/corpus.jsonl.xz"):
        text = str(row["text"]).strip()
        heading = r"^(CONCLUSIONS?|INTERPRETATION|SIGNIFICANCE|DISCUSSION)[A-Z /]*:?\s*"
        last = re.sub(heading, "", re.split(r"(?<=[.!?])\s+", text)[-1])
        if len(text.split()) >= 150 and 8 <= len(last.split()) <= 45:
            yield last, document(row)


def science() -> tuple[list[Pair], list[Pair]]:
    """Training and dev pairs of scientific claims."""
    tested, held = {query for query, _ in judged("scifact", "test")}, held_out()
    pairs = [pair for pair in judged("scifact", "train") if pair[0] not in tested]
    sentences = list(last_sentences())
    random.Random(0).shuffle(sentences)
    train = [pair for pair in pairs if pair[0] not in held]
    return train + sentences, [pair for pair in pairs if pair[0] in held]


KINDS = {"code": code, "queries": queries, "general": general, "science": science}
CORPORA = {"queries": "cosqa", "science": "scifact"}
"""The kinds that negatives are mined for, and the collection that has the documents."""


def main() -> None:
    """Write the pairs that the command line names."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=tuple(KINDS))
    parser.add_argument("-o", "--output", type=Path, required=True)
    chosen = parser.parse_args()
    train, dev = KINDS[chosen.kind]()
    chosen.output.mkdir(parents=True, exist_ok=True)
    for name, pairs in (("train", list(dict.fromkeys(train))), ("dev", dev)):
        text = io.StringIO()
        for query, positive in pairs:
            text.write(json.dumps({"query": query, "positive": positive}, ensure_ascii=False) + "\n")
        (chosen.output / f"{name}.jsonl").write_text(text.getvalue(), encoding="utf-8")
        print(f"{chosen.output / name}.jsonl: {len(pairs):,} pairs")
    if name := CORPORA.get(chosen.kind):
        write_rows(chosen.output / "corpus.jsonl", rows(f"{name}/corpus.jsonl.xz"))
    if chosen.kind == "queries":
        write_collection(chosen.output / "dev", {query for query, _ in dev})


def write_rows(path: Path, some: Iterable[Mapping[str, object]]) -> None:
    """JSONL of the rows."""
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in some)
    path.write_text("".join(lines), encoding="utf-8")


def write_collection(folder: Path, kept: set[str]) -> None:
    """The part of CosQA's dev judgments that is about the queries, in BEIR's layout."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    asked = {str(row["_id"]): row for row in rows("cosqa/queries.jsonl.xz") if row["text"] in kept}
    judgments = [row for row in table("cosqa/qrels/dev.tsv.xz") if row["query-id"] in asked]
    write_rows(folder / "corpus.jsonl", rows("cosqa/corpus.jsonl.xz"))
    write_rows(folder / "queries.jsonl", [asked[row["query-id"]] for row in judgments])
    with (folder / "qrels" / "dev.tsv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, judgments[0], delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(judgments)


if __name__ == "__main__":
    main()
