"""Hard negatives beside a plain search on vectors of sentence-transformers; a killed job; what is refused."""

import json
import shutil

import numpy as np
import pytest
import sentence_transformers
from safetensors.torch import load_file, save_file

import unmask
from tests.support.tiny import tiny_bert, write_checkpoint, write_tokenizer
from tests.training.retrieval.conftest import place, write_rows
from unmask.cli.options import RunOptions
from unmask.cli.train.finetune import mine as command
from unmask.errors import InvalidRequest, InvalidText, OutputError
from unmask.search import mining
from unmask.search.mining import MiningSettings, candidates, mine, nearest

__all__ = ["place"]


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def pairs(place, tmp_path):
    write_rows(tmp_path / "pairs.jsonl", rows_of(place / "train.jsonl")[:20])
    rows = [{"text": text} for row in rows_of(place / "train.jsonl") for text in row["negatives"]]
    write_rows(tmp_path / "corpus.jsonl", rows)
    return tmp_path


@pytest.fixture(scope="module")
def body(tmp_path_factory):
    """A tiny embedder whose vectors differ."""
    return write_checkpoint(tmp_path_factory.mktemp("mining") / "body", tiny_bert())


CASES = [
    {},
    {"relative_margin": 0.01, "range_max": 60},
    {"absolute_margin": 0.02, "num_negatives": 3, "range_max": 60},
    {"max_score": 0.97, "range_min": 2, "range_max": 60},
    {"range_min": 1, "range_max": 4, "num_negatives": 3},
]


def plainly(
    model, asked, corpus, *, num_negatives, range_max, range_min=0, max_score=None, absolute_margin=None,
    relative_margin=None,
):  # fmt: skip
    """One query at a time: sort all documents, leave out what the filters name, take from the range."""
    encode = sentence_transformers.SentenceTransformer(str(model), device="cpu").encode
    texts = sorted({row["text"] for row in corpus} | {row["positive"] for row in asked})
    vectors = dict(zip(texts, encode(texts, normalize_embeddings=True), strict=True))
    found = set()
    most = range_max + max(len({r["positive"] for r in asked if r["query"] == row["query"]}) for row in asked)
    for query in {row["query"] for row in asked}:
        own = {row["positive"] for row in asked if row["query"] == query}
        vector = encode(query, normalize_embeddings=True)
        scores = {text: float(vector @ vectors[text]) for text in texts}
        lowest = min(scores[text] for text in own)
        kept = [
            text
            for text in sorted(texts, key=lambda text: -scores[text])[:most]
            if text not in own
            and (max_score is None or scores[text] <= max_score)
            and (absolute_margin is None or scores[text] <= lowest - absolute_margin)
            and (relative_margin is None or scores[text] <= lowest * (1 - relative_margin))
        ]
        some = kept[range_min:range_max][:num_negatives]
        found |= {(query, positive, negative) for positive in own for negative in some}
    return found


def test_a_relative_margin_is_below_a_score_that_is_negative_too():
    scores_C = np.array([-0.1, -0.2, -0.21, -0.3], dtype=np.float32)
    settings = MiningSettings(relative_margin=0.1)
    assert candidates(scores_C, np.arange(4), [], -0.2, settings).tolist() == [3]
    assert candidates(-scores_C[::-1], np.arange(4), [], 0.21, settings).tolist() == [3]


@pytest.mark.parametrize("given", CASES)
def test_negatives_are_those_of_a_plain_search(body, pairs, monkeypatch, given):
    monkeypatch.setattr(mining, "DOCUMENTS_PER_PART", 7)
    monkeypatch.setattr(mining, "QUERIES_PER_PART", 3)
    given = {"num_negatives": 2, "range_max": 15} | given
    facts = mine(
        unmask.load(body),
        pairs / "pairs.jsonl",
        pairs / "out.jsonl",
        corpus=pairs / "corpus.jsonl",
        settings=MiningSettings(**given),
    )
    asked = rows_of(pairs / "pairs.jsonl")
    wanted = plainly(body, asked, rows_of(pairs / "corpus.jsonl"), **given)
    found = rows_of(pairs / "out.jsonl")
    assert {(row["query"], row["positive"], one) for row in found for one in row["negatives"]} == wanted
    assert facts.negatives == len(wanted) > 0
    for row in found:
        assert len(row["scores"]) == 1 + len(row["negatives"])
        assert row["positive"] not in row["negatives"]
        assert row["scores"][1:] == sorted(row["scores"][1:], reverse=True)


