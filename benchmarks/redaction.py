"""How many planted identifiers `unmask redact` finds in real text, by format, without a model.

    python benchmarks/redaction.py FILE [--number 500] [--seed 0]

FILE has one text on each line, plain or compressed. Every text gets one value of one of `FORMATS`, or one of
`DECOYS`, which look like identifiers and are none. Numbers get their check digits here, by other code than
the one that is measured. Two formats are not described by any pattern, and count as missed.
"""

import random
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import unmask
from unmask.text.lines import text_lines

Draw = random.Random


class Planted(NamedTuple):
    """A text with a value in it."""

    text: str
    start: int
    end: int
    format: str
    is_identifier: bool


def digits(draw: Draw, count: int) -> str:
    """So many random digits, the first not 0."""
    return str(draw.randint(1, 9)) + "".join(draw.choices("0123456789", k=count - 1))


def card(draw: Draw, prefix: str, length: int) -> str:
    """A number with the only last digit for which the sum of Luhn's formula is divisible by 10."""
    body = prefix + "".join(draw.choices("0123456789", k=length - len(prefix) - 1))
    table = [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
    for last in "0123456789":
        number = body + last
        total = sum(
            table[int(digit)] if (length - place) % 2 == 0 else int(digit)
            for place, digit in enumerate(number)
        )
        if total % 10 == 0:
            return number
    raise AssertionError


def wrong(number: str) -> str:
    """A number with another last digit."""
    return number[:-1] + str((int(number[-1]) + 1) % 10)


def iban(draw: Draw, country: str, account: str) -> str:
    """A number of an account with its check digits: 98 minus the remainder of the number with 00."""
    code = "".join(str(ord(c) - 55) if c.isalpha() else c for c in f"{account}{country}00")
    return f"{country}{98 - int(code) % 97:02d}{account}"


def grouped(number: str, sizes: Iterable[int], mark: str = " ") -> str:
    """Digits in groups of these sizes, and a last one of what remains."""
    parts, rest = [], number
    for size in sizes:
        parts, rest = [*parts, rest[:size]], rest[size:]
    return mark.join([*parts, rest] if rest else parts)


def word(draw: Draw) -> str:
    """A few letters."""
    return "".join(draw.choices("abcdefghiklmnoprstuvw", k=draw.randint(3, 9)))


def site(draw: Draw) -> str:
    """The name of a host."""
    return f"{word(draw)}.{draw.choice(['com', 'org', 'co.uk', 'de', 'io', 'info'])}"


FORMATS: Mapping[str, Callable[[Draw], str]] = {
    "mail": lambda d: f"{word(d)}@{site(d)}",
    "mail with a tag": lambda d: f"{word(d)}.{word(d)}+{word(d)}{d.randint(1, 99)}@mail.{site(d)}",
    "mail in other letters": lambda d: f"{d.choice(['josé', 'müller', 'иван', 'राज'])}@{site(d)}",
    "mail written out": lambda d: f"{word(d)} (at) {word(d)} dot com",
    "web": lambda d: f"https://{site(d)}/{word(d)}/{word(d)}?q={word(d)}&n={d.randint(1, 99)}",
    "web without scheme": lambda d: f"www.{site(d)}/{word(d)}",
    "IPv4": lambda d: ".".join(str(d.randint(1, 255)) for _ in range(4)),
    "IPv6": lambda d: ":".join(f"{d.randint(4096, 65535):x}" for _ in range(8)),
    "IPv6, short": lambda d: f"2001:db8::{d.randint(1, 65535):x}",
    "Visa": lambda d: grouped(card(d, "4", 16), [4, 4, 4]),
    "Mastercard": lambda d: grouped(card(d, "53", 16), [4, 4, 4], "-"),
    "American Express": lambda d: grouped(card(d, "37", 15), [4, 6]),
    "card without gaps": lambda d: card(d, d.choice(["4", "2221", "51", "6011", "3530"]), 16),
    "IBAN": lambda d: grouped(iban(d, "DE", digits(d, 18)), [4] * 5),
    "IBAN with letters": lambda d: iban(d, "GB", f"NWBK{digits(d, 14)}"),
    "telephone, E.164": lambda d: f"+{d.choice(['49', '44', '33', '91', '86'])}{digits(d, 10)}",
    "telephone, spaces": lambda d: (
        f"+{d.choice(['49', '44', '33'])} {digits(d, 3)} {digits(d, 3)} {digits(d, 4)}"
    ),
    "telephone, USA": lambda d: f"({d.randint(200, 999)}) {d.randint(200, 999)}-{d.randint(0, 9999):04d}",
    "telephone, national": lambda d: f"0{digits(d, 2)} {digits(d, 4)} {digits(d, 4)}",
    "social security number": lambda d: (
        f"{d.randint(1, 665):03d}-{d.randint(1, 99):02d}-{d.randint(1, 9999):04d}"
    ),
}

DECOYS: Mapping[str, Callable[[Draw], str]] = {
    "ISBN": lambda d: grouped(f"978{digits(d, 10)}", [3, 1, 2, 6], "-"),
    "date": lambda d: f"{d.randint(1900, 2030)}-{d.randint(1, 12):02d}-{d.randint(1, 28):02d}",
    "time": lambda d: f"{d.randint(0, 23):02d}:{d.randint(0, 59):02d}:{d.randint(0, 59):02d}",
    "version": lambda d: f"v{d.randint(0, 9)}.{d.randint(0, 99)}.{d.randint(0, 99)}.{d.randint(0, 9)}",
    "decimal": lambda d: f"{d.randint(0, 99)}.{digits(d, 15)}",
    "16 digits": lambda d: digits(d, 16),
    "large number": lambda d: f"{d.randint(1, 999)},{d.randint(0, 999):03d},{d.randint(0, 999):03d}",
    "wrong check digit": lambda d: wrong(card(d, "4", 16)),
    "wrong account": lambda d: f"DE00{digits(d, 18)}",
    "name of code": lambda d: f"{word(d)}::{word(d)}@{word(d)}",
}


def planted(texts: Iterable[str], number: int, seed: int = 0) -> list[Planted]:
    """So many identifiers, all formats alike, and half as many decoys, each in a text between two words."""
    draw, lines = random.Random(seed), iter(texts)
    kinds = [(name, make, True) for name, make in FORMATS.items()]
    fakes = [(name, make, False) for name, make in DECOYS.items()]
    chosen = [kinds[place % len(kinds)] for place in range(number)]
    chosen += [fakes[place % len(fakes)] for place in range(number // 2)]
    rows = []
    for name, make, is_identifier in chosen:
        words = next(lines).split(" ")
        place = draw.randint(0, len(words))
        before, after = draw.choice([("", ""), ("", ","), ("", "."), ("(", ")"), ('"', '"'), ("", ";")])
        start = len("".join(f"{each} " for each in words[:place])) + len(before)
        value = make(draw)
        text = " ".join([*words[:place], f"{before}{value}{after}", *words[place:]])
        rows.append(Planted(text, start, start + len(value), name, is_identifier))
    return rows


def found(rows: Iterable[Planted]) -> tuple[Counter[str], Counter[str], int, int]:
    """By format the values of which nothing stays, and those of which something goes; and how many spans
    there are that no planted identifier overlaps, and that are larger than one."""
    whole: Counter[str] = Counter()
    touched: Counter[str] = Counter()
    others = wider = 0
    for row in rows:
        spans = unmask.redact(row.text).spans
        over = [span for span in spans if span.start < row.end and row.start < span.end]
        whole[row.format] += any(span.start <= row.start and row.end <= span.end for span in over)
        touched[row.format] += bool(over)
        wider += sum(span.start < row.start or row.end < span.end for span in over)
        others += len(spans) if not row.is_identifier else len(spans) - len(over)
    return whole, touched, others, wider


def main() -> None:
    """Print what was found."""
    parser = ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--number", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    texts = (line.strip() for _, line in text_lines(options.file) if len(line.split()) > 5)
    rows = planted(texts, options.number, options.seed)
    whole, touched, others, wider = found(rows)
    counts = Counter(row.format for row in rows)
    for name, count in counts.items():
        print(f"{name:24} {whole[name]:4} whole, {touched[name]:4} in part or whole, of {count}")
    right = sum(whole[name] for name in FORMATS)
    print(
        f"recall {right / options.number:.3f} ({right} of {options.number}), precision "
        f"{right / (right + others):.3f} ({others} other spans), {wider} spans wider than the value"
    )


if __name__ == "__main__":
    main()
