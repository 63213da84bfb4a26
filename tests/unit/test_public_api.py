"""The public API is the recorded one, and what a release promised stays as long as it promised."""

import ast
import warnings
from pathlib import Path

import pytest

from scripts import public_api
from scripts.public_api import changed, name_of, removed_unannounced, unmentioned
from unmask.base.arguments import deprecated

CHANGELOG = (public_api.ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_public_api_is_the_recorded_one():
    recorded = public_api.CURRENT.read_text(encoding="utf-8").splitlines()
    names = changed(recorded, public_api.snapshot())
    todo = "run scripts/public_api.py, and add a line to CHANGELOG.md under Unreleased"
    assert not names, f"the public API changed: {todo}"


def test_the_changelog_names_what_changed_since_the_last_release():
    version, released = public_api.recorded()
    if version is None:
        pytest.skip("nothing is released yet")
    assert unmentioned(changed(released, public_api.snapshot()), CHANGELOG) == []


def test_what_is_gone_was_deprecated_in_the_last_release():
    _, released = public_api.recorded()
    assert removed_unannounced(released, public_api.snapshot(), public_api.version()) == []


def test_the_last_release_is_recorded():
    recorded, _ = public_api.recorded()
    assert recorded == public_api.newest_release(CHANGELOG), "run scripts/public_api.py --release"


def test_what_users_call_is_in_it():
    names = {name_of(line): line for line in public_api.snapshot()}
    for name in (
        "unmask.Model.classify",
        "unmask.Index.search",  # of a base class
        "unmask.load",
        "unmask.errors.TextTooLong.original_tokens",
        "unmask.families",
        "unmask.interpret.TopKeys",
        "unmask.serve.make_app",  # imported in a document
        "Classification.scores",  # a field of what is returned
        "Truncation",  # the choices of an argument
    ):
        assert name in names, name
    assert not [name for name in names if "._" in name and not name.endswith(".__init__")]
    assert names["Truncation"] == "Truncation = Literal['error', 'end']"
    assert names["unmask.Model.width"].endswith("-> int  @property")
    assert "float | None = None" in names["Hit.first_score"]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes a package of one module, and returns its public API."""

    def lines(source):
        (tmp_path / "unmask").mkdir(exist_ok=True)
        (tmp_path / "unmask" / "__init__.py").write_text(f"{source}\n__version__ = '0.3.0'\n")
        forget()
        return public_api.snapshot()

    def forget():
        public_api._module.cache_clear()
        public_api._names.cache_clear()

    monkeypatch.setattr(public_api, "ROOT", tmp_path)
    yield lines
    forget()


def test_each_kind_of_change_is_seen(package):
    before = package("__all__ = ['C', 'f']\nclass C:\n    x: int = 0\ndef f(a: int) -> C: ...")
    assert before == ["class unmask.C", "unmask.C.x: int = 0", "unmask.f(a: int) -> C"]
    for source, names in (
        ("class C:\n    x: int = 1\ndef f(a: int) -> C: ...", ["unmask.C.x"]),
        ("class C:\n    x: int = 0\ndef f(a: int, b: int = 0) -> C: ...", ["unmask.f"]),
        ("class C:\n    y: int = 0\ndef f(a: int) -> C: ...", ["unmask.C.x", "unmask.C.y"]),
        ("class C(dict):\n    x: int = 0\ndef f(a: int) -> C: ...", ["unmask.C"]),
        ("class C:\n    x: int = 0\n    def _h(self): ...\ndef f(a: int) -> C: ...", []),
    ):
        assert changed(before, package(f"__all__ = ['C', 'f']\n{source}")) == names
    assert changed(before, package("__all__ = ['f']\ndef f(a: int) -> C: ...")) == ["unmask.C"]


def test_a_deprecation_is_part_of_the_line(package):
    mark = "@deprecated('unmask.g', since='0.3.0', removed_in='0.4.0')"
    (line,) = package(f"__all__ = ['f']\n{mark}\ndef f() -> int: ...")
    assert line == "unmask.f() -> int  [deprecated since 0.3.0, removed in 0.4.0: use unmask.g]"


def test_the_changelog_must_name_a_change():
    names = ["unmask.Model.embed", "unmask.load"]
    text = (
        "# Changelog\n\n## Unreleased\n\n- `model.embed` takes `x`.\n\n## 0.2.0\n\n- `unmask.load` is new.\n"
    )
    assert unmentioned(names, text) == ["unmask.load"]
    assert unmentioned(names, text.replace("takes", "and `load` take")) == []
    assert unmentioned(["unmask.emb"], text) == ["unmask.emb"], "a part of a word is no name"
    assert public_api.newest_release(text) == "0.2.0"
    assert public_api.newest_release("# Changelog\n\n## Unreleased\n") is None


ANNOUNCED = "class unmask.C  [deprecated since 0.3.0, removed in 0.4.0: use unmask.D]"


@pytest.mark.parametrize(
    ("released", "present", "wrong"),
    [
        (["unmask.f(a: int) -> int"], "0.4.0", ["unmask.f"]),
        (["unmask.f(a: int) -> int"], "0.1.0", []),
        ([ANNOUNCED, "unmask.C.x: int"], "0.4.0", []),
        ([ANNOUNCED, "unmask.C.x: int"], "0.4.0rc1", []),
        ([ANNOUNCED, "unmask.C.x: int"], "0.3.1", ["unmask.C", "unmask.C.x"]),
        ([ANNOUNCED, "unmask.Cx(a: int) -> int"], "0.10.0", ["unmask.Cx"]),
    ],
    ids=["unannounced", "before-0.2", "announced", "candidate", "too-early", "another-name"],
)
def test_a_name_goes_only_after_it_was_announced(released, present, wrong):
    assert (
        removed_unannounced([*released, "unmask.g() -> int"], ["unmask.g(a: int) -> int"], present) == wrong
    )


def test_a_deprecated_name_works_and_says_what_replaces_it():
    mark = deprecated("unmask.new", since="0.3.0", removed_in="0.4.0")

    @mark
    def old(value):
        return value + 1

    @mark
    class Old:
        def __init__(self, value):
            self.value = value

        @property
        @mark
        def field(self):
            return self.value

    said = r"old is deprecated since unmask 0\.3\.0 and will be removed in 0\.4\.0; use unmask\.new"
    with pytest.warns(DeprecationWarning, match=said) as caught:
        assert old(1) == 2
    assert Path(caught[0].filename) == Path(__file__), "the warning is about the caller's line"
    with pytest.warns(DeprecationWarning, match="Old is deprecated"):
        thing = Old(3)
    with pytest.warns(DeprecationWarning, match=r"Old\.field is deprecated"):
        assert thing.field == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert thing.value == 3


def lasts_long_enough(since, end):
    """Until 1.0.0 to a later minor release, from then on to a later major one."""
    places = 2 if since < (1,) else 1
    return end[:places] > since[:places]


def test_marks_of_deprecation_last_for_a_minor_release():
    """Those in the package, each with the arguments that the record needs."""
    assert lasts_long_enough((0, 3, 0), (0, 4, 0))
    assert not lasts_long_enough((0, 3, 0), (0, 3, 1))
    assert not lasts_long_enough((1, 3, 0), (1, 4, 0))
    wrong = []
    for path in sorted((public_api.ROOT / "unmask").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "deprecated":
                words = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
                since, end = (public_api.numbers_of(words[name]) for name in ("since", "removed_in"))
                if not lasts_long_enough(since, end) or public_api.numbers_of(public_api.version()) >= end:
                    wrong.append(f"{path.name} line {node.lineno}")
    assert wrong == []


def test_every_name_has_one_line():
    lines = public_api.snapshot()
    assert len({name_of(line) for line in lines}) == len(lines)
