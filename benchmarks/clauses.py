"""Find the exact clause among 10,000 pages: pages of openstax textbooks with 100 planted clauses.

    python benchmarks/clauses.py make -o runs/clauses
    unmask index runs/clauses/pages.jsonl -o runs/clauses/index --passage-tokens 44 --dtype bfloat16
    python benchmarks/clauses.py ask runs/clauses
    python benchmarks/clauses.py ask runs/clauses --reranker sentence-transformers/all-mpnet-base-v2

A page is 300 consecutive words; a clause stands between two sentences of a page. Each clause has a question
in its own words and one in other words. A question is answered if the first hit has most of the clause.
"""

import json
import lzma
import random
import statistics
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unmask.search.index import Index
    from unmask.search.values import Hit

DATA = Path(__file__).parents[2] / "shared" / "data"
PAGES = 10_000
WORDS = 300

FORMS = Path(__file__).with_suffix(".json")
"""The forms of clauses and of their questions, in their own and in other words, and the values to fill in."""


def clauses() -> list[tuple[str, str, str]]:
    """Each clause with the question in its words and the one in other words."""
    return [
        (form["clause"].format(*values), form["own"].format(*values), form["other"].format(*values))
        for form in json.loads(FORMS.read_text(encoding="utf-8"))
        for values in form["values"]
    ]


def pages() -> Iterator[str]:
    """Pages of 300 words, in the order of the books."""
    with lzma.open(DATA / "openstax" / "openstax_ccby.jsonl.xz", "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            words = row["text"].split()
            for start in range(0, len(words) - WORDS + 1, WORDS):
                yield " ".join(words[start : start + WORDS])


def make(folder: Path) -> None:
    """Write the pages and the questions."""
    every = list(pages())
    draw = random.Random(0)
    chosen = [every[number] for number in sorted(draw.sample(range(len(every)), PAGES))]
    planted = clauses()
    questions = []
    for number, (clause, own, other) in zip(draw.sample(range(PAGES), len(planted)), planted, strict=True):
        head, border, rest = chosen[number].partition(". ")
        for _ in range(draw.randrange(3, 9)):
            more, again, tail = rest.partition(". ")
            if not again:
                break
            head, rest = f"{head}{border}{more}", tail
        chosen[number] = f"{head}. {clause} {rest}"
        questions.append({"page": f"page-{number}", "clause": clause, "own": own, "other": other})
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "pages.jsonl").open("w", encoding="utf-8") as file:
        for number, text in enumerate(chosen):
            file.write(json.dumps({"_id": f"page-{number}", "text": text}, ensure_ascii=False) + "\n")
    (folder / "questions.json").write_text(json.dumps(questions, indent=1, ensure_ascii=False) + "\n")
    print(f"{PAGES:,} pages of {len(every):,}, {len(questions)} clauses: {folder}")


def holds(index: "Index", hit: "Hit", question: dict[str, str]) -> bool:
    """Whether a hit has most of the clause: passages are cut at sentences, but a long one may be divided."""
    if hit.document != question["page"]:
        return False
    start = index.document(hit.document).text.index(question["clause"])
    end = start + len(question["clause"])
    return 2 * (min(end, hit.end) - max(start, hit.start)) > end - start


def ask(folder: Path, reranker: str | None, candidates: int, dtype: str) -> None:
    """Search for every clause, in its own and in other words."""
    import unmask
    from unmask.search.index import Index

    index = Index.open(folder / "index")
    questions = json.loads((folder / "questions.json").read_text())
    print(f"{len(index):,} documents, {index.passages:,} passages")
    second = None if reranker is None else unmask.load(reranker, dtype=dtype)
    for mode in ("bm25", "dense", "hybrid") if second is None else ("dense",):
        for words in ("own", "other"):
            ranks, seconds = [], []
            for one in questions:
                start = time.perf_counter()
                if second is None:
                    hits = index.search(one[words], 10, mode)
                else:
                    hits = index.search(one[words], 10, mode, reranker=second, candidates=candidates)
                seconds.append(time.perf_counter() - start)
                held = [holds(index, hit, one) for hit in hits]
                ranks.append(held.index(True) + 1 if True in held else 0)
            first, ten = sum(rank == 1 for rank in ranks), sum(rank > 0 for rank in ranks)
            print(
                f"{mode:7} {words:6} first {first}, among ten {ten}, of {len(ranks)}; "
                f"median {1000 * statistics.median(seconds):.1f} ms",
                flush=True,
            )


def main() -> None:
    """Run what the command line asks for."""
    parser = ArgumentParser(description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("make").add_argument("-o", "--output", type=Path, required=True)
    asking = actions.add_parser("ask")
    asking.add_argument("folder", type=Path)
    asking.add_argument("--reranker", help="a model that scores the first hits of the dense view again")
    asking.add_argument("--candidates", type=int, default=100, help="how many it scores")
    asking.add_argument("--dtype", default="int8", help="the number format of the reranker")
    chosen = parser.parse_args()
    if chosen.action == "make":
        make(chosen.output)
    else:
        ask(chosen.folder, chosen.reranker, chosen.candidates, chosen.dtype)


if __name__ == "__main__":
    main()
