"""Documents of files and folders, and what is skipped."""

import gzip
import json
import lzma
import os
import re
import time
from pathlib import Path

import pytest
from selectolax.lexbor import LexborHTMLParser

from unmask.errors import InvalidRequest
from unmask.search.documents import Document, Skipped, markup, read_documents
from unmask.search.documents.markup import markdown_title
from unmask.search.passages import passages_of, words_of
from unmask.text.rows import CHUNK


def read(*paths: Path, **options):
    """The documents by id, and the reasons by name."""
    found = list(read_documents(paths, **options))
    documents = [one for one in found if isinstance(one, Document)]
    return {one.id: one for one in documents}, {
        one.name: one.reason for one in found if isinstance(one, Skipped)
    }


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# Folders


def test_folders_are_read_in_order_without_hidden_files(tmp_path):
    for name in ("b.txt", "a/z.md", "a/b/c.py", "B.txt", ".hidden.txt", ".git/x.txt", "LICENSE"):
        write(tmp_path / name, f"text of {name}")
    found = list(read_documents([tmp_path]))
    assert [(one.id, one.kind) for one in found] == [
        ("B.txt", "text"), ("LICENSE", "text"), ("a/b/c.py", "code"),
        ("a/z.md", "markdown"), ("b.txt", "text"),
    ]  # fmt: skip
    assert found[2].text == "text of a/b/c.py"
    assert read(tmp_path / ".hidden.txt")[0].keys() == {".hidden.txt"}


def test_patterns_choose_by_name_path_and_folder(tmp_path):
    for name in ("x.md", "docs/y.md", "docs/old/z.md", "docs/y.py"):
        write(tmp_path / name, "words")

    def names(**options):
        return set(read(tmp_path, **options)[0])

    assert names(include=["*.md"]) == {"x.md", "docs/y.md", "docs/old/z.md"}
    assert names(include=["docs"], exclude=["old/"]) == {"docs/y.md", "docs/y.py"}
    assert names(exclude=["docs/*.md"]) == {"x.md", "docs/y.py"}
    assert names(include=["nothing"]) == set()


def test_links_are_followed_and_loops_are_not(tmp_path):
    write(tmp_path / "inside/a.txt", "words")
    write(tmp_path.parent / f"{tmp_path.name}-beside/b.txt", "more words")
    (tmp_path / "inside/loop").symlink_to(tmp_path)
    (tmp_path / "inside/again").symlink_to(tmp_path / "inside")
    (tmp_path / "other").symlink_to(tmp_path.parent / f"{tmp_path.name}-beside")
    (tmp_path / "broken.txt").symlink_to(tmp_path / "gone")
    documents, skipped = read(tmp_path, follow_links=True)
    assert documents.keys() == {"inside/a.txt", "other/b.txt"}
    assert skipped == {
        "inside/again": "it is a link to a folder that holds it",
        "inside/loop": "it is a link to a folder that holds it",
        "broken.txt": "it is a broken link",
    }


def test_a_pipe_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    assert read(tmp_path) == ({}, {"pipe.txt": "it is a named pipe, not a file"})


def test_a_file_name_that_is_not_utf8_is_written_as_text(tmp_path):
    with open(os.fsencode(tmp_path) + b"/caf\xe9.txt", "wb") as stream:
        stream.write(b"words")
    assert read(tmp_path)[0].keys() == {"caf\\xe9.txt"}


@pytest.mark.parametrize(("paths", "message"), [([], "no file or folder was given"), (["gone"], "gone")])
def test_paths_are_checked_at_the_call(tmp_path, paths, message):
    with pytest.raises(InvalidRequest, match=message):
        read_documents([tmp_path / path for path in paths])


def test_one_id_twice_is_refused_with_both_places(tmp_path):
    write(tmp_path / "a/x.txt", "words")
    write(tmp_path / "b/x.txt", "words")
    with pytest.raises(InvalidRequest, match=r"a/x.txt and .*b/x.txt both have the id 'x.txt'"):
        read(tmp_path / "a", tmp_path / "b")
    rows = write(tmp_path / "c.jsonl", '{"id": 7, "text": "a"}\n\n{"id": "7", "text": "b"}\n')
    with pytest.raises(InvalidRequest, match=r"row 1 of .* and row 3 of .* both have the id '7'"):
        read(rows)
    assert read(rows, id_field="")[0].keys() == {"c.jsonl#1", "c.jsonl#3"}


