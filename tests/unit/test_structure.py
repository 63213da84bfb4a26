"""The house as docs/architecture.md draws it: no folder knows a higher floor, nothing goes in circles."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import unmask

ROOT = Path(unmask.__file__).parent

TOP = {"__init__", "__main__", "errors"}
"""Files directly in the package; everything else is in a room."""

FLOORS = (
    {"errors"},
    {"base"},
    {"text", "http"},
    {"spec"},
    {"families"},
    {"kernels"},
    {"encoder"},
    {"weights"},
    {"engines"},
    {"tasks", "interpret"},
    {"training"},
    {"models"},
    {"search", "bulk"},
    {"evaluate"},
    {"bench"},
    {"serve", "explorer"},
    {"cli"},
    {"__init__", "__main__"},
)
"""Lowest first; a file or room of the package imports its own room and those on lower floors."""

SHELVES = {
    "encoder": (
        {"hooks", "finite", "trained_linear"},
        {"layers"},
        {"heads", "elmo"},
        {"encoder"},
        {"decoder"},
    ),
    "weights": (
        {"tensor_report", "tensors", "elmo", "elmo_files"},
        {"heads"},
        {"read"},
        {"adapters"},
        {"build"},
        {"write"},
    ),
    "engines": (
        {"engine", "computed", "inference"},
        {"torch_engine"},
        {"native", "routed", "export"},
        {"backend", "static"},
    ),
    "interpret": (
        {"activation_cache"},
        {"geometry", "words"},
        {"attention"},
        {"effects", "figures"},
        {"overview"},
        {"corpus"},
    ),
    "training": (
        {"table", "vocabulary"},
        {"data", "optim"},
        {"objectives"},
        {"run", "view"},
        {"pretrain"},
        {"finetune", "retrieval"},
    ),
    "explorer": (
        {"experiments", "page", "wire"},
        {"sessions", "tour"},
        {"routes"},
        {"export"},
        {"api"},
        {"server"},
    ),
    "bench": (
        {"machine", "memory", "benchmark_model", "timing"},
        {"speed"},
        {"scaling"},
    ),
}
"""Inside a room, lowest first. Shelves on the lowest floor of a room may import each other."""

BOTH_WAYS = ("training",)
"""Rooms whose two highest shelves may import each other: a run that trains a retriever is started as any
fine-tuning run, and shares its settings."""

TORCH_FREE = (
    "text",
    "http",
    "spec",
    "families",
    "base",
    "search",
    "tasks",
    "training/run/settings.py",
    "weights/adapters",
    "weights/heads",
    *(
        f"weights/{reader}.py"
        for reader in (
            "__init__",
            "tensor_report",
            "tensors",
            "elmo",
            "read/architecture",
            "read/checkpoint",
            "read/checkpoint_tensors",
            "read/find",
            "read/inspect",
        )
    ),
)
"""Folders and files from which nothing leads to torch, through other modules of the package either."""


FOREIGN = ("transformers", "sentence_transformers")


@cache
def _modules(root: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if len(parts) > 1 and parts[-1] == "__init__":
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below ``unmask``; packages without ``__init__``."""
    return _modules(ROOT)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parsed(path)))


@cache
def imports(path: Path, *, run_time_only: bool = False) -> tuple[str, ...]:
    """Full names that a file imports, inside functions too unless ``run_time_only``."""
    return tuple(_imports(path, run_time_only))


def _imports(path: Path, run_time_only: bool) -> Iterator[str]:
    skipped: set[ast.AST] = set()
    if run_time_only:
        for node in nodes(path):
            later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            if later or typing:
                skipped.update(ast.walk(node))
    for node in nodes(path):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively; write the whole name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def floor_of(name: str, floors: tuple[set[str], ...]) -> int:
    numbers = [number for number, floor in enumerate(floors) if name in floor]
    assert numbers, f"{name} stands on no floor; say where it belongs"
    return numbers[0]


