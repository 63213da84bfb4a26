"""The workflows of the hosting site, which run elsewhere: what they name exists, and actions are pinned."""

import re
import tomllib
from importlib.util import find_spec

import pytest
import yaml

from tests.support.places import REPOSITORY

FOLDER = REPOSITORY / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")


def read(path):
    """A workflow; YAML reads its key ``on`` as true."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps_of(workflow):
    return [step for job in workflow["jobs"].values() for step in job.get("steps", ())]


def commands_of(workflow):
    return "\n".join(step["run"] for step in steps_of(workflow) if "run" in step)


def used(workflow):
    """The actions of steps, and workflows that a job calls."""
    return [part["uses"] for part in (*steps_of(workflow), *workflow["jobs"].values()) if "uses" in part]


every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def test_there_is_a_workflow_for_each_purpose():
    names = {path.stem for path in WORKFLOWS}
    assert names == {"ci", "docs", "nightly", "oldest", "release", "weekly", "wheels"}


@every_workflow
def test_actions_are_pinned_by_commit_with_their_version_beside_it(path):
    assert used(read(path))
    for action in used(read(path)):
        if action.startswith("./"):
            assert (REPOSITORY / action).is_file(), action
        else:
            assert PINNED.fullmatch(action), action
    lines = [
        line for line in path.read_text(encoding="utf-8").splitlines() if "uses: " in line and "@" in line
    ]
    assert [line for line in lines if not re.search(r" # v\d+\.\d+\.\d+$", line)] == []


def test_an_action_has_one_version_everywhere():
    versions = {}
    for line in (line for path in WORKFLOWS for line in path.read_text(encoding="utf-8").splitlines()):
        if match := re.search(r"uses: (\S+)@(.*)", line):
            versions.setdefault(match[1], set()).add(match[2])
    assert len(versions) > 4
    assert {name: several for name, several in versions.items() if len(several) > 1} == {}


@every_workflow
def test_a_workflow_may_only_read_and_ends(path):
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["group"]
    for name, job in workflow["jobs"].items():
        if "uses" not in job:
            assert 0 < job["timeout-minutes"] <= 360, name
    for step in steps_of(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_only_one_job_proves_who_it_is():
    proving = {
        (path.stem, name): job
        for path in WORKFLOWS
        for name, job in read(path)["jobs"].items()
        if "id-token" in (job.get("permissions") or {})
    }
    assert proving.keys() == {("release", "publish")}
    assert proving["release", "publish"]["environment"] == "pypi"


@every_workflow
def test_no_expression_is_pasted_into_a_command(path):
    """A title or branch could be a command; a variable of the environment is not."""
    assert "${{" not in commands_of(read(path))


@every_workflow
def test_what_commands_name_exists(path):
    commands = commands_of(read(path))
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w./-]+):", makefile, re.MULTILINE))
    assert set(re.findall(r"\bmake ([\w./-]+)", commands)) - targets == set()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(re.findall(r"(?:\.|unmask)\[([a-z]+)\]", commands))
    assert extras - set(project["optional-dependencies"]) == set()
    scripts = re.findall(r"(?<![\w])(?:\.ci|scripts)/[\w.]+", commands)
    assert [script for script in scripts if not (REPOSITORY / script).is_file()] == []
    assert [name for name in re.findall(r"-m (benchmarks[\w.]*)", commands) if find_spec(name) is None] == []


def pythons():
    """The versions that the package names."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = (kind.rpartition(" :: ")[2] for kind in project["classifiers"] if ":: Python :: 3." in kind)
    versions = sorted(named, key=lambda version: tuple(map(int, version.split("."))))
    assert project["requires-python"] == f">={versions[0]}"
    return versions


def test_versions_of_python_are_those_that_the_package_names():
    for job in ("linux", "elsewhere"):
        assert read(FOLDER / "ci.yml")["jobs"][job]["strategy"]["matrix"]["python"] == pythons()
    tried = read(FOLDER / "wheels.yml")["jobs"]["try"]["strategy"]["matrix"]["python"]
    assert tried == [pythons()[0], pythons()[-1]]
    single = {
        step["with"]["python-version"]
        for path in WORKFLOWS
        for step in steps_of(read(path))
        if step.get("uses", "").startswith("actions/setup-python@")
    }
    assert single - {"${{ matrix.python }}"} <= set(pythons())


def test_the_portable_tests_exist():
    named = re.findall(r"tests/[\w/.]+", (REPOSITORY / ".ci" / "portable").read_text(encoding="utf-8"))
    assert len(named) > 10
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


@pytest.mark.parametrize("name", ["bug", "feature", "model", "wrong-number"])
def test_an_issue_form_asks(name):
    form = read(REPOSITORY / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml")
    assert form["name"]
    assert form["description"]
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(ids) == len(set(ids)) >= 3