# Encodings


def test_unicode_with_marks_is_read_and_line_ends_are_kept(tmp_path):
    write(tmp_path / "8.txt", b"\xef\xbb\xbf" + "na\u00efve\r\n\U0001d538\n".encode())
    write(tmp_path / "16.txt", "na\u00efve \U0001d538".encode("utf-16"))
    write(tmp_path / "16be.txt", b"\xfe\xff" + "big".encode("utf-16-be"))
    documents, skipped = read(tmp_path)
    texts = {name: one.text for name, one in documents.items()}
    assert texts == {
        "8.txt": "na\u00efve\r\n\U0001d538\n",
        "16.txt": "na\u00efve \U0001d538",
        "16be.txt": "big",
    }
    assert skipped == {}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"caf\xe9", "it is not UTF-8: byte 0xe9 at byte 4; convert it to UTF-8 first"),
        (b"\xef\xbb\xbfcaf\xe9!", "it is not UTF-8: byte 0xe9 at byte 7; convert it to UTF-8 first"),
        (b"\xef\xbb\xbf\xc3\xa9a\0", "it is not text: byte 0x00 at byte 7"),
        (b"\x7fELF\x02\0\xff", "it is not text: byte 0x00 at byte 6"),
        (b"\xff\xfea\0\0\0", "it is not text: byte 0x00 at byte 5"),
        (b"\xff\xfea\0\x00\xd8", "it is not UTF-16: byte 0x00 at byte 5; convert it to UTF-8 first"),
        (b"", "it has no text"),
        (b" \n\t", "it has no text"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_text_are_skipped_with_the_byte(tmp_path, raw, reason):
    write(tmp_path / "a.txt", raw)
    assert read(tmp_path) == ({}, {"a.txt": reason})


def test_compressed_files_are_read_and_damage_is_said(tmp_path):
    write(tmp_path / "a.md.gz", gzip.compress(b"# Title\n\nwords"))
    write(tmp_path / "b.jsonl.xz", lzma.compress(b'{"text": "words"}\n'))
    write(tmp_path / "c.txt.xz", lzma.compress(b"words" * 1000)[:-20])
    write(tmp_path / "d.docx", b"PK")
    documents, skipped = read(tmp_path)
    assert documents.keys() == {"a.md.gz", "b.jsonl.xz#1"}
    assert documents["a.md.gz"].title == "Title"
    assert skipped["c.txt.xz"].startswith("cannot read")
    assert skipped["d.docx"] == "its ending .docx is not one of those that are read"


# Markup


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("text\n\n## The first ##\n# Second", "The first"),
        ("Under\nlined\n===\n", "lined"),
        ("```\n# code\n```\n# Words", "Words"),
        ("#hash\n\n---\n", ""),
    ],
)
def test_the_title_of_markdown_is_its_first_heading(tmp_path, source, title):
    write(tmp_path / "a.md", source)
    (document,) = read_documents([tmp_path])
    assert (document.title, document.text) == (title, source)


PAGE = """<!doctype html><html><head><title>Salt &amp;
 water</title><style>p {}</style></head><body><nav>Home</nav>
<h1>Salt</h1><p>It <b>dis</b>solves in
   water.<p>Caf&eacute; &lt;3<br>next</p><script>var a;</script><!-- no -->
<pre>
a
  b
</pre><ul><li>one</li> <li>two</li></ul><table><tr><td>x<td>y<tr><td>z</table>end</body></html>"""


def test_html_reads_as_it_shows(tmp_path):
    write(tmp_path / "a.html", PAGE)
    (document,) = read_documents([tmp_path])
    assert document.title == "Salt & water"
    assert document.text == (
        "Salt\n\nIt dissolves in water.\n\nCaf\u00e9 <3\nnext\n\na\n  b\n\none\ntwo\n\nx y\nz\n\nend"
    )
    assert document.kind == "html"


