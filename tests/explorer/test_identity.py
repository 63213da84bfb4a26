"""Names that differ for a reader, and digests that differ for the store of texts."""

from pathlib import Path

import pytest

from unmask.explorer.sessions.models import Candidate, candidate_of, digest, distinct_names


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([Candidate("a"), Candidate("b")], ["a", "b"]),
        ([Candidate("model", Path("/runs/a/model")), Candidate("model", Path("/runs/b/model"))],
         ["a/model", "b/model"]),
        ([Candidate("model", Path("/x/a/model")), Candidate("model", Path("/y/a/model"))],
         ["x/a/model", "y/a/model"]),
        ([Candidate("m", Path("/m"), "float32"), Candidate("m", Path("/m"), "int8")],
         ["m (float32)", "m (int8)"]),
        ([Candidate("m", Path("/m"), "int8")] * 3, ["m", "m (2)", "m (3)"]),
        ([Candidate("m"), Candidate("m (2)"), Candidate("m")], ["m", "m (2)", "m (3)"]),
        # One of a hub and one of this machine.
        ([Candidate("o/m"), Candidate("o/m", Path("/o/m"))], ["o/m", "o/m (2)"]),
    ],
)  # fmt: skip
def test_no_two_names_are_alike(given, wanted):
    assert distinct_names(given) == wanted


def test_names_before_anything_is_loaded(tmp_path):
    folder = tmp_path / "run" / "model"
    folder.mkdir(parents=True)
    assert candidate_of(str(folder)) == Candidate("model", folder)
    assert candidate_of("owner/model") == Candidate("owner/model")
    assert candidate_of("unmask-mini").name == "unmask-mini"
    assert candidate_of("default").name == "sentence-transformers/all-MiniLM-L6-v2"


def test_a_digest_knows_where_a_part_ends():
    given = [("ab", "c"), ("a", "bc"), ("abc",), ("a", "b", "c"), ("ab\0c",), ("ab", "", "c")]
    assert len({digest(parts) for parts in given}) == len(given)
    assert digest(("\ud83d",)) != digest(("?",))
