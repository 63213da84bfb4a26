"""A tiny checkpoint, and queries whose answers hold their words in another order."""

import json
import random

import pytest

from tests.support.tiny import tiny_bert, write_checkpoint

WORDS = ["the", "river", "bank", "was", "muddy", "a", "text", "another"]


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="package")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("retrieval")
    write_checkpoint(folder / "tiny", tiny_bert(initializer_range=0.1))
    write_checkpoint(folder / "masked", tiny_bert("BertForMaskedLM", initializer_range=0.1), sentence=False)
    draw = random.Random(0)

    def row():
        words = draw.sample(WORDS, 5)
        negatives = [" ".join(draw.sample(WORDS, 4)) for _ in range(2)]
        scores = [3.0 + draw.random(), draw.random(), -draw.random()]
        return {
            "query": " ".join(words[:4]), "positive": " ".join(words[::-1]), "negatives": negatives,
            "scores": scores,
        }  # fmt: skip

    write_rows(folder / "train.jsonl", [row() for _ in range(60)])
    write_rows(folder / "dev.jsonl", [row() for _ in range(20)])
    beir = folder / "beir"
    (beir / "qrels").mkdir(parents=True)
    made = [row() for _ in range(12)]
    write_rows(beir / "queries.jsonl", [{"_id": f"q{n}", "text": one["query"]} for n, one in enumerate(made)])
    corpus = [{"_id": f"d{n}", "title": "text", "text": one["positive"]} for n, one in enumerate(made)]
    write_rows(beir / "corpus.jsonl", [*corpus, {"_id": "d90", "text": "a bank"}])
    lines = [f"q{n}\td{n}\t{n % 3}" for n in range(12)] + ["q1\td2\t1"]
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(lines) + "\n")
    write_rows(folder / "short.jsonl", [row() for _ in range(32)])
    return folder