TABLES = {
    "<table><caption>Cities<thead><tr><th>City<th>People<tbody>"
    "<tr><td>Bergen<td>290,000<tr><td>Oslo<td>7</table>z": (
        "Cities\n\nCity; People\n\nCity: Bergen; People: 290,000\n\nCity: Oslo; People: 7\n\nz"
    ),
    # Headings of two rows, and cells that span rows and columns.
    "<table><tr><th rowspan=2>City<th colspan=2>2020<tr><th>People<th>Area:"
    "<tr><td rowspan=2>Bergen<td>1<td>2<tr><td>3<td>4<tr><td colspan=2>x<td>5<tr><td colspan=3>all</table>": (
        "City; 2020\n\nPeople; Area:\n\nCity: Bergen; 2020 People: 1; 2020 Area: 2\n\n"
        "City: Bergen; 2020 People: 3; 2020 Area: 4\n\nCity, 2020 People: x; 2020 Area: 5\n\nall"
    ),
    # A cell that spans rows ends with its section; 0 is the rest of it, and what is no number is 1.
    "<table><thead><tr><th>a<th>b"
    "<tbody><tr><td rowspan=0>1<td colspan=no>2<tr><td>3<tbody><tr><td>4<td>5</table>": (
        "a; b\n\na: 1; b: 2\n\na: 1; b: 3\n\na: 4; b: 5"
    ),
    "<table><tr><th>Capital<td>Paris<tr><th>Area:<td>1<td>2<tr><td>3</table>": (
        "Capital: Paris\n\nArea: 1; 2\n\n3"
    ),
    "<table><tr><th>City<th>Size<tr><th>Bergen<td>1<tr><td><td>2<tr><td>Oslo</table>": (
        "City; Size\n\nCity: Bergen; Size: 1\n\nSize: 2\n\nCity: Oslo"
    ),
    "<table dir=rtl><tr><th>\u05e2\u05d9\u05e8<th>\u05e9\u05d8\u05d7"
    "<tr><td>\u05d7\u05d9\u05e4\u05d4<td>10</table>": (
        "\u05e2\u05d9\u05e8; \u05e9\u05d8\u05d7\n\n"
        "\u05e2\u05d9\u05e8: \u05d7\u05d9\u05e4\u05d4; \u05e9\u05d8\u05d7: 10"
    ),
    # A table that holds another arranges it.
    "<table><tr><th>a<th>b<tr><td><table><tr><th>c<th>d<tr><td>1<td>2</table><td>y</table>": (
        "a b\n\nc; d\n\nc: 1; d: 2\n\ny"
    ),
    "<table role=presentation><tr><th>a<tr><td>1</table>": "a\n1",
    "<table><tr><td>x<td>y<tr><td>z</table>": "x y\nz",
    "<table><tr><th>a<th>b</table>": "a b",
    "<table><tr><th>a<th>b<tr><td><p>one.<p>two<ul><li>i</ul><td hidden>no<tr hidden><td>no</table>": (
        "a; b\n\na: one. two i"
    ),
}


@pytest.mark.parametrize("source", TABLES)
def test_rows_of_tables_stand_with_their_headings(tmp_path, source):
    write(tmp_path / "a.html", source)
    assert [one.text for one in read_documents([tmp_path])] == [TABLES[source]]


def test_a_passage_does_not_part_a_row_from_its_headings(tmp_path):
    rows = "".join(f"<tr><td>Place {n} in the north<td>{n} thousand people" for n in range(40))
    write(tmp_path / "a.html", f"<h1>Places</h1><table><tr><th>Name<th>Population{rows}</table>")
    (document,) = read_documents([tmp_path])
    passages = passages_of(words_of(document.text), max_tokens=50)
    assert len(passages) > 8
    for number, passage in enumerate(passages):
        text = document.text[passage.start : passage.end]
        for line in text.split("\n\n")[2 if number == 0 else 0 :]:
            assert re.fullmatch(r"Name: Place (\d+) in the north; Population: \1 thousand people", line)


