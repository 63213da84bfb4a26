"""Writes the corpus that comes with the package: sentences of public-domain books.

    python scripts/corpus.py BOOKS          write unmask/shipped/corpus/sentences.jsonl.xz

``BOOKS`` is a folder of ``.jsonl.xz`` files with one book a line: ``title``, ``author``, ``year`` and
``text``. From every book the same number of sentences is taken, those whose SHA-256 is smallest, so that
the same books always give the same file. Each line of the result is a book with its sentences.
"""

import hashlib
import json
import lzma
import re
import sys
from collections.abc import Iterator
from pathlib import Path

TARGET = Path(__file__).parents[1] / "unmask" / "shipped" / "corpus" / "sentences.jsonl.xz"
PER_BOOK = 8
WORDS = (6, 40)
"""The fewest and the most words of a sentence."""

SENTENCE = re.compile(r"(?<!\bMr\.)(?<!\bMrs\.)(?<!\bDr\.)(?<!\bSt\.)(?<=[.?!])[\"']?\s+(?=[\"']?[A-Z])")
WHOLE = re.compile(r"[A-Z][A-Za-z0-9 ,;:'’—-]*(?:\"[A-Za-z0-9 ,;:'’—.?!-]+\"[A-Za-z0-9 ,;:'’—-]*)*[.?!]")
"""Plain prose from a capital letter to the end of a sentence; quotation marks come in pairs."""
UNFINISHED = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|St|Rev|Hon|Col|Capt|Gen|Messrs|Esq|No|Vol|pp?|[A-Z])\.$")
"""What a full stop after it does not end a sentence."""
OF_PAGES = re.compile(r"^(?:Chapter|Act|Scene|Book|Enter|Exit|Exeunt)\b| ,|\bfootnote\b", re.IGNORECASE)
"""What headings, stage directions and scanned pages have."""
LEFT_OUT = re.compile(
    r"\b(?:n[ie]g\w*|negr\w*|darkey|darkie|coon|coolie|chinam\w*|savage\w*|barbarian\w*|heathen\w*|infidel\w*"
    r"|jew\w*|hebrew\w*|gips\w+|gyps\w+|moor(?:s|ish)?|turks?|arabs?|indians?|natives?|squaw\w*|half-?breed\w*"
    r"|mulatto\w*|blacks?|races?|slav\w+|cannibal\w*|cripple\w*|idiot\w*|imbecile\w*|lunatic\w*"
    r"|whor\w*|harlot\w*|prostitut\w*|brothel\w*|bastard\w*|bitch\w*|rap(?:e|ed|ing|ist)|ravish\w*|seduc\w*"
    r"|lust\w*|naked\w*|breasts?|bosoms?|virgin\w*|incest\w*|damn\w*|hell|suicid\w*|murder\w*|kill\w*|corpse\w*"
    r"|stab\w*|hang(?:ed|ing|man)|strangl\w*|tortur\w*|flog\w*|whip\w*|blood\w*|behead\w*|massacre\w*|slaughter\w*|lynch\w*"
    r"|ass(?:es)?|queer|gay|papist\w*|popish|mohammed\w*|mahomet\w*|moham\w*|muslim\w*|mussulman\w*)\b",
    re.IGNORECASE,
)
"""Words of sentences that are left out: insults and groups that old books insult, violence, sex."""


def sentences(text: str) -> Iterator[str]:
    """The sentences of a book that are plain prose of the right length and without any left-out word."""
    for paragraph in text.split("\n"):
        straight = re.sub(
            r"\s+", " ", paragraph.replace("“", '"').replace("”", '"').replace("’", "'")
        ).strip()
        for sentence in SENTENCE.split(straight.replace("--", "—")):
            words = sentence.split()
            if (
                WORDS[0] <= len(words) <= WORDS[1]
                and WHOLE.fullmatch(sentence)
                and not UNFINISHED.search(sentence)
                and not LEFT_OUT.search(sentence)
                and not OF_PAGES.search(sentence)
                and sum(word.isupper() and len(word) > 1 for word in words) == 0
                and sum(letter.isdigit() for letter in sentence) < 5
            ):
                yield sentence


def chosen(text: str) -> list[str]:
    """`PER_BOOK` sentences of a book, in its order."""
    unique = dict.fromkeys(sentences(text))
    smallest = set(sorted(unique, key=lambda sentence: hashlib.sha256(sentence.encode()).digest())[:PER_BOOK])
    return [sentence for sentence in unique if sentence in smallest]


def books(folder: Path) -> Iterator[dict[str, object]]:
    """Every book with its sentences."""
    for path in sorted(folder.glob("*.jsonl.xz")):
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                book = json.loads(line)
                if LEFT_OUT.search(book["title"]):
                    continue
                yield {name: book[name] for name in ("title", "author", "year")} | {
                    "texts": chosen(book["text"])
                }


def main() -> None:
    """Write the corpus and say what is in it."""
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/corpus.py BOOKS")
    complete = sorted(
        (book for book in books(Path(sys.argv[1])) if len(book["texts"]) == PER_BOOK),  # type: ignore[arg-type]
        key=lambda book: (str(book["title"]), str(book["author"])),
    )
    taken: set[str] = set()
    for book in complete:
        book["texts"] = [text for text in book["texts"] if text not in taken]  # type: ignore[attr-defined]
        taken.update(book["texts"])  # type: ignore[call-overload]
    content = "".join(json.dumps(book, ensure_ascii=False) + "\n" for book in complete)
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_bytes(lzma.compress(content.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(taken):,} sentences of {len(complete)} books, {TARGET.stat().st_size:,} bytes: {TARGET}")


if __name__ == "__main__":
    main()
