"""Duplicates: `deduplicate`, ``unmask dedup`` and the rows that it writes, against all pairs in float64."""

import csv
import io
import json

import numpy as np
import pytest

from tests.support.command import run_here
from unmask.errors import InvalidRequest, InvalidText
from unmask.search import duplicates, searchable
from unmask.search.duplicates import deduplicate
from unmask.search.index import Index

WORDS = [
    "the",
    "river",
    "bank",
    "was",
    "muddy",
    "and",
    "old",
    "stone",
    "bridge",
    "loan",
    "money",
    "month",
    "fish",
    "swim",
    "deep",
]


@pytest.fixture(scope="module")
def texts():
    draw = np.random.default_rng(5)
    return [" ".join(draw.choice(WORDS, draw.integers(3, 12))) for _ in range(90)]


def by_hand(model, texts, threshold):
    """Groups by all pairs of float64 cosines, joined by following them."""
    vectors = model.embed(texts, normalize=True).astype(np.float64)
    near = np.round(vectors @ vectors.T, 6) >= threshold
    groups = []
    for start in range(len(texts)):
        if any(start in group for group in groups):
            continue
        group, new = set(), {start}
        while new:
            group |= new
            new = {int(b) for a in new for b in np.flatnonzero(near[a])} - group
        groups.append(group)
    return groups, vectors


@pytest.mark.parametrize("block", [7, 2048])
@pytest.mark.parametrize("rule", ["longest", "first"])
def test_groups_are_those_of_all_pairs(model, texts, block, rule, monkeypatch):
    monkeypatch.setattr(duplicates, "ROWS_PER_BLOCK", block)
    monkeypatch.setattr(duplicates, "TEXTS_PER_PART", 40)
    distinct = list(dict.fromkeys(texts))
    cosines = np.round(by_hand(model, distinct, 1)[1] @ by_hand(model, distinct, 1)[1].T, 6)
    threshold = float(np.quantile(cosines[np.triu_indices(len(distinct), 1)], 0.985))
    groups, vectors = by_hand(model, distinct, threshold)
    assert 1 < len(groups) < len(distinct)
    result = deduplicate(distinct, model, threshold=threshold, representative=rule)
    lengths = [len(text.replace(" ", "")) if rule == "longest" else 0 for text in distinct]
    wanted = {min(group, key=lambda row: (-lengths[row], row)) for group in groups}
    assert set(result.rows) == wanted
    exact = vectors @ vectors.T
    for one in result.duplicates:
        (group,) = (group for group in groups if one.row in group)
        others = [row for row in group if row != one.row]
        best = max(exact[one.row, others])
        assert one.nearest in others
        assert one.cosine == pytest.approx(best, abs=2e-6)
        assert one.cosine >= threshold
        assert one.representative in group & wanted
        assert one.representative_cosine == pytest.approx(exact[one.row, one.representative], abs=2e-6)


def test_equal_texts_are_told_apart_and_embedded_once(model):
    texts = ["The river bank", "the  RIVER bank", "The river bank", "fish swim", "ｔｈｅ  river bank  "]
    result = deduplicate(texts, model, threshold=1, representative="first")
    assert result.rows == (0, 3)
    assert [(one.row, one.kind, one.nearest, one.cosine) for one in result.duplicates] == [
        (1, "normalized", 0, None),
        (2, "identical", 0, None),
        (4, "normalized", 0, None),
    ]
    assert result.counts == {"identical": 1, "normalized": 2, "near": 0, "indexed": 0}
    assert result.groups == 1
    longest = deduplicate(texts, model, threshold=1)
    assert longest.rows == (0, 3), "white space makes no text longer"
    assert {one.representative for one in longest.duplicates} == {0}


def test_rows_with_the_same_characters_are_identical_though_another_stays(model):
    """The first of them is joined to the form that stays; a ligature is one character, so the longer form is
    the one without it.
    """
    texts = ["the river bank", "the  river\tbank", "fish swim", "the river bank", "the  river\tbank"]
    texts += ["The river bank", "deep ﬁsh", "deep fish", "deep ﬁsh", "deep ﬁsh"]
    result = deduplicate(texts, model, threshold=1)
    assert result.rows == (0, 2, 7)
    assert [(one.row, one.kind, one.nearest, one.representative) for one in result.duplicates] == [
        (1, "normalized", 0, 0),
        (3, "identical", 0, 0),
        (4, "identical", 1, 0),
        (5, "normalized", 0, 0),
        (6, "normalized", 7, 7),
        (8, "identical", 6, 7),
        (9, "identical", 6, 7),
    ]
    assert result.counts["identical"] == 4


