"""The house as docs/architecture.md draws it: no folder knows a higher floor, nothing goes in circles."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import unmask

ROOT = Path(unmask.__file__).parent

FLOORS = (
    {"errors", "axes", "deprecation", "optional", "files", "resume", "settings"},
    {"text", "http"},
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

TORCH_FREE = ("text", "http", "model/spec", "model/families")

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