def test_what_tables_repeat_is_bounded(tmp_path):
    """Headings and cells that span rows make a page a few times longer, and no text is lost."""
    wide = "".join(f"<th>{'h' * 150}{n}" for n in range(60))
    rows = "".join(f"<tr>{'<td>x' * 60}" for _ in range(60))
    tall = "<tr>" + "".join(f"<td rowspan=999>{'t' * 150}" for _ in range(60)) + "<tr><td>y" * 999
    for name, source in (("wide", f"<tr>{wide}{rows}"), ("tall", f"<tr><th>a<th>b{tall}")):
        write(tmp_path / f"{name}.html", f"<table>{source}</table>")
        (document,) = read_documents([tmp_path / f"{name}.html"])
        assert len(document.text) < 5 * len(source) + 20_000
        assert document.text.count("x") == (3600 if name == "wide" else 0)
        assert document.text.count("y") == (0 if name == "wide" else 999)
    page = LexborHTMLParser(f"<table><tr>{'<th rowspan=0>a' * 900}{'<tr><td>b' * 900}</table>")
    grid, _ = markup._grid(page.css_first("table"))
    assert len(grid) == 901
    assert sum(map(len, grid)) < 5 * 1800 + 1000
    many = "<tr><th>a" * 20 + "<tr><td>b"
    write(tmp_path / "many.html", f"<table>{many}</table>")
    (document,) = read_documents([tmp_path / "many.html"])
    assert document.text == "a\n" * 20 + "b"
    long = "g" * 300
    write(tmp_path / "long.html", f"<table><tr><th>{long}<th>k<tr><td>1<td rowspan=2>{long}<tr><td>2</table>")
    (document,) = read_documents([tmp_path / "long.html"])
    assert document.text == f"{long}; k\n\n1; k: {long}\n\n2"


def test_deeply_nested_html_is_read(tmp_path):
    write(tmp_path / "a.html", "<div>" * 20_000 + "deep" + "</div>" * 20_000)
    assert [one.text for one in read_documents([tmp_path])] == ["deep"]


def test_html_without_text_is_skipped(tmp_path):
    write(tmp_path / "a.html", "<title>only</title><script>x</script>")
    assert read(tmp_path) == ({}, {"a.html": "it has no text"})


# Tables in text


def test_line_breaks_inside_quotes_are_those_of_the_file(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'id,text\r\nn1,"one\r\ntwo\nthree"\r\nn2,"four\rfive"\r\n')
    assert [one.text for one in read_documents([tmp_path])] == ["one\r\ntwo\nthree", "four\rfive"]


# PDF


def pdf(path: Path, pages, password: str | None = None) -> Path:
    """A PDF with a page per entry: text, nothing, or a picture."""
    import matplotlib as mpl
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    with mpl.rc_context({"pdf.fonttype": 42}), PdfPages(path, metadata={"Title": "A title"}) as made:
        for page in pages:
            figure = Figure(figsize=(6, 4))
            if page == "picture":
                figure.figimage([[0.0, 1.0], [1.0, 0.0]], resize=False)
            elif page:
                figure.text(0.1, 0.5, page)
            made.savefig(figure)
    return path


def test_pdf_pages_begin_where_they_say(tmp_path):
    pages = ["First page, na\u00efve \U0001d538\nsecond line of inform-\nation", "", "Third page"]
    pdf(tmp_path / "a.pdf", pages)
    ((document,), skipped) = read(tmp_path)[0].values(), read(tmp_path)[1]
    first = "First page, na\u00efve \U0001d538\nsecond line of information"
    assert document.text == f"{first}\n\nThird page"
    assert document.pages == (0, len(first) + 1, len(first) + 2)
    assert document.text[document.pages[2] :] == "Third page"
    assert (document.kind, document.title) == ("pdf", "A title")
    assert skipped == {}


def test_pages_of_pictures_are_skipped_by_number(tmp_path):
    pdf(tmp_path / "part.pdf", ["words", "picture"])
    pdf(tmp_path / "scan.pdf", ["picture"])
    pdf(tmp_path / "blank.pdf", [""])
    documents, skipped = read(tmp_path)
    assert documents["part.pdf"].pages == (0, 6)
    no_text = "it has no text; run OCR first"
    assert skipped == {"part.pdf, page 2": no_text, "scan.pdf": no_text, "blank.pdf": no_text}


