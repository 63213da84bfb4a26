"""What `make test-oldest` installs and runs.

    python scripts/oldest.py            constraints with the lowest declared version of what people install
    python scripts/oldest.py --tests    the test files that can be imported where it runs

torch and what the tests use keep their versions of constraints.txt: torch, because its oldest has no small
build for CPUs in the package index. References such as transformers need newer versions than these, so their
tests are left out.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINNED = ("torch", "httpx", "hypothesis", "matplotlib", "pytest", "pytest-timeout", "pytest-xdist")
EXTRAS = ("ann", "explorer", "figures", "finetune", "parquet", "search", "sentencepiece", "serve")
"""Whose packages are lowered, too."""


def name_of(requirement: str) -> str:
    """The package, as indexes compare names."""
    return re.split(r"[\[<>=~!; ]", requirement)[0].lower().replace("_", "-")


@cache
def installed(package: str) -> bool:
    """Whether a package can be imported."""
    return find_spec(package) is not None


def imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The modules that these nodes of a syntax tree import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def can_run(file: Path) -> bool:
    """Whether all that a file and the files of the repository that it imports need is installed.

    The fixtures of tests/conftest.py skip the tests that lack a package by themselves.
    """
    files, seen = [file], set()
    while files:
        file = files.pop()
        seen.add(file)
        tree = ast.parse(file.read_text("utf-8"))
        fixtures = file == ROOT / "tests" / "conftest.py"
        for module in imports(ast.walk(tree)):
            inside = ROOT / f"{module.replace('.', '/')}.py"
            if module.partition(".")[0] not in ("benchmarks", "scripts", "tests"):
                if not installed(module.partition(".")[0]):
                    return False
            elif inside.exists() and inside not in seen and not fixtures:
                files.append(inside)
    return True


def main() -> None:
    """Print the constraints, or the tests."""
    if sys.argv[1:] == ["--tests"]:
        for file in sorted((ROOT / "tests").rglob("test_*.py")):
            fixtures = (folder / "conftest.py" for folder in file.parents)
            if all(can_run(part) for part in (file, *filter(Path.exists, fixtures))):
                print(file.relative_to(ROOT))
        return
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = [
        *project["dependencies"],
        *(x for extra in EXTRAS for x in project["optional-dependencies"][extra]),
    ]
    lowest = {
        name_of(requirement): found[1]
        for requirement in declared
        if (found := re.search(r">=([\d.]+)", requirement)) and name_of(requirement) not in PINNED
    }
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        if name_of(line) in PINNED:
            print(line)
    for name, version in sorted(lowest.items()):
        print(f"{name}=={version}")


if __name__ == "__main__":
    main()
