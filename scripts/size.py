"""Lines of code per folder of the package: a watched quantity.

    python scripts/size.py [--depth 2]

Counts lines that hold code: no blank lines, no comments, no docstrings.
"""

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1] / "unmask"


def code_lines(source: str) -> int:
    """Lines with at least one token that is neither a comment nor part of a docstring."""
    documented = set()
    for node in ast.walk(ast.parse(source)):
        for statement in getattr(node, "body", []) if isinstance(getattr(node, "body", []), list) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                documented.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    silent = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=2, help="folders are shown down to this depth")
    depth = parser.parse_args().depth
    files, lines = Counter(), Counter()
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).parts[:-1]
        size = code_lines(path.read_text(encoding="utf-8"))
        for level in range(min(depth, len(parts)) + 1):
            name = "/".join(("unmask", *parts[:level]))
            files[name] += 1
            lines[name] += size
    print(f"{'folder':32s} {'files':>6s} {'lines of code':>14s}")
    for name in sorted(lines):
        print(f"{name:32s} {files[name]:6d} {lines[name]:14,d}")


if __name__ == "__main__":
    main()