SECRET = b"x" * 32
ENCRYPTED = b"""%%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>endobj
4 0 obj<</Filter/Standard/V 1/R 2/P -4/O(%b)/U(%b)>>endobj
trailer<</Root 1 0 R/Encrypt 4 0 R/ID[(a)(a)]/Size 5>>
%%%%EOF""" % (SECRET, SECRET)


def test_locked_and_damaged_pdfs_are_skipped(tmp_path):
    write(tmp_path / "locked.pdf", ENCRYPTED)
    write(tmp_path / "no.pdf", b"%PDF-1.7 nonsense")
    documents, skipped = read(tmp_path)
    assert documents == {}
    assert skipped["locked.pdf"] == "it is encrypted; remove its password first"
    assert skipped["no.pdf"].startswith("it is not a PDF file that can be read")


# Rows


def test_beir_rows_keep_their_ids_and_join_the_title(tmp_path):
    rows = [
        {"_id": "4983", "title": "A title", "text": "words ", "metadata": {"url": "x"}},
        {"_id": "007", "title": "", "text": " alone"},
    ]
    write(tmp_path / "corpus.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write(tmp_path / "queries.jsonl", '{"_id": "1", "text": "asked"}\n')
    write(tmp_path / "qrels/test.tsv", "query-id\tcorpus-id\tscore\n1\t4983\t1\n")
    documents, skipped = read(tmp_path)
    assert list(documents.values()) == [
        Document("4983", "A title words", "A title", kind="row", metadata={"metadata": {"url": "x"}}),
        Document("007", "alone", kind="row"),
    ]
    assert skipped.keys() == {"queries.jsonl", "qrels"}


def test_csv_with_quotes_and_tabs(tmp_path):
    write(tmp_path / "a.csv", '\ufeffid,body,year\nx,"one, ""two""\nthree",1999\n')
    write(tmp_path / "b.tsv", 'text\tlang\n"quoted" words\ten\n')
    documents, _ = read(tmp_path)
    assert documents["x"] == Document("x", 'one, "two"\nthree', kind="row", metadata={"year": "1999"})
    assert documents["b.tsv#1"] == Document("b.tsv#1", '"quoted" words', kind="row", metadata={"lang": "en"})


def test_the_fields_can_be_named(tmp_path):
    write(tmp_path / "a.jsonl", '{"id": 1, "name": "n", "title": "t", "score": 0.5, "on": null}\n')
    assert list(read_documents([tmp_path], field="name", id_field="score")) == [
        Skipped("a.jsonl#1", "it has no id under 'score'")
    ]
    assert list(read_documents([tmp_path], field="title", id_field="name")) == [
        Document("n", "t", kind="row", metadata={"id": 1, "score": 0.5, "on": None})
    ]


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"a": "x", "b": "y"}, {}, "not clear which column of .* holds the text; .* one of: a, b"),
        ({"body": "x", "content": "y"}, {}, "one of: body, content"),
        ({"text": "x"}, {"field": "words"}, "has no column 'words'; it has: text"),
        ({"text": "x"}, {"id_field": "key"}, "has no column 'key' for ids; it has: text"),
    ],
)
def test_an_unclear_column_is_an_error_of_a_file_and_skips_one_of_a_folder(tmp_path, row, options, message):
    path = write(tmp_path / "a.jsonl", json.dumps(row))
    with pytest.raises(InvalidRequest, match=message):
        read(path, **options)
    documents, skipped = read(tmp_path, **options)
    assert documents == {}
    assert skipped.keys() == {"a.jsonl"}


def test_rows_that_cannot_be_read_are_skipped_one_by_one(tmp_path):
    good = '{"text": "good"}'
    lines = [good, "{", "[1]", '{"text": ""}', '{"text": 5}', '{"other": 1}', '{"text": "\\ud800"}', good]
    path = write(tmp_path / "a.jsonl", "\n".join(lines))
    documents, skipped = read(path)
    assert documents.keys() == {"a.jsonl#1", "a.jsonl#8"}
    assert skipped.keys() == {f"a.jsonl#{number}" for number in range(2, 8)}
    assert skipped["a.jsonl#4"] == "it has no text"
    assert skipped["a.jsonl#5"] == "it has no text under 'text'"
    assert "U+D800 at character" in skipped["a.jsonl#7"]


