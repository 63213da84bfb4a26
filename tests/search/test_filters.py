"""Which stored values a filter accepts: exact numbers, text, and the same in both forms of a filter."""

import itertools
import operator
from fractions import Fraction

import pytest

from unmask.errors import InvalidRequest
from unmask.search.documents import read_documents
from unmask.search.filters import accepting
from unmask.search.index import Index

SIGNS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
NUMBERS = [
    0,
    -3,
    5,
    2**53,
    2**53 + 1,
    1803455219046121987,
    1803455219046121985,
    10**400,
    -(10**400),
    0.1,
    2.5,
    1e22,
]
VALUES = [
    *NUMBERS, True, False, None, "", "a", "b", "0.1", "9.99", "100", "-3", "007", "7", "1e5", "1.50", "n/a",
    "true", "True", "2020-05-01", "é", "e\u0301", 1e5, 100000, 7,
]  # fmt: skip


def accepts(filter, stored):
    return accepting(filter, ["k"])({"k": stored})


def written(value):
    """The value of a condition that means the same."""
    if isinstance(value, bool | None):
        return str(value).lower()
    return value if isinstance(value, str) else str(value)


@pytest.mark.parametrize("known", [["a", "a=b"], ["a=b", "a"]])
def test_a_key_may_hold_an_operator_and_begin_as_another(known):
    accept = accepting(["a=b=3"], known)
    assert accept({"a": "x", "a=b": 3})
    assert not accept({"a": "b=3", "a=b": 4})
    assert accepting(["a=c"], known)({"a": "c"})


@pytest.mark.parametrize("listed", [False, True])
def test_a_dictionary_and_a_condition_accept_the_same(listed):
    for stored, wanted in itertools.product(VALUES, VALUES):
        held = [stored, "other"] if listed else stored
        found = accepts({"k": wanted}, held)
        assert found == accepts([f"k={written(wanted)}"], held), (stored, wanted)
        assert found != accepts([f"k!={written(wanted)}"], held), (stored, wanted)


@pytest.mark.parametrize("sign", SIGNS)
def test_numbers_are_compared_exactly_as_numbers_and_as_text(sign):
    for stored, wanted in itertools.product(NUMBERS, NUMBERS):
        exact = SIGNS[sign](Fraction(str(stored)), Fraction(str(wanted)))
        assert accepts([f"k{sign}{wanted}"], stored) == exact, (stored, wanted)
        if "e" not in f"{stored}{wanted}":
            assert accepts([f"k{sign}{wanted}"], str(stored)) == exact, (stored, wanted)


def test_an_order_has_no_gap():
    texts = ["9.99", "100", "1000", "1.50", "1.5", "-2"]
    for stored, wanted in itertools.product(texts, texts):
        below, same, above = (accepts([f"k{sign}{wanted}"], stored) for sign in ("<", "=", ">"))
        assert below + same + above == 1


@pytest.mark.parametrize(
    ("condition", "stored", "accepted"),
    [
        ("k>=5", "n/a", False), ("k>=5", "", False), ("k<5", None, False),
        ("k>=2021-01-01", "2021-05-01", True), ("k>=2021-01-01", "2020-05-01", False),
        ("k=05", 5, True), ("k=05", "5", False), ("k=1e3", 1000, True), ("k=" + "é", "e\u0301", True),
        ("k=7", "007", False), ("k=007", "007", True), ("k>=01000", "01234", True),
    ],
)  # fmt: skip
def test_text(condition, stored, accepted):
    assert accepts([condition], stored) is accepted


@pytest.mark.parametrize(
    ("condition", "stored"), [("k>=2021", "2020-05-01"), ("k<10000", "01234"), ("k>b", 5), ("k<5", "$3")]
)
def test_a_number_beside_other_text_has_no_order(condition, stored):
    with pytest.raises(
        InvalidRequest, match="only one of them is a plain number; compare numbers with numbers"
    ):
        accepts([condition], stored)


def test_a_key_may_hold_an_operator():
    accept = accepting(["a=b=1"], ["a=b", "c"])
    assert accept({"a=b": 1})
    assert not accept({"a=b": 2})


def test_rows_of_a_csv_file_and_of_json_lines(tmp_path):
    (tmp_path / "prices.csv").write_text(
        "_id,text,price\na,river one,9.99\nb,river two,100\nc,river three,1000\n"
    )
    (tmp_path / "users.jsonl").write_text(
        '{"_id":"d","text":"river","user":1803455219046121987}\n{"_id":"e","text":"river","user":1803455219046121985}\n'
        f'{{"_id":"f","text":"river","user":1{"0" * 400}}}\n'
    )
    index = Index.create(tmp_path / "index", [])
    index.add(read_documents([tmp_path / "prices.csv", tmp_path / "users.jsonl"]))

    def found(*filter):
        return "".join(sorted(hit.document for hit in index.search("river", filter=list(filter))))

    assert found("price>=100") == "bc"
    assert found("user=1803455219046121987") == "d"
    assert found("user>1803455219046121985") == "df"
    assert found("user>5") == "def"