@pytest.mark.parametrize("rule", ["longest", "first"])
def test_padding_with_white_space_wins_no_group(model, rule):
    texts = ["the river bank was muddy", "the river bank was" + " " * 40, "the river bank was"]
    cosines = by_hand(model, ["the river bank was muddy", "the river bank was"], 1)[1]
    threshold = float(np.round(cosines[0] @ cosines[1], 6))
    result = deduplicate(texts, model, threshold=threshold, representative=rule)
    assert result.rows == (0,)


def test_the_words_of_a_pair(model):
    result = deduplicate(["the old river bank", "the muddy river bank!"], model, threshold=1e-6)
    (one,) = result.duplicates
    assert (one.row, one.kind, one.representative) == (0, "near", 1)
    assert one.shared_words == ("the", "river", "bank")
    assert (one.only_here, one.only_there) == (("old",), ("muddy",))


def test_against_an_index(model, tmp_path, monkeypatch):
    monkeypatch.setattr(searchable, "PASSAGES_AT_ONCE", 2)
    index = Index.create(tmp_path / "index", model)
    for part in (("deep river fish", "bank loan"), ("old stone bridge", "month"), ("gone",)):
        index.add([{"id": text.split()[0], "text": text} for text in part])
    index.delete("gone")
    texts = ["old stone bridge", "a new text of money", "OLD stone  bridge", "gone", "deep river fish"]
    result = deduplicate(texts, against=index, threshold=0.9999)
    told = {one.row: (one.kind, one.document, one.passage) for one in result.duplicates}
    assert told[4] == ("indexed", "deep", "deep river fish")
    assert {told[0][0], told[2][0]} == {"indexed", "normalized"}
    assert {told[0][1], told[2][1]} == {"old"}
    assert result.rows == (1, 3)
    nearest = index.nearest_passages(model.embed(texts, normalize=True))
    for row, text in enumerate(texts):
        best = max(float(model.similarity(text, index.document(id).text)[0, 0]) for id in index.ids)
        assert nearest.cosines[row] == pytest.approx(best, abs=1e-5)


def test_arguments_are_checked(model, tmp_path):
    for threshold in (0, 1.1, float("nan"), "0.9", True, None):
        with pytest.raises(InvalidRequest, match="threshold is"):
            deduplicate(["a"], model, threshold=threshold)
    words = Index.create(tmp_path / "words", [])
    words.add(["a text"])
    with pytest.raises(InvalidRequest, match="has no view with one vector"):
        deduplicate(["a"], against=words)
    empty = deduplicate([], model)
    assert (empty.rows, empty.duplicates, empty.texts) == ((), (), 0)


def test_progress_counts_every_text_twice(model):
    seen = []
    deduplicate(["a river", "a bank", "fish"], model, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(3, 6), (6, 6)]


# --- the command and what it writes ----------------------------------------------------------------------


def dedup(folder, *arguments):
    ran = run_here("dedup", *arguments, "-m", folder, "--threshold", 1)
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def test_lines(folder, tmp_path):
    (tmp_path / "in.txt").write_bytes(b"\xef\xbb\xbfriver bank\r\n\nRiver  bank\r\n  fish swim\nriver bank")
    out = tmp_path / "out.txt"
    *found, summary = dedup(folder, tmp_path / "in.txt", "--blank", "skip", "-o", out)
    assert out.read_bytes() == b"river bank\r\n  fish swim\n"
    assert [(one["line"], one["kind"], one["nearest"]["line"]) for one in found] == [
        (3, "normalized", 1),
        (5, "identical", 1),
    ]
    counted = [summary[name] for name in ("kind", "stay", "normalized", "identical", "texts")]
    assert counted == ["summary", 2, 1, 1, 4]


def test_csv_rows_are_copied_as_they_stand(folder, tmp_path):
    content = 'id,"te\nxt"\r\n1,"river\nbank, ""old"""\n\n2,\'fish\'\n3,"river\nbank, ""old"""\n4,\n'
    (tmp_path / "a.csv").write_bytes(content.encode())
    (tmp_path / "b.csv").write_bytes(b'id,"te\nxt"\r\n5,money loan')
    out = tmp_path / "out.csv"
    arguments = (tmp_path / "a.csv", tmp_path / "b.csv", "--field", "te\nxt", "--blank", "skip")
    *_, summary = dedup(folder, *arguments, "-o", out)
    assert out.read_bytes() == b'id,"te\nxt"\r\n1,"river\nbank, ""old"""\n2,\'fish\'\n5,money loan\n'
    assert [row[0] for row in csv.reader(io.StringIO(out.read_text(), newline=""))] == ["id", "1", "2", "5"]
    assert (summary["stay"], summary["identical"]) == (3, 1)


