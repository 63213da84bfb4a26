"""``unmask index`` and ``unmask search``."""

import json

import pytest

from tests.search.test_index import write_reader
from tests.support.command import run_here


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_reader(tmp_path_factory.mktemp("reader") / "tiny")


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "documents"
    (place / "notes").mkdir(parents=True)
    (place / "notes" / "river.md").write_text("# The river\n\nThe old bridge crosses the river.\n")
    (place / "bank.txt").write_text("The bank lends money.")
    (place / "broken.txt").write_bytes(b"\x00\x01")
    rows = [{"_id": "7", "title": "Fish", "text": "Fish swim in the river.", "year": 2001}]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


@pytest.fixture
def index(folder, model, tmp_path):
    ran = run_here("index", folder, "-o", tmp_path / "index", "--model", model)
    assert ran.code == 0, ran.err
    return tmp_path / "index"


def test_two_commands_find_a_passage(index):
    ran = run_here("search", index, "the bridge over a river", "-k", 2, "--mode", "bm25")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("1. notes/river.md, characters 0 to ")
    assert "The old bridge crosses the river." in ran.out


def test_json_has_the_hits_and_on_request_the_reasons(index):
    plain = json.loads(run_here("search", index, "river", "--json").out)
    assert set(plain) == {"index", "generation", "query", "query_truncated", "hits"}
    assert plain["query_truncated"] is False
    for hit in plain["hits"]:
        assert set(hit) == {"document", "page", "start", "end", "score", "text", "title", "metadata"}
    by_id = {hit["document"]: hit for hit in plain["hits"]}
    assert set(by_id) == {"notes/river.md", "bank.txt", "7"}
    assert by_id["7"]["text"] == "Fish Fish swim in the river."
    assert by_id["7"]["metadata"] == {"year": 2001}
    told = json.loads(run_here("search", index, "river", "--mode", "bm25", "--why", "--json").out)
    (share,) = told["hits"][0]["why"][0]["shares"]
    assert share["label"] == "river"
    assert told["hits"][0]["why"][0]["view"] == "bm25"


def test_codes_are_reported_searched_first_and_explained(folder, model, tmp_path):
    made = tmp_path / "coded"
    options = ("--dense-bits", 1, "--no-dense-floats")
    ran = run_here("index", folder, "-o", made, "--model", model, *options)
    assert ran.code == 0, ran.err
    assert "3 of 8 bytes, 1 bit per number, and no float32" in ran.out
    assert "learned from 3 vectors, and from fewer than 1,000 they are poor: index many documents" in ran.out
    again = json.loads(run_here("index", folder, "-o", made, "--json").out)["dense_compression"]
    assert (again["bits"], again["floats"], again["learned_from"]) == (1, False, 3)
    for option in (("--dense-bits", 8), ("--dense-bits", 1, "--vector-bits", 2)):
        refused = run_here("index", folder, "-o", made, *option)
        assert refused.code == 1
        assert f"leave {option[-2]} out" in refused.err
    ran = run_here("search", made, "river", "--mode", "dense", "--approximate", "--candidates", 10, "--why")
    assert ran.code == 0, ran.err
    assert "(first stage: " in ran.out
    assert "compression " in ran.out


def test_filters_and_units(index):
    found = json.loads(run_here("search", index, "river", "--filter", "year=2001", "--json").out)["hits"]
    assert [hit["document"] for hit in found] == ["7"]
    assert run_here("search", index, "zebra", "--mode", "bm25").out == "no passage was found\n"


def test_why_names_views_terms_and_special_tokens(index):
    out = run_here("search", index, "river", "-k", 1, "--why").out
    assert "bm25" in out
    assert "river +" in out
    assert "special tokens" in out


def test_what_was_read_and_skipped_is_reported(folder, model, tmp_path):
    ran = run_here("index", folder, "-o", tmp_path / "new", "-m", model)
    assert "3 documents added, 0 updated, 0 unchanged" in ran.out
    assert "1 skipped:\n  broken.txt: it is not text" in ran.out
    again = run_here("index", folder, "-o", tmp_path / "new", "--json")
    told = json.loads(again.out)
    assert (told["documents"], told["added"]["unchanged"], told["added"]["added"]) == (3, 3, 0)
    assert told["added"]["skipped"][0][0] == "broken.txt"