def test_what_follows_a_line_that_is_not_utf8_is_said_to_be_left_out(tmp_path):
    path = write(tmp_path / "a.jsonl", b'{"text": "good"}\n{"text": "caf\xe9"}\n{"text": "lost"}\n')
    documents, skipped = read(path)
    assert documents.keys() == {"a.jsonl#1"}
    assert "line 2 of" in skipped["a.jsonl"]
    assert "(rows up to number 1 were read, and no later ones)" in skipped["a.jsonl"]


def test_json_lists_are_rows_and_other_json_is_code(tmp_path):
    long = "x" * (3 * CHUNK)
    write(
        tmp_path / "a.json", json.dumps([{"text": long, "n": 1}, {"text": "b", "n": float("nan")}], indent=1)
    )
    write(tmp_path / "b.json", '{"text": "settings"}')
    write(tmp_path / "c.json", '[{"text": "a"}, {"text": "b"} {"text": "c"}]')
    write(tmp_path / "d.json", '[{"text": "a"}')
    documents, skipped = read(tmp_path)
    assert documents["a.json#1"].text == long
    assert documents["a.json#2"].metadata == {"n": None}
    assert documents["b.json"] == Document("b.json", '{"text": "settings"}', kind="code")
    assert "c.json#3" not in documents
    assert "row 2 of" in skipped["c.json"]
    assert "followed by '{', not by a comma" in skipped["c.json"]
    assert "followed by the end of the file" in skipped["d.json"]


def test_many_small_objects_across_chunks(tmp_path):
    rows = [{"text": f"row {number}", "pad": "p" * (number % 97)} for number in range(3000)]
    write(tmp_path / "a.json", json.dumps(rows))
    documents, skipped = read(tmp_path)
    assert [one.text for one in documents.values()] == [row["text"] for row in rows]
    assert skipped == {}