@pytest.mark.parametrize("ending", ["jsonl", "json", "tsv", "parquet"])
def test_tables(folder, tmp_path, ending):
    rows = [{"text": text, "n": n} for n, text in enumerate(["fish", "river bank", "Fish", "loan"])]
    path, out = tmp_path / f"in.{ending}", tmp_path / f"out.{ending}"
    write(path, ending, rows)
    dedup(folder, path, "-o", out)
    write(tmp_path / "wanted", ending, [rows[n] for n in (0, 1, 3)])
    if ending == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        assert parquet.read_table(out).equals(parquet.read_table(tmp_path / "wanted"))
    elif ending == "json":
        assert json.loads(out.read_bytes()) == [rows[n] for n in (0, 1, 3)]
    else:
        assert out.read_bytes() == (tmp_path / "wanted").read_bytes()


def write(path, ending, rows):
    if ending == "parquet":
        arrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(rows), path)
    elif ending == "json":
        path.write_text(json.dumps(rows))
    elif ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text("text\tn\n" + "".join(f"{row['text']}\t{row['n']}\n" for row in rows))


def test_standard_input_and_an_index(folder, tmp_path):
    Index.create(tmp_path / "index", folder).add([{"id": "a", "text": "river bank"}])
    out = tmp_path / "out.txt"
    ran = run_here(
        *("dedup", "-", "--against", tmp_path / "index", "--threshold", 0.9999, "-o", out),
        stdin=b"river bank\nmoney\n",
    )
    assert ran.code == 0, ran.err
    found, summary = map(json.loads, ran.out.splitlines())
    assert (found["kind"], found["document"], found["representative"]) == ("indexed", "a", None)
    assert (summary["indexed"], summary["stay"], out.read_text()) == (1, 1, "money\n")


def test_for_people(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.cli.search.corpus.on_terminal", lambda: True)
    (tmp_path / "in.txt").write_text("river bank\nRiver bank\nfish\n" + "loan\n" * 30)
    out = run_here("dedup", tmp_path / "in.txt", "-m", folder, "--threshold", 1).out
    assert "normalized" in out
    assert "and 10 more; --json lists all" in out
    assert "3 of 33 texts stay; duplicates: 29 identical, 1 normalized, 0 near, 0 indexed, in 2 groups" in out


def test_mistakes_get_one_sentence(folder, tmp_path):
    (tmp_path / "in.csv").write_text("text,n\nfish,1\n")
    (tmp_path / "other.csv").write_text("text,m\nbank,1\n")
    (tmp_path / "in.txt").write_text("fish\n")
    (tmp_path / "in.conllu").write_text("")
    (tmp_path / "empty.txt").write_text("")
    cases = {
        (): "no inputs are given",
        (tmp_path / "in.csv", "-o", tmp_path / "o.jsonl"): "let it end in .csv",
        (tmp_path / "in.csv", "-o", tmp_path / "o.csv.gz"): "leave .gz out",
        (tmp_path / "in.csv", tmp_path / "in.txt", "-o", tmp_path / "o.csv"): "of one format",
        (tmp_path / "in.csv", tmp_path / "other.csv", "-o", tmp_path / "o.csv"): "has other columns",
        (tmp_path / "in.txt", "--threshold", 3): "threshold is 3.0",
        (tmp_path / "empty.txt",): "there is no text",
        (tmp_path / "in.conllu",): "this command reads",
    }
    for arguments, message in cases.items():
        ran = run_here("dedup", *arguments, "-m", folder)
        assert ran.code in (1, 2), arguments
        assert message in ran.err, arguments
        assert ran.err.count("\n") == 1
    assert not (tmp_path / "o.csv").exists()


def test_parquet_with_other_columns_is_refused(folder, tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from unmask.text.row_copies import copy_rows

    for name in ("a", "b"):
        parquet.write_table(arrow.Table.from_pylist([{name: "x"}]), tmp_path / f"{name}.parquet")
    with (
        (tmp_path / "a.parquet").open("rb") as a,
        (tmp_path / "b.parquet").open("rb") as b,
        pytest.raises(InvalidText, match="has other columns"),
    ):
        copy_rows([("a", a), ("b", b)], "parquet", lambda *_: True, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_a_json_list_that_is_piped_in_is_read_twice(folder, tmp_path):
    rows = b'[{"text": "the river"}, {"text": "the river"}]'
    ran = run_here("dedup", "-", "--format", "json", "-m", folder, "-o", tmp_path / "a.json", stdin=rows)
    assert ran.code == 0, ran.err
    assert json.loads((tmp_path / "a.json").read_text()) == [{"text": "the river"}]