@pytest.mark.parametrize("at", [1, 4, 6])
def test_a_killed_job_resumes_with_the_same_result(place, pairs, monkeypatch, at):
    monkeypatch.setattr(mining, "DOCUMENTS_PER_PART", 40)
    monkeypatch.setattr(mining, "QUERIES_PER_PART", 8)
    settings = MiningSettings(sampling_strategy="random", num_negatives=3, range_max=12, seed=4)
    model = unmask.load(place / "tiny")

    def run(name, say=lambda _: None):
        corpus = pairs / "corpus.jsonl"
        return mine(model, pairs / "pairs.jsonl", pairs / name, corpus=corpus, settings=settings, say=say)

    whole = run("whole.jsonl")
    said = []

    def stop(sentence):
        said.append(sentence)
        if len(said) == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("out.jsonl", stop)
    assert not (pairs / "out.jsonl").exists()
    written = {path.name: path.stat().st_mtime_ns for path in (pairs / ".out.jsonl.work").iterdir()}
    with pytest.raises(InvalidRequest, match="holds unfinished work with another settings"):
        mine(model, pairs / "pairs.jsonl", pairs / "out.jsonl", corpus=pairs / "corpus.jsonl")
    assert {p.name: p.stat().st_mtime_ns for p in (pairs / ".out.jsonl.work").iterdir()} == written
    assert run("out.jsonl") == whole
    assert (pairs / "out.jsonl").read_bytes() == (pairs / "whole.jsonl").read_bytes()
    assert not (pairs / ".out.jsonl.work").exists()


def test_the_nearest_in_parts_are_those_of_all_documents():
    draw = np.random.default_rng(0)
    vectors = draw.integers(-2, 3, size=(50, 4)).astype(np.float32)
    queries = draw.integers(-2, 3, size=(6, 4)).astype(np.float32)
    scores, places = nearest(queries, [vectors[:13], vectors[13:14], vectors[14:]], 9)
    wanted = np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :9]
    np.testing.assert_array_equal(places, wanted)
    np.testing.assert_array_equal(scores, np.take_along_axis(queries @ vectors.T, wanted, axis=1))


def test_the_command(place, pairs, capsys):
    out = pairs / "out.jsonl"
    command(
        pairs / "pairs.jsonl", output=out, model=str(place / "tiny"), num_negatives=2, relative_margin=None
    )
    assert "negatives for" in capsys.readouterr().out
    assert all(1 <= len(row["negatives"]) <= 2 for row in rows_of(out))


def test_the_command_computes_in_the_dtype_that_is_asked_for(place, pairs):
    asked = {"model": str(place / "tiny"), "num_negatives": 2, "relative_margin": None}
    for dtype in ("float32", "bfloat16"):
        command(pairs / "pairs.jsonl", output=pairs / dtype, run=RunOptions(dtype=dtype), **asked)
    scores = [
        [one for row in rows_of(pairs / dtype) for one in row["scores"]] for dtype in ("float32", "bfloat16")
    ]
    assert scores[0] != scores[1]
    assert np.mean(scores[1]) == pytest.approx(np.mean(scores[0]), abs=0.02)