def test_parquet_values_become_json_types(tmp_path):
    import datetime

    import pyarrow as pa
    from pyarrow import parquet

    rows = [{"text": "words", "day": datetime.date(2026, 1, 2), "n": 3, "tags": ["a"]}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert list(read_documents([tmp_path])) == [
        Document("a.parquet#1", "words", kind="row", metadata={"day": "2026-01-02", "n": 3, "tags": ["a"]})
    ]


def test_a_huge_line_is_one_document(tmp_path):
    text = "word " * 1_000_000
    write(tmp_path / "a.jsonl", json.dumps({"text": text}))
    write(tmp_path / "b.csv", f'text\n"{text}"\n')
    assert [len(one.text) for one in read_documents([tmp_path])] == [len(text) - 1] * 2


def test_documents_are_read_one_at_a_time(tmp_path):
    """The file after the one that was asked for is not opened yet."""
    write(tmp_path / "a.txt", "first")
    write(tmp_path / "b.txt", "old")
    found = read_documents([tmp_path])
    assert next(found).text == "first"
    write(tmp_path / "b.txt", "new")
    assert next(found).text == "new"


def test_a_document_is_bounded_and_the_option_is_named(tmp_path):
    (tmp_path / "bomb.txt.gz").write_bytes(gzip.compress(b"a" * 99_999))
    write(tmp_path / "long.txt", "b" * 2000)
    write(tmp_path / "rows.jsonl", json.dumps({"text": "c" * 2000}) + "\n" + json.dumps({"text": "d"}))
    documents, skipped = read(tmp_path, max_document_bytes=1000)
    assert list(documents) == ["rows.jsonl#2"]
    assert "holds more than 1,000 bytes unpacked; raise --max-document-bytes" in skipped["bomb.txt.gz"]
    assert "holds more than 1,000 bytes; raise" in skipped["long.txt"]
    assert "its text has 2,000 bytes and the limit is 1,000" in skipped["rows.jsonl#1"]
    documents, _ = read(tmp_path, max_document_bytes=99_999)
    assert len(documents) == 4


def test_pages_that_a_parser_would_blow_up_are_skipped(tmp_path):
    """Elements that only seem to end by themselves, and formatting that every block opens again."""
    write(tmp_path / "rt.html", "<rt>" * 200_000 + "x")
    write(tmp_path / "optgroup.html", "<optgroup>" * 200_000 + "x")
    write(tmp_path / "bold.html", "<p>" + "".join(f"<b id={n}>" for n in range(2000)) + "<p>x" * 2000)
    write(tmp_path / "ruby.html", "<ruby>a<rt>b</ruby>" * 30_000)
    write(tmp_path / "select.html", "<select><optgroup>a<optgroup>b</select>" * 20_000)
    write(tmp_path / "old.html", "<b><i>" * 400 + "<font size=2>x<p>" * 9000)
    documents, skipped = read(tmp_path)
    assert sorted(skipped) == ["bold.html", "optgroup.html", "rt.html"]
    assert "leaves formatting open that would be opened again 1,000,000 times" in skipped["bold.html"]
    assert "nested more than 25,000 deep" in skipped["rt.html"]
    assert sorted(documents) == ["old.html", "ruby.html", "select.html"]


def test_deep_html_is_skipped_and_flat_html_is_read(tmp_path):
    write(tmp_path / "deep.html", "<div>" * 200_000 + "x")
    pictures = "<svg>" + "<path d='M0'/>" * 30_000 + "</svg>"
    write(
        tmp_path / "flat.html", "<p>one" * 5000 + pictures + "<!--" + "<div>" * 30_000 + "--><div>end</div>"
    )
    documents, skipped = read(tmp_path)
    assert "nested more than 25,000 deep" in skipped["deep.html"]
    assert documents["flat.html"].text.endswith("end")


def test_links_that_leave_the_folder_are_followed_only_if_asked(tmp_path):
    write(tmp_path / "outside.txt", "secret")
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder / "inside.txt", "open")
    (folder / "out.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "in.txt").symlink_to(folder / "inside.txt")
    documents, skipped = read(folder)
    assert sorted(documents) == ["in.txt", "inside.txt"]
    assert "it is a link that leaves the folder; give --follow-links" in skipped["out.txt"]
    assert read(folder, follow_links=True)[0]["out.txt"].text == "secret"


def test_a_pipe_or_a_device_as_an_argument_is_skipped(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    found = list(read_documents([tmp_path / "pipe", tmp_path / "zero"]))
    assert found == [
        Skipped("pipe", "it is a named pipe, not a file"),
        Skipped("zero", "it is a device, not a file"),
    ]


@pytest.mark.parametrize(
    ("content", "title"),
    [
        ("---\ntitle: My front title\ntags: [a]\n---\n# Heading\n", "My front title"),
        ("+++\ntitle = 'In TOML'\n+++\nText\n", "In TOML"),
        ("---\ntags: [a]\n---\n# Heading\n", "Heading"),
        ("Above\n---\ntext\n", "Above"),
    ],
)
def test_the_title_of_front_matter(content, title):
    assert markdown_title(content) == title


@pytest.mark.parametrize("name", ["iso-8859-1", "windows-1251", "shift_jis", "iso-2022-jp"])
def test_html_is_read_in_the_encoding_it_declares(tmp_path, name):
    text = {"iso-8859-1": "caf\xe9", "windows-1251": "\u0440\u0435\u043a\u0430"}.get(name, "\u6cb3\u5ddd")
    page = f'<html><head><meta charset="{name}"></head><p>{text}</p><p hidden>unseen</p></html>'
    (tmp_path / "a.html").write_bytes(page.encode(name))
    assert read(tmp_path)[0]["a.html"].text == text


@pytest.mark.parametrize("beginning", ["# a", "---\ntitle: a", "# a" + " #" * 50_000])
def test_titles_with_long_blanks_are_found_at_once(beginning):
    """In quadratic time these would take minutes."""
    began = time.process_time()
    assert markdown_title(beginning + " " * 100_000 + "b\n---\n").startswith("a")
    assert time.process_time() - began < 2
