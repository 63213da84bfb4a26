"""Personal data replaced: what stays is as it was, offsets of both texts, pseudonyms, files, HTTP."""

import csv
import hashlib
import hmac
import json
import random
import re
import shlex

import pytest

import unmask
from tests.support.command import assert_one_sentence, run_here
from tests.support.places import REPOSITORY
from tests.support.tiny import tiny_bert, write_checkpoint
from unmask.errors import InvalidRequest, InvalidText
from unmask.tasks.redact import NOTE, Redactor, shown
from unmask.tasks.tag import Entity

SECRET = "a secret of the test"
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TEXTS = [
    "Write to ann@x.org, or call +49 30 1234567.\r\n",
    "邮箱ann@x.org，电话+86 10 6552 9988。😀👩‍👩‍👧",
    "मेरा ईमेल raj@example.in है।",
    "بريدي a@b.ae وهاتفي ‎+971 50 123 4567",
    "nothing\there \u2028 at all",
    " ",
    "",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    named = {"id2label": dict(enumerate(TAGS)), "label2id": {tag: i for i, tag in enumerate(TAGS)}}
    place = tmp_path_factory.mktemp("redact")
    write_checkpoint(place / "names", tiny_bert("BertForTokenClassification", **named), sentence=False)
    write_checkpoint(
        place / "parts",
        tiny_bert(
            "BertForTokenClassification", id2label={0: "NOUN", 1: "VERB"}, label2id={"NOUN": 0, "VERB": 1}
        ),
        sentence=False,
    )
    write_checkpoint(place / "vectors")
    return place


def rebuilt(text, redaction):
    """The redacted text from the caller's, by the offsets of both."""
    place = 0
    parts = []
    for span in redaction.spans:
        parts += [text[place : span.start], span.replacement]
        assert redaction.text[span.redacted_start : span.redacted_end] == span.replacement
        assert len("".join(parts)) == span.redacted_end
        place = span.end
    return "".join((*parts, text[place:]))


@pytest.mark.parametrize("replacement", ["mask", "pseudonym"])
def test_what_is_outside_spans_stays(replacement):
    results = unmask.redact(TEXTS, replacement=replacement)
    for text, result in zip(TEXTS, results, strict=True):
        assert rebuilt(text, result) == result.text
        for span in result.spans:
            assert text[span.start : span.end] not in result.text
    assert [len(result.spans) for result in results] == [2, 2, 1, 2, 0, 0, 0]
    assert results[4].text == TEXTS[4]
    assert unmask.redact([]) == []
    alone = unmask.redact(TEXTS[0])
    assert alone.text == "Write to [EMAIL], or call [PHONE].\r\n"
    assert [(span.label, span.start, span.end, span.score) for span in alone.spans] == [
        ("EMAIL", 9, 18, None),
        ("PHONE", 28, 42, None),
    ]


def test_equal_values_have_equal_pseudonyms():
    texts = [
        "ann@x.org bob@y.de",
        "ANN@X.ORG, 4111-1111-1111-1111",
        "4111 1111 1111 1111 +49 30 1234567",
        "004930/1234567",
    ]
    results = unmask.redact(texts, replacement="pseudonym")
    assert [result.text for result in results] == [
        "[EMAIL_1] [EMAIL_2]", "[EMAIL_1], [CARD_1]", "[CARD_1] [PHONE_1]", "[PHONE_1]",
    ]  # fmt: skip


def test_a_secret_makes_runs_agree():
    """The pseudonym is the beginning of an HMAC of the label and the value."""
    first = unmask.redact(["bob@y.de", "ann@x.org"], replacement="pseudonym", secret=SECRET)
    second = unmask.redact(["Ann@x.org"], replacement="pseudonym", secret=SECRET)
    digest = hmac.new(SECRET.encode(), b"EMAIL\0ann@x.org", hashlib.sha256).hexdigest()[:12]
    assert first[1].text == second[0].text == f"[EMAIL_{digest}]"
    assert first[0].text != first[1].text
    other = unmask.redact("ann@x.org", replacement="pseudonym", secret=SECRET + "2")
    assert other.text not in (first[0].text, first[1].text)


def test_overlapping_spans_are_one_with_the_label_of_the_longest():
    text = "Ann Lee <ann@x.org> of Rome"
    redactor = Redactor(["PER", "LOC"])
    entities = [Entity("PER", 0, 12, text[:12], 0.9), Entity("LOC", 23, 27, "Rome", 0.5)]
    result = redactor(text, entities)
    assert result.text == "[PER]> of [LOC]"
    assert [(span.label, span.start, span.end, span.score) for span in result.spans] == [
        ("PER", 0, 18, 0.9),
        ("LOC", 23, 27, 0.5),
    ]
    exact = redactor(text, [Entity("LOC", 9, 18, text[9:18], 0.8)])
    assert [span.label for span in exact.spans] == ["EMAIL"]  # its form says more than a model
    inside = redactor(text, [Entity("LOC", 7, 20, "", 0.8), Entity("PER", 8, 10, "", 0.8)])
    assert [(span.label, span.start, span.end) for span in inside.spans] == [("LOC", 7, 20)]
    touching = redactor("AnnLee", [Entity("PER", 0, 3, "", 1.0), Entity("PER", 3, 6, "", 1.0)])
    assert touching.text == "[PER][PER]"


@pytest.mark.parametrize("seed", range(20))
def test_random_spans_are_all_replaced(seed):
    draw = random.Random(seed)
    text = "".join(draw.choices("abc 漢字é😀\n", k=60))
    spans = [sorted(draw.sample(range(61), 2)) for _ in range(draw.randint(0, 12))]
    labels = [draw.choice(["A", "B"]) for _ in spans]
    result = Redactor(["A", "B"], keep=["B"])(
        text, [Entity(label, *span, "", 0.5) for label, span in zip(labels, spans, strict=True)]
    )
    assert rebuilt(text, result) == result.text
    gone = {place for span in result.spans for place in range(span.start, span.end)}
    asked = [set(range(*span)) for label, span in zip(labels, spans, strict=True) if label == "A"]
    assert gone == set().union(*asked)


def test_only_and_keep_choose_labels(folder):
    text = "ann@x.org www.x.org 10.0.0.1"
    assert unmask.redact(text, only=["email"]).text == "[EMAIL] www.x.org 10.0.0.1"
    assert unmask.redact(text, keep=["URL", "ip"]).text == "[EMAIL] www.x.org 10.0.0.1"
    assert unmask.redact("10.0.0.1 123-45-6789", only=["us ssn"]).text == "10.0.0.1 [US_SSN]"
    assert (shown("phone number"), shown("人"), shown("--")) == ("PHONE_NUMBER", "人", "ENTITY")


def test_entities_of_a_model_are_replaced(folder):
    model = unmask.load(folder / "names")
    text = "the river bank was muddy, another text: ann@x.org"
    tagging = model.tag(text)
    kept = {label.split("-")[-1] for label in TAGS[1:]}
    assert tagging.entities
    result = unmask.redact(text, model)
    assert rebuilt(text, result) == result.text
    gone = {place for span in result.spans for place in range(span.start, span.end)}
    expected = [range(entity.start, entity.end) for entity in tagging.entities]
    assert gone == set(range(40, 49)).union(*expected)
    assert {span.label for span in result.spans} <= {*kept, "EMAIL"}
    assert unmask.redact(text, model, only=["EMAIL"]).text.startswith(text[:30])
    assert unmask.redact(["", text, " \n"], model)[1] == result


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"only": ["EMIAL"]}, "only has 'EMIAL', and nothing finds it; the labels are CARD, EMAIL"),
        ({"keep": ["PER"]}, "keep has 'PER', and nothing finds it"),
        ({"only": []}, "only is empty; name labels"),
        ({"only": "EMAIL"}, "only is 'EMAIL'; give"),
        ({"only": [3]}, "only has 3"),
        ({"replacement": "star"}, "replacement is 'star'; it can be 'mask' or 'pseudonym'"),
        ({"secret": SECRET}, "a secret is for pseudonyms"),
        (
            {"secret": "short", "replacement": "pseudonym"},
            "the secret has 5 characters; give a text of at",
        ),
        ({"secret": 3, "replacement": "pseudonym"}, "the secret has no text"),
        ({"labels": ["x"]}, "labels and threshold are for a model"),
        ({"model": "default"}, "model is 'default'; give a loaded one"),
    ],
)
def test_wrong_arguments_get_a_sentence(options, sentence):
    with pytest.raises(InvalidRequest) as error:
        unmask.redact("a", **options)
    assert sentence in str(error.value)