def test_space_around_a_positive_document_makes_it_no_negative(place, tmp_path):
    pairs = [{"query": "one", "positive": "  the answer\n"}]
    corpus = [{"title": "", "text": "the answer "}, {"title": "the", "text": "answer"}, {"text": "the other"}]
    write_rows(tmp_path / "pairs.jsonl", pairs)
    write_rows(tmp_path / "corpus.jsonl", corpus)
    settings = MiningSettings(num_negatives=1)
    facts = mine(
        unmask.load(place / "tiny"),
        tmp_path / "pairs.jsonl",
        tmp_path / "out.jsonl",
        corpus=tmp_path / "corpus.jsonl",
        settings=settings,
    )
    assert facts.documents == 2
    (row,) = rows_of(tmp_path / "out.jsonl")
    assert (row["positive"], row["negatives"]) == ("the answer", ["the other"])


def test_unfinished_work_in_another_dtype_is_refused(place, pairs):
    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mine(unmask.load(place / "tiny"), pairs / "pairs.jsonl", pairs / "out.jsonl", say=stop)
    with pytest.raises(InvalidRequest, match="another dtype"):
        mine(unmask.load(place / "tiny", dtype="bfloat16"), pairs / "pairs.jsonl", pairs / "out.jsonl")


def test_unfinished_work_of_other_weights_of_the_same_name_is_refused(place, pairs, tmp_path):
    def stop(_):
        raise KeyboardInterrupt

    body = shutil.copytree(place / "tiny", tmp_path / "tiny")
    with pytest.raises(KeyboardInterrupt):
        mine(unmask.load(body), pairs / "pairs.jsonl", pairs / "out.jsonl", say=stop)
    path = body / "model.safetensors"
    save_file({name: one + 0.01 for name, one in load_file(path).items()}, path, {"format": "pt"})
    with pytest.raises(InvalidRequest, match="unfinished work with another model; restore that, or remove"):
        mine(unmask.load(body), pairs / "pairs.jsonl", pairs / "out.jsonl")
    (pairs / ".out.jsonl.work" / "job.json").write_text("{")
    with pytest.raises(OutputError, match=r"job\.json is damaged; remove .*, and the job starts again"):
        mine(unmask.load(body), pairs / "pairs.jsonl", pairs / "out.jsonl")


def test_a_model_without_a_pooling_leaves_no_work(pairs, tmp_path):
    tiny_bert().save_pretrained(tmp_path / "plain")
    write_tokenizer(tmp_path / "plain")
    with pytest.raises(InvalidRequest, match="name a pooling"):
        mine(unmask.load(tmp_path / "plain"), pairs / "pairs.jsonl", pairs / "out.jsonl")
    assert not (pairs / ".out.jsonl.work").exists()
    facts = mine(
        unmask.load(tmp_path / "plain"),
        pairs / "pairs.jsonl",
        pairs / "out.jsonl",
        settings=MiningSettings(pooling="mean"),
    )
    assert facts.documents
    assert not (pairs / ".out.jsonl.work").exists()


def test_unfinished_work_with_another_pooling_is_refused(place, pairs):
    def stop(_):
        raise KeyboardInterrupt

    model = unmask.load(place / "tiny")
    with pytest.raises(KeyboardInterrupt):
        mine(model, pairs / "pairs.jsonl", pairs / "out.jsonl", say=stop)
    with pytest.raises(InvalidRequest, match="unfinished work with another settings"):
        mine(model, pairs / "pairs.jsonl", pairs / "out.jsonl", settings=MiningSettings(pooling="max"))


def test_what_is_refused(place, pairs):
    model = unmask.load(place / "tiny")
    with pytest.raises(OutputError, match="exists already"):
        mine(model, pairs / "pairs.jsonl", pairs / "corpus.jsonl")
    write_rows(pairs / "bad.jsonl", [{"query": "q"}])
    with pytest.raises(InvalidText, match=r"line 1 of .* has no query with a positive document"):
        mine(model, pairs / "bad.jsonl", pairs / "out.jsonl")
    with pytest.raises(InvalidRequest, match="leaves no room for 5 negatives"):
        MiningSettings(range_min=8, range_max=10)
