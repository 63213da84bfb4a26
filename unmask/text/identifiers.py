"""Identifiers that have a form: addresses of mail, of the web and of machines, numbers of cards and accounts.

A pattern says where its identifiers begin and end in a text of any script. A number with a checksum counts
only if the checksum is right, so that most other numbers of its length are left alone. Digits may be those of
any script. A form that is not described here is not found.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv6Address
from typing import NamedTuple

from unmask.text.borders import SPACELESS


class Identifier(NamedTuple):
    """A part of a text that has the form of an identifier."""

    label: str
    """One of `PATTERNS`."""
    start: int
    """The offset of its first character."""
    end: int
    """The offset after its last character."""


Spans = Iterator[tuple[int, int]]

_UNSPACED = "".join(f"{chr(first)}-{chr(last)}" for first, last in (*SPACELESS, (0x30A0, 0x30FF)))
_MARKS = "".join(
    character
    for character in map(chr, range(0x300, 0x1E00))
    if unicodedata.category(character) in ("Mn", "Mc") and not re.match(f"[{_UNSPACED}]", character)
)
_WORD = rf"(?:[^\W{_UNSPACED}]|[{_MARKS}])"
"""A letter, mark or digit of a script with spaces between words. Beside other letters, such as Han, an
identifier may begin and end."""
_GAPS = " \u00a0\u2007\u202f-"
"""What may stand between groups of digits: a space, also one that does not break, or a hyphen."""
_GAP = f"[{_GAPS}]"
_LETTER = re.compile(_WORD)

_LOCAL = rf"(?:{_WORD}|[.!#$%&'*+/=?^`{{|}}~-])"
_DOMAIN = rf"(?:{_WORD}(?:{_WORD}|-)*\.)+(?:xn--[a-z0-9-]+|{_WORD}{{2,}})"
_UNSPACED_DOMAIN = rf"(?=[{_UNSPACED}])(?:[\w-]+\.)+\w\w+"
_EMAIL = re.compile(
    rf"(?<!{_LOCAL}){_LOCAL}++@(?:{_DOMAIN}|\[[0-9a-f:.]+\]|{_UNSPACED_DOMAIN})"
    rf"|(?<![\w.+-])[\w.+-]*[{_UNSPACED}]@(?:{_DOMAIN}|{_UNSPACED_DOMAIN})",
    re.IGNORECASE,
)
_URL = re.compile(
    rf"(?<!{_WORD})(?:(?:https?|ftps?|sftp|wss?)://|www\.(?={_WORD}+\.))"
    rf"(?:{_WORD}|[-.~:/?#\[\]@!$&'()*+,;=%])+",
    re.IGNORECASE,
)
_IPV4 = re.compile(rf"(?<!{_WORD})(?<!\.)(\d{{1,3}})\.(\d{{1,3}})\.(\d{{1,3}})\.(\d{{1,3}})(?!{_WORD}|\.\d)")
_IPV6 = re.compile(
    rf"(?<!{_WORD})(?<![:.])(?=[0-9a-f]{{0,4}}:)"
    rf"(?:[0-9a-f:]{{0,39}}:\d{{1,3}}(?:\.\d{{1,3}}){{3}}|[0-9a-f:]{{2,39}})(?!{_WORD})",
    re.IGNORECASE,
)
_DIGITS = re.compile(rf"(?<!{_WORD})(?<!\d\.)\d+(?:{_GAP}\d+)*(?!{_WORD})")
_GROUP = re.compile(r"\d+")
_IBAN = re.compile(rf"(?<!{_WORD})[a-z]{{2}}\d\d(?={_GAP}?[a-z0-9])", re.IGNORECASE)
_NANP = r"(?:\([2-9]\d\d\)[ \u00a0-]?|[2-9]\d\d[ \u00a0.-])[2-9]\d\d[ \u00a0.-]\d{4}"
_BETWEEN = r"(?:[ \u00a0]?[./-][ \u00a0]?|[ \u00a0\u202f])?"
_ABROAD = rf"(?:(?<!\d)\+|(?<!{_WORD})00)"
_PHONE = re.compile(
    rf"(?<![+.,-])(?:(?:(?:{_ABROAD}|(?<!{_WORD}))1[ \u00a0.-]?|(?<!{_WORD})){_NANP}"
    rf"|{_ABROAD}1(?:{_BETWEEN}\d){{10}}"
    rf"|{_ABROAD}[2-9]\d{{0,2}}(?:[ \u00a0]?\(\d{{1,5}}\))?(?:{_BETWEEN}\d){{5,13}}"
    rf")(?!{_WORD}|-\d)"
)
_US_SSN = re.compile(
    rf"(?<!{_WORD})(?<!-)(?!000|666|9)\d{{3}}([- ])(?!00)\d\d\1(?!0000)\d{{4}}(?!{_WORD}|-\d)"
)

ISSUERS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})"  # Visa
    r"|(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|3(?:0[0-59]\d|[689]\d\d)\d{10,15}"  # Diners Club
    r"|(?:6011|64[4-9]\d|65\d\d|62\d\d|8[1]\d\d)\d{12,15}"  # Discover, UnionPay
    r"|35(?:2[89]|[3-8]\d)\d{12,15}"  # JCB
    r"|(?:50\d\d|5[6-9]\d\d|6[037]\d\d)\d{8,15}"  # Maestro
    r"|220[0-4]\d{12,15}"  # Mir
)
"""Numbers of cards by their first digits and their lengths, as their issuers publish them (ISO/IEC 7812)."""

IBAN_LENGTHS: Mapping[str, int] = {
    country: int(length)
    for length, countries in {
        "15": "NO", "16": "BE", "18": "DK FI FK FO GL NL SD", "19": "MK SI", "20": "AT BA EE KZ LT LU MN XK",
        "21": "CH HR LI LV", "22": "BG BH CR DE GB GE IE ME RS VA", "23": "AE GI IL IQ OM SO TL",
        "24": "AD CZ ES MD PK RO SA SE SK TN VG", "25": "LY PT ST", "26": "IS TR",
        "27": "BI DJ FR GR IT MC MR SM", "28": "AL AZ BY CY DO GT HN HU LB NI PL SV", "29": "BR EG PS QA UA",
        "30": "JO KW MU YE", "31": "MT SC", "32": "LC", "33": "RU",
    }.items()
    for country in countries.split()
}  # fmt: skip
"""The length of an account number by its country (the registry of ISO 13616)."""


def ascii_digits(text: str) -> str:
    """The digits of a text, those of any script as 0 to 9."""
    return "".join(str(unicodedata.digit(character)) for character in text if character.isdigit())


def has_luhn_digit(digits: str) -> bool:
    """Whether the last digit is the check digit of those before it (ISO/IEC 7812-1, Luhn's formula)."""
    doubled = (2 * int(digit) for digit in digits[-2::-2])
    total = sum(map(int, digits[-1::-2])) + sum(value - 9 * (value > 9) for value in doubled)
    return total % 10 == 0


def is_iban(account: str) -> bool:
    """Whether letters and digits, without gaps, are an account number of ISO 13616.

    It has the length of its country, and the check digits of ISO/IEC 7064, MOD 97-10.
    """
    account = account.upper()
    if IBAN_LENGTHS.get(account[:2]) != len(account):
        return False
    return int("".join(str(int(character, 36)) for character in account[4:] + account[:4])) % 97 == 1


def _emails(text: str) -> Spans:
    for match in _EMAIL.finditer(text):
        start = match.end() - len(match[0].lstrip("!#$%&'*/=?^`{|}~."))
        if text[start] != "@":
            yield start, match.end()


def _urls(text: str) -> Spans:
    """Without the punctuation after an address, and closing brackets that it does not open."""
    for match in _URL.finditer(text):
        counts, end = Counter(match[0]), match.end()
        while (last := text[end - 1]) in ".,;:!?'*" or (
            last in ")]" and counts[last] > counts["(" if last == ")" else "["]
        ):
            counts[last] -= 1
            end -= 1
        yield match.start(), end


def _ips(text: str) -> Spans:
    for match in _IPV4.finditer(text):
        if all(int(part) < 256 for part in match.groups()):
            yield match.span()
    for match in _IPV6.finditer(text):
        address = match[0].removesuffix(":") if not match[0].endswith("::") else match[0]
        try:
            IPv6Address(address)
        except ValueError:
            continue
        if any(map(str.isdigit, address)):
            yield match.start(), match.start() + len(address)


def _cards(text: str) -> Spans:
    for match in _DIGITS.finditer(text):
        groups = [group.span() for group in _GROUP.finditer(text, *match.span())]
        first = 0
        while first < len(groups):
            last = _last_of_card(text, groups, first)
            if last is not None:
                yield groups[first][0], groups[last][1]
            first = first + 1 if last is None else last + 1


def _last_of_card(text: str, groups: list[tuple[int, int]], first: int) -> int | None:
    """The last group of the longest number of a card that begins with the first group.

    Several groups have 3 to 6 digits each, with the same gap between them.
    """
    digits, best = "", None
    if ascii_digits(text[groups[first][0]]) in "0179":
        return None
    for place in range(first, len(groups)):
        start, end = groups[place]
        alike = place < first + 2 or text[start - 1] == text[groups[first][1]]
        if len(digits) + end - start > 19 or not alike or (digits and not 3 <= end - start <= 6):
            break
        digits += ascii_digits(text[start:end])
        if len(digits) >= 12 and ISSUERS.fullmatch(digits) and has_luhn_digit(digits):
            best = place
        if not 3 <= end - start <= 6:
            break
    return best


def _ibans(text: str) -> Spans:
    for match in _IBAN.finditer(text):
        length, end, account = IBAN_LENGTHS.get(match[0][:2].upper(), 0), match.start(), ""
        while end < len(text) and len(account) < length and (text[end].isalnum() or text[end] in _GAPS):
            account += text[end] if text[end] not in _GAPS else ""
            end += 1
        borders = end == len(text) or _LETTER.match(text, end) is None
        if borders and account.isascii() and is_iban(account):
            yield match.start(), end


def _matches(pattern: re.Pattern[str]) -> Callable[[str], Spans]:
    return lambda text: (match.span() for match in pattern.finditer(text))


PATTERNS: Mapping[str, Callable[[str], Spans]] = {
    "EMAIL": _emails,
    "URL": _urls,
    "IP": _ips,
    "CARD": _cards,
    "IBAN": _ibans,
    "PHONE": _matches(_PHONE),
    "US_SSN": _matches(_US_SSN),
}
"""What finds the identifiers of each label: addresses of mail (RFC 5322 without quotes, and those with other
letters than ASCII), of the web with a scheme or ``www.``, and of machines (IPv4, IPv6); numbers of payment
cards (with Luhn's check digit) and of bank accounts (IBAN, with its check digits); telephone numbers in
international form (E.164, + or 00) or in that of North America; and social security numbers of the USA. In
Chinese, Japanese or Thai, where no space ends an address, it ends at a letter of that script."""


def identifiers(text: str) -> Iterator[Identifier]:
    """What has the form of an identifier, by label; parts that are found may overlap."""
    for label, found_in in PATTERNS.items():
        for start, end in found_in(text):
            yield Identifier(label, start, end)


def plain_value(label: str, text: str) -> str | None:
    """A number of a card, an account, a telephone or a person without its gaps; None for other labels."""
    if label not in ("CARD", "IBAN", "PHONE", "US_SSN"):
        return None
    value = "".join(ascii_digits(c) or c.casefold() for c in text if c.isalnum())
    return value.removeprefix("00") if label == "PHONE" else value