def test_texts_and_models_that_cannot_be_used(folder):
    with pytest.raises(InvalidText, match="text 2 is of type int"):
        unmask.redact(["a", 3])
    with pytest.raises(InvalidText, match="lone surrogate"):
        unmask.redact("a\ud800")
    with pytest.raises(InvalidRequest, match="which are no entities"):
        unmask.redact("a", unmask.load(folder / "parts"))
    with pytest.raises(InvalidRequest, match="cannot label words"):
        unmask.redact("a", unmask.load(folder / "vectors"))


# --- files -------------------------------------------------------------------------------------------------


FILES = {
    "a.txt": (
        "\ufeffann@x.org first\r\n\r\nnothing\r\n电话+86 10 6552 9988。\n  \nbob@y.de".encode(),
        "\ufeff[EMAIL] first\r\n\r\nnothing\r\n电话[PHONE]。\n  \n[EMAIL]".encode(),
    ),
    "a.jsonl": (
        b'{"n": 1.0, "text": "\\u00e9 ann@x.org"}\r\n\n{"text":"none","n":2}',
        b'{"n": 1.0, "text": "\xc3\xa9 [EMAIL]"}\r\n\n{"text":"none","n":2}',
    ),
    "a.json": (
        b'[{"text": "ann@x.org", "n": [1]}, {"text":"none"}]',
        b'[\n{"text": "[EMAIL]", "n": [1]},\n{"text": "none"}\n]\n',
    ),
    "a.csv": (
        b'\xef\xbb\xbfid,text\r\n1,"hi ann@x.org, ok"\r\n\r\n'
        b'2,"no, ""x"""\r\n3,"two\r\nb@c.de ""q""\r\n"\r\n"4",b@c.de\r\n\r\n',
        b'\xef\xbb\xbfid,text\r\n1,"hi [EMAIL], ok"\r\n\r\n'
        b'2,"no, ""x"""\r\n3,"two\r\n[EMAIL] ""q""\r\n"\r\n4,[EMAIL]\r\n\r\n',
    ),
    "b.csv": (b"text,n\n", b"text,n\n"),
    "a.tsv": (b'n\ttext\tx\n1\tann@x.org "\t2\r\n2\tno\t\n', b'n\ttext\tx\n1\t[EMAIL] "\t2\r\n2\tno\t\n'),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_copied_in_its_format(name, tmp_path):
    source, copy = tmp_path / name, tmp_path / f"copy{name[1:]}"
    before, after = FILES[name]
    source.write_bytes(before)
    ran = run_here("redact", "--file", source, "-o", copy)
    assert ran.code == 0, ran.err
    assert copy.read_bytes() == after
    assert source.read_bytes() == before
    assert NOTE in ran.out
    printed = run_here("redact", "--file", source)
    assert printed.out.encode() == after
    assert NOTE in printed.err
    piped = run_here("redact", *(["--format", name[2:]] if name != "a.txt" else []), stdin=before)
    assert piped.out.encode() == after


def test_parquet_keeps_its_schema(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    table = arrow.table(
        {
            "n": arrow.array([1, 2], arrow.int8()),
            "body": arrow.array(["ann@x.org", "no"], arrow.large_string()),
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    source = ["--file", tmp_path / "a.parquet", "--field", "body"]
    ran = run_here("redact", *source, "-o", tmp_path / "b.parquet")
    assert ran.code == 0, ran.err
    copy = parquet.read_table(tmp_path / "b.parquet")
    assert copy.schema.equals(table.schema)
    assert copy.to_pydict() == {"n": [1, 2], "body": ["[EMAIL]", "no"]}
    assert_one_sentence(run_here("redact", *source), "with -o")


def test_json_has_the_offsets_of_both_texts_and_not_what_stood_there(tmp_path):
    source = tmp_path / "a.txt"
    source.write_bytes(FILES["a.txt"][0])
    ran = run_here("redact", "--file", source, "--json")
    rows = [json.loads(line) for line in ran.out.splitlines()]
    assert [row.get("line") for row in rows] == [1, 3, 4, 6, None]
    expected = unmask.redact("ann@x.org first")
    assert rows[0]["text"] == expected.text
    (span,) = rows[0]["spans"]
    assert span == {
        "label": "EMAIL", "start": 0, "end": 9, "score": None, "replacement": "[EMAIL]", "redacted_start": 0,
        "redacted_end": 7,
    }  # fmt: skip
    assert rows[-1] == {
        "kind": "summary", "texts": 4, "changed": 3, "spans": {"EMAIL": 2, "PHONE": 1}, "output": None,
        "note": NOTE,
    }  # fmt: skip
    copy = tmp_path / "b.txt"
    listed = run_here("redact", "--file", source, "--json", "-o", copy)
    assert "ann@" not in listed.out
    assert [json.loads(line).get("line") for line in listed.out.splitlines()] == [1, 4, 6, None]
    assert copy.read_bytes() == FILES["a.txt"][1]


def test_pseudonyms_agree_in_all_of_a_file(tmp_path):
    """Also between parts of it, which are read one after another."""
    source = tmp_path / "a.csv"
    with source.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["text"], *([f"to u{number % 7}@x.org"] for number in range(5000))])
    ran = run_here("redact", "--file", source, "-o", tmp_path / "b.csv", "--replacement", "pseudonym")
    assert ran.code == 0, ran.err
    rows = (tmp_path / "b.csv").read_text().splitlines()[1:]
    assert rows == [f"to [EMAIL_{number % 7 + 1}]" for number in range(5000)]


def test_nothing_is_overwritten_unless_asked(tmp_path):
    source = tmp_path / "a.txt"
    source.write_bytes(b"ann@x.org\n")
    for output in (source, tmp_path / "b.txt"):
        output.touch()
        assert_one_sentence(run_here("redact", "--file", source, "-o", output), "exists already")
    ran = run_here("redact", "--file", source, "-o", source, "--overwrite")
    assert ran.code == 0, ran.err
    assert source.read_bytes() == b"[EMAIL]\n"


def test_a_damaged_file_leaves_no_copy(tmp_path):
    source, copy = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    source.write_bytes(b'{"text": "ann@x.org"}\n' * 3000 + b"{broken\n")
    assert_one_sentence(run_here("redact", "--file", source, "-o", copy), "line 3001")
    assert sorted(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["a", "--only", "x"], "nothing finds it"),
        (["a", "--labels", "x"], "name it with --model"),
        (["a", "--threshold", "0.4"], "name it with --model"),
        (["a", "-o", "b.txt"], "leave one of them out"),
        (["--file", "a.csv", "-o", "b.txt"], "names another format"),
        (["--file", "no.txt"], "no.txt"),
        (["a", "--secret-file", "no"], "no"),
    ],
)
def test_misuse_of_the_command(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_one_sentence(run_here("redact", *arguments), sentence)


def test_the_command_takes_a_model_and_a_secret(folder, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    text = "the river bank was muddy ann@x.org"
    options = ["--replacement", "pseudonym", "--secret-file", secret]
    ran = run_here("redact", text, "-m", folder / "names", *options)
    model = unmask.load(folder / "names")
    expected = unmask.redact(text, model, replacement="pseudonym", secret=SECRET)
    assert ran.out == expected.text + "\n"
    lines = f"{text}\n\n".encode()
    assert run_here("redact", "-m", folder / "names", *options, stdin=lines).out == f"{expected.text}\n\n"


def test_typed_special_tokens_are_text(folder):
    text = "the river [SEP] bank was muddy"
    read = unmask.load(folder / "names", special_tokens="text")
    assert run_here("redact", text, "-m", folder / "names").out == unmask.redact(text, read).text + "\n"
    parsed = unmask.redact(text, unmask.load(folder / "names")).text + "\n"
    ran = run_here("redact", text, "-m", folder / "names", "--special-tokens", "parse")
    assert ran.out == parsed != unmask.redact(text, read).text + "\n"


# --- over HTTP ---------------------------------------------------------------------------------------------


def test_a_server_answers_with_the_same(folder):
    pytest.importorskip("httpx", reason="starlette's test client needs httpx")
    from starlette.testclient import TestClient

    from unmask.serve import make_app

    models = {name: unmask.load(folder / name) for name in ("names", "vectors")}
    app = make_app(models)
    texts = [*TEXTS, "the river bank was muddy " * 12 + "ann@x.org"]

    with TestClient(app, base_url="http://127.0.0.1:8080") as client:

        def answer(status=200, **body):
            answered = client.post("/v1/redact", json={"texts": texts, **body})
            assert answered.status_code == status, answered.text
            return answered.json()

        alone = answer()
        assert (alone["model"], alone["note"]) == (None, NOTE)
        assert [row["text"] for row in alone["results"]] == [row.text for row in unmask.redact(texts)]
        named = answer(model="names", replacement="pseudonym", keep=["LOC"])
        expected = unmask.redact(texts, models["names"], replacement="pseudonym", keep=["LOC"])
        assert [row["text"] for row in named["results"]] == [row.text for row in expected]
        assert [len(row["spans"]) for row in named["results"]] == [len(row.spans) for row in expected]
        assert named["model"] == "names"
        assert [row["text"] for row in answer(model="names", texts=["", " "])["results"]] == ["", " "]
        assert "nothing finds it" in answer(400, only=["PER"])["error"]["message"]
        assert "labels are for a model" in answer(400, labels=["x"])["error"]["message"]
        assert "label words" in answer(400, model="vectors")["error"]["message"]
    app.state.service.close()


# --- the page ----------------------------------------------------------------------------------------------


def test_the_page_runs(tmp_path, monkeypatch):
    pytest.importorskip("unmask_models", reason="the adapter that finds names")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters.txt").write_text("Dear Ann,\nwrite to ann@example.org.\n")
    (tmp_path / "tickets.csv").write_text("id,body\n1,Ada Lovelace: ada@example.org\n")
    (tmp_path / "secret.txt").write_text(SECRET)
    page = (REPOSITORY / "docs" / "tasks" / "redact.md").read_text(encoding="utf-8")
    found = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    values = {}
    for kind, block in found:
        if kind == "python":
            exec(block, values)
            for line in re.findall(r"print\((.*?)\.text\)  # (.*)", block):
                assert eval(line[0], values).text == line[1]
        for line in block.splitlines() if kind == "sh" else ():
            ran = run_here(*shlex.split(line)[1:])
            assert ran.code == 0, (line, ran.err)
    assert (tmp_path / "tickets.redacted.csv").read_text() == "id,body\n1,[PER]: [EMAIL]\n"
    assert [kind for kind, _ in found] == ["python", "python", "sh"]
