"""Ruled tables of PDF files, row by row under their headings."""

from importlib import import_module

import pytest

from tests.support.small_pdf import small_pdf, table_pdf
from unmask.search.documents.pdf import pdf_documents
from unmask.search.documents.read import read_documents

CITIES = [["City", "People"], ["Bergen", "290,000"], ["Oslo", "700,000"]]
ROWS = ["City; People", "City: Bergen; People: 290,000", "City: Oslo; People: 700,000"]


def lines(raw):
    (document,) = pdf_documents(raw, "a.pdf")
    return [line for line in document.text.split("\n") if line]


def test_rows_stand_under_their_headings_between_the_other_text():
    assert lines(table_pdf(CITIES, above="Cities.", below="The end.")) == ["Cities.", *ROWS, "The end."]


@pytest.mark.parametrize(
    ("rows", "spans", "expected"),
    [
        (  # years are headings, and the place above the names of rows is empty
            [["", "2023", "2024"], ["Wheat", "1", "2"]],
            (),
            ["2023; 2024", "Wheat; 2023: 1; 2024: 2"],
        ),
        (  # cells that span rows are part of each, those that span columns are of all of these
            [["Kind", "Day", "Night"], ["Bus", "3", "4"], [None, "5", "6"], ["Boat", "none", None]],
            ((1, 0, 2, 1), (3, 1, 1, 2)),
            [
                "Kind; Day; Night",
                "Kind: Bus; Day: 3; Night: 4",
                "Kind: Bus; Day: 5; Night: 6",
                "Kind: Boat; Day, Night: none",
            ],
        ),
        (  # a note over all columns
            [["City", "People"], ["As of 2024", None], ["Bergen", "290"]],
            ((1, 0, 1, 2),),
            ["City; People", "As of 2024", "City: Bergen; People: 290"],
        ),
        ([["1", "2"], ["3", "4"]], (), ["1; 2", "3; 4"]),  # numbers are no headings
        ([["a", "a"], ["3", "4"]], (), ["a; a", "3; 4"]),  # nor are equal words
        ([["-1.5 %", "b"], ["3", "4"]], (), ["-1.5 %; b", "3; 4"]),
        ([["City", "People"], ["Bergen", ""]], (), ["City; People", "City: Bergen"]),
    ],
)
def test_headings_and_cells_that_span_others(rows, spans, expected):
    assert lines(table_pdf(rows, spans=spans)) == expected


@pytest.mark.parametrize(
    "further", ["/Rotate 90", "/Rotate 180", "/CropBox [20 0 400 200]", "/CropBox [0 0 400 190]"]
)
def test_pages_that_are_turned_or_shown_in_part_are_read_as_they_stand(further, monkeypatch):
    raw = table_pdf(CITIES, further=further, corner=(120, 130))  # in the middle, where it is when turned, too
    found = lines(raw)
    monkeypatch.setattr("unmask.search.documents.pdf.installed", lambda extra: extra != "pdf-tables")
    assert found == lines(raw)
    assert all(cell in " ".join(found) for row in CITIES for cell in row)


def test_no_character_is_lost():
    """Whatever the cells are, the same characters are read as without tables, but for what repeats."""
    raw = table_pdf(CITIES, above="Above, and beside.", below="Below.")
    (document,) = pdf_documents(raw, "a.pdf")
    plain = document.text.replace("City: ", "").replace("People: ", "").replace(";", "")
    assert sorted(plain.split()) == sorted(
        ["Above,", "and", "beside.", "City", "People", "Bergen", "290,000", "Oslo", "700,000", "Below."]
    )


def test_without_the_extra_or_with_its_error_cells_stand_as_on_the_page(monkeypatch):
    raw = table_pdf(CITIES)
    monkeypatch.setattr(import_module("pdfplumber"), "open", lambda _: 1 / 0)
    failed = lines(raw)
    monkeypatch.setattr("unmask.search.documents.pdf.installed", lambda extra: extra != "pdf-tables")
    assert lines(raw) == failed == ["City People", "Bergen 290,000", "Oslo 700,000"]


def test_pages_without_lines_are_not_read_twice(monkeypatch):
    opened = []
    monkeypatch.setattr(import_module("pdfplumber"), "open", opened.append)
    assert lines(small_pdf(["One.", "Two."])) == ["One.", "Two."]
    assert not opened


def test_an_index_reads_them(tmp_path):
    (tmp_path / "a.pdf").write_bytes(table_pdf(CITIES))
    (document,) = read_documents(tmp_path)
    assert document.text.split("\n\n") == ROWS
