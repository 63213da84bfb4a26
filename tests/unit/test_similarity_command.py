"""``unmask similarity``: the scores of the Python call, for two texts and for lines of any number."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from tests.support.command import assert_one_sentence, run_here
from unmask.cli import inputs as lines_module
from unmask.tasks.embed import METRICS

PAIRS = [
    ("the river", "the bank"),
    ("muddy", "muddy"),
    ("a text", "another text !"),
    ("xyz", "the"),
    ("the bank", "bank the"),
]
TABBED = "".join(f"{a}\t{b}\n" for a, b in PAIRS).encode()


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(lines_module, "TEXTS_PER_PART", 2)


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(TABBED)
    return path


def expected(model, metric="cosine", **settings):
    return [
        float(
            model.similarity(model.embed([a], **settings), model.embed([b], **settings), metric=metric)[0, 0]
        )
        for a, b in PAIRS
    ]


def objects(ran):
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


@pytest.mark.parametrize("metric", METRICS)
def test_two_texts(metric, tiny_folder, tiny_model):
    (a, b), score = PAIRS[0], expected(tiny_model, metric)[0]
    command = ("similarity", a, b, "-m", tiny_folder, "--metric", metric)
    (found,) = objects(run_here(*command, "--json"))
    assert found.pop("score") == pytest.approx(score, abs=2e-5)
    assert found == {"model": "tiny", "revision": None, "metric": metric, "text": a, "other": b}
    assert run_here(*command).out == f"{score:.4f}\n"


@pytest.mark.usefixtures("small_parts")
def test_a_score_for_each_line(tiny_folder, tiny_model, pairs):
    scores = expected(tiny_model)
    found = objects(run_here("similarity", "--file", pairs, "-m", tiny_folder, "--json"))
    assert [one["score"] for one in found] == pytest.approx(scores, abs=2e-5)
    assert [(one["source"], one["line"], one["text"], one["other"]) for one in found] == [
        (str(pairs), number, *pair) for number, pair in enumerate(PAIRS, start=1)
    ]
    lines = run_here("similarity", "--file", pairs, "-m", tiny_folder).out.splitlines()
    assert [float(line) for line in lines] == pytest.approx(scores, abs=1e-4)


@pytest.mark.usefixtures("small_parts")
def test_lines_of_standard_input_and_two_keys_of_json_lines(tiny_folder, tiny_model):
    piped = run_here("similarity", "-", "-m", tiny_folder, stdin=TABBED)
    assert len(piped.out.splitlines()) == len(PAIRS)
    stdin = "".join(json.dumps({"n": 1, "left": a, "right": b}) + "\n\n" for a, b in PAIRS).encode()
    options = ("--fields", "left", "right", "--blank", "skip", "--json")
    found = objects(run_here("similarity", "-", *options, "-m", tiny_folder, stdin=stdin))
    assert [one["line"] for one in found] == [1, 3, 5, 7, 9]
    assert [one["score"] for one in found] == pytest.approx(expected(tiny_model), abs=2e-5)


def test_the_pooling_of_the_vectors(tiny_folder, tiny_model, pairs):
    ran = run_here("similarity", "--file", pairs, "--pooling", "max", "-m", tiny_folder, "--json")
    scores = expected(tiny_model, pooling="max")
    assert [one["score"] for one in objects(ran)] == pytest.approx(scores, abs=2e-5)
    assert scores != pytest.approx(expected(tiny_model), abs=2e-5)


def test_truncated_texts(tiny_folder, tiny_model):
    long = "bank " * 40
    command = ("similarity", "-m", tiny_folder, "--json")
    assert_one_sentence(run_here(*command, "the", long), "the second text has 42 tokens", "--truncation end")
    stdin = f"the\tbank\nthe\t{long}\n".encode()
    ran = run_here(*command, "-", stdin=stdin)
    assert_one_sentence(ran, "line 2 of <stdin> has 42 tokens", "--truncation end")
    short = tiny_model.embed(["the", long], truncation="end")
    score = float(tiny_model.similarity(short[0], short[1])[0, 0])
    for arguments in (("the", long), ("-",)):
        found = objects(run_here(*command, *arguments, "--truncation", "end", stdin=stdin))
        assert found[-1]["score"] == pytest.approx(score, abs=2e-5)


@pytest.mark.parametrize(
    ("arguments", "stdin", "parts"),
    [
        ((), b"", ("give two texts, or --file",)),
        (("the",), b"", ("give two texts, or --file",)),
        (("the", "--file", "x"), b"", ("give two texts, or --file",)),
        (("the", "bank", "--file", "x"), b"", ("give two texts, or --file",)),
        (("the", "-"), b"the\tbank\n", ("give two texts, or --file",)),
        (("-", "the"), b"the\tbank\n", ("give two texts, or --file",)),
        (("-", "--file", "x"), b"", ("give two texts, or --file",)),
        (("the", "bank", "--fields", "a", "b"), b"", ("--fields and --blank are for lines",)),
        (("-",), b"", ("no text in the input",)),
        (("-",), b"the\tbank\nthe bank\n", ("line 2 of <stdin> has 0 tabs", "--fields")),
        (("-",), b"the\tbank\ta\n", ("line 1 of <stdin> has 2 tabs",)),
        (("-",), b"the\t \n", ("line 1 of <stdin> holds a blank text",)),
        (
            ("-", "--fields", "a", "b"),
            b'{"a": "the"}\n',
            ("line 1 of <stdin> has no 'b'; set --fields to one of: a",),
        ),
        (("-", "--fields", "a", "b"), b"[]\n", ("line 1 of <stdin> is not a JSON object",)),
        (("-", "--fields", "a", "b"), b"the\tbank\n", ("line 1 of <stdin> is not JSON",)),
    ],
)
def test_what_cannot_be_compared(arguments, stdin, parts, tiny_folder):
    ran = run_here("similarity", *arguments, "-m", tiny_folder, stdin=stdin)
    assert_one_sentence(ran, *parts)
    assert ran.out == ""


def test_a_bad_line_of_a_file_is_found_before_the_model_is_loaded(pairs, tmp_path):
    pairs.write_bytes(TABBED + b"the bank\n")
    ran = run_here("similarity", "--file", pairs, "-m", tmp_path / "nowhere")
    assert_one_sentence(ran, f"line {len(PAIRS) + 1} of {pairs} has 0 tabs")


def test_every_table_gives_its_two_columns(tiny_folder, tiny_model, tmp_path):
    scores = expected(tiny_model)
    rows = [{"left": a, "right": b} for a, b in PAIRS]
    (tmp_path / "a.csv").write_text("left,right\n" + "".join(f'"{a}","{b}"\n' for a, b in PAIRS))
    (tmp_path / "a.tsv").write_text("left\tright\n" + TABBED.decode())
    (tmp_path / "a.json").write_text(json.dumps(rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    for name in ("a.csv", "a.tsv", "a.json", "a.parquet"):
        given = ("similarity", "--file", tmp_path / name, "--fields", "left", "right", "-m", tiny_folder)
        found = objects(run_here(*given, "--json"))
        assert [row["score"] for row in found] == pytest.approx(scores, abs=2e-5)
        assert [(row["text"], row["other"]) for row in found] == PAIRS
        assert run_here(*given, "-o", tmp_path / f"{name}.out").out == f"5 inputs, in {tmp_path / name}.out\n"
        assert (tmp_path / f"{name}.out").read_text() == run_here(*given).out