def upward(floors: tuple[set[str], ...], prefix: str) -> list[str]:
    """Imports from a file below ``prefix`` to one of the same prefix on a floor that it may not know."""
    wrong = []
    for name, path in modules().items():
        full = f"unmask.{name}"
        if not full.startswith(f"{prefix}.") or name == "__init__":
            continue
        own = full.removeprefix(f"{prefix}.").split(".")[0]
        for imported in imports(path):
            if not imported.startswith(f"{prefix}."):
                continue
            other = imported.removeprefix(f"{prefix}.").split(".")[0]
            if not any(other in floor for floor in floors):
                continue  # a name of the package itself, such as unmask.__version__
            up = floor_of(other, floors) > floor_of(own, floors)
            beside = floor_of(other, floors) == floor_of(own, floors) and other != own
            if up or (beside and floor_of(own, floors) > 0):
                wrong.append(f"{full} imports {imported}")
    return wrong


def test_no_folder_imports_a_higher_floor():
    assert upward(FLOORS, "unmask") == []


@pytest.mark.parametrize("room", SHELVES)
def test_inside_a_room_no_shelf_imports_a_higher_one(room):
    highest = SHELVES[room][-1] if room in BOTH_WAYS else set()
    wrong = upward(SHELVES[room], f"unmask.{room}")
    both = {f"unmask.{room}.{shelf}." for shelf in highest}
    assert [line for line in wrong if sum(way in line for way in both) < 2] == []


def test_a_file_lies_in_a_room_or_on_its_shelf():
    """The first folder says the room, the second the shelf, and there is no third."""
    names = modules()
    assert {name for name in names if "." not in name and not (ROOT / name).is_dir()} == TOP
    deep = [path for path in names.values() if len(path.relative_to(ROOT).parts) > 3]
    assert deep == []


def test_the_floor_test_sees_an_upward_import(tmp_path, monkeypatch):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "bad.py").write_text("from unmask.cli.main import main\n")
    monkeypatch.setattr("tests.unit.test_structure.ROOT", tmp_path)
    assert upward(FLOORS, "unmask") == ["unmask.text.bad imports unmask.cli.main.main"]