def test_a_folder_is_brought_up_to_date(index, folder):
    (folder / "bank.txt").unlink()
    (folder / "notes" / "river.md").write_text("The bridge was closed.")
    kept = run_here("index", folder, "-o", index)
    assert "0 documents added, 1 updated, 1 unchanged" in kept.out
    assert "(--prune deletes them):\n  bank.txt" in kept.out
    told = json.loads(run_here("index", folder, "-o", index, "--prune", "--compact", "--json").out)
    assert (told["documents"], told["deleted"]) == (2, 1)
    assert "1 document deleted" in run_here("index", "-o", index, "--delete", "7").out
    assert run_here("index", "--verify", "-o", index).out.startswith(f"{index} is whole")


def test_damage_is_reported_and_fails(index):
    (stored,) = (index / "segments").glob("*.arrays")
    content = bytearray(stored.read_bytes())
    content[-1] ^= 1
    stored.write_bytes(content)
    ran = run_here("index", "--verify", "-o", index)
    assert ran.code == 1
    assert stored.name in ran.out
    assert "damaged" in ran.err
    told = run_here("index", "--verify", "-o", index, "--json")
    assert told.code == 1
    assert json.loads(told.out)["whole"] is False
    assert run_here("search", index, "x").code == 1


def refused(*arguments):
    ran = run_here(*arguments)
    assert ran.code in (1, 2)
    assert ran.err.count("\n") == 1, ran.err
    assert "Traceback" not in ran.err
    return ran.err


def test_mistakes_get_one_sentence(index, folder, model, tmp_path):
    assert "no inputs are given" in refused("index", "-o", index)
    assert "there is no index" in refused("index", "-o", tmp_path / "none", "--compact")
    for option in (("--stemmer", "german"), ("--passage-tokens", 9), ("--no-bm25",), ("--model", "none")):
        wanted = "leave --model none out" if option[0] == "--model" else f"leave {option[0]} out"
        assert wanted in refused("index", folder, "-o", index, *option)
    assert "--prune needs the inputs" in refused("index", "-o", index, "--prune", "--compact")
    assert "is not an index" in refused("search", tmp_path / "none", "x")
    assert "the query is blank" in refused("search", index, " ")
    assert "it must be at least 1" in refused("search", index, "x", "-k", 0)
    assert "candidates is 20 and has no effect with mode bm25" in refused(
        "search", index, "x", "--mode", "bm25", "--candidates", 20
    )
    assert "write VIEW=NUMBER" in refused("search", index, "x", "--weight", "dense")
    assert "--threads is 0" in refused("search", index, "x", "--threads", 0)
    assert "no document 'nowhere'" in refused("index", "-o", index, "--delete", "nowhere")
    assert "there is no file or folder" in refused(
        "index", tmp_path / "missing", "-o", tmp_path / "new", "-m", model
    )
    assert not (tmp_path / "new").exists()


def test_another_model_is_refused(index, tmp_path):
    other = write_reader(tmp_path / "another", seed=4)
    assert "the index was made with tiny" in refused("search", index, "x", "--model", other)


def test_an_index_without_a_model(folder, tmp_path, monkeypatch):
    for module in ("unmask", "unmask.models.load", "unmask.search.settings", "unmask.search.searchable"):
        monkeypatch.setattr(f"{module}.load", None)  # loading anything would fail
    ran = run_here("index", folder, "-o", tmp_path / "words", "--model", "none")
    assert ran.code == 0, ran.err
    hits = json.loads(run_here("search", tmp_path / "words", "who lends money", "--json").out)["hits"]
    assert hits[0]["document"] == "bank.txt"
    why = run_here("search", tmp_path / "words", "who lends money", "--why")
    assert "bm25" in why.out, why.err
    changes = (("--delete", "7"), ("--compact",), ("--verify",))
    assert [run_here("index", "-o", tmp_path / "words", *one).code for one in changes] == [0, 0, 0]
    (folder / "rows.jsonl").unlink()
    again = run_here("index", folder, "-o", tmp_path / "words", "--model", "none", "--json")
    assert json.loads(again.out)["added"]["unchanged"] == 2
    both = run_here("index", folder, "-o", tmp_path / "both", "--model", "none", "--model", "default")
    assert "leave none out, or give it alone" in both.err
    assert not (tmp_path / "both").exists()


def test_a_long_query_is_truncated_if_asked_and_said(index):
    query = "the bridge over the river " * 40
    refused = run_here("search", index, query)
    assert refused.code != 0
    assert "--truncation end" in refused.err
    ran = run_here("search", index, query, "--truncation", "end", "--json")
    assert json.loads(ran.out)["query_truncated"] is True
    assert "its end was dropped" in run_here("search", index, query, "--truncation", "end").err
