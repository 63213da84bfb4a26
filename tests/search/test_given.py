"""What is added to an index: one document or many, with ids and metadata that can be stored."""

import pytest

from unmask.errors import InvalidRequest
from unmask.search.documents import Document
from unmask.search.documents.values import MOST_LEVELS
from unmask.search.index import Index


@pytest.fixture
def index(tmp_path):
    made = Index.create(tmp_path / "index", [])
    made.add([{"id": "1", "text": "one river"}, {"id": "2", "text": "two river"}])
    return made


@pytest.mark.parametrize(
    "one", ["a single text", {"id": "x", "text": "a single text"}, Document("x", "a single text")]
)
def test_one_document_is_one(index, one):
    added = index.add(one)
    assert (added.added, added.updated, added.skipped, len(index)) == (1, 0, (), 3)
    assert index.document("2").text == "two river"
    (hit,) = index.search("single")
    assert hit.text == "a single text"


def test_lists_of_texts_do_not_replace_each_other(index):
    index.add(["alpha", "beta"])
    added = index.add(iter(["gamma", "alpha", "gamma"]))
    assert (added.added, added.unchanged, len(index)) == (1, 1, 5)
    assert [reason for _, reason in added.skipped] == ["the same text is among those before"]
    assert {hit.text for word in ("alpha", "beta", "gamma") for hit in index.search(word)} == {
        "alpha", "beta", "gamma",
    }  # fmt: skip


def test_a_document_that_becomes_blank_is_reported_as_deleted(index):
    added = index.add([{"id": "1", "text": " "}, {"id": "new", "text": " "}])
    assert (added.added, added.updated, added.deleted) == (0, 0, ("1",))
    assert [name for name, _ in added.skipped] == ["1", "new"]
    assert index.ids == ("2",)


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (Document("\ud83d", "a"), "the id or title of document 2 .* lone surrogate at character 0"),
        (Document("x", "a", "a \udc00"), "the id or title of document 2 .* lone surrogate at character 2"),
        (Document("x", "a", metadata={"a": {"b": ["\ud83d"]}}), "lone surrogate"),
        (Document("x", "a", metadata={"\ud83d": 1}), "lone surrogate"),
        (Document("x", "a", metadata={1: "a", "b": 2}), "the key 1 is no string"),
        ({"id": "x", "text": "a", "metadata": {"a": {2: 3}}}, "the key 2 is no string"),
        (Document("x", "a", metadata={"a": nested(5000)}), "nested more than 100 levels"),
        (Document("x", "a", metadata={"a": 10**5000}), "more than 4,200 digits"),
        (Document("x", "a", metadata={"a": float("nan")}), "nan is no number of JSON"),
        (Document("x", "a", metadata={"a": b"a"}), "b'a' is no string, number"),
        (Document("x", "a", metadata=[1]), "are no dictionary"),
        (Document(3, "a"), "the id of document 2 is 3"),
        (Document("x", None), "the text of document 2 is None"),
    ],
)  # fmt: skip
def test_what_cannot_be_stored_is_refused(index, document, reason):
    before = index.generation
    with pytest.raises(InvalidRequest, match=reason) as refused:
        index.add([{"id": "ok", "text": "a river"}, document])
    assert "\n" not in str(refused.value)
    assert str(refused.value).encode()
    assert (index.generation, len(index)) == (before, 2)


def test_all_values_of_json_are_kept(index):
    metadata = {
        "n": 10**400,
        "t": "é😀",
        "f": 0.1,
        "l": [None, True, {"a": []}],
        "d": nested(MOST_LEVELS - 1),
    }
    index.add(Document("x", "a", metadata=metadata))
    assert index.document("x").metadata == metadata
    assert index.add(Document("x", "a", metadata=metadata)).unchanged == 1


def test_what_is_no_list_of_documents_is_refused(index):
    frame = type("DataFrame", (list,), {"iterrows": iter})(["id", "text"])
    for wrong in (3, None):
        with pytest.raises(InvalidRequest, match="give documents, dictionaries or texts"):
            index.add(wrong)
    with pytest.raises(InvalidRequest, match="documents is a data frame"):
        index.add(frame)
