"""The house as docs/architecture.md draws it: no folder knows a higher floor, nothing goes in circles."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import unmask

ROOT = Path(unmask.__file__).parent

FLOORS = (
    {"errors", "axes", "deprecation", "optional", "files", "resume", "settings"},
    {"text"},
    {"model"},
    {"tasks", "learn", "see"},
    {"loaded"},
    {"search", "measure"},
    {"serve", "explorer"},
    {"cli"},
    {"__init__", "__main__"},
)
"""Lowest first; a file or folder of the package imports its own floor's own folder and lower floors."""

MODEL_FLOORS = (
    {"spec", "tap"},
    {"families", "kernels"},
    {"layers"},
    {"heads"},
    {"encoder", "elmo"},
    {"fast", "compiled", "trained_linear", "decoder"},
    {"weights"},
)

MEASURE_FLOORS = (
    {"machine", "memory", "subject", "texts", "timing"},
    {"peers"},
    {"bench", "probes"},
    {"evolve", "wall"},
)

TORCH_FREE = ("text", "model/spec", "model/families")

FOREIGN = ("transformers", "sentence_transformers")


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below ``unmask``; packages without ``__init__``."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if len(parts) > 1 and parts[-1] == "__init__":
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


def imports(path: Path, *, run_time_only: bool = False) -> Iterator[str]:
    """Full names that a file imports, inside functions too unless ``run_time_only``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[ast.AST] = set()
    if run_time_only:
        for node in ast.walk(tree):
            later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            if later or typing:
                skipped.update(ast.walk(node))
    for node in ast.walk(tree):
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


def test_inside_model_no_part_imports_a_higher_one():
    assert upward(MODEL_FLOORS, "unmask.model") == []


def test_inside_measure_no_part_imports_a_higher_one():
    assert upward(MEASURE_FLOORS, "unmask.measure") == []


def test_the_floor_test_sees_an_upward_import(tmp_path, monkeypatch):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "bad.py").write_text("from unmask.cli.main import main\n")
    monkeypatch.setattr("tests.unit.test_structure.ROOT", tmp_path)
    assert upward(FLOORS, "unmask") == ["unmask.text.bad imports unmask.cli.main.main"]


def test_no_module_imports_itself_through_others():
    known = modules()
    graph = {
        name: {
            target
            for imported in imports(path, run_time_only=True)
            for target in (
                imported.removeprefix("unmask."),
                imported.removeprefix("unmask.").rpartition(".")[0],
            )
            if imported.startswith("unmask.") and target in known
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


@pytest.mark.parametrize("folder", TORCH_FREE)
def test_torch_free(folder):
    for path in sorted((ROOT / folder).rglob("*.py")):
        assert not [name for name in imports(path) if name.split(".")[0] == "torch"], path


def test_references_are_never_imported():
    """But by the benchmark of peers, when it is asked to run one."""
    for name, path in modules().items():
        later = name.startswith("measure.peers.")
        found = imports(path, run_time_only=later)
        assert not [imported for imported in found if imported.split(".")[0] in FOREIGN], path


def test_the_encoder_names_no_family():
    from unmask.model.families import FAMILIES

    for part in ("kernels", "layers", "heads", "encoder.py", "tap.py"):
        where = ROOT / "model" / part
        for path in sorted(where.rglob("*.py")) if where.is_dir() else [where]:
            strings = {
                node.value
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            }
            assert not strings & {family.name for family in FAMILIES}, path


AXIS = re.compile(r"[a-z0-9]_([A-Z][A-Z0-9]*[a-z]?)$")
"""What a name like ``x_TD`` or ``keys_HRk`` ends in."""
LONGEST_AXES = 6


def axes_used(tree: ast.AST) -> dict[str, str]:
    """Each axis letter at the end of a name, and one name that has it."""
    found = {}
    for node in ast.walk(tree):
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
    from unmask.axes import AXES

    wrong = []
    for name, path in modules().items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        used, declared = axes_used(tree), axes_declared(tree)
        wrong += [
            f"{name}: {used[letter]} has an axis {letter}" for letter in used.keys() - declared - AXES.keys()
        ]
        wrong += [f"{name}: explains {letter}, which no name has" for letter in declared - used.keys()]
    assert sorted(wrong) == []


def test_the_axis_test_sees_a_letter_that_nobody_explained():
    tree = ast.parse(
        '"""A module.\n\nAxes: W words; G groups\nof words."""\nx_TW = edges_HNk = norms_Q11 = RESULT_X'
    )
    assert axes_used(tree) == {
        "T": "x_TW", "W": "x_TW", "H": "edges_HNk", "N": "edges_HNk", "k": "edges_HNk", "Q": "norms_Q11",
    }  # fmt: skip
    assert axes_declared(tree) == {"W", "G"}
