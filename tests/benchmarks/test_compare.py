"""``python -m benchmarks.compare``: two commits take turns, and only one that is surely slower fails."""

import json
import random
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import compare
from benchmarks.compare import Commit, alternated, judged, median_interval
from tests.support.command import assert_one_sentence, run_here
from tests.support.places import REPOSITORY
from unmask.errors import InvalidRequest

pytestmark = pytest.mark.long

PACKAGE = """
import time

def load(folder):
    return Model()

class Model:
    def embed(self, texts, **options):
        end = time.process_time() + MILLISECONDS / 1000
        while time.process_time() < end:
            pass

    classify = embed
"""
"""A package whose work takes a certain time."""


def commit(repository, milliseconds, build="print()"):
    """A commit of that package, and its name."""
    (repository / "unmask").mkdir(parents=True, exist_ok=True)
    (repository / "unmask" / "__init__.py").write_text(PACKAGE.replace("MILLISECONDS", str(milliseconds)))
    (repository / "hatch_build.py").write_text(build)
    for arguments in (["add", "--all"], ["commit", "--quiet", "--message", "A commit"]):
        named = ["-c", "user.name=Tests", "-c", "user.email=tests@localhost", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", repository, *named, *arguments], check=True)
    done = subprocess.run(
        ["git", "-C", repository, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """An empty repository that the program compares commits of, with little work."""
    folder = tmp_path / "repository"
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    work = {"embedder": "", "classifier": "", "texts": ["a"], "queries": ["b"]}
    monkeypatch.setattr(compare, "REPOSITORY", folder)
    monkeypatch.setattr(compare, "work_of", lambda place, count: work)
    return folder


def worktrees(repository):
    done = subprocess.run(
        ["git", "-C", repository, "worktree", "list"], check=True, capture_output=True, text=True
    )
    return len(done.stdout.splitlines())


def ran(*arguments):
    return run_here(*arguments, "--rounds", "6", "--repeats", "2", program=compare.app)


def test_a_commit_that_takes_half_as_long_again_fails(repository):
    base, head = commit(repository, 20), commit(repository, 30)
    done = ran(base, head, "--json")
    assert done.code == 1, done.err
    report = json.loads(done.out)
    assert [row["workload"] for row in report["workloads"]] == ["texts", "query", "classify"]
    for row in report["workloads"]:
        assert row["slower"]
        assert 1.4 < row["low"] <= row["ratio"] <= row["high"]
    assert worktrees(repository) == 1, "the checkouts are gone"


def test_a_commit_that_takes_as_long_passes_and_says_so(repository):
    head = commit(repository, 20)
    done = ran(head, "--limit", "30")
    assert done.code == 0, done.err
    assert f"HEAD ({head[:10]}) is not shown to be more than 30 % slower than {head[:10]}." in done.out


def test_a_faster_commit_passes(repository):
    assert ran(commit(repository, 30), commit(repository, 20)).code == 0


def test_each_commit_builds_its_own_library_unless_the_source_is_the_same(repository):
    build = "import pathlib; pathlib.Path('unmask/built').write_text('{}'); print('unmask/built')"
    base = commit(repository, 5, build.format("first"))
    same = commit(repository, 6, build.format("first"))
    other = commit(repository, 6, build.format("second"))
    none = commit(repository, 6)
    for head, content in ((same, "first"), (other, "second")):
        commits = [compare.commit_of(repository, name) for name in (base, head)]
        place = repository.parent / content
        place.mkdir()
        with compare.checkouts(repository, place, commits) as roots:
            compare.build(repository, roots, commits)
            assert [(root / "unmask" / "built").read_text() for root in roots] == ["first", content]
    done = ran(base, none)
    assert_one_sentence(done)
    assert "was not built, and that of the other one was" in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "'nothing' is no commit of the git repository"),
        (["--rounds", "5", "HEAD"], "rounds is 5; it must be at least 6"),
        (["--count", "0", "HEAD"], "count is 0; it must be at least 1"),
        (["--limit", "-1", "HEAD"], "limit is -1; it must be a number of percent, at least 0"),
    ],
)
def test_a_mistake_is_one_sentence(repository, arguments, said):
    commit(repository, 1)
    done = run_here(*arguments, program=compare.app)
    assert_one_sentence(done)
    assert said in done.err


def test_a_commit_that_fails_is_named_with_its_reason(repository):
    base = commit(repository, 1)
    broken = commit(repository, "None")
    done = ran(base, broken)
    assert_one_sentence(done)
    assert f"{broken[:10]} cannot do the work: TypeError" in done.err
    assert worktrees(repository) == 1


def test_processes_take_turns_and_pairs_stay_together(monkeypatch):
    order = []

    def run(request, commit):
        order.append(commit.name)
        return {"texts": float(len(order))}

    monkeypatch.setattr(compare, "ran", run)
    base, head = alternated([Path("a"), Path("b")], [Commit("A", ""), Commit("B", "")], 3)
    assert "".join(order) == "ABBAAB"
    assert (base["texts"], head["texts"]) == ([1, 4, 5], [2, 3, 6])


def test_the_verdict_is_that_of_the_lower_bound():
    before = {"texts": [1.0] * 8}
    for after, slower in (([1.05] * 8, True), ([1.02] * 8, False), ([1.0, 1.02, *[1.2] * 6], False)):
        (row,) = judged(before, {"texts": after}, 3.0)
        assert row.slower is slower
    assert row.ratio == 1.2


def test_the_interval_contains_the_median_as_often_as_it_says():
    """Of a skewed distribution, as times are; draws are fixed by a seed."""
    rng = random.Random(0)
    for count in (6, 9, 12, 20):
        inside = 0
        for _ in range(2000):
            low, high = median_interval([rng.expovariate(1) for _ in range(count)])
            inside += low <= 0.6931 <= high
        assert 0.94 < inside / 2000 < 0.995
    values = [5.0, 1.0, 3.0, 2.0, 4.0, 6.0]
    assert median_interval(values) == (1.0, 6.0)
    assert median_interval([*values, 0.0, 7.0, 8.0]) == (1.0, 7.0)
    assert median_interval(values)[0] <= statistics.median(values)


def test_the_work_runs_on_the_package_itself(tiny_folder, tmp_path):
    """On a tiny model, with the classifier that is made of it."""
    classifier = compare.as_classifier(tiny_folder, tmp_path / "classifier")
    content = {
        "embedder": str(tiny_folder),
        "classifier": str(classifier),
        "texts": ["the river bank", "was muddy"],
        "queries": ["river"],
        "repeats": 1,
        "root": str(REPOSITORY),
    }
    request = tmp_path / "request.json"
    request.write_text(json.dumps(content))
    command = [sys.executable, "-P", str(compare.WORK), str(request)]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=compare.environment(REPOSITORY),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(seconds > 0 for seconds in json.loads(done.stdout).values())
    content["root"] = str(tmp_path)
    request.write_text(json.dumps(content))
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert "which is not the package in" in done.stderr


def test_a_folder_without_a_repository_is_one_sentence(tmp_path):
    with pytest.raises(InvalidRequest, match="is no commit of the git repository"):
        compare.commit_of(tmp_path, "main")