def test_no_module_imports_itself_through_others():
    """Nor for its types, or inside a function."""
    known = modules()

    def target(imported: str) -> str:
        name = imported.removeprefix("unmask.")
        return name if name in known else name.rpartition(".")[0]

    graph = {
        name: {
            target(imported)
            for imported in imports(path, run_time_only=path.name == "__init__.py")
            if imported.startswith("unmask.") and target(imported) in known
        }
        for name, path in known.items()
    }
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name not in done:
            for other in sorted(graph[name] - {name}):
                visit(other, (*way, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def way_to_torch(start: Path) -> list[str]:
    """The modules from a file of the package to one that imports torch, whichever way; nothing where none."""
    known = modules()
    (name,) = (name for name, path in known.items() if path == start)
    ways = {name: [name]}
    for here in (waiting := [name]):
        for imported in imports(known[here], run_time_only=True):
            if imported.split(".")[0] == "torch":
                return [*ways[here], imported]
            parts = imported.removeprefix("unmask.").split(".")
            above = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}  # packages run first
            for other in sorted(above & known.keys() - ways.keys()):
                ways[other] = [*ways[here], other]
                waiting.append(other)
    return []


@pytest.mark.parametrize("place", TORCH_FREE)
def test_torch_free(place):
    files = [ROOT / place] if place.endswith(".py") else sorted((ROOT / place).rglob("*.py"))
    assert files
    for path in files:
        assert not [name for name in imports(path) if name.split(".")[0] == "torch"], path
        assert way_to_torch(path) == []


@pytest.mark.parametrize("place", ["models/load.py", "cli/tasks/embed.py", "serve/app.py", "search/index.py"])
def test_torch_is_not_imported_before_it_is_needed(place):
    assert way_to_torch(ROOT / place) == []


def test_torch_is_seen_behind_other_modules(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text("from unmask.b import thing\n")
    (tmp_path / "b.py").write_text("from unmask import c\nimport unmask.a\n")
    (tmp_path / "c.py").write_text("from torch import nn\n")
    monkeypatch.setattr("tests.unit.test_structure.ROOT", tmp_path)
    assert way_to_torch(tmp_path / "a.py") == ["a", "b", "c", "torch.nn"]


def test_references_are_never_imported():
    for path in modules().values():
        assert not [imported for imported in imports(path) if imported.split(".")[0] in FOREIGN], path


def test_the_encoder_names_no_family():
    from unmask.families import FAMILIES

    for room in ("kernels", "encoder"):
        for path in sorted((ROOT / room).rglob("*.py")):
            strings = {
                node.value
                for node in nodes(path)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            }
            assert not strings & {family.name for family in FAMILIES}, path


PAGE_PARTS = ("KEYS", "ROWS", "spec", "HEADS", "PUBLISHED", "Family")
"""What every family's page has, in this order; a page without heads or checkpoints leaves those out."""


def parts_of_page(path: Path) -> list[str]:
    """The parts of a page in the order in which they are made."""
    found: list[str] = []
    for node in parsed(path).body:
        if isinstance(node, ast.FunctionDef) and node.name == "spec":
            found.append("spec")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            name = target.id if isinstance(target, ast.Name) else ""
            made = ast.unparse(node.value) if node.value is not None else ""
            if name in PAGE_PARTS:
                found.append(name)
            elif "model_types=" in made or made.startswith("_family("):
                found.append("Family")
    return list(dict.fromkeys(found))


def test_family_pages_list_their_parts_in_one_order():
    folder = ROOT / "families"
    pages = [path for path in sorted(folder.glob("*.py")) if "encoder_rows=" in path.read_text()]
    assert len(pages) >= 17
    for path in pages:
        found = parts_of_page(path)
        assert found == [part for part in PAGE_PARTS if part in found], path.name
        assert {"KEYS", "spec", "Family"} <= set(found), path.name


AXIS = re.compile(r"[a-z0-9]_([A-Z][A-Z0-9]*[a-z]?)$")
"""What a name like ``x_TD`` or ``keys_HRk`` ends in."""
LONGEST_AXES = 6


def axes_used(walked: Iterable[ast.AST]) -> dict[str, str]:
    """Each axis letter at the end of a name, and one name that has it."""
    found = {}
    for node in walked:
        name = next((value for field in ("id", "attr", "arg") if (value := getattr(node, field, None))), None)
        if isinstance(name, str) and (match := AXIS.search(name)) and len(match[1]) <= LONGEST_AXES:
            found |= {letter: name for letter in match[1] if not letter.isdigit()}
    return found


def axes_declared(tree: ast.Module) -> set[str]:
    """The letters that a module's docstring explains: ``Axes: W words; P pairs of segments.``"""
    docstring = ast.get_docstring(tree) or ""
    _, _, text = docstring.partition("\n\nAxes: ")
    return {entry.split()[0] for entry in text.split(";") if entry.strip()}


def test_axis_letters_are_explained():
    table = (ROOT.parent / "docs" / "vocabulary.md").read_text(encoding="utf-8").partition("## Axes")[2]
    known = set(re.findall(r"^\| `(\w)` \|", table, flags=re.MULTILINE))
    assert known
    wrong = []
    for name, path in modules().items():
        used, declared = axes_used(nodes(path)), axes_declared(parsed(path))
        wrong += [f"{name}: {used[letter]} has an axis {letter}" for letter in used.keys() - declared - known]
        wrong += [f"{name}: explains {letter}, which no name has" for letter in declared - used.keys()]
    assert sorted(wrong) == []


def test_the_axis_test_sees_a_letter_that_nobody_explained():
    tree = ast.parse(
        '"""A module.\n\nAxes: W words; G groups\nof words."""\nx_TW = edges_HNk = norms_Q11 = RESULT_X'
    )
    assert axes_used(ast.walk(tree)) == {
        "T": "x_TW", "W": "x_TW", "H": "edges_HNk", "N": "edges_HNk", "k": "edges_HNk", "Q": "norms_Q11",
    }  # fmt: skip
    assert axes_declared(tree) == {"W", "G"}


def test_a_match_has_a_case_for_everything_else():
    """It ends in `assert_never`, which the type checker proves, or says what else is done."""
    wrong = []
    for name, path in modules().items():
        for node in nodes(path):
            if isinstance(node, ast.Match):
                last = node.cases[-1].pattern
                if not (isinstance(last, ast.MatchAs) and last.pattern is None):
                    wrong.append(f"{name} line {node.lineno}")
    assert wrong == []


def test_the_guards_of_promises_are_there():
    page = (ROOT.parent / "docs" / "promises.md").read_text(encoding="utf-8")
    guards = re.findall(r"`(tests/[\w/]+\.py)`", page)
    assert len(guards) > 40
    assert [guard for guard in guards if not (ROOT.parent / guard).is_file()] == []
    for row in page.splitlines():
        files = [ROOT.parent / guard for guard in re.findall(r"`(tests/[\w/]+\.py)`", row)]
        assert not files or not all(LONG.search(file.read_text()) for file in files), row


LONG = re.compile(r"^pytestmark = .*\n?.*mark\.long", re.MULTILINE)
"""All of a file is left to `make test-long`."""


MOST_LINES = 500
"""Of a file of the package: one concept that a reader can hold in the head."""
WHOLE = {"models.model": 1400}
"""`Model` is one class that a reader sees whole: signature, docstring and one call of every task."""


def test_no_test_starts_a_loop_in_its_own_thread():
    """The thread of a browser test has a loop for as long as the browser runs, whatever test comes next."""
    tests = Path(__file__).parents[1]
    home = tests / "support/waiting.py"
    starts = [path for path in tests.rglob("*.py") if path != home and "asyncio" + ".run" in path.read_text()]
    assert not starts, "use tests.support.waiting.run_coroutine"


def test_no_file_holds_several_concepts():
    sizes = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}
    assert {name: lines for name, lines in sizes.items() if lines > WHOLE.get(name, MOST_LINES)} == {}


MOST_BODY_LINES = 80
"""Of a function, besides its signature and docstring; ruff bounds how many ways lead through it."""
MOST_FILES = 600
"""Of the package: a new file is a new concept, and room for it is made by joining others."""


def test_no_function_is_longer_than_a_screen():
    long = {}
    for name, path in modules().items():
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                if body and (lines := body[-1].end_lineno - body[0].lineno + 1) > MOST_BODY_LINES:
                    long[f"{name}.{node.name}"] = lines
    assert long == {}


def test_files_are_counted():
    assert len(modules()) <= MOST_FILES


def documented_arguments(node: ast.AST) -> Iterator[str]:
    """The names under "Args:" of a function, or of a class, whose arguments are those of its constructor."""
    text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef | ast.ClassDef) else None
    if text and "Args:\n" in text:
        block = re.split(r"\n\n(?=\S)", text.split("Args:\n", 1)[1])[0]
        yield from re.findall(r"^    (\w+): ", block, re.MULTILINE)


def test_documented_arguments_are_those_of_the_function():
    wrong = []
    for name, path in modules().items():
        for node in nodes(path):
            members = node.body if isinstance(node, ast.ClassDef) else [node]
            constructors = (m for m in members if getattr(m, "name", "") == "__init__" or m is node)
            function = next((m for m in constructors if isinstance(m, ast.FunctionDef)), None)
            if function is None:
                continue
            taken = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
            wrong += [f"{name}.{node.name}: {missing}" for missing in {*documented_arguments(node)} - taken]
    assert wrong == []
